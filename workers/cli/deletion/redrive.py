"""`deletion redrive` and `deletion sweep`: dead letters and abandoned work go on."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.deletion.deletions import deletion
from workers.cli.deletion.failures import ended
from workers.cli.jobs import counted, finished, started
from workers.cli.options import DryRun, Reason, Wait, known_number
from workers.cli.output import Answer

if TYPE_CHECKING:
    from workers.client import Sexton

Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", callback=known_number, help="Ids as `deletion list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="Every dead letter there is.")]


@command(
    deletion,
    "redrive",
    examples=[
        'sexton deletion redrive 12 15 --reason "permissions mended"',
        "sexton deletion redrive --all --dry-run",
        "sexton deletion redrive --all --no-wait --json",
    ],
)
def redrive(
    context: CommandContext,
    ids: Ids = None,
    *,
    all: All = False,  # noqa: A002 - the option's name
    reason: Reason = "",
    dry_run: DryRun = False,
    wait: Wait = True,
) -> Answer:
    """Try dead letters again, as if they had never been tried. All or none of the ids given."""
    wanted = _wanted(ids, every=all)
    if dry_run:
        return Answer(document={"dry_run": True, "started": context.catalog.redrives.preview(wanted)})
    context.require_store()

    async def work(client: "Sexton") -> Answer:
        found = await client.redrive(wanted, reason, context.actor)
        if found.handle is None:
            return Answer(document={"started": 0, "outcomes": {}} if wait else {"started": 0})
        if not wait:
            return Answer(document={"started": found.started, **started(client, found.handle)})
        result = await finished(client, found.handle, "trying again")
        done = {"started": found.started, "workflow_id": found.handle.id}
        return ended(context, done, counted(result.outcomes), batch_id=result.batch_id)

    return context.with_client(work)


@command(
    deletion,
    "sweep",
    examples=["sexton deletion sweep", "sexton deletion sweep --dry-run", "sexton deletion sweep --no-wait --json"],
)
def sweep(context: CommandContext, *, reason: Reason = "", dry_run: DryRun = False, wait: Wait = True) -> Answer:
    """Take up deletions that no workflow works on, and forget those that ended long ago; a schedule does so too."""
    if dry_run:
        due = context.catalog.sweeps.due(older_than_s=context.settings.finished_retention)
        return Answer(document={"dry_run": True, **asdict(due)})

    async def work(client: "Sexton") -> Answer:
        handle = await client.sweep_deletions(reason, context.actor)
        if not wait:
            return Answer(document=started(client, handle))
        result = await finished(client, handle, "sweeping")
        names = ("batches", "intents", "newborn", "uncertified", "forgotten")
        done = {"workflow_id": handle.id} | {name: getattr(result, name) for name in names}
        return ended(context, done, counted(result.outcomes))

    return context.with_client(work)


def _wanted(ids: list[int] | None, *, every: bool) -> list[int] | None:
    if every == bool(ids):
        raise InvalidInput("ids", expected="ids of deletions or --all, one of the two", found=ids or [])
    return None if every else ids
