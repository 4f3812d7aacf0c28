"""Acknowledgements in a group commit: cursors are locked by id, changed in order, written once.

A cursor with a snapshot is changed as a whole, with the bitmaps that the write carries; its row then takes what
the snapshot does not hold. So the mark-delete position advances over both, and no object store is read here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, tuple_, update

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import columns, spans, stored
from logstore.cursors.state import CursorState, LedgerSpan, acknowledge, acknowledge_to, since, whole
from logstore.errors import InvalidInput, SnapshotNeeded, UnknownObject
from logstore.ports.catalog import Acknowledge, Acknowledged, WriteResult
from logstore.positions import LedgerId, TopicId

_Key = tuple[TopicId, str]


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A locked cursor, as this batch changes it."""

    cursor_id: int
    snapshot_ledger: LedgerId | None
    state: CursorState  # what the row holds
    row_bytes: int
    changed: bool = False


def acknowledge_all(connection: Connection, writes: Sequence[Acknowledge]) -> list[WriteResult]:
    """Apply acknowledgements in order; one that is refused leaves its cursor as it was."""
    if not writes:
        return []
    rows = _lock(connection, writes)
    listed = {topic_id: _spans(connection, topic_id, rows) for topic_id, _ in rows}
    cursors = {key: _cursor(row) for key, row in rows.items()}
    results = [_apply(write, cursors, listed) for write in writes]
    _store(connection, [cursors[key] for key in sorted(cursors) if cursors[key].changed])
    return [_sized(result, write, cursors) for result, write in zip(results, writes, strict=True)]


def _lock(connection: Connection, writes: Sequence[Acknowledge]) -> dict[_Key, Row[Any]]:
    c = t.cursor.c
    wanted = sorted({(write.topic_id, write.subscription) for write in writes})
    query = select(t.cursor).where(tuple_(c.topic_id, c.name).in_(wanted)).order_by(c.cursor_id).with_for_update()
    return {(TopicId(row.topic_id), row.name): row for row in connection.execute(query)}


def _spans(connection: Connection, topic_id: TopicId, rows: dict[_Key, Row[Any]]) -> list[LedgerSpan]:
    """Ledgers from the slowest of the cursors on: what lies before it is acknowledged already."""
    return spans(
        connection, topic_id, from_ledger=min(row.mark_ledger for key, row in rows.items() if key[0] == topic_id)
    )


def _cursor(row: Row[Any]) -> _Cursor:
    found = stored(row)
    return _Cursor(
        cursor_id=row.cursor_id,
        snapshot_ledger=found.snapshot_ledger,
        state=found.state,
        row_bytes=len(row.acknowledged),
    )


def _apply(write: Acknowledge, cursors: dict[_Key, _Cursor], listed: dict[TopicId, list[LedgerSpan]]) -> WriteResult:
    cursor = cursors.get((write.topic_id, write.subscription))
    if cursor is None:
        return UnknownObject("subscription", expected="an existing subscription", found=write.subscription)
    snapshot = write.snapshot if cursor.snapshot_ledger is not None else None
    carried = None if snapshot is None else snapshot.ledger_id
    if cursor.snapshot_ledger is not None and carried != cursor.snapshot_ledger:
        return SnapshotNeeded(write.subscription, needed=cursor.snapshot_ledger, found=carried)
    try:
        state = acknowledge(whole(cursor.state, snapshot), write.positions, listed[write.topic_id])
        if write.up_to is not None:
            state = acknowledge_to(state, write.up_to, listed[write.topic_id])
    except InvalidInput as error:
        return error
    kept = since(state, snapshot)
    cursor.changed = cursor.changed or kept != cursor.state
    cursor.state = kept
    return Acknowledged(mark_delete=state.mark_delete)


def _store(connection: Connection, cursors: list[_Cursor]) -> None:
    if not cursors:
        return
    names = ("mark_ledger", "mark_entry", "acknowledged")
    changed = update(t.cursor).where(t.cursor.c.cursor_id == bindparam("row"))
    rows = []
    for cursor in cursors:
        values = columns(cursor.state)
        cursor.row_bytes = len(values["acknowledged"])
        rows.append({"row": cursor.cursor_id} | {f"new_{name}": value for name, value in values.items()})
    connection.execute(changed.values({name: bindparam(f"new_{name}") for name in names}), rows)


def _sized(result: WriteResult, write: Acknowledge, cursors: dict[_Key, _Cursor]) -> WriteResult:
    """The answer with what the row holds at the end of the batch."""
    if not isinstance(result, Acknowledged):
        return result
    cursor = cursors[write.topic_id, write.subscription]
    return replace(result, row_bytes=cursor.row_bytes, snapshot_ledger=cursor.snapshot_ledger)
