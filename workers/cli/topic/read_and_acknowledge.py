"""`topic read`, `ack` and `seek`: entries that a consumer reads and acknowledges."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.errors import InvalidInput
from logstore.positions import Position
from logstore.validated_names import check_subscription_name
from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.shared_options import SubscriptionArgument, TopicArgument, Transaction
from workers.cli.topic.topics import topic
from workers.human_readable_values import format_time_to_microsecond

if TYPE_CHECKING:
    from logstore.log.entries import Entry


COLUMNS: Final = ("publish_ms", "deliver_at_ms", "key", "payload", "properties")  # columns of an entry
_MAX_DISPLAY_LENGTH = 80

AsSubscription = Annotated[
    str | None, typer.Option("--subscription", metavar="S", help="Leave out what it has acknowledged.")
]
OfSubscription = Annotated[str, typer.Option("--subscription", metavar="S", help="Whose cursor moves.")]
FromPosition = Annotated[str | None, typer.Option("--from", metavar="POS", help="First entry, as ledger:entry.")]
Max = Annotated[int, typer.Option("--max", metavar="N", min=1, max=1_000_000, help="The most entries.")]
Positions = Annotated[
    list[str] | None, typer.Option("--position", metavar="P", help="One entry, as ledger:entry; may be repeated.")
]
UpTo = Annotated[str | None, typer.Option("--to", metavar="P", help="Everything up to and including this entry.")]
Releases = Annotated[
    int | None,
    typer.Option("--releases", metavar="N", min=0, help="With --to: what `topic read` shows beneath the entries."),
]
SeekTo = Annotated[str, typer.Option("--to", metavar="P", help="The entry to read next, as ledger:entry.")]


@command(topic, "read", "TOPIC --subscription billing --max 10 --json")
def read_entries(
    context: CommandContext,
    name: TopicArgument,
    *,
    subscription: AsSubscription = None,
    start: FromPosition = None,
    max_entries: Max = 100,
) -> Answer:
    """Read entries that a consumer may see now, without acknowledging them.

    Due messages of index buckets (`sexton delayed status`) are first, ordered by delivery time. Then the log is read in
    its order, with the due messages that are in no index bucket.
    """
    position = None if start is None else Position.parse(start, field="from")
    if subscription is not None:
        check_subscription_name(subscription)
    topic = context.get_topic(name)
    with context.log.delivery.create_consumer(topic, subscription, from_position=position, columns=COLUMNS) as consumer:
        entries = consumer.receive(max_entries)
        releases, limit = consumer.cumulative_bounds() or (None, None)
    rows = [
        {
            "position": str(entry.position),
            "key": entry.key,
            "payload_b64": base64.b64encode(entry.payload or b"").decode(),
            "publish_ms": entry.publish_ms,
            "deliver_at_ms": entry.deliver_at_ms,
            "properties": dict(entry.properties),
            "releases": releases if limit and entry.position < limit else None,
        }
        for entry in entries
    ]
    sections = []
    if releases is not None and limit is not None and entries:
        last = max((entry.position for entry in entries if entry.position < limit), default=None)
        hint = f"--position of each entry: {limit} was not read, so --to would skip it"
        if last is not None:
            hint = f"--to {last} --releases {releases}"
        sections.append(Answer(document={}, text=f"topic ack takes {hint}\n"))
    return Answer(
        document=rows,
        display=_make_entry_display_rows(entries, max_length=_MAX_DISPLAY_LENGTH),
        wide_display=_make_entry_display_rows(entries, max_length=None) if context.wide else None,
        empty="no entries",
        sections=sections,
    )


def _make_entry_display_rows(entries: "Sequence[Entry]", *, max_length: int | None) -> list[dict[str, object]]:
    has_delayed = any(entry.deliver_at_ms is not None for entry in entries)
    rows: list[dict[str, object]] = []
    for entry in entries:
        text = (entry.payload or b"").decode("utf-8", errors="replace")
        row: dict[str, object] = {
            "position": str(entry.position),
            "key": entry.key,
            "payload": text if max_length is None or len(text) <= max_length else f"{text[: max_length - 1]}…",
            "published": format_time_to_microsecond(entry.publish_ms * 1_000),
        }
        if has_delayed:
            row["deliver_at"] = (
                None if entry.deliver_at_ms is None else format_time_to_microsecond(entry.deliver_at_ms * 1_000)
            )
        rows.append({**row, "properties": dict(entry.properties)})
    return rows


@command(
    topic,
    "ack",
    "TOPIC --subscription billing --to 4:99 --releases 0",
    "TOPIC --subscription billing --position 4:7 --position 4:9",
)
def acknowledge_entries(
    context: CommandContext,
    name: TopicArgument,
    *,
    subscription: OfSubscription,
    position: Positions = None,
    to: UpTo = None,
    releases: Releases = None,
    txn: Transaction = None,
) -> Answer:
    """Acknowledge single entries, or all entries up to one. With --txn, the commit acknowledges these entries.

    After an aborted transaction or a seek, and if delayed messages precede the entry, `--to` requires a number in
    --releases. `topic read --subscription S` prints this number. Without a number, acknowledge by --position.
    """
    from logstore.transactions.transaction_ids_and_states import TransactionId  # noqa: PLC0415 - start-up time

    if releases is not None and to is None:
        raise InvalidInput("releases", expected="--to beside --releases", found=releases)
    if bool(position) == (to is not None):
        raise InvalidInput("position", expected="either --position or --to", found="both" if position else "neither")
    check_subscription_name(subscription)
    positions = tuple(Position.parse(text) for text in position or ())
    up_to = None if to is None else Position.parse(to, field="to")
    cursor = context.log.subscriptions.acknowledge(
        context.get_topic(name).topic_id,
        subscription,
        positions=positions,
        up_to=up_to,
        releases=releases,
        txn=None if txn is None else TransactionId.parse(txn),
    )
    return Answer(document={"mark_delete": str(cursor.mark_delete)})


@command(topic, "seek", "TOPIC billing --to 4:0")
def seek_subscription(context: CommandContext, name: TopicArgument, sub: SubscriptionArgument, *, to: SeekTo) -> Answer:
    """Make an entry the next one that a subscription gets. The subscription's acknowledgements are forgotten."""
    check_subscription_name(sub)
    position = Position.parse(to, field="to")
    subscription = context.log.subscriptions.seek(context.get_topic(name).topic_id, sub, position)
    return Answer(document={"mark_delete": str(subscription.state.mark_delete)})
