"""Topics, subscriptions and entries as JSON documents."""

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from workers.pages.texts import fields, plain, shown_us, topic_shown

if TYPE_CHECKING:
    from logstore.cursors.services.subscriptions import Subscription
    from logstore.log.entries import Entry
    from logstore.ports.catalog import DelayedIndex, TopicSummary
    from logstore.positions import Position, TopicId
    from workers.assembly.log import LogStore
    from workers.cli.context import CommandContext


def topic_document(context: "CommandContext", known: "TopicSummary") -> dict[str, object]:
    """Everything that `topic show` tells."""
    topic, totals = known.topic, known.totals
    return {
        "topic_id": topic.topic_id,
        "name": topic_shown(topic.name),
        "state": topic.state.value,
        "retention_s": topic.policy.retention_s,
        "retention_bytes": topic.policy.retention_bytes,
        "durable_delete": topic.durable_delete,
        "created": shown_us(topic.created_us),
        **fields(totals, "ledgers entries size_bytes"),
        "subscriptions": _subscriptions(context, known),
        "max_read_position": None if totals.last is None else str(totals.last),
    }


def _subscriptions(context: "CommandContext", known: "TopicSummary") -> list[dict[str, object]]:
    """The topic's subscriptions; the bucket is asked only where a cursor ledger holds a part of their state."""
    if any(one.backlog is None for one in known.subscriptions):
        topic_id = known.topic.topic_id
        return subscription_documents(context.log, topic_id, context.log.subscriptions.all(topic_id))
    return [_subscription(one.name, one.mark_delete, one.created_us, one.backlog) for one in known.subscriptions]


def delayed_document(index: "DelayedIndex", topic_id: "TopicId") -> dict[str, object]:
    """How many delayed messages a topic has: in buckets, and behind the last one."""
    listed, unsealed = index.listed(topic_id), index.unsealed(topic_id)
    return {
        "messages": listed.messages + unsealed.entries,
        "unsealed": unsealed.entries,
        "buckets": len(listed.buckets),
    }


def topic_shown_in_list(row: Mapping[str, Any]) -> dict[str, object]:
    """A topic's document as a line of a table."""
    return {
        **{name: row[name] for name in ("name", "state", "ledgers", "entries")},
        "bytes": row["size_bytes"],
        "last": row["max_read_position"],
        "subscriptions": ", ".join(
            f"{one['name']} is {'an unknown number' if one['backlog'] is None else plain(one['backlog'])} behind"
            for one in row["subscriptions"]
        ),
    }


def subscription_documents(
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
    told = {"name": name, "mark_delete": str(mark_delete), "backlog": backlog, "created": shown_us(created_us)}
    return {**told, **more}


PRINTED: Final = ("publish_ms", "deliver_at_ms", "key", "payload", "properties")
"""The columns of an entry that are printed."""


def entry_document(entry: "Entry") -> dict[str, object]:
    """An entry as `topic read` prints it."""
    return {
        "position": str(entry.position),
        "key": entry.key,
        "payload_b64": base64.b64encode(entry.payload or b"").decode(),
        "publish_ms": entry.publish_ms,
        "deliver_at_ms": entry.deliver_at_ms,
        "properties": dict(entry.properties),
    }


def entry_shown(entry: "Entry", *, most: int | None = 80) -> dict[str, object]:
    """An entry as people see it: the payload as text where it is text, cut at `most` characters."""
    text = (entry.payload or b"").decode("utf-8", errors="replace")
    return {
        "position": str(entry.position),
        "key": entry.key,
        "payload": text if most is None or len(text) <= most else f"{text[: most - 1]}…",
        "published": shown_us(entry.publish_ms * 1_000),
        "deliver_at": None if entry.deliver_at_ms is None else shown_us(entry.deliver_at_ms * 1_000),
        "properties": dict(entry.properties),
    }
