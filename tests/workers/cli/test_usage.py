"""What the parser refuses, what the help shows, and completion."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC
from workers.cli.root_command import COMMANDS, import_command

_REFUSED = [
    (("topic", "creat"), "command: expected a command of `sexton topic` (nearest: create), found 'creat'"),
    (("topic", "schema", "lst"), "command: expected a command of `sexton topic schema` (nearest: list), found 'lst'"),
    (("deletion", "list", "--limt", "3"), "option: expected one that `sexton deletion list` has (nearest: --limit)"),
    (("ledger", "delete", ORDERS_TOPIC, "-1"), "option: expected one that `sexton ledger delete` has, found '-1'"),
    (("topic", "show"), "name: expected a value, found nothing"),
    (("topic", "append", ORDERS_TOPIC), "file: expected a value, found nothing"),
    (("topic", "show", ORDERS_TOPIC, "more"), "arguments: expected no more than NAME, found 'more'"),
    (("topic", "list", "--nonsense"), "option: expected one that `sexton topic list` has"),
    (("deletion", "list", "--limit"), "limit: expected a value, found nothing"),
    (("deletion", "list", "--limit", "0"), "limit: expected a whole number from 1 to 1,000,000, found '0'"),
    (("topic", "read", ORDERS_TOPIC, "--max", "x"), "max: expected a whole number from 1 to 1,000,000, found 'x'"),
    (("worker", "deploy", "--build-id", "b", "--ramp", "101"), "ramp: expected a number from 0 to 100, found '101'"),
    (("topic", "offload", ORDERS_TOPIC, "--ledger", "x"), "ledger: expected a whole number"),
    (("deletion", "list", "--state", "GONE"), "state: expected one of PENDING, DELETED, DEAD_LETTERED, found 'GONE'"),
    (("up", "--no-worker=yes"), "no-worker: expected no value: it is a flag, found one"),
    (("--json", "topic"), "command: expected one of create, list, show"),
]


@pytest.mark.parametrize(("args", "message"), _REFUSED)
def test_usage_error_of_any_kind_says_field_expected_and_found(run: Run, args: tuple[str, ...], message: str) -> None:
    """The parser's refusals look like all others, for people and in JSON."""
    told = run(*args)
    assert told.exit_code == 2
    assert next(line for line in told.stderr.splitlines() if line.startswith("error: ")).startswith(f"error: {message}")
    error = document(run("--json", *args), 2)["error"]
    assert error["message"].startswith(message)
    assert (error["type"], error["field"]) == ("UsageError", message.partition(":")[0])


@pytest.mark.parametrize(("path", "command"), [((), "deletion"), (("topic",), "subscribe")])
def test_group_without_a_command_shows_its_help(run: Run, path: tuple[str, ...], command: str) -> None:
    """Nothing was asked for: exit code 2, and no error."""
    told = run(*path)
    assert (told.exit_code, "error:" in told.output) == (2, False)
    assert command in told.stdout


@pytest.mark.parametrize("path", [(), ("topic",), ("topic", "create"), ("topic", "schema", "set")])
def test_help_by_either_name_is_the_same_on_every_level(run: Run, path: tuple[str, ...]) -> None:
    """`-h` is `--help`; no flag is shown with a type, for it takes no value."""
    short, long = run(*path, "-h"), run(*path, "--help")
    assert short.exit_code == long.exit_code == 0
    assert short.stdout == long.stdout
    assert "<bool>" not in long.stdout


def test_completion_of_commands_is_given_to_the_shell(run: Run) -> None:
    """The shell asks through the environment; the options to install it are Typer's."""
    asked = {"_SEXTON_COMPLETE": "complete_bash", "COMP_WORDS": "sexton topic sub", "COMP_CWORD": "2"}
    sexton = Path(sys.executable).with_name("sexton")
    told = subprocess.run([sexton], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["subscribe"]
    assert "--install-completion" in run("--help").stdout


def _commands(path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in COMMANDS if not path else ():
        yield from _below((name,), import_command(name))


def _below(path: tuple[str, ...], found: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    names: list[str] = found.list_commands(None) if hasattr(found, "list_commands") else []
    for name in names:
        yield from _below((*path, name), found.get_command(None, name))
    if not names:
        yield path, found


def _examples(text: str) -> list[str]:
    """Whole lines of the examples, as a shell reads them."""
    lines = text.rsplit("Examples:\n", maxsplit=1)[-1].split("\n\n", maxsplit=1)[0].rstrip().splitlines()
    return [
        " ".join(line.split()) for line in "\n".join(line.rstrip() for line in lines).replace("\\\n", "").splitlines()
    ]


def test_examples_of_every_help_can_be_pasted_from_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than a line is broken with a backslash, and the terminal breaks nothing."""
    monkeypatch.setenv("COLUMNS", "80")
    seen = 0
    for path, command in _commands():
        known = _examples(command.help)
        shown = run(*path, "--help").stdout
        if "Examples:" in command.help:
            assert max(map(len, shown.splitlines())) <= 80
            assert _examples(re.sub(" +\n", "\n", shown)) == known, path
            assert all("sexton" in line and "ORDERS" not in line for line in known), path
            seen += 1
    assert seen > 40
    first = run("--help").stdout.partition("A first session:\n")[2].partition("\n\n")[0]
    assert max(map(len, first.splitlines())) <= 80


def test_refusal_names_every_option_as_it_is_typed(run: Run) -> None:
    """An option whose value is missing, and a flag that is given one, in each command that has it."""
    seen = set()
    for path, command in _commands():
        for option in command.params:
            name = max(option.opts, key=len)
            if option.param_type_name == "option" and name != "--help":
                given = f"{name}=yes" if getattr(option, "is_bool_flag", False) else name
                error = document(run("--json", *path, given), 2)["error"]
                assert error["field"] == name.removeprefix("--"), path
                seen.add(name)
    assert {"--no-worker", "--older-than", "--eligible-age", "--run-id"} <= seen


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("orphans", "report", "no plan!"), "run_id"),
        (("orphans", "plan", "--older-than", "x"), "older-than"),
        (("tombstones", "raid", "--eligible-age", "x"), "eligible-age"),
        (("tombstones", "sizing", "--records", "1", "--key-bytes", "99999"), "key-bytes"),
        (("topic", "create", ORDERS_TOPIC, "--retention-bytes", "-1"), "retention-bytes"),
        (("worker", "run", "--worker-id", "a/b"), "worker-id"),
        (("owners", "list", "--worker", "a/b"), "worker"),
        (("deletion", "redrive"), "id"),
    ],
)
def test_refusal_of_a_value_names_its_field_as_it_is_typed(run: Run, args: tuple[str, ...], field: str) -> None:
    """One spelling, whichever part of the program refuses the value."""
    error = document(run(*args, "--json"), 2)["error"]
    assert (error["field"], error["message"].partition(":")[0]) == (field, field)
