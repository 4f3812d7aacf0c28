"""`topic create`, `list`, `show`, `roll` and `subscribe`."""

from enum import StrEnum
from typing import Annotated

import typer

from logstore.errors import InvalidInput
from logstore.names import TopicName, check_subscription, encoded_beginning
from logstore.ports.catalog import TopicState
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import (
    DurableDelete,
    SubscriptionArgument,
    TopicArgument,
    encoded_topic,
    known_number,
)
from workers.cli.output import Answer, note
from workers.cli.topic.documents import delayed_document, subscription_documents, topic_document, topic_shown_in_list
from workers.pages.texts import topic_shown

topic = group("topic", "Topics: create, append, read, acknowledge, trim.")

_ORDERS = "persistent://public/default/orders"
Retention = Annotated[str, typer.Option("--retention", metavar="D", help="Keep consumed ledgers so long: 15m, 3d.")]
RetentionBytes = Annotated[
    int | None,
    typer.Option("--retention-bytes", metavar="N", callback=known_number, help="Keep the newest N bytes of them."),
]


def _beginning(prefix: str | None) -> str | None:
    scheme = "persistent://"
    if prefix is None:
        return None
    if (
        not prefix
        or not prefix.isprintable()
        or not (prefix.startswith(scheme) or scheme.startswith(prefix))
        or len(prefix) > 200
    ):
        raise InvalidInput("prefix", expected=f"how a name begins, as {scheme}public/", found=prefix)
    return prefix


Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", callback=_beginning, help="Only names that begin so.")
]
State = Annotated[TopicState | None, typer.Option("--state", case_sensitive=False, help="Only topics in this state.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NAME", help="Only names behind this one: the next page.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="The most topics to show.")]


@command(topic, "create", examples=[f"sexton topic create {_ORDERS}", f"sexton topic create {_ORDERS} --retention 3d"])
def create(
    context: CommandContext,
    name: TopicArgument,
    *,
    retention: Retention = "0s",
    retention_bytes: RetentionBytes = None,
    durable_delete: DurableDelete = None,
) -> Answer:
    """Create a topic; its consumed ledgers are deleted when a limit is reached, at once if there is none."""
    from logstore.deletion.retention import RetentionPolicy  # noqa: PLC0415 - start-up time
    from workers.settings import parse_duration  # noqa: PLC0415

    encoded = TopicName.parse(name).encoded
    policy = RetentionPolicy(retention_s=parse_duration(retention, "retention"), retention_bytes=retention_bytes)
    topics = context.catalog.topics
    made = topics.create(encoded, policy, durable_delete=durable_delete)
    return Answer(document=topic_document(context, topics.summary(made)))


@command(
    topic,
    "list",
    examples=["sexton topic list --json", "sexton topic list --prefix persistent://public/ --state DELETING"],
)
def list_(
    context: CommandContext, *, prefix: Prefix = None, state: State = None, after: After = None, limit: Limit = 1_000
) -> Answer:
    """List topics with their ledgers, entries, bytes and subscriptions, ascending by name."""
    topics, encoded = context.catalog.topics, encoded_beginning(prefix or "")
    page = topics.page(prefix=encoded, state=state, after=encoded_topic(after) or "", limit=limit)
    if not page.topics and prefix and not topics.page(prefix=encoded, limit=1).topics:
        note(f"no topic's name begins with {prefix}")
    if page.more:
        note(f"there are {page.more:,} more: go on with --after {topic_shown(page.topics[-1].topic.name)}")
    found = [topic_document(context, one) for one in page.topics]
    shown = [topic_shown_in_list(row) for row in found]
    return Answer(document=found, shown=shown, beneath=("subscriptions",), empty="no topics")


@command(topic, "show", examples=[f"sexton topic show {_ORDERS} --json"])
def show(context: CommandContext, name: TopicArgument) -> Answer:
    """Show one topic."""
    found = context.topic(name)
    document = topic_document(context, context.catalog.topics.summary(found))
    return Answer(document={**document, "delayed": delayed_document(context.catalog.delayed, found.topic_id)})


@command(topic, "roll", examples=[f"sexton topic roll {_ORDERS}"])
def roll(context: CommandContext, name: TopicArgument) -> Answer:
    """Close the topic's current ledger and open a new one."""
    rolled = context.log.managed.roll(context.topic(name))
    return Answer(document={"closed": rolled.closed, "opened": rolled.opened})


class SubscriptionStart(StrEnum):
    """Where a new subscription begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


From = Annotated[SubscriptionStart, typer.Option("--from", help="Begin at the first entry, or behind the last one.")]


@command(topic, "subscribe", examples=[f"sexton topic subscribe {_ORDERS} billing --from earliest"])
def subscribe(
    context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, start: From = SubscriptionStart.LATEST
) -> Answer:
    """Create a subscription; one that exists is shown as it is."""
    check_subscription(sub)
    found = context.topic(name)
    subscription = context.log.subscriptions.subscribe(found.topic_id, sub, latest=start is SubscriptionStart.LATEST)
    return Answer(document=subscription_documents(context.log, found.topic_id, [subscription])[0])
