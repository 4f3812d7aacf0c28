"""`topic create`, `list`, `show`, `roll` and `subscribe`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

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
from workers.pages.texts import decode_topic_name, format_time_us, format_value, select_fields

if TYPE_CHECKING:
    from logstore.cursors.services.subscriptions import Subscription
    from logstore.ports.catalog import DelayedIndex, TopicSummary
    from logstore.positions import Position, TopicId
    from workers.assembly.log import LogStore

topic = group("topic", "Topics: create, append, read, acknowledge, trim.")

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


@command(topic, "create", "TOPIC", "TOPIC --retention 3d")
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
    return Answer(document=_document(context, topics.summary(made)))


@command(topic, "list", "--json", "--prefix persistent://public/ --state DELETING")
def list_(
    context: CommandContext, *, prefix: Prefix = None, state: State = None, after: After = None, limit: Limit = 1_000
) -> Answer:
    """List topics with their ledgers, entries, bytes and subscriptions, ascending by name."""
    topics, encoded = context.catalog.topics, encoded_beginning(prefix or "")
    page = topics.page(prefix=encoded, state=state, after=encoded_topic(after) or "", limit=limit)
    if not page.topics and prefix and not topics.page(prefix=encoded, limit=1).topics:
        note(f"no topic's name begins with {prefix}")
    if page.more:
        note(f"there are {page.more:,} more: go on with --after {decode_topic_name(page.topics[-1].topic.name)}")
    found = [_document(context, one) for one in page.topics]
    shown = [_shown(row) for row in found]
    return Answer(document=found, shown=shown, beneath=("subscriptions",), empty="no topics")


@command(topic, "show", "TOPIC --json")
def show(context: CommandContext, name: TopicArgument) -> Answer:
    """Show one topic."""
    found = context.topic(name)
    document = _document(context, context.catalog.topics.summary(found))
    return Answer(document={**document, "delayed": _delayed(context.catalog.delayed, found.topic_id)})


@command(topic, "roll", "TOPIC")
def roll(context: CommandContext, name: TopicArgument) -> Answer:
    """Close the topic's current ledger and open a new one."""
    rolled = context.log.managed.roll(context.topic(name))
    return Answer(document={"closed": rolled.closed, "opened": rolled.opened})


class SubscriptionStart(StrEnum):
    """Where a new subscription begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


From = Annotated[SubscriptionStart, typer.Option("--from", help="Begin at the first entry, or behind the last one.")]


@command(topic, "subscribe", "TOPIC billing --from earliest")
def subscribe(
    context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, start: From = SubscriptionStart.LATEST
) -> Answer:
    """Create a subscription; one that exists is shown as it is."""
    check_subscription(sub)
    found = context.topic(name)
    subscription = context.log.subscriptions.subscribe(found.topic_id, sub, latest=start is SubscriptionStart.LATEST)
    return Answer(document=_subscription_rows(context.log, found.topic_id, [subscription])[0])


def _document(context: CommandContext, known: "TopicSummary") -> dict[str, object]:
    """Everything that `topic show` tells."""
    topic, totals = known.topic, known.totals
    return {
        "topic_id": topic.topic_id,
        "name": decode_topic_name(topic.name),
        "state": topic.state.value,
        "retention_s": topic.policy.retention_s,
        "retention_bytes": topic.policy.retention_bytes,
        "durable_delete": topic.durable_delete,
        "created": format_time_us(topic.created_us),
        **select_fields(totals, "ledgers entries size_bytes"),
        "subscriptions": _subscriptions(context, known),
        "max_read_position": None if totals.last is None else str(totals.last),
    }


def _subscriptions(context: CommandContext, known: "TopicSummary") -> list[dict[str, object]]:
    """The topic's subscriptions; the bucket is asked only where a cursor ledger holds a part of their state."""
    if any(one.backlog is None for one in known.subscriptions):
        topic_id = known.topic.topic_id
        return _subscription_rows(context.log, topic_id, context.log.subscriptions.all(topic_id))
    return [_subscription(one.name, one.mark_delete, one.created_us, one.backlog) for one in known.subscriptions]


def _delayed(index: "DelayedIndex", topic_id: "TopicId") -> dict[str, object]:
    """How many delayed messages a topic has: in buckets, and behind the last one."""
    listed, unsealed = index.listed(topic_id), index.unsealed(topic_id)
    return {
        "messages": listed.messages + unsealed.entries,
        "unsealed": unsealed.entries,
        "buckets": len(listed.buckets),
    }


def _shown(row: Mapping[str, Any]) -> dict[str, object]:
    """A topic's document as a line of a table."""
    return {
        **{name: row[name] for name in ("name", "state", "ledgers", "entries")},
        "bytes": row["size_bytes"],
        "last": row["max_read_position"],
        "subscriptions": ", ".join(
            f"{one['name']} is {'an unknown number' if one['backlog'] is None else format_value(one['backlog'])} behind"
            for one in row["subscriptions"]
        ),
    }


def _subscription_rows(
    log: "LogStore", topic_id: "TopicId", found: "Sequence[Subscription]"
) -> list[dict[str, object]]:
    """Subscriptions with their backlogs; without that where part of a state is lost, which is then named."""
    backlogs = log.catalog.ledgers.backlogs(topic_id, [one.state for one in found])
    return [
        _subscription(
            one.name,
            one.state.mark_delete,
            one.created_us,
            behind if one.lost_snapshot is None else None,
            **({} if one.lost_snapshot is None else {"lost_ledger": one.lost_snapshot}),
        )
        for one, behind in zip(found, backlogs, strict=True)
    ]


def _subscription(
    name: str, mark_delete: "Position", created_us: int, backlog: int | None, **more: object
) -> dict[str, object]:
    told = {"name": name, "mark_delete": str(mark_delete), "backlog": backlog, "created": format_time_us(created_us)}
    return {**told, **more}
