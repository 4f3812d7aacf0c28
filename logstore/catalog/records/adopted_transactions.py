"""Adoption of transactions: a topic's transactions are derived from its adopted segments and transaction markers."""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from functools import cached_property

from pyroaring import BitMap
from sqlalchemy import Connection, func, select

from logstore.catalog import tables as t
from logstore.catalog.transactions.buffer_rows import hide_entries, insert_buffer_ranges, remove_entries_from_buffers
from logstore.catalog.transactions.participant_rows import insert_participants, replace_held_entries
from logstore.catalog.transactions.transaction_decisions import apply_decisions_to_cursors, store_transaction_decisions
from logstore.catalog.transactions.transaction_rows import (
    insert_open_transactions,
    lock_transactions,
    read_transaction_states,
)
from logstore.cursors.cursor_state import unpack_acknowledged
from logstore.ports.catalog.transactions import StoredParticipant
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import AdoptedSegment, UploadedMarker
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState


def lock_decided_before_flush(connection: Connection, txns: Iterable[TransactionId]) -> set[TransactionId]:
    """Lock the transactions. Return the transactions that were decided before the last flush.

    Transactions that adoption decided are not returned, because these decisions are later than the flush.
    """
    flushed_us = _read_flushed_us(connection)
    row_by_txn = lock_transactions(connection, txns)
    return {txn for txn, row in row_by_txn.items() if row.decided_us is not None and row.decided_us <= flushed_us}


def adopt_transactions(
    connection: Connection, topic_id: TopicId, topic_name: str, segments: Sequence[AdoptedSegment], *, now_us: int
) -> None:
    """Store the transactions, ranges and transaction markers of `segments`, which must be in the order of the log.

    A transaction marker decides its transaction. An unknown transaction is inserted as open, with a deadline in the
    past.

    A subscription's marker contains acknowledgements. The marker of a commit applies them to the cursor.
    Acknowledgements of a transaction that was decided before the last flush are skipped: the flushed cursor already
    includes them, or a later seek has replaced them.
    """
    _TransactionAdoption(connection, topic_id, topic_name, segments, now_us).adopt_ranges_and_markers()


def _read_flushed_us(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(t.record_log.c.flushed_us, 0))).scalar_one())


class _TransactionAdoption:
    def __init__(
        self,
        connection: Connection,
        topic_id: TopicId,
        topic_name: str,
        segments: Sequence[AdoptedSegment],
        now_us: int,
    ) -> None:
        self._connection, self._topic_id, self._topic_name = connection, topic_id, topic_name
        self._segments, self._now_us = segments, now_us

    def adopt_ranges_and_markers(self) -> None:
        ranges = [
            (segment.ledger_id, segment.first_entry + run.offset, run.entries, self._topic_id, run.txn)
            for segment in self._segments
            for run in segment.upload.transactions
        ]
        txns = {txn for *_, txn in ranges} | {marker.txn for marker in self._markers}
        if txns and (unknown := sorted(txns - read_transaction_states(self._connection, txns).keys())):
            insert_open_transactions(self._connection, [(txn, -1) for txn in unknown], now_us=self._now_us)
        participants = {(txn, Participant(self._topic_id), self._topic_name) for *_, txn in ranges}
        participants |= {
            (marker.txn, self._to_participant(marker), self._topic_name)
            for marker in self._markers
            if marker.subscription
        }
        insert_participants(self._connection, participants)
        self._remove_entries_to_register_again()
        insert_buffer_ranges(self._connection, [(*columns, txn.tc_id, txn.sequence) for *columns, txn in ranges])
        self._hide_markers()
        self._decide_marked_transactions()

    def _remove_entries_to_register_again(self) -> None:
        """Remove entries of adopted segments from buffers. A rebuild may have loaded them without the segments."""
        first_entry_by_ledger: dict[LedgerId, int] = {}
        for segment in self._segments:
            first_entry = first_entry_by_ledger.get(segment.ledger_id, segment.first_entry)
            first_entry_by_ledger[segment.ledger_id] = min(first_entry, segment.first_entry)
        remove_entries_from_buffers(self._connection, first_entry_by_ledger)

    def _hide_markers(self) -> None:
        entries_by_ledger: dict[LedgerId, BitMap] = {}
        for segment in self._segments:
            if entries := BitMap(segment.first_entry + marker.offset for marker in segment.upload.markers):
                entries_by_ledger[segment.ledger_id] = entries_by_ledger.get(segment.ledger_id, BitMap()) | entries
        hide_entries(self._connection, dict.fromkeys(entries_by_ledger, self._topic_id), entries_by_ledger)

    def _decide_marked_transactions(self) -> None:
        marked_txns = {marker.txn for marker in self._markers}
        decided_before_flush = lock_decided_before_flush(self._connection, marked_txns) if marked_txns else set()
        acknowledging_markers = [
            marker
            for marker in self._markers
            if marker.subscription and marker.positions and marker.txn not in decided_before_flush
        ]
        for marker in acknowledging_markers:
            positions = unpack_acknowledged(b64decode(marker.positions))
            replace_held_entries(self._connection, marker.txn, self._to_participant(marker), positions)
        states = read_transaction_states(self._connection, marked_txns) if marked_txns else {}
        decisions = {
            marker.txn: TransactionState.COMMITTING if marker.commits else TransactionState.ABORTING
            for marker in self._markers
            if states[marker.txn] is TransactionState.OPEN
        }
        store_transaction_decisions(
            self._connection, decisions, now_us=max(self._now_us, _read_flushed_us(self._connection) + 1)
        )
        apply_decisions_to_cursors(
            self._connection,
            [
                StoredParticipant(
                    participant=self._to_participant(marker),
                    topic=self._topic_name,
                    positions=unpack_acknowledged(b64decode(marker.positions)),
                )
                for marker in acknowledging_markers
                if marker.commits
            ],
        )

    @cached_property
    def _markers(self) -> list[UploadedMarker]:
        return [marker for segment in self._segments for marker in segment.upload.markers]

    def _to_participant(self, marker: UploadedMarker) -> Participant:
        return Participant(self._topic_id, marker.subscription)
