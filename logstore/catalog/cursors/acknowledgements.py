"""Acknowledgements in a group commit. Cursors are locked in the order of their ids, and each cursor is written once.

If a cursor has a snapshot, each `AcknowledgeWrite` to the cursor contains the content of the snapshot. This module
therefore reads no storage. The cursor's row gets only the acknowledgements that the snapshot lacks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap
from sqlalchemy import Connection, select, tuple_

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import LockedCursor, lock_cursors, read_visible_spans_by_topic, store_cursors
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.transactions.participant_rows import insert_participants, read_held_entries, replace_held_entries
from logstore.cursors.cursor_state import (
    CursorState,
    DelayedSegmentRange,
    VisibleLedgerSpan,
    apply_acknowledgement,
    complete_state,
    require_current_releases,
    require_no_delayed_entries,
    require_snapshot,
    state_without_snapshot,
)
from logstore.errors import TerminalError, TransactionNotOpen, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import AcknowledgeResult, AcknowledgeWrite, GroupCommitResult
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.pending_acks import compute_held_after_acknowledgement, require_entries_not_held
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState

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
    cursors = {key: LockedCursor.from_row(row) for key, row in rows.items()}
    states_before = {key: cursor.state for key, cursor in cursors.items()}
    results = [_apply_acknowledgement(connection, write, cursors, spans_by_topic, held_entries) for write in writes]
    held_entries.store_changes()
    store_cursors(connection, [cursors[key] for key in sorted(cursors) if cursors[key].state != states_before[key]])
    for number, (result, write) in enumerate(zip(results, writes, strict=True)):
        if isinstance(result, AcknowledgeResult):  # the result reports the size of the row after all writes
            cursor = cursors[write.topic_id, write.subscription]
            results[number] = replace(result, row_bytes=cursor.row_bytes, snapshot_ledger=cursor.snapshot_ledger)
    return results


def _apply_acknowledgement(
    connection: Connection,
    write: AcknowledgeWrite,
    cursors: dict[_Key, LockedCursor],
    spans_by_topic: dict[TopicId, list[VisibleLedgerSpan]],
    held_entries: TransactionHeldEntries,
) -> GroupCommitResult:
    cursor = cursors.get((write.topic_id, write.subscription))
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
    cursor.state = state_without_snapshot(state, snapshot)
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
