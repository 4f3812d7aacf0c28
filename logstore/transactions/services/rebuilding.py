"""A topic's buffer rebuilt from storage: its snapshot and the log after it, or the whole log.

The end is fixed when a rebuild begins, behind open transactions too: it waits for none and stops at none
(kafka-flow#857). A rebuild that fails leaves nothing behind, and is begun anew (apache/pulsar#14801, #14830).
"""

from collections.abc import Iterator
from typing import Final

from logstore.cursors.state import LedgerSpan
from logstore.errors import MissingData
from logstore.log.services.prefetch import Prefetcher
from logstore.log.services.segment_file import SegmentGone
from logstore.log.services.tiered_segments import SegmentSource, TieredSegments
from logstore.ports.catalog import Ledger, Ledgers, Segment, Transactions
from logstore.ports.objects import ObjectStore
from logstore.positions import TopicId
from logstore.transactions.buffer import COLUMNS, Buffer, Fold, concluded
from logstore.transactions.services.snapshots import BufferSnapshots
from logstore.units import between_units

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
                read = self._read(listed, start)
            except SegmentGone as gone:
                missing = gone
            else:  # the catalog is asked after the log: what it says of a transaction is no older than its markers
                return concluded(read, self._transactions.states(list(read.open)), known)
            if missing.ledger_id in {one.ledger_id for one in self._ledgers.listed(topic_id)}:
                break
        raise MissingData(f"topic {topic_id}: {missing} is listed and no copy holds it")

    def _read(self, listed: list[Ledger], start: Buffer) -> Buffer:
        fold = Fold(start, [LedgerSpan(one.ledger_id, one.entries) for one in listed])
        source, ahead = SegmentSource(self._objects, self._tiered), Prefetcher()
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
