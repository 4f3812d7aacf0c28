"""Transaction buffers in storage: kept as snapshots, and rebuilt from a snapshot and the log after it or the whole log.

A snapshot is written after changes, off the path of appends and commits. No caller waits for one, and nothing is lost
without one: it bounds how much log a rebuild reads. The buffer, as SQL has it at one moment, is stored as a component's
ledger and switched to by one transaction; a writer that dies before it leaves a newborn, which a trim of the topic
takes away.

The end of a rebuild is fixed when it begins, behind open transactions too: it waits for none and stops at none
(kafka-flow#857). A rebuild that fails leaves nothing behind, and is begun anew (apache/pulsar#14801, #14830).

Source: Pulsar's SnapshotSegmentAbortedTxnProcessor (PIP-196).
"""

import logging
from collections.abc import Iterator
from typing import Final

from logstore.cursors.state import LedgerSpan
from logstore.errors import CorruptData, MissingData, SextonError
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, Draft
from logstore.log.services.read_ahead import Prefetcher
from logstore.log.services.segment_file import SegmentGone
from logstore.log.services.tiered_segments import SegmentSource, TieredSegments
from logstore.ports.catalog import Ledger, Ledgers, Segment, SnapshotSwitch, Transactions, TransactionSnapshots
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.transactions.buffer import COLUMNS, Buffer, Fold, concluded
from logstore.transactions.snapshots import pack, unpack
from logstore.units import between_units

_LOG: Final = logging.getLogger(__name__)

_LEASE_S: Final = 60.0
"""A topic whose snapshot failed, or whose writer died, is due again after that."""

_AT_ONCE: Final = 16


class BufferSnapshots:
    """Writes and reads snapshots. Threads share one; any number of processes may run."""

    def __init__(self, *, snapshots: TransactionSnapshots, contents: ComponentLedgers) -> None:
        """Work on a catalog and the ledgers of its components."""
        self._snapshots, self._contents = snapshots, contents

    def write_due(self) -> int:
        """Write a page of snapshots that are due, from what SQL says; how many were due.

        A topic that fails is logged and due again later. Idempotency: two writers of one topic leave one snapshot.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog does not say what is due.
        """
        due = self._snapshots.take_due(limit=_AT_ONCE, lease_s=_LEASE_S)
        for topic_id in due:
            try:
                expected = self._snapshots.current(topic_id).ledger_id
                self._write(topic_id, self._snapshots.buffer(topic_id), expected)
            except SextonError as error:
                _LOG.warning("topic %s: its transactions' snapshot is not written: %s", topic_id, error)
        return len(due)

    def replace(self, topic_id: TopicId, buffer: Buffer) -> bool:
        """Make this buffer the topic's snapshot, unless there is one that knows of more entries; whether it is.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, OutcomeUnknown: Bounded retries were not enough; repeating is fine.
        """
        found = self._snapshots.current(topic_id)
        return found.read_to <= buffer.read_to and self._write(topic_id, buffer, found.ledger_id)

    def _write(self, topic_id: TopicId, buffer: Buffer, expected: LedgerId | None) -> bool:
        switch = SnapshotSwitch(topic_id=topic_id, expected=expected, read_to=buffer.read_to)
        draft = Draft(
            topic_id=topic_id,
            component=Component.TXN_SNAPSHOT,
            keys={},
            content=pack(topic_id, buffer),
            properties={"read_to": str(buffer.read_to), "max_read_position": str(buffer.max_read_position)},
        )

        def publish(born: CreatedLedger) -> bool:
            return self._snapshots.publish(switch, born.ledger_id, size_bytes=born.size_bytes, sha256=born.sha256)

        with effect("transactions.write_snapshot"):
            return self._contents.write(draft, publish)

    def load(self, topic_id: TopicId) -> Buffer | None:
        """The topic's snapshot; None where there is none, or it is damaged, which is logged.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        ledger_id = self._snapshots.current(topic_id).ledger_id
        if ledger_id is None:
            return None
        try:
            content = self._contents.read(ledger_id)
            return unpack(content or b"", topic_id)
        except CorruptData as damaged:
            _LOG.warning("topic %s: the whole log is read, because its snapshot is damaged: %s", topic_id, damaged)
            return None


_TRIES: Final = 5
"""Of a log that is trimmed while it is read."""


class Rebuilder:
    """Reads buffers out of storage. Threads share one."""

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        transactions: Transactions,
        objects: ObjectStore,
        tiered: TieredSegments | None = None,
        snapshots: BufferSnapshots | None = None,
        whole: bool = False,
    ) -> None:
        """Work on a log.

        Args:
            ledgers: Where its segments are named.
            transactions: Says of transactions without a marker how they are.
            objects: The primary bucket.
            tiered: Read where a primary copy is gone or damaged.
            snapshots: Where rebuilds go on from; None: each reads the whole log.
            whole: Read whole logs all the same; a snapshot is believed only where the log does not tell any more.
        """
        self._ledgers, self._transactions = ledgers, transactions
        self._objects, self._tiered, self._snapshots, self._whole = objects, tiered, snapshots, whole

    def rebuild(self, topic_id: TopicId) -> Buffer:
        """What the topic's log says of its transactions, up to the entry that is its last one now.

        Raises:
            MissingData: A listed ledger lacks an object.
            CorruptData: A segment is not what its row says, in no copy.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        known = self._snapshots.load(topic_id) if self._snapshots else None
        start = Buffer() if known is None or self._whole else known
        for _ in range(_TRIES):
            listed = self._ledgers.listed(topic_id)
            try:
                read = self._read(topic_id, listed, start)
            except SegmentGone as gone:
                missing = gone
            else:  # the catalog is asked after the log: what it says of a transaction is no older than its markers
                return concluded(read, self._transactions.states(list(read.open)), known)
            if missing.ledger_id in {one.ledger_id for one in self._ledgers.listed(topic_id)}:
                break
        raise MissingData(f"topic {topic_id}: {missing} is listed and no copy holds it")

    def _read(self, topic_id: TopicId, listed: list[Ledger], start: Buffer) -> Buffer:
        fold = Fold(start, [LedgerSpan(one.ledger_id, one.entries) for one in listed])
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic_id}")
        ahead = Prefetcher()
        try:
            wanted = self._wanted(listed, fold)
            for (_, segment), table in ahead.run(wanted, lambda one: source.read(*one, COLUMNS)):
                between_units()
                fold.add(segment.ledger_id, segment.first_entry, table)
        finally:
            ahead.close()
        return fold.buffer()

    def _wanted(self, listed: list[Ledger], fold: Fold) -> Iterator[tuple[Ledger, Segment]]:
        for ledger in listed:
            ids = fold.wanted(ledger.ledger_id)
            if not ids:
                continue
            reached = ids.start
            for segment in self._ledgers.segments(ledger.ledger_id, from_entry=ids.start):
                if segment.first_entry > reached or segment.first_entry >= ids.stop:
                    break
                reached = segment.first_entry + segment.entries
                yield ledger, segment
            if reached < ids.stop:
                raise SegmentGone(ledger.ledger_id, f"entry {reached} of ledger {ledger.ledger_id}")
