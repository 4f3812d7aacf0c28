"""`topic trim`: the main job, started or tried out."""

from typing import TYPE_CHECKING

from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.jobs import counted, ended, finished, started
from workers.cli.ledger.ledgers import preview
from workers.cli.options import DryRun, Reason, TopicArgument, Wait
from workers.cli.output import Answer
from workers.cli.topic.topics import topic

if TYPE_CHECKING:
    from workers.client import Sexton


@command(
    topic,
    "trim",
    examples=[
        "sexton topic trim persistent://public/default/orders --dry-run",
        'sexton topic trim persistent://public/default/orders --reason "end of day"',
    ],
)
def trim(
    context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False, wait: Wait = True
) -> Answer:
    """Delete ledgers that every subscription has consumed and that retention lets go."""
    found = context.topic(name)
    if dry_run:
        return preview(context, found, None, force=False)

    async def work(client: "Sexton") -> Answer:
        handle = await client.trim_topic(found, reason, context.actor)
        if not wait:
            return Answer(document=started(client, handle))
        result = await finished(client, handle, "trimming")
        done = {"workflow_id": handle.id, "detached": result.detached, "deleted": result.deleted}
        return ended(context, done, counted(result.outcomes), topic=found)

    return context.with_client(work)
