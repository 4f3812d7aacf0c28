"""Sole writer of the table `cursor`, and reader of the listed ledgers over which cursors move."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, tuple_, update

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import dataclass_from_row, is_one_of
from logstore.catalog.transactions.buffer_rows import BufferView, read_buffers
from logstore.cursors.cursor_state import (
    CursorState,
    VisibleLedgerSpan,
    advance_mark_delete,
    first_releases,
    pack_acknowledged,
    unpack_acknowledged,
)
from logstore.log.ledgers import Component
from logstore.ports.catalog.cursors import StoredCursor
from logstore.positions import LedgerId, Position, TopicId


def select_cursor(topic_id: TopicId, name: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select of many columns
    return select(t.cursor).where(t.cursor.c.topic_id == topic_id, t.cursor.c.name == name)


def read_visible_spans(connection: Connection, topic_id: TopicId, *, from_ledger: int = -1) -> list[VisibleLedgerSpan]:
    """Return the listed message ledgers from `from_ledger` on, ascending, without entries after the frontier."""
    return read_visible_spans_by_topic(connection, {topic_id: from_ledger})[topic_id]


def read_visible_spans_by_topic(
    connection: Connection, first_ledger_by_topic: Mapping[TopicId, int]
) -> dict[TopicId, list[VisibleLedgerSpan]]:
    lists, ledger = t.ledger_list.c, t.ledger.c
    query = (
        select(lists.topic_id, ledger.ledger_id, ledger.entries)
        .select_from(t.ledger_list.join(t.ledger, ledger.list_id == lists.list_id))
        .where(
            is_one_of(connection, lists.topic_id, first_ledger_by_topic),
            lists.component == Component.MANAGED_LEDGER.value,
            ledger.place.is_not(None),
            ledger.ledger_id >= min(first_ledger_by_topic.values(), default=0),
        )
        .order_by(ledger.ledger_id)
    )
    listed: dict[TopicId, list[VisibleLedgerSpan]] = {topic_id: [] for topic_id in first_ledger_by_topic}
    for topic_id, ledger_id, entries in connection.execute(query):
        if ledger_id >= first_ledger_by_topic[topic_id]:
            listed[topic_id].append(VisibleLedgerSpan(LedgerId(ledger_id), entries))
    buffers = read_buffers(
        connection, first_ledger_by_topic, from_ledger=min(first_ledger_by_topic.values(), default=-1)
    )
    return {
        topic_id: _limit_to_visible_entries(topic_spans, buffers[topic_id]) for topic_id, topic_spans in listed.items()
    }


def _limit_to_visible_entries(spans: list[VisibleLedgerSpan], buffer: BufferView) -> list[VisibleLedgerSpan]:
    if buffer.first_open is None and not buffer.hidden:
        return spans
    end, visible = buffer.first_open, []
    for span in spans:
        if end is not None and span.ledger_id > end.ledger_id:
            break
        entries = end.entry_id if end is not None and span.ledger_id == end.ledger_id else span.entries
        visible.append(VisibleLedgerSpan(span.ledger_id, entries, buffer.hidden.get(span.ledger_id)))
    return visible


def read_mark_delete_positions(connection: Connection, topic_id: TopicId) -> dict[str, Position]:
    """Return each subscription's mark-delete position, moved past the hidden entries that directly follow."""
    c = t.cursor.c
    rows = connection.execute(select(c.name, c.mark_ledger, c.mark_entry).where(c.topic_id == topic_id)).all()
    marks = {row.name: Position(LedgerId(row.mark_ledger), row.mark_entry) for row in rows}
    first = min(marks.values(), default=Position(LedgerId(0), 0)).ledger_id
    if not marks or not read_buffers(connection, [topic_id], from_ledger=first)[topic_id].hidden:
        return marks
    listed = read_visible_spans(connection, topic_id, from_ledger=first)
    complete_rows = connection.execute(select(t.cursor).where(c.topic_id == topic_id))
    return {
        row.name: advance_mark_delete(stored_cursor_from_row(row).state, listed).mark_delete for row in complete_rows
    }


def stored_cursor_from_row(row: Row[Any]) -> StoredCursor:
    state = CursorState(Position(LedgerId(row.mark_ledger), row.mark_entry), unpack_acknowledged(row.acknowledged))
    return dataclass_from_row(StoredCursor, row, state=state)


@dataclass(slots=True, kw_only=True)
class LockedCursor:
    cursor_id: int
    name: str
    state: CursorState  # state in the row; with a snapshot, only acknowledgements since the snapshot
    snapshot_ledger: LedgerId | None
    seeks: int
    releases: int
    created_us: int
    row_bytes: int  # size of the packed acknowledgements in the row

    @classmethod
    def from_row(cls, row: Row[Any]) -> Self:
        return dataclass_from_row(cls, row, state=stored_cursor_from_row(row).state, row_bytes=len(row.acknowledged))


def lock_cursors(connection: Connection, keys: Collection[tuple[TopicId, str]]) -> dict[tuple[TopicId, str], Row[Any]]:
    """Lock and return the cursors that exist. Rows are locked in the order of cursor ids, to prevent deadlocks."""
    c = t.cursor.c
    query = select(t.cursor).where(tuple_(c.topic_id, c.name).in_(sorted(keys))).order_by(c.cursor_id)
    return {(TopicId(row.topic_id), row.name): row for row in connection.execute(query.with_for_update())}


def insert_cursor(
    connection: Connection, topic_id: TopicId, name: str, state: CursorState, *, releases: int, now_us: int
) -> None:
    values = {"topic_id": topic_id, "name": name, "releases": releases, "created_us": now_us}
    connection.execute(insert(t.cursor).values(**values, **_columns_from_state(state)))


def store_cursors(connection: Connection, cursors: Collection[LockedCursor]) -> None:
    """Write locked cursors in one statement, and update their `row_bytes`."""
    if not cursors:
        return
    rows = []
    for cursor in cursors:
        values = _columns_from_state(cursor.state) | {name: getattr(cursor, name) for name in _COLUMNS_BESIDE_STATE}
        cursor.row_bytes = len(values["acknowledged"])
        rows.append({"row": cursor.cursor_id} | {f"new_{name}": value for name, value in values.items()})
    changed = update(t.cursor).where(t.cursor.c.cursor_id == bindparam("row"))
    connection.execute(changed.values({name: bindparam(f"new_{name}") for name in _STORED_COLUMNS}), rows)


def add_releases(connection: Connection, releases_by_cursor: Mapping[int, int]) -> None:
    if not releases_by_cursor:
        return
    rows = [{"row": cursor_id, "added": added} for cursor_id, added in releases_by_cursor.items()]
    counted = update(t.cursor).where(t.cursor.c.cursor_id == bindparam("row"))
    connection.execute(counted.values(releases=t.cursor.c.releases + bindparam("added")), rows)


_COLUMNS_BESIDE_STATE = ("snapshot_ledger", "seeks", "releases")
_STORED_COLUMNS = ("mark_ledger", "mark_entry", "acknowledged", *_COLUMNS_BESIDE_STATE)


def _columns_from_state(state: CursorState) -> dict[str, Any]:
    return {
        "mark_ledger": state.mark_delete.ledger_id,
        "mark_entry": state.mark_delete.entry_id,
        "acknowledged": pack_acknowledged(state.acknowledged),
    }


def compile_releases_restart(epoch: int) -> str:
    """Return the SQL that sets the releases of all cursors of a rebuilt catalog to `first_releases(epoch)`."""
    begun = update(t.cursor).values(releases=first_releases(epoch))
    return str(begun.compile(compile_kwargs={"literal_binds": True}))


def move_cursors_past_removed_ledgers(connection: Connection, topic_id: TopicId, removed: Collection[LedgerId]) -> None:
    """Advance cursors past `removed` and drop acknowledgements in these ledgers. The caller has locked the list.

    Snapshots are not read. A cursor with a snapshot may therefore advance too little until its next acknowledgement.
    """
    if not removed:
        return
    c = t.cursor.c
    behind = select(t.cursor).where(c.topic_id == topic_id, c.mark_ledger <= max(removed)).order_by(c.cursor_id)
    locked = [LockedCursor.from_row(row) for row in connection.execute(behind.with_for_update())]
    listed = read_visible_spans(connection, topic_id) if locked else []
    moved = []
    for cursor in locked:
        state, cursor.state = cursor.state, advance_mark_delete(cursor.state, listed)
        moved += [cursor] if cursor.state != state else []
    store_cursors(connection, moved)


def forget_cursor_snapshots(connection: Connection, is_lost: Any) -> int:  # noqa: ANN401 - a condition on `snapshot_ledger`
    """Remove the references of cursors to snapshots that storage has lost. Return the number of changed cursors."""
    return connection.execute(update(t.cursor).where(is_lost).values(snapshot_ledger=None)).rowcount


def remove_cursors(connection: Connection, topic_id: TopicId) -> int:
    """Lock the cursors of a deleted topic in the order of ids, then remove them. Return the number of cursors."""
    mine = t.cursor.c.topic_id == topic_id
    connection.execute(select(t.cursor.c.cursor_id).where(mine).order_by(t.cursor.c.cursor_id).with_for_update()).all()
    return connection.execute(delete(t.cursor).where(mine)).rowcount
