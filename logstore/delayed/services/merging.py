"""Merging two adjacent buckets: their snapshots are read window by window, and one that holds both takes their place.

In memory are one segment of each and what the footer of the new one will hold, however large the buckets are. The
sources are retired by the switch to the new one and never before; a merge that dies leaves a newborn ledger, which a
sweep takes away. Messages that were due when the merge began, less a minute, are left out: the log hands them out.
Without that, a topic of one bucket would keep every message that it ever delayed.

Source: PIP-195 (merging buckets); field cases 57 and 59; apache/pulsar#26251, #26241.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyroaring import BitMap

from logstore.delayed.bitmaps import add_entries, first_position, remove_entries, subtract
from logstore.delayed.buckets import Bucket
from logstore.delayed.rows import DelayedRows
from logstore.delayed.sealing import merge_sorted
from logstore.delayed.services.sealing import new_snapshot
from logstore.delayed.services.snapshots import BucketSnapshots
from logstore.delayed.sources import SnapshotGone
from logstore.errors import CorruptData
from logstore.ports.catalog import BucketSwitch, DelayedIndex, NewBucket
from logstore.positions import LedgerId, TopicId

_MERGED: Final = "merged into a larger bucket"
_PASSED_MS: Final = 60_000
"""Messages that have been due for so long by the catalog's clock are due by every process's own."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge came to."""

    switched: bool = False  # the list now has the one in the place of the two
    messages: int = 0  # in the new bucket; 0: all of them had passed, and there is none
    passed: int = 0  # messages that were due, and are in no bucket any more
    damaged: LedgerId | None = None  # the bucket whose snapshot cannot be read and is listed all the same
    loads: int = field(default=0, compare=False)  # segments that were read
    load_s: float = field(default=0.0, compare=False)  # for how long


class _Reading:
    """Sources that are read: which of them was read last, whose error an error of reading is, and for how long."""

    def __init__(self, snapshots: BucketSnapshots) -> None:
        self._snapshots = snapshots
        self.bucket: Bucket
        self.loads, self.load_s = 0, 0.0

    def rows(self, bucket: Bucket) -> Iterator[DelayedRows]:
        segments = self._snapshots.rows(bucket)
        while True:
            self.bucket, begun = bucket, time.monotonic()
            rows = next(segments, None)
            if rows is None:
                return
            self.loads, self.load_s = self.loads + 1, self.load_s + time.monotonic() - begun
            yield rows


class Merger:
    """Merges buckets. Threads share one."""

    def __init__(self, *, index: DelayedIndex, snapshots: BucketSnapshots, scratch: Path) -> None:
        """Work on the lists of buckets and their snapshots, with a folder for one file as large as a bucket."""
        self._index, self._snapshots, self._scratch = index, snapshots, scratch

    def merge(
        self, topic_id: TopicId, pair: tuple[LedgerId, LedgerId], *, progress: Callable[[int], None] = lambda _: None
    ) -> Merged:
        """Put one bucket in the place of two adjacent ones.

        Idempotency: once it is done, the two are not listed any more, and nothing changes. Of two merges at once one
        switches; what the other one wrote is retired in the transaction that refuses it.

        Args:
            topic_id: Whose buckets.
            pair: The two, in the order of their ranges.
            progress: Told the number of messages written, after each window.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeating is fine.
        """
        listed = self._index.listed(topic_id)
        at = next((at for at, one in enumerate(listed.buckets) if one.bucket_id == pair[0]), None)
        sources = () if at is None else listed.buckets[at : at + 2]
        if tuple(one.bucket_id for one in sources) != pair:
            return Merged()
        reading = _Reading(self._snapshots)
        try:
            done = self._merge(topic_id, listed.version, sources, reading, progress)
        except (SnapshotGone, CorruptData) as unreadable:
            if reading.bucket.bucket_id not in {one.bucket_id for one in self._index.listed(topic_id).buckets}:
                return Merged()
            _LOG.error("topic %s: bucket %s cannot be read: %s", topic_id, reading.bucket.bucket_id, unreadable)
            done = Merged(damaged=reading.bucket.bucket_id)
        return replace(done, loads=reading.loads, load_s=reading.load_s)

    def _merge(
        self,
        topic_id: TopicId,
        version: int,
        sources: tuple[Bucket, ...],
        reading: "_Reading",
        progress: Callable[[int], None],
    ) -> Merged:
        from_ms = self._index.now_ms() - _PASSED_MS
        gone, before = tuple(one.bucket_id for one in sources), sum(one.messages for one in sources)
        switch = BucketSwitch(topic_id=topic_id, expected=version, removed=gone, reason=_MERGED)

        def publish(born: NewBucket) -> bool:
            return self._index.switch(replace(switch, added=(born,)))

        written, known = 0, self._entries_of(sources, reading)
        with new_snapshot(self._scratch, topic_id, sources[0].first, sources[-1].last, known=known) as (file, writer):
            left_out = partial(_leave_out, known, sources, reading)
            for window in merge_sorted([reading.rows(one) for one in sources], from_ms=from_ms, on_skipped=left_out):
                writer.add(window)
                written += len(window)
                progress(written)
            switched = self._snapshots.write(file, writer.close(), publish) if written else self._index.switch(switch)
        return Merged(switched=switched, messages=written, passed=before - written) if switched else Merged()

    def _entries_of(self, sources: tuple[Bucket, ...], reading: "_Reading") -> dict[LedgerId, BitMap]:
        """The entries of all sources, as their footers have them: to gather them from rows takes longer."""
        found: dict[LedgerId, BitMap] = {}
        for one in sources:
            reading.bucket = one
            add_entries(found, self._snapshots.footer(one).bitmaps)
        return found


def _leave_out(
    known: dict[LedgerId, BitMap], sources: tuple[Bucket, ...], reading: _Reading, rows: DelayedRows
) -> None:
    """Take rows that are left out from the entries of all sources, too.

    Raises:
        CorruptData: A row is none of these entries; `reading` then has its bucket.
    """
    bits = rows.bitmaps()
    if first := first_position(subtract(bits, known)):
        reading.bucket = next((one for one in sources if first <= one.last), sources[-1])
        raise CorruptData(f"expected entry {first} of a segment in the bitmaps of the footer, too")
    remove_entries(known, bits)
