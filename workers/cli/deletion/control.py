"""`deletion pause`, `resume` and `rate`: one batch under an operator's hand."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.deletion.deletions import deletion
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
