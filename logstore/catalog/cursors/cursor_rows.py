"""Sole writer of the table `cursor`, acknowledgements, and the listed ledgers over which cursors move.

Cursors are locked in the order of their ids, and a group commit writes each cursor once. If a cursor has a snapshot,
each `AcknowledgeWrite` to the cursor contains the content of the snapshot. This module therefore reads no storage. The
cursor's row gets only the acknowledgements that the snapshot lacks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyroaring import BitMap
from sqlalchemy import Connection, Row, bindparam, delete, insert, select, tuple_, update

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import dataclass_from_row, is_one_of
from logstore.catalog.transactions.buffer_rows import BufferView, read_buffers
from logstore.catalog.transactions.participant_rows import insert_participants, read_held_entries, replace_held_entries
from logstore.cursors.cursor_state import (
    CursorState,
    DelayedSegmentRange,
    VisibleLedgerSpan,
    advance_mark_delete,
    apply_acknowledgement,
    complete_state,
    first_releases,
    pack_acknowledged,
    require_current_releases,
    require_no_delayed_entries,
    require_snapshot,
    state_without_snapshot,
    unpack_acknowledged,
)
from logstore.errors import TerminalError, TransactionNotOpen, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, AcknowledgeWrite, GroupCommitResult
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.pending_acks import compute_held_after_acknowledgement, require_entries_not_held
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState


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


def store_cursors(connection: Connection, cursor_by_id: Mapping[int, StoredCursor]) -> dict[int, int]:
    """Write locked cursors, by cursor id, in one statement. Return the size of each row's packed acknowledgements."""
    rows = []
    for cursor_id, cursor in cursor_by_id.items():
        values = _columns_from_state(cursor.state) | {name: getattr(cursor, name) for name in _COLUMNS_BESIDE_STATE}
        rows.append({"row": cursor_id} | {f"new_{name}": value for name, value in values.items()})
    if rows:
        changed = update(t.cursor).where(t.cursor.c.cursor_id == bindparam("row"))
        connection.execute(changed.values({name: bindparam(f"new_{name}") for name in _STORED_COLUMNS}), rows)
    return {row["row"]: len(row["new_acknowledged"]) for row in rows}


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
    locked = {row.cursor_id: stored_cursor_from_row(row) for row in connection.execute(behind.with_for_update())}
    listed = read_visible_spans(connection, topic_id) if locked else []
    moved = {
        cursor_id: replace(cursor, state=advance_mark_delete(cursor.state, listed))
        for cursor_id, cursor in locked.items()
    }
    store_cursors(connection, {cursor_id: cursor for cursor_id, cursor in moved.items() if cursor != locked[cursor_id]})


def forget_cursor_snapshots(connection: Connection, is_lost: Any) -> int:  # noqa: ANN401 - a condition on `snapshot_ledger`
    """Remove the references of cursors to snapshots that storage has lost. Return the number of changed cursors."""
    return connection.execute(update(t.cursor).where(is_lost).values(snapshot_ledger=None)).rowcount


def remove_cursors(connection: Connection, topic_id: TopicId) -> int:
    """Lock the cursors of a deleted topic in the order of ids, then remove them. Return the number of cursors."""
    mine = t.cursor.c.topic_id == topic_id
    connection.execute(select(t.cursor.c.cursor_id).where(mine).order_by(t.cursor.c.cursor_id).with_for_update()).all()
    return connection.execute(delete(t.cursor).where(mine)).rowcount


_Key = tuple[TopicId, str]


class TransactionHeldEntries:
    """Entries that open transactions have acknowledged. The caller has locked the cursors and the transactions."""

    def __init__(
        self,
        connection: Connection,
        writes: Sequence[AcknowledgeWrite],
        transactions: Mapping[TransactionId, TransactionState],
    ) -> None:
        self._connection, self._transactions = connection, transactions
        keys = {
            (write.topic_id, write.subscription)
            for write in writes
            if write.txn is not None or write.positions or write.up_to is not None
        }
        self._held = read_held_entries(connection, keys)
        self._changed: dict[tuple[TransactionId, Participant], dict[LedgerId, BitMap]] = {}

    def hold_for_transaction(
        self, write: AcknowledgeWrite, txn: TransactionId, state: CursorState, spans: Sequence[VisibleLedgerSpan]
    ) -> None:
        transaction_state = self._transactions.get(txn)
        if transaction_state is None:
            raise UnknownObject("txn", expected="a transaction of this catalog", found=str(txn))
        if transaction_state is not TransactionState.OPEN:
            raise TransactionNotOpen(str(txn), doing="acknowledge", state=transaction_state.value)
        entries_by_txn = self._held[write.topic_id, write.subscription]
        entries_by_txn[txn] = compute_held_after_acknowledgement(
            write.subscription, state, spans, entries_by_txn, txn, positions=write.positions, up_to=write.up_to
        )
        self._changed[txn, Participant(write.topic_id, write.subscription)] = entries_by_txn[txn]

    def require_not_held_by_others(self, write: AcknowledgeWrite, state: CursorState) -> None:
        entries_by_txn = self._held.get((write.topic_id, write.subscription), {})
        require_entries_not_held(
            write.subscription, state, entries_by_txn, positions=write.positions, up_to=write.up_to
        )

    def store_changes(self) -> None:
        if not self._changed:
            return
        ids = {participant.topic_id for _, participant in self._changed}
        query = select(t.topic.c.topic_id, t.topic.c.name).where(is_one_of(self._connection, t.topic.c.topic_id, ids))
        names = {TopicId(row.topic_id): row.name for row in self._connection.execute(query)}
        insert_participants(
            self._connection,
            [(txn, participant, names.get(participant.topic_id, "")) for txn, participant in self._changed],
        )
        for (txn, participant), positions in self._changed.items():
            replace_held_entries(self._connection, txn, participant, positions)


def apply_acknowledgements(
    connection: Connection, writes: Sequence[AcknowledgeWrite], transactions: Mapping[TransactionId, TransactionState]
) -> list[GroupCommitResult]:
    """Apply acknowledgements in the order of `writes`. A refused acknowledgement leaves its cursor unchanged.

    An acknowledgement with `txn` changes no cursor. The transaction holds the entries until it ends.
    """
    if not writes:
        return []
    rows = lock_cursors(connection, {(write.topic_id, write.subscription) for write in writes})
    first_ledger_by_topic: dict[TopicId, int] = {}  # every cursor has acknowledged all ledgers with lower ids
    for (topic_id, _), row in rows.items():
        first_ledger_by_topic[topic_id] = min(first_ledger_by_topic.get(topic_id, row.mark_ledger), row.mark_ledger)
    spans_by_topic = read_visible_spans_by_topic(connection, first_ledger_by_topic)
    held_entries = TransactionHeldEntries(connection, writes, transactions)
    cursors = {key: stored_cursor_from_row(row) for key, row in rows.items()}
    before = dict(cursors)
    results = [_apply_acknowledgement(connection, write, cursors, spans_by_topic, held_entries) for write in writes]
    held_entries.store_changes()
    changed = {rows[key].cursor_id: cursors[key] for key in sorted(cursors) if cursors[key] != before[key]}
    row_bytes = {row.cursor_id: len(row.acknowledged) for row in rows.values()} | store_cursors(connection, changed)
    for number, (result, write) in enumerate(zip(results, writes, strict=True)):
        if isinstance(result, AcknowledgeResult):  # the result reports the size of the row after all writes
            row = rows[write.topic_id, write.subscription]
            results[number] = replace(result, row_bytes=row_bytes[row.cursor_id], snapshot_ledger=row.snapshot_ledger)
    return results


def _apply_acknowledgement(
    connection: Connection,
    write: AcknowledgeWrite,
    cursors: dict[_Key, StoredCursor],
    spans_by_topic: dict[TopicId, list[VisibleLedgerSpan]],
    held_entries: TransactionHeldEntries,
) -> GroupCommitResult:
    key = (write.topic_id, write.subscription)
    cursor = cursors.get(key)
    if cursor is None:
        return UnknownObject("subscription", expected="an existing subscription", found=write.subscription)
    try:
        snapshot = require_snapshot(write.subscription, write.snapshot, needed=cursor.snapshot_ledger)
        before = complete_state(cursor.state, snapshot)
        require_current_releases(
            write.subscription,
            before,
            up_to=write.up_to,
            current_releases=cursor.releases,
            releases_at_read=write.releases,
        )
        if write.up_to is not None and write.releases is None and write.up_to > before.mark_delete:
            spans, delayed = spans_by_topic[write.topic_id], _read_delayed_ranges(connection, write, before.mark_delete)
            require_no_delayed_entries(write.subscription, before, spans, up_to=write.up_to, delayed=delayed)
        if write.txn is not None:
            held_entries.hold_for_transaction(write, write.txn, before, spans_by_topic[write.topic_id])
            return AcknowledgeResult(mark_delete=cursor.state.mark_delete)
        held_entries.require_not_held_by_others(write, before)
        state = apply_acknowledgement(before, write.positions, write.up_to, spans_by_topic[write.topic_id])
    except TerminalError as error:
        return error
    cursors[key] = replace(cursor, state=state_without_snapshot(state, snapshot))
    return AcknowledgeResult(mark_delete=state.mark_delete)


def _read_delayed_ranges(
    connection: Connection, write: AcknowledgeWrite, mark_delete: Position
) -> Iterator[DelayedSegmentRange]:
    assert write.up_to is not None
    ledger, lists, segment = t.ledger.c, t.ledger_list.c, t.segment.c
    after = tuple_(segment.ledger_id, segment.first_entry + segment.entries) > (
        mark_delete.ledger_id,
        mark_delete.entry_id + 1,
    )
    before = tuple_(segment.ledger_id, segment.first_entry) <= (write.up_to.ledger_id, write.up_to.entry_id)
    query = (
        select(segment.ledger_id, segment.first_entry, segment.entries)
        .select_from(
            t.segment.join(t.ledger, segment.ledger_id == ledger.ledger_id).join(
                t.ledger_list, ledger.list_id == lists.list_id
            )
        )
        .where(
            lists.topic_id == write.topic_id,
            lists.component == Component.MANAGED_LEDGER.value,
            ledger.place.between(mark_delete.ledger_id, write.up_to.ledger_id),
            segment.delayed > 0,
            after,
            before,
        )
        .order_by(segment.ledger_id, segment.first_entry)
    )
    for ledger_id, first, entries in connection.execute(query):
        yield DelayedSegmentRange(LedgerId(ledger_id), range(first, first + entries))
