"""`deletion pause`, `resume`, `rate`, `redrive` and `sweep`: batches under an operator's hand."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.deletion.deletions import deletion
from workers.cli.jobs import counted, ended, finished, started
from workers.cli.options import DryRun, Reason, Wait, known_number
from workers.cli.output import Answer

if TYPE_CHECKING:
    from workers.client import Sexton
    from workers.client.batches import Batches
    from workflows.deletion.values import DeleteLedgersProgress

WorkflowId = Annotated[
    str, typer.Argument(metavar="WORKFLOW_ID", help="delete-ledgers/…, as `workflow list` shows it.")
]
Rate = Annotated[
    int | None, typer.Argument(metavar="[N]", help="Objects a second for the whole batch; 0 is unlimited.")
]
_ID = "delete-ledgers/1-8c1d5f0e9a3b"


@command(deletion, "pause", examples=[f"sexton deletion pause {_ID}"])
def pause(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Let a batch delete no more for now: chunks in hand end, none is started. Its claim is kept."""
    return _asked(context, workflow_id, lambda batches: batches.pause(workflow_id))


@command(deletion, "resume", examples=[f"sexton deletion resume {_ID}"])
def resume(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Let a paused batch go on. What is left of one whose workflow is gone is taken up by the next sweep."""
    return _asked(context, workflow_id, lambda batches: batches.resume(workflow_id))


@command(
    deletion,
    "rate",
    examples=[f"sexton deletion rate {_ID} 50", f"sexton deletion rate {_ID} 0", f"sexton deletion rate {_ID} --json"],
)
def rate(context: CommandContext, workflow_id: WorkflowId, objects_per_s: Rate = None) -> Answer:
    """Let a batch delete no faster than so many objects a second from its next slice on; without N, look at it."""
    if objects_per_s is None:
        return _asked(context, workflow_id, lambda batches: batches.progress(workflow_id))
    most = 1_000_000
    if not 0 <= objects_per_s <= most:
        raise InvalidInput("rate", expected=f"0 (unlimited) to {most:,} objects a second", found=objects_per_s)
    return _asked(context, workflow_id, lambda batches: batches.set_rate(workflow_id, objects_per_s))


def _asked(
    context: CommandContext, workflow_id: str, ask: "Callable[[Batches], Awaitable[DeleteLedgersProgress]]"
) -> Answer:
    async def work(client: "Sexton") -> Answer:
        return Answer(document=_document(workflow_id, await ask(client.batches)))

    return context.with_client(work)


def _document(workflow_id: str, progress: "DeleteLedgersProgress") -> dict[str, object]:
    known = asdict(progress)
    names = ("paused", "rate", "intents", "done", "left", "outcomes", "objects", "size_bytes")
    return {"workflow_id": workflow_id, **{name: known[name] for name in names}}


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
        return Answer(document={"dry_run": True, "started": context.catalog.upkeep.redrivable(wanted)})
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
        due = context.catalog.upkeep.due(older_than_s=context.settings.finished_retention)
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
