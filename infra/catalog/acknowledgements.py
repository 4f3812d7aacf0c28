"""Acknowledgements in a group commit: cursors are locked by id, changed in order, written once."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, tuple_, update

from infra.catalog import tables as t
from infra.catalog.cursors import columns, spans, subscription
from logstore.cursors import CursorState, LedgerSpan, acknowledge, acknowledge_to
from logstore.errors import InvalidInput, UnknownObject
from logstore.ports.catalog import Acknowledge, Acknowledged, WriteResult
from logstore.positions import TopicId


def acknowledge_all(connection: Connection, writes: Sequence[Acknowledge]) -> list[WriteResult]:
    """Apply acknowledgements in order; one that is refused leaves its cursor as it was."""
    if not writes:
        return []
    rows = _lock(connection, writes)
    states = {key: subscription(row).state for key, row in rows.items()}
    listed = {topic_id: _spans(connection, topic_id, rows) for topic_id, _ in rows}
    changed: set[tuple[TopicId, str]] = set()
    results = [_apply(write, states, listed, changed) for write in writes]
    if changed:
        _store(connection, [(rows[key].cursor_id, states[key]) for key in sorted(changed)])
    return results


def _lock(connection: Connection, writes: Sequence[Acknowledge]) -> dict[tuple[TopicId, str], Row[Any]]:
    c = t.cursor.c
    wanted = sorted({(write.topic_id, write.subscription) for write in writes})
    query = select(t.cursor).where(tuple_(c.topic_id, c.name).in_(wanted)).order_by(c.cursor_id).with_for_update()
    return {(TopicId(row.topic_id), row.name): row for row in connection.execute(query)}


def _spans(connection: Connection, topic_id: TopicId, rows: dict[tuple[TopicId, str], Row[Any]]) -> list[LedgerSpan]:
    """Ledgers from the slowest of the cursors on: what lies before it is acknowledged already."""
    return spans(
        connection, topic_id, from_ledger=min(row.mark_ledger for key, row in rows.items() if key[0] == topic_id)
    )


def _apply(
    write: Acknowledge,
    states: dict[tuple[TopicId, str], CursorState],
    listed: dict[TopicId, list[LedgerSpan]],
    changed: set[tuple[TopicId, str]],
) -> WriteResult:
    key = (write.topic_id, write.subscription)
    if key not in states:
        return UnknownObject("subscription", expected="an existing subscription", found=write.subscription)
    try:
        state = acknowledge(states[key], write.positions, listed[write.topic_id])
        if write.up_to is not None:
            state = acknowledge_to(state, write.up_to, listed[write.topic_id])
    except InvalidInput as error:
        return error
    if state != states[key]:
        states[key] = state
        changed.add(key)
    return Acknowledged(mark_delete=state.mark_delete)


def _store(connection: Connection, states: list[tuple[int, CursorState]]) -> None:
    names = ("mark_ledger", "mark_entry", "acknowledged")
    changed = update(t.cursor).where(t.cursor.c.cursor_id == bindparam("row"))
    rows = [
        {"row": cursor_id} | {f"new_{name}": value for name, value in columns(state).items()}
        for cursor_id, state in states
    ]
    connection.execute(changed.values({name: bindparam(f"new_{name}") for name in names}), rows)
