"""The tracker of one topic in one process: loaded from the list of buckets, and shared by all subscriptions.

What it takes, because it is due, it hands to every subscription that reads here; a subscription that does not meets it
in its own reading of the log. The list is looked at now and then, and whenever a bucket cannot be read. A bucket that
cannot be read though it still is listed is an alarm; its messages then come from the log.

Catalog and storage are asked without the lock, because they may answer late: meanwhile subscriptions read on, and wait
only where they need the same answer.

Source: PIP-195; field cases 58, 61 and 62.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from logstore.clock import Clock
from logstore.delayed.buckets import Bucket
from logstore.delayed.rows import DelayedRows
from logstore.delayed.snapshot_footer import SnapshotFooter
from logstore.delayed.tracker import SnapshotReader, Tracker, open_buckets
from logstore.ports.catalog import DelayedIndex, Topic
from logstore.positions import LedgerId, Position

_LOG: Final = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 10.0
"""A list that changed is found after so long. Nothing rests on it: it frees what was sealed meanwhile."""

Alarm = Callable[[Topic, Bucket], None]
"""Told once of each bucket that is listed and cannot be read."""


class MeasuredSegments:
    """Counts what is loaded, and how long that takes; trackers of several topics may share it."""

    def __init__(self, segments: SnapshotReader) -> None:
        """Read there."""
        self._segments = segments
        self._lock = threading.Lock()
        self.loads = 0
        """Footers and segments that were read."""
        self.load_s = 0.0
        """How long that took, seconds, waiting for the store included."""

    def footer(self, bucket: Bucket) -> SnapshotFooter:
        """See `Segments`."""
        with self._measured():
            return self._segments.footer(bucket)

    def segment(self, bucket: Bucket, number: int) -> DelayedRows:
        """See `Segments`."""
        with self._measured():
            return self._segments.segment(bucket, number)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.loads += 1
                self.load_s += time.monotonic() - begun


class Reading(Protocol):
    """A subscription that reads in this process."""

    def offer(self, rows: DelayedRows) -> None:
        """Messages that are due, and that the tracker knows no more."""

    def rewind(self, position: Position) -> None:
        """Read again from there: the tracker knew messages from there on, and does not any more."""


class SharedTracker:
    """The delayed messages of one topic.

    `refresh` and `catch_up` want `lock` not to be held; all else wants it to be held. One thread at a time reads the
    list, and one a segment; what it finds is taken over under the lock.
    """

    def __init__(
        self,
        topic: Topic,
        *,
        index: DelayedIndex,
        segments: SnapshotReader,
        clock: Clock,
        tolerance_ms: int,
        alarm: Alarm,
    ) -> None:
        """Read nothing yet."""
        self.lock = threading.RLock()
        self.readings: list[Reading] = []
        self.tracker = Tracker(segments)
        self._topic, self._index, self._segments = topic, index, segments
        self._listing, self._loading = threading.Lock(), threading.Lock()
        self._clock, self._tolerance_ms = clock, tolerance_ms
        self._alarm = alarm
        self._alarmed: set[LedgerId] = set()
        self._looked_s: float | None = None

    def due_ms(self) -> int:
        """The latest delivery time that is due now, inclusive."""
        return self._clock.now_us() // 1000 + self._tolerance_ms

    def refresh(self) -> None:
        """Load the list of buckets if it may have changed. While another thread does that, the old one will do.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer; the next call tries again.
        """
        if self._is_fresh() or not self._listing.acquire(blocking=self._looked_s is None):
            return
        try:
            if not self._is_fresh():
                now_s = self._clock.monotonic_s()
                self._load_list()
                self._looked_s = now_s
        finally:
            self._listing.release()

    def hand_over(self, limit: int) -> bool:
        """Take at most `limit` messages that are due and in memory, and offer them to every subscription that reads.

        Returns whether there may be more in memory.
        """
        rows = self.tracker.take_due(self.due_ms(), limit)
        for reading in self.readings:
            reading.offer(rows)
        self._rewind(self.tracker.pop_rewinds())
        return len(rows) == limit

    def is_behind(self) -> bool:
        """Whether `catch_up` has something to read: a segment that is due, or the list, because a bucket is missed."""
        return bool(self._missed()) or self.tracker.bucket_to_read(self.due_ms()) is not None

    def catch_up(self) -> None:
        """Read one segment that is due, unless another thread has, and the list where a bucket is missed.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer; the next call tries again.
        """
        with self._loading:
            with self.lock:
                rows = self.tracker.bucket_to_read(self.due_ms())
            if rows:
                segment = rows.read_next_segment()
                with self.lock:
                    self.tracker.load_segment(rows, segment)
                    self._rewind(self.tracker.pop_rewinds())
        self._look_after_missed()

    def postpone(self, ledger_id: LedgerId, later: Mapping[int, int]) -> list[tuple[int, Position]]:
        """Track messages that a reader found not to be due; returns those that are due by now, with their times."""
        found = [(deliver_at_ms, Position(ledger_id, entry_id)) for entry_id, deliver_at_ms in later.items()]
        return [due for due in found if not self.tracker.add(due[1], due[0])]

    def _rewind(self, positions: list[Position]) -> None:
        for position in positions:
            for reading in self.readings:
                reading.rewind(position)

    def _is_fresh(self) -> bool:
        return self._looked_s is not None and self._clock.monotonic_s() < self._looked_s + _LOOK_EVERY_S

    def _load_list(self) -> bool:
        """Read the list, and load it unless it is the one that we have; whether it was loaded. `_listing` is held."""
        listed = self._index.listed(self._topic.topic_id)
        with self.lock:
            if self._looked_s is not None and listed.version == self.tracker.bucket_list.version:
                return False
            new = self.tracker.unopened_buckets(listed)
        opened = open_buckets(new, self._segments)
        with self.lock:
            self._rewind(self.tracker.load(listed, opened))
        return True

    def _missed(self) -> list[Bucket]:
        """Buckets that cannot be read, that were not reported yet."""
        return [bucket for bucket in self.tracker.lost_buckets if bucket.bucket_id not in self._alarmed]

    def _look_after_missed(self) -> None:
        """Read the list again where a bucket is missed: it may be merged or dropped."""
        with self._listing:
            while True:
                with self.lock:
                    missed = self._missed()
                if not missed:
                    return
                if not self._load_list():
                    for bucket in missed:
                        self._tell(bucket)

    def _tell(self, bucket: Bucket) -> None:
        """Say that a bucket cannot be read though the list, which was read again, still has it."""
        self._alarmed.add(bucket.bucket_id)
        _LOG.error(
            "DelayedBucketLost: topic %s: the snapshot of bucket %s (%s to %s, %d messages) cannot be read; its "
            "messages come from the log until it is built again",
            self._topic.name,
            bucket.bucket_id,
            bucket.first,
            bucket.last,
            bucket.messages,
        )
        self._alarm(self._topic, bucket)
