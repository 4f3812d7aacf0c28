"""Which module has which command, and what the root's help says of it: a module is imported when its command is named.

A command costs its imports; `--help` and `--version` cost none but these words. A test compares them with the modules'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from typer.main import get_command

from workers.cli.command import CommandGroup


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of the root, and where it is."""

    about: str  # one line
    module: str  # of `workers.cli`; has the group
    group: str  # the group's name in that module
    beside: Sequence[str] = ()  # modules that add commands to it
    single: bool = False  # the command is one of the group's, not the group


COMMANDS = {
    "up": CommandEntry("Start Temporal, S3, ZooKeeper, the database and a worker.", "stack", "stack", single=True),
    "down": CommandEntry("Stop what `up` started in this home, and nothing else.", "stack", "stack", single=True),
    "env": CommandEntry(
        "Print shell exports, so that `temporal`, `aws` and `sqlite3` reach this stack.", "stack", "stack", single=True
    ),
    "status": CommandEntry("Tell whether each service answers.", "stack", "stack", single=True),
    "doctor": CommandEntry(
        "Check services, Java, versions, buckets, clock and search attributes.", "stack", "stack", single=True
    ),
    "demo": CommandEntry(
        "Run the main job on a throw-away stack, kill a worker half way.", "stack", "stack", single=True
    ),
    "trace": CommandEntry("Draw the spans of a trace as a tree.", "trace.trace", "traces", single=True),
    "replay": CommandEntry(
        "Replay a job's history against the workflows of this build.", "trace.replay", "replays", single=True
    ),
    "catalog": CommandEntry("The SQL catalog.", "stack", "catalog"),
    "config": CommandEntry("Settings and where they come from.", "stack", "config"),
    "worker": CommandEntry("Worker processes, and the builds of them.", "worker", "worker"),
    "workflow": CommandEntry("Jobs in Temporal.", "workflow", "workflow"),
    "topic": CommandEntry(
        "Topics: create, append, read, acknowledge, trim.",
        "topic.topics",
        "topic",
        ("topic.append", "topic.jobs", "topic.read", "topic.schema"),
    ),
    "ledger": CommandEntry("Ledgers of a topic.", "ledger.ledgers", "ledger", ("ledger.explain",)),
    "deletion": CommandEntry("Deletions on their way, and those that failed.", "deletion", "deletion"),
    "orphans": CommandEntry(
        "What storage holds and nothing refers to: find it, look at it, remove it.",
        "orphans.runs",
        "orphans",
        ("orphans.apply", "orphans.report"),
    ),
    "txn": CommandEntry("Transactions: begin, commit, abort, and see what they still owe.", "txn", "txn"),
    "delayed": CommandEntry("Delayed messages: the buckets of their index.", "delayed", "delayed"),
    "records": CommandEntry(
        "The record log, from which a lost catalog is rebuilt.", "records", "records", ("databases",)
    ),
    "tombstones": CommandEntry(
        "Tombstones: what durable deletes leave, and when that goes.", "tombstones", "tombstones"
    ),
    "audit": CommandEntry("Destructive acts, with actor and reason.", "ledger.explain", "audit"),
    "schedule": CommandEntry("Jobs that recur: sweep, trim, plan, and those of records.", "workflow", "schedule"),
    "owners": CommandEntry("Which worker does the background work of which topics.", "owners", "owners"),
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
    group = group_of(entry.module, entry.group)
    return group.get_command(None, name) if entry.single else group


def group_of(module: str, group: str) -> Any:  # noqa: ANN401
    """A group of a module, as the parser knows it."""
    return get_command(getattr(import_module(f"workers.cli.{module}"), group))
