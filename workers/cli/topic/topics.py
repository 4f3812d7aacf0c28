"""`topic create`, `list`, `show`, `roll`, `subscribe` and `schema`."""

import base64
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.atomic_files import open_regular_file
from logstore.errors import InvalidInput
from logstore.ports.catalog.log import TopicState
from logstore.validated_names import TopicName, check_subscription_name, encode_topic_prefix
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.shared_options import (
    DurableDelete,
    SubscriptionArgument,
    TopicArgument,
    check_nonnegative_numbers,
    encode_topic,
)
from workers.human_readable_values import (
    decode_topic_name,
    format_table_cell,
    format_time_to_microsecond,
    select_fields,
)

if TYPE_CHECKING:
    from logstore.ports.catalog.cursors import StoredCursor
    from logstore.ports.catalog.log import SchemaVersion, TopicSummary
    from logstore.positions import Position, TopicId

topic = create_command_group("topic", "Topics: create, append, read, acknowledge, trim.")

_SCHEME = "persistent://"
_MAX_PREFIX_LENGTH = 200

Retention = Annotated[str, typer.Option("--retention", metavar="D", help="Keep consumed ledgers so long: 15m, 3d.")]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        "--retention-bytes", metavar="N", callback=check_nonnegative_numbers, help="Keep the newest N bytes of them."
    ),
]


def _check_name_prefix(prefix: str | None) -> str | None:
    if prefix is None:
        return None
    can_begin_name = prefix.startswith(_SCHEME) or _SCHEME.startswith(prefix)
    if not prefix or not prefix.isprintable() or not can_begin_name or len(prefix) > _MAX_PREFIX_LENGTH:
        raise InvalidInput("prefix", expected=f"how a name begins, as {_SCHEME}public/", found=prefix)
    return prefix


Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", callback=_check_name_prefix, help="Only names that begin so.")
]
State = Annotated[TopicState | None, typer.Option("--state", case_sensitive=False, help="Only topics in this state.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NAME", help="Only names behind this one: the next page.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="The most topics to show.")]


@command(topic, "create", "TOPIC", "TOPIC --retention 3d")
def create_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    retention: Retention = "0s",
    retention_bytes: RetentionBytes = None,
    durable_delete: DurableDelete = None,
) -> Answer:
    """Create a topic. Trims delete its consumed ledgers: those past a limit, or all of them if no limit is set."""
    from logstore.deletion.retention import RetentionPolicy  # noqa: PLC0415 - start-up time
    from workers.settings import parse_duration  # noqa: PLC0415

    encoded = TopicName.parse(name).encoded
    policy = RetentionPolicy(retention_s=parse_duration(retention, "retention"), retention_bytes=retention_bytes)
    topics = context.catalog.topics
    created = topics.create_topic(encoded, policy, durable_delete=durable_delete)
    return Answer(document=_make_topic_document(context, topics.summarize_topic(created)))


@command(topic, "list", "--json", "--prefix persistent://public/ --state DELETING")
def list_topics(
    context: CommandContext, *, prefix: Prefix = None, state: State = None, after: After = None, limit: Limit = 1_000
) -> Answer:
    """List topics with their ledgers, entries, bytes and subscriptions, ascending by name."""
    topics, encoded = context.catalog.topics, encode_topic_prefix(prefix or "")
    page = topics.list_topic_summaries(prefix=encoded, state=state, after=encode_topic(after) or "", limit=limit)
    if not page.topics and prefix and not topics.list_topic_summaries(prefix=encoded, limit=1).topics:
        print_note(f"no topic's name begins with {prefix}")
    if page.more:
        print_note(f"there are {page.more:,} more: go on with --after {decode_topic_name(page.topics[-1].topic.name)}")
    rows = [_make_topic_document(context, summary) for summary in page.topics]
    display = [_make_topic_display_row(row) for row in rows]
    return Answer(document=rows, display=display, columns_below=("subscriptions",), empty="no topics")


@command(topic, "show", "TOPIC --json")
def show_topic(context: CommandContext, name: TopicArgument) -> Answer:
    """Show one topic."""
    topic = context.get_topic(name)
    document = _make_topic_document(context, context.catalog.topics.summarize_topic(topic))
    index = context.catalog.delayed
    bucket_list, unsealed = index.get_bucket_list(topic.topic_id), index.count_unsealed_entries(topic.topic_id)
    delayed = {
        "messages": bucket_list.messages + unsealed.entries,
        "unsealed": unsealed.entries,
        "buckets": len(bucket_list.buckets),
    }
    return Answer(document={**document, "delayed": delayed})


@command(topic, "roll", "TOPIC")
def roll_last_ledger(context: CommandContext, name: TopicArgument) -> Answer:
    """Close the topic's current ledger and open a new one."""
    rolled = context.log.topic_logs.roll(context.get_topic(name))
    return Answer(document={"closed": rolled.closed, "opened": rolled.opened})


class SubscriptionStart(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


From = Annotated[SubscriptionStart, typer.Option("--from", help="Begin at the first entry, or behind the last one.")]


@command(topic, "subscribe", "TOPIC billing --from earliest")
def create_subscription(
    context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, start: From = SubscriptionStart.LATEST
) -> Answer:
    """Create a subscription. An existing subscription is shown and stays as it is."""
    check_subscription_name(sub)
    topic_id = context.get_topic(name).topic_id
    subscription = context.log.subscriptions.subscribe(topic_id, sub, latest=start is SubscriptionStart.LATEST)
    return Answer(document=_make_subscription_rows(context, topic_id, [subscription])[0])


def _make_topic_document(context: CommandContext, summary: "TopicSummary") -> dict[str, Any]:
    topic, totals = summary.topic, summary.totals
    return {
        "topic_id": topic.topic_id,
        "name": decode_topic_name(topic.name),
        "state": topic.state.value,
        "retention_s": topic.policy.retention_s,
        "retention_bytes": topic.policy.retention_bytes,
        "durable_delete": topic.durable_delete,
        "created": format_time_to_microsecond(topic.created_us),
        **select_fields(totals, "ledgers entries size_bytes"),
        "subscriptions": _list_subscription_rows(context, summary),
        "max_read_position": None if totals.last is None else str(totals.last),
    }


def _list_subscription_rows(context: CommandContext, summary: "TopicSummary") -> list[dict[str, object]]:
    if any(subscription.backlog is None for subscription in summary.subscriptions):
        topic_id = summary.topic.topic_id
        return _make_subscription_rows(context, topic_id, list(context.log.subscriptions.all(topic_id)))
    return [
        _make_subscription_row(
            subscription.name, subscription.mark_delete, subscription.backlog, subscription.created_us
        )
        for subscription in summary.subscriptions
    ]


def _make_topic_display_row(row: dict[str, Any]) -> dict[str, object]:
    subscriptions = []
    for subscription in row["subscriptions"]:
        backlog = "an unknown number" if subscription["backlog"] is None else format_table_cell(subscription["backlog"])
        subscriptions.append(f"{subscription['name']} is {backlog} behind")
    values = {name: row[name] for name in ("name", "state", "ledgers", "entries")}
    values |= {"bytes": row["size_bytes"], "last": row["max_read_position"]}
    return values | {"subscriptions": ", ".join(subscriptions)}


def _make_subscription_rows(
    context: CommandContext, topic_id: "TopicId", subscriptions: "list[StoredCursor]"
) -> list[dict[str, object]]:
    """Return rows with backlogs. If a cursor snapshot is lost, the row has no backlog and names the lost ledger."""
    states = [subscription.state for subscription in subscriptions]
    rows = []
    for subscription, backlog in zip(
        subscriptions, context.log.catalog.ledgers.count_backlogs(topic_id, states), strict=True
    ):
        lost_ledger = subscription.lost_snapshot
        known_backlog = backlog if lost_ledger is None else None
        mark_delete = subscription.state.mark_delete
        row = _make_subscription_row(subscription.name, mark_delete, known_backlog, subscription.created_us)
        rows.append(row if lost_ledger is None else {**row, "lost_ledger": lost_ledger})
    return rows


def _make_subscription_row(
    name: str, mark_delete: "Position", backlog: int | None, created_us: int
) -> dict[str, object]:
    created = format_time_to_microsecond(created_us)
    return {"name": name, "mark_delete": str(mark_delete), "backlog": backlog, "created": created}


schema = create_command_group("schema", "Schemas of a topic: set, list, show.", path="topic schema")
topic.add_typer(schema)


File = Annotated[str, typer.Option("--file", metavar="F", help="The schema, at most 1 MiB; - is stdin.")]
Version = Annotated[
    int | None,
    typer.Option("--version", metavar="N", callback=check_nonnegative_numbers, help="Which; the newest by default."),
]


@command(schema, "set", "TOPIC --file orders.avsc")
def set_schema(context: CommandContext, name: TopicArgument, *, file: File) -> Answer:
    """Make a file's content the newest schema of the topic. The answer has the number of the schema version.

    If the content already is the newest schema, nothing changes.
    """
    content = _read_schema_file(file)
    version = context.log.schemas.set(context.get_topic(name), content)
    return Answer(document={"version": version.version, "ledger_id": version.ledger_id})


@command(schema, "list", "TOPIC --json")
def list_schemas(context: CommandContext, name: TopicArgument) -> Answer:
    """List the schema versions of a topic, oldest first."""
    versions = context.log.schemas.all(context.get_topic(name).topic_id)
    return Answer(document=[_make_schema_row(version) for version in versions], empty="no schema")


@command(schema, "show", "TOPIC > orders.avsc", "TOPIC --version 0")
def show_schema(context: CommandContext, name: TopicArgument, *, version: Version = None) -> Answer:
    """Print the content of a schema version, checked against its digest. With --json the content is base64."""
    read_version, content = context.log.schemas.read(context.get_topic(name), version)
    content_b64 = base64.b64encode(content).decode()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        print_note("the content is not text: shown as base64")
        text = f"{content_b64}\n"
    return Answer(document={**_make_schema_row(read_version), "content_b64": content_b64}, text=text)


def _read_schema_file(file: str) -> bytes:
    from logstore.log.services.component_ledgers import MAX_SCHEMA_BYTES  # noqa: PLC0415 - start-up time

    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_SCHEMA_BYTES + 1)
        else:
            with open_regular_file(Path(file)) as source:
                content = source.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise InvalidInput("file", expected=f"a file that can be read ({error.strerror})", found=file) from error
    if not 0 < len(content) <= MAX_SCHEMA_BYTES:
        found = f"{file}: {len(content):,} bytes{' or more' if content else ''}"
        raise InvalidInput("file", expected=f"1 to {MAX_SCHEMA_BYTES:,} bytes", found=found)
    return content


def _make_schema_row(version: "SchemaVersion") -> dict[str, object]:
    values = select_fields(version, "version ledger_id size_bytes digest")
    return {**values, "created": format_time_to_microsecond(version.created_us)}
