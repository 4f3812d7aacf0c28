"""`topic trim`: the main job, started or tried out."""

from typing import TYPE_CHECKING, Any

from workers.cli.command import command
from workers.cli.context import Session
from workers.cli.errors import code_of_outcomes
from workers.cli.jobs import counted, finished, started
from workers.cli.ledgers import preview
from workers.cli.options import DryRun, Reason, TopicArgument, Wait
from workers.cli.output import Answer
from workers.cli.topics import topic

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
            return Answer(document=started(handle))
        return _answer(handle.id, await finished(client, handle, "trimming"))

    return session.with_client(work)


def _answer(workflow_id: str, result: Any) -> Answer:  # noqa: ANN401 - the workflow's own result type
    outcomes = counted(result.outcomes)
    document = {
        "workflow_id": workflow_id,
        "detached": result.detached,
        "deleted": result.deleted,
        "outcomes": outcomes,
    }
    return Answer(document=document, code=code_of_outcomes(outcomes))
