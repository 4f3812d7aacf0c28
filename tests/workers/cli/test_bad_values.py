"""Every command and option that there is, given what it does not take: refused in one form, and nothing changed."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
import typer

from tests.workers.cli.conftest import Run
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices
from workers.cli import app

_FORM: Final = re.compile(r"error: (?P<field>.+?): expected .+, found .+")
_TEXTS: Final = ("", "\x1b[2J", "a\nb", "a\u202eb", "x" * 5_000, "..")
_NUMBERS: Final = ("", "\x1b[2J", "one", "1.5", "0x10", "9" * 30, str(2**63))
_VALID: Final = {
    "--into": "sqlite:////nowhere/catalog.db",
    "NAME": ORDERS_TOPIC,
    "TOPIC": ORDERS_TOPIC,
    "SUB": "billing",
    "ID": "4",
    "LEDGER_ID": "4",
    "ID...": "4",
    "WORKFLOW_ID": "delete-ledgers/b",
    "SCHEDULE_ID": "sexton-records",
    "BUNDLE": "0",
    "RUN_ID": "plan-1",
    "TC:SEQ": "3:17",
    "TXN...": "3:17",
    "--participant": "7",
    "--file": __file__,
    "--subscription": "billing",
    "--to": "4:0",
    "--build-id": "b",
    "--records": "9",
    "--function": "expired",
    "--remove-copy": "LEDGER",
}
_ANY_PRINTABLE: Final = {"--reason", "--home"}  # where `..` is as good as anything


@dataclass(frozen=True)
class Command:
    """A command by the words that name it."""

    path: tuple[str, ...]
    params: tuple[Any, ...]

    def line(self, changed: Mapping[str, str | None] | None = None) -> list[str]:
        """Its words with a valid value for all that it needs; `changed` has other values, None for none at all."""
        values = {_name(one): _VALID[_name(one)] for one in self.params if one.required} | dict(changed or {})
        words: list[str] = []
        for name, value in values.items():
            words += [] if value is None else [name, value] if name.startswith("--") else [value]
        return [*self.path, *words]


def _name(parameter: Any) -> str:
    shown = parameter.display_name_raw if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
    return str(shown).strip("[]")


def _commands(command: Any, path: tuple[str, ...] = (), parent: Any = None) -> Iterator[Command]:
    settings = command.context_settings  # a command remembers how the first one who asked calls for help
    context = typer.Context(command, info_name=path[-1] if path else "sexton", parent=parent, **settings)
    if not hasattr(command, "list_commands"):
        yield Command(path, tuple(command.get_params(context)))
        return
    for name in command.list_commands(context):
        yield from _commands(command.get_command(context, name), (*path, name), context)


COMMANDS: Final = {" ".join(found.path): found for found in _commands(typer.main.get_command(app))}


def _bad(parameter: Any) -> Iterator[str]:
    """Values that it does not take."""
    kind, name = parameter.type_descriptor, _name(parameter)
    if kind.is_choice:
        yield from (*_TEXTS, "NONSENSE")
    elif "int" in str(kind.annotation):
        yield from _NUMBERS
        if name.startswith("--"):
            yield "-1"
    else:
        yield from (text for text in _TEXTS if not (name in _ANY_PRINTABLE and text == ".."))


def _refused(command: Command) -> Iterator[list[str]]:
    yield [*command.line(), "--nonsense"]
    if not any(one.nargs == -1 for one in command.params):
        yield [*command.line(dict.fromkeys(_optional_arguments(command), "4")), "one more"]
    for one in command.params:
        name = _name(one)
        if one.required:
            yield command.line({name: None})
        if getattr(one, "is_flag", False):
            yield [*command.line(), f"{name}=yes"]
            continue
        if name.startswith("--"):
            yield [*command.line({name: None}), name]
        yield from (command.line({name: value}) for value in _bad(one))


def _optional_arguments(command: Command) -> list[str]:
    return [_name(one) for one in command.params if one.param_type_name == "argument" and not one.required]


def test_commands_are_all_found() -> None:
    """The walk below is as good as this list."""
    assert len(COMMANDS) >= 38
    assert {"up", "topic create", "topic schema set", "deletion rate", "owners unload"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_command_any_bad_value_is_refused_in_one_form_and_changes_nothing(
    run: Run, services: FakeCommandServices, command: Command
) -> None:
    """Exit code 2, one line that says field, expected and found, no traceback, and no effect."""
    assert run("topic", "create", ORDERS_TOPIC).exit_code == 0
    before = services.memory()
    wrong = [(line, problem) for line in _refused(command) if (problem := _problem(run, line))]
    assert wrong == []
    assert services.memory() == before


def _problem(run: Run, line: list[str]) -> object:
    """What is wrong with how the line is refused."""
    told = run("--json", *line)
    errors = [one for one in told.stderr.splitlines() if one.startswith("error: ")]
    if told.exit_code != 2 or len(errors) != 1 or not _FORM.fullmatch(errors[0]) or "Traceback" in told.stderr:
        return told.exit_code, told.stderr[-400:]
    error = json.loads(told.stdout)["error"]
    right = errors[0] == f"error: {error['message']}" and error["message"].startswith(f"{error['field']}: expected ")
    return None if right else error


@pytest.mark.parametrize("name", ["LOGNAME", "USER"])
def test_actor_that_cannot_be_printed_is_refused(
    run: Run, services: FakeCommandServices, orders: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Who acts is stored in the audit log, and comes from the environment."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "me\x1b[2J")
    told = run("topic", "trim", orders)
    assert (told.exit_code, services.client.asked) == (2, [])
    assert told.stderr.startswith("error: actor: expected 1 to 200 printable characters")
