"""The root of the command line: which module has which command, and the surroundings that its process needs.

A command costs its imports; `--help` and `--version` cost none but these words. A test compares them with the modules'.
"""

import codecs
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from workers import VERSION
from workers.cli.command import CommandGroup, HomeFlag, JsonFlag, WideFlag, options


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of the root, and where it is."""

    about: str  # one line
    module: str  # of `workers.cli`; has the group
    group: str = ""  # the group in that module of which it is one command; "": the group of its own name
    beside: Sequence[str] = ()  # modules that add commands to it


COMMANDS = {
    "up": CommandEntry("Start Temporal, S3, ZooKeeper, the database and a worker.", "stack", "stack"),
    "down": CommandEntry("Stop what `up` started in this home, and nothing else.", "stack", "stack"),
    "env": CommandEntry(
        "Print shell exports, so that `temporal`, `aws` and `sqlite3` reach this stack.", "stack", "stack"
    ),
    "status": CommandEntry("Tell whether each service answers.", "stack", "stack"),
    "doctor": CommandEntry("Check services, Java, versions, buckets, clock and search attributes.", "stack", "stack"),
    "demo": CommandEntry("Run the main job on a throw-away stack, kill a worker half way.", "stack", "stack"),
    "trace": CommandEntry("Draw the spans of a trace as a tree.", "trace.trace", "traces"),
    "replay": CommandEntry("Replay a job's history against the workflows of this build.", "workflow", "replays"),
    "catalog": CommandEntry("The SQL catalog.", "stack"),
    "config": CommandEntry("Settings and where they come from.", "stack"),
    "worker": CommandEntry("Worker processes, and the builds of them.", "worker"),
    "workflow": CommandEntry("Jobs in Temporal.", "workflow"),
    "topic": CommandEntry(
        "Topics: create, append, read, acknowledge, trim.",
        "topic.topics",
        beside=("topic.append", "topic.jobs", "topic.read", "topic.schema"),
    ),
    "ledger": CommandEntry("Ledgers of a topic.", "ledger.ledgers", beside=("ledger.explain",)),
    "deletion": CommandEntry("Deletions on their way, and those that failed.", "deletion"),
    "orphans": CommandEntry(
        "What storage holds and nothing refers to: find it, look at it, remove it.",
        "orphans.runs",
        beside=("orphans.report",),
    ),
    "scrub": CommandEntry(
        "Read every stored segment and tiered copy, and compare their digests.", "orphans.scrub", "scrubs"
    ),
    "txn": CommandEntry("Transactions: begin, commit, abort, and see what they still owe.", "txn"),
    "delayed": CommandEntry("Delayed messages: the buckets of their index.", "delayed"),
    "records": CommandEntry("The record log, from which a lost catalog is rebuilt.", "records", beside=("databases",)),
    "tombstones": CommandEntry("Tombstones: what durable deletes leave, and when that goes.", "tombstones"),
    "audit": CommandEntry("Destructive acts, with actor and reason.", "ledger.explain"),
    "schedule": CommandEntry("Jobs that recur: sweep, trim, plan, and those of records.", "workflow"),
    "owners": CommandEntry("Which worker does the background work of which topics.", "owners"),
}


class RootGroup(CommandGroup):
    """The root: it knows the names of its commands, and imports what is named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer does not export the class of a context
        """Names in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """The command of that name, or None."""
        del ctx
        return loaded(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """The commands with one line each, none of them imported."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in COMMANDS.items()])


@cache
def loaded(name: str) -> Any:  # noqa: ANN401 - a command of Typer's, whose class it does not export
    """The command of a name in `COMMANDS`, with what its modules registered."""
    entry = COMMANDS[name]
    for module in entry.beside:
        import_module(f"workers.cli.{module}")
    group = group_of(entry.module, entry.group or name)
    return group.get_command(None, name) if entry.group else group


def group_of(module: str, group: str) -> Any:  # noqa: ANN401
    """A group of a module, as the parser knows it."""
    return get_command(getattr(import_module(f"workers.cli.{module}"), group))


_ABOUT = """Keep a segmented log store clean: durable jobs that finish whatever crashes.

\b
A first session:
  sexton up
  sexton topic create persistent://public/default/orders
  sexton topic subscribe persistent://public/default/orders billing \\
    --from earliest
  echo '{"payload": "two apples"}' \\
    | sexton topic append persistent://public/default/orders --file -
  sexton topic roll persistent://public/default/orders
  sexton topic ack persistent://public/default/orders --subscription billing \\
    --to 0:0
  sexton topic trim persistent://public/default/orders --reason "end of day"
  sexton down
"""

app = typer.Typer(
    name="sexton",
    cls=RootGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # Rich alone would take as long as all the rest of `--help`
    pretty_exceptions_enable=False,
)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback(help=_ABOUT)
def _root(
    ctx: typer.Context,
    *,
    json: JsonFlag = False,
    home: HomeFlag = None,
    wide: WideFlag = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version  # its callback has answered already
    options(ctx).add(as_json=json, home=home, wide=wide)


_RARELY = 50_000  # objects made between two looks for garbage; as shipped, those take an eighth of all imports


def main() -> None:
    """Run the command line; the process exits with its code."""
    _make_fit()
    # Temporal's core writes its log to descriptor 1 itself: that goes to stderr, and answers to a copy of it
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    gc.set_threshold(_RARELY)
    try:
        app()
    except SystemExit as ended:
        _end(ended.code if isinstance(ended.code, int) else 0)


def _make_fit() -> None:
    """Open what is closed, and begin again in UTF-8 where the locale is ASCII: names and paths hold any letter."""
    _open_what_is_closed()
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - ourselves
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_what_is_closed() -> None:
    """Open each so that its use is an error: what goes to a closed stdout is not lost, a closed stdin is not empty."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_WRONLY)  # takes the lowest number: this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _end(code: int) -> NoReturn:
    """End the process at once.

    Temporal's threads let go of Python objects a moment after they answered: an interpreter that is finalizing by then
    aborts under them ("PyGILState_Release", exit 134). And what could not be written would be tried, and told, again.
    By now every answer is printed, every file closed, and spans are flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
