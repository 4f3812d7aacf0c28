"""Topics, subscriptions and entries as JSON documents."""

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workers.cli.output import plain, topic_shown
from workers.cli.times import shown_us

if TYPE_CHECKING:
    from logstore.cursors import CursorState, LedgerSpan
    from logstore.entries import Entry
    from logstore.ports.catalog import Topic
    from logstore.subscriptions import Subscription
    from workers.wiring import LogStore


def topic_document(log: "LogStore", topic: "Topic") -> dict[str, object]:
    """Everything that `topic show` tells."""
    ledgers = log.catalog.ledgers.listed(topic.topic_id)
    spans = [ledger.span for ledger in ledgers]
    last = log.managed.last_position(topic)
    return {
        "topic_id": topic.topic_id,
        "name": topic_shown(topic.name),
        "state": topic.state.value,
        "retention_s": topic.policy.retention_s,
        "retention_bytes": topic.policy.retention_bytes,
        "created": shown_us(topic.created_us),
        "ledgers": len(ledgers),
        "entries": sum(ledger.entries for ledger in ledgers),
        "size_bytes": sum(ledger.size_bytes for ledger in ledgers),
        "subscriptions": [subscription_document(one, spans) for one in log.subscriptions.all(topic.topic_id)],
        "max_read_position": None if last is None else str(last),
    }


def topic_shown_in_list(row: Mapping[str, Any]) -> dict[str, object]:
    """A topic's document as a line of a table."""
    return {
        "name": row["name"],
        "state": row["state"],
        "ledgers": row["ledgers"],
        "entries": row["entries"],
        "bytes": row["size_bytes"],
        "last": row["max_read_position"],
        "subscriptions": ", ".join(_subscription_shown(one) for one in row["subscriptions"]),
    }


def _subscription_shown(one: Mapping[str, object]) -> str:
    return f"{one['name']} is {'an unknown number' if one['backlog'] is None else plain(one['backlog'])} behind"


def subscription_document(found: "Subscription", spans: "Sequence[LedgerSpan]") -> dict[str, object]:
    """A subscription with its backlog; without that where part of its state is lost, which is then named."""
    lost = found.lost_snapshot
    return {
        "name": found.name,
        "mark_delete": str(found.state.mark_delete),
        "backlog": backlog(found.state, spans) if lost is None else None,
        "created": shown_us(found.created_us),
        **({} if lost is None else {"lost_ledger": lost}),
    }


def backlog(state: "CursorState", spans: "Sequence[LedgerSpan]") -> int:
    """Listed entries that the subscription has not acknowledged.

    Args:
        state: Its cursor.
        spans: The topic's ledgers, ascending by id.
    """
    left = 0
    for span in spans:
        if span.ledger_id < state.mark_delete.ledger_id:
            continue
        marked = state.mark_delete.entry_id + 1 if span.ledger_id == state.mark_delete.ledger_id else 0
        left += max(0, span.entries - marked - len(state.acknowledged.get(span.ledger_id, ())))
    return left


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
        "properties": dict(entry.properties),
    }
