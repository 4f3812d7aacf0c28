"""`topic delete`: a whole topic, or what of it would go."""

from typing import TYPE_CHECKING

from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.jobs import counted, ended, finished, started
from workers.cli.options import DryRun, Reason, TopicArgument, Wait
from workers.cli.output import Answer
from workers.cli.topic.topics import topic

if TYPE_CHECKING:
    from logstore.ports.catalog import Topic
    from workers.client import Sexton


@command(
    topic,
    "delete",
    examples=[
        "sexton topic delete persistent://public/default/orders --dry-run",
        'sexton topic delete persistent://public/default/orders --reason "moved elsewhere"',
    ],
)
def delete(
    context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False, wait: Wait = True
) -> Answer:
    """Delete a topic with its subscriptions, schemas and every ledger, needed or not.

    A deletion that runs is joined, one that was stopped goes on. Its name can be created again once it is gone.
    """
    found = context.topic(name)
    if dry_run:
        return _preview(context, found)

    async def work(client: "Sexton") -> Answer:
        handle = await client.delete_topic(found, reason, context.actor)
        if not wait:
            return Answer(document=started(client, handle))
        result = await finished(client, handle, "deleting the topic")
        return ended(context, {"workflow_id": handle.id}, counted(result.outcomes), topic=found)

    return context.with_client(work)


def _preview(context: CommandContext, found: "Topic") -> Answer:
    contents = context.catalog.phase_one.contents(found.topic_id)
    document = {
        "dry_run": True,
        "ledgers": dict(contents.ledgers),
        "copies": {component: dict(kinds) for component, kinds in contents.copies.items()},
        "subscriptions": contents.subscriptions,
    }
    return Answer(document=document)
