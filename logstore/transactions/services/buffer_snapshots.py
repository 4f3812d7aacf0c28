"""Snapshots of transaction buffers in storage, and the rebuild of a buffer from a snapshot and the log after it.

A snapshot only limits how much of the log a rebuild reads. Appends and commits do not wait for a snapshot, and a
missing snapshot loses nothing. A snapshot is first stored as a component ledger. Then one SQL transaction makes it
the topic's snapshot. A writer that dies in between leaves a newborn ledger, which a trim of the topic deletes.

A rebuild reads up to the end that the log had when the rebuild began. Open transactions neither delay nor stop the
rebuild (kafka-flow#857). A failed rebuild starts again from the beginning (apache/pulsar#14801, #14830).

Source: Pulsar's SnapshotSegmentAbortedTxnProcessor (PIP-196).
"""

import logging
from collections.abc import Iterator
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.buffer_snapshots import TransactionBufferSnapshots
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import VisibleLedgerSpan
from logstore.errors import CorruptData, MissingData, SextonError
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, OneEntryLedgerDraft
from logstore.log.services.entry_reader import Prefetcher
from logstore.log.services.segment_reader import SegmentGone, SegmentSource, TieredCopyFinder
from logstore.ports.catalog.log import Ledger, Segment
from logstore.ports.catalog.transactions import BufferSnapshotReplacement
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.stop_checks import raise_if_stopped
from logstore.transactions.buffer_serialization import pack_buffer, unpack_buffer
from logstore.transactions.transaction_buffer import (
    COLUMNS,
    TransactionBuffer,
    TransactionBufferAccumulator,
    resolve_open_transactions,
)

_LOG: Final = logging.getLogger(__name__)

_LEASE_S: Final = 60.0
"""Time after which another attempt may write a topic's snapshot if the earlier attempt failed or died."""

_TOPICS_PER_PAGE: Final = 16
_MAX_READ_ATTEMPTS: Final = 5
"""Maximum number of attempts to read a log. An attempt fails if the log is trimmed meanwhile."""


class BufferSnapshots:
    """Writer and reader of buffer snapshots. Thread-safe."""

    def __init__(self, *, snapshots: TransactionBufferSnapshots, contents: ComponentLedgers) -> None:
        self._snapshots, self._contents = snapshots, contents

    def write_snapshots_and_count_due(self) -> int:
        """Write one page of due snapshots from the buffers in SQL. Return the number of topics that were due.

        If the snapshot of a topic fails, the error is logged, and the topic is due again later. Raise
        `StoreUnavailable` or `CatalogBusy` if the catalog did not return the due topics. Idempotency: if two callers
        write snapshots of a topic, one snapshot stays.
        """
        due = self._snapshots.reserve_due_topics(limit=_TOPICS_PER_PAGE, reserved_for_s=_LEASE_S)
        for topic_id in due:
            try:
                expected = self._snapshots.get_snapshot(topic_id).ledger_id
                self._write_snapshot(topic_id, self._snapshots.read_buffer(topic_id), expected)
            except SextonError as error:
                _LOG.warning("topic %s: its transactions' snapshot is not written: %s", topic_id, error)
        return len(due)

    def replace_snapshot(self, topic_id: TopicId, buffer: TransactionBuffer) -> bool:
        """Replace the topic's snapshot if it does not cover more entries than `buffer`. Return whether it was replaced.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, OutcomeUnknown: All retries failed. Repeat the call.
        """
        current = self._snapshots.get_snapshot(topic_id)
        return current.read_to <= buffer.read_to and self._write_snapshot(topic_id, buffer, current.ledger_id)

    def _write_snapshot(self, topic_id: TopicId, buffer: TransactionBuffer, expected: LedgerId | None) -> bool:
        switch = BufferSnapshotReplacement(topic_id=topic_id, expected=expected, read_to=buffer.read_to)
        draft = OneEntryLedgerDraft(
            topic_id=topic_id,
            component=Component.TXN_SNAPSHOT,
            keys={},
            content=pack_buffer(topic_id, buffer),
            properties={"read_to": str(buffer.read_to), "max_read_position": str(buffer.max_read_position)},
        )

        def publish(created: CreatedLedger) -> bool:
            return self._snapshots.publish_snapshot(
                switch, created.ledger_id, size_bytes=created.size_bytes, sha256=created.sha256
            )

        with effect("transactions.write_snapshot"):
            return self._contents.write_and_publish(draft, publish)

    def load_readable_snapshot(self, topic_id: TopicId) -> TransactionBuffer | None:
        """Return the topic's snapshot, or `None` if it is missing or damaged. Damage is logged."""
        ledger_id = self._snapshots.get_snapshot(topic_id).ledger_id
        if ledger_id is None:
            return None
        try:
            content = self._contents.read(ledger_id)
            return unpack_buffer(content or b"", topic_id)
        except CorruptData as damaged:
            _LOG.warning("topic %s: the whole log is read, because its snapshot is damaged: %s", topic_id, damaged)
            return None


class BufferRebuilder:
    """Builder of buffers from the logs in storage. Thread-safe.

    A rebuild starts from the topic's snapshot. Without `snapshots`, or with `read_whole_log`, a rebuild reads the whole
    log. With `read_whole_log`, the snapshot only decides transactions that neither the log nor the catalog knows.
    """

    def __init__(
        self,
        *,
        ledgers: MessageLedgers,
        transactions: Transactions,
        objects: ObjectStore,
        tiered: TieredCopyFinder | None = None,
        snapshots: BufferSnapshots | None = None,
        read_whole_log: bool = False,
    ) -> None:
        self._ledgers, self._transactions = ledgers, transactions
        self._objects, self._tiered, self._snapshots, self._read_whole_log = objects, tiered, snapshots, read_whole_log

    def rebuild_buffer(self, topic_id: TopicId) -> TransactionBuffer:
        """Return the topic's buffer up to the last entry at the beginning of the call.

        Raise `MissingData` or `CorruptData` if no copy of a listed segment can be read.
        """
        snapshot = self._snapshots.load_readable_snapshot(topic_id) if self._snapshots else None
        start = TransactionBuffer() if snapshot is None or self._read_whole_log else snapshot
        for _ in range(_MAX_READ_ATTEMPTS):
            listed = self._ledgers.list_ledgers(topic_id)
            try:
                buffer = self._read_log(topic_id, listed, start)
            except SegmentGone as gone:
                missing = gone
            else:
                # The catalog is read after the log, so the states are no older than the markers.
                states = self._transactions.get_transaction_states(list(buffer.open))
                return resolve_open_transactions(buffer, states, snapshot)
            if missing.ledger_id in {ledger.ledger_id for ledger in self._ledgers.list_ledgers(topic_id)}:
                break
        raise MissingData(f"topic {topic_id}: {missing} is listed and no copy holds it")

    def _read_log(self, topic_id: TopicId, listed: list[Ledger], start: TransactionBuffer) -> TransactionBuffer:
        accumulator = TransactionBufferAccumulator(
            start, [VisibleLedgerSpan(ledger.ledger_id, ledger.entries) for ledger in listed]
        )
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic_id}")
        prefetcher = Prefetcher()
        try:
            segments = self._unread_segments(listed, accumulator)
            for (_, segment), table in prefetcher.fetch_ahead(segments, lambda pair: source.read(*pair, COLUMNS)):
                raise_if_stopped()
                accumulator.add_segment(segment.ledger_id, segment.first_entry, table)
        finally:
            prefetcher.close()
        return accumulator.buffer()

    def _unread_segments(
        self, listed: list[Ledger], accumulator: TransactionBufferAccumulator
    ) -> Iterator[tuple[Ledger, Segment]]:
        for ledger in listed:
            unread = accumulator.unread_entries(ledger.ledger_id)
            if not unread:
                continue
            next_entry = unread.start
            for segment in self._ledgers.list_segments(ledger.ledger_id, from_entry=unread.start):
                if segment.first_entry > next_entry or segment.first_entry >= unread.stop:
                    break
                next_entry = segment.first_entry + segment.entries
                yield ledger, segment
            if next_entry < unread.stop:
                raise SegmentGone(ledger.ledger_id, f"entry {next_entry} of ledger {ledger.ledger_id}")
