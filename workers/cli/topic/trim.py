"""`topic trim`: the main job, started or tried out."""

from typing import TYPE_CHECKING

from workers.cli.command import command
from workers.cli.context import Session
from workers.cli.deletion.failures import ended
from workers.cli.jobs import counted, finished, started
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
    session: Session, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False, wait: Wait = True
) -> Answer:
    """Delete ledgers that every subscription has consumed and that retention lets go."""
    found = session.topic(name)
    if dry_run:
        return preview(session, found, None, force=False)

    async def work(client: "Sexton") -> Answer:
        handle = await client.trim_topic(found, reason, session.actor)
        if not wait:
            return Answer(document=started(client, handle))
        result = await finished(client, handle, "trimming")
        done = {"workflow_id": handle.id, "detached": result.detached, "deleted": result.deleted}
        return ended(session, done, counted(result.outcomes), topic=found)

    return session.with_client(work)
