"""Root of the command line. It prepares the process, and imports only the module of the command that runs."""

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
from workers.cli.command_registration import ErrorReportingGroup, HomeFlag, JsonFlag, WideFlag, get_global_options


@dataclass(frozen=True, slots=True)
class LazyCommandEntry:
    about: str  # one line
    module: str
    group: str = ""  # name of the group with the command in `module`; "": the command is a group
    other_modules: Sequence[str] = ()  # modules that add commands to the group


COMMANDS = {
    "up": LazyCommandEntry("Start Temporal, S3, ZooKeeper, the database and a worker.", "stack_commands", "stack"),
    "down": LazyCommandEntry("Stop what `up` started in this home, and nothing else.", "stack_commands", "stack"),
    "env": LazyCommandEntry(
        "Print shell exports, so that `temporal`, `aws` and `sqlite3` reach this stack.", "stack_commands", "stack"
    ),
    "status": LazyCommandEntry("Tell whether each service answers.", "stack_commands", "stack"),
    "doctor": LazyCommandEntry(
        "Check services, Java, versions, buckets, deletes, clock and search attributes.", "stack_commands", "stack"
    ),
    "demo": LazyCommandEntry(
        "Run the main job on a throw-away stack, kill a worker half way.", "stack_commands", "stack"
    ),
    "trace": LazyCommandEntry("Draw the spans of a trace as a tree.", "trace", "traces"),
    "replay": LazyCommandEntry(
        "Replay a job's history against the workflows of this build.", "workflows_and_schedules", "replays"
    ),
    "catalog": LazyCommandEntry("The SQL catalog.", "stack_commands"),
    "config": LazyCommandEntry("Settings and where they come from.", "stack_commands"),
    "worker": LazyCommandEntry("Worker processes, and the builds of them.", "workers_and_owners"),
    "workflow": LazyCommandEntry("Jobs in Temporal.", "workflows_and_schedules"),
    "topic": LazyCommandEntry(
        "Topics: create, append, read, acknowledge, trim.",
        "topics",
        other_modules=("append",),
    ),
    "ledger": LazyCommandEntry("Ledgers of a topic.", "ledgers", other_modules=("ledger_explanation",)),
    "deletion": LazyCommandEntry("Deletions on their way, and those that failed.", "deletion"),
    "orphans": LazyCommandEntry(
        "What storage holds and nothing refers to: find it, look at it, remove it.",
        "orphans",
        other_modules=("orphans_report", "applies"),
    ),
    "scrub": LazyCommandEntry(
        "Read every stored segment and tiered copy, and compare their digests.", "orphans", "scrubs"
    ),
    "txn": LazyCommandEntry("Transactions: begin, commit, abort, and see what they still owe.", "txn"),
    "delayed": LazyCommandEntry("Delayed messages: the buckets of their index.", "delayed"),
    "records": LazyCommandEntry("The record log, from which a lost catalog is rebuilt.", "records"),
    "tombstones": LazyCommandEntry("Tombstones: what durable deletes leave, and when that goes.", "records"),
    "audit": LazyCommandEntry("Destructive acts, with actor and reason.", "ledgers"),
    "schedule": LazyCommandEntry(
        "Jobs that recur: sweep, trim, plan, and those of records.", "workflows_and_schedules"
    ),
    "pulsar": LazyCommandEntry(
        "A Pulsar cluster: ledgers that nothing refers to, and stuck transactions.",
        "pulsar",
        other_modules=("applies",),
    ),
    "owners": LazyCommandEntry("Which worker does the background work of which topics.", "workers_and_owners"),
}


class LazyRootGroup(ErrorReportingGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer does not export the class of a context
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        del ctx
        return import_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in COMMANDS.items()])


@cache
def import_command(name: str) -> Any:  # noqa: ANN401 - Typer does not export the class of a command
    """Import the modules of an entry of `COMMANDS`, and return Typer's object of the command or group."""
    entry = COMMANDS[name]
    for module in entry.other_modules:
        import_module(f"workers.cli.{module}")
    group = import_group(entry.module, entry.group or name)
    if entry.group:
        return group.get_command(None, name)
    group.help = entry.about
    return group


def import_group(module: str, group: str) -> Any:  # noqa: ANN401
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
    cls=LazyRootGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # the import of Rich would double the time of `--help`
    pretty_exceptions_enable=False,
)


def _print_version(*, is_requested: bool) -> None:
    if is_requested:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback(help=_ABOUT)
def _root(
    ctx: typer.Context,
    *,
    json: JsonFlag = False,
    home: HomeFlag = None,
    wide: WideFlag = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    del version  # the callback of `--version` has printed the version
    get_global_options(ctx).add(as_json=json, home=home, wide=wide)


_GC_THRESHOLD = 50_000  # allocations between garbage collections; with Python's default, imports take an eighth longer


def main() -> None:
    _make_closed_streams_fail()
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        # Names and paths may have any letter, so restart in UTF-8.
        argv = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, argv, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - this program
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Temporal's core logs to descriptor 1. So descriptor 1 becomes stderr, and answers go to a copy of stdout.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    gc.set_threshold(_GC_THRESHOLD)
    try:
        app()
    except SystemExit as end:
        _flush_and_exit(end.code if isinstance(end.code, int) else 0)


def _make_closed_streams_fail() -> None:
    """Make every use of a closed standard stream an error. Otherwise output is lost, and input seems empty."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_WRONLY)  # `os.open` takes the lowest free one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _flush_and_exit(code: int) -> NoReturn:
    """Flush output and end the process without finalizing the interpreter.

    At a finalization, threads of Temporal's core may abort the process ("PyGILState_Release", exit code 134).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
