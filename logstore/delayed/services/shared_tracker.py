"""Tracker of one topic, shared by all subscriptions of the topic in one process.

Messages that become due are offered to every subscription that has a reader in this process. Readers that are added
later find these messages in the log.

The list of index buckets is read again every ten seconds, and whenever an index bucket cannot be read. If the list
still has the unreadable index bucket, an alarm is raised, and readers find the messages of the index bucket in the log.

Catalog and storage may answer late, so they are called without `SharedTracker.lock`, and subscriptions can receive
messages during a call. A subscription waits only if it needs the result of this call.

Source: PIP-195. Prevented failures: apache/pulsar#26230 (a tracked message is never delivered), #19801 (disconnecting
consumers wipes the index), #22735 (failed recovery hangs the dispatcher).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.snapshot_file import IndexSnapshotFooter
from logstore.delayed.tracker import IndexSnapshotReader, Tracker, open_index_buckets
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from logstore.retrying_clock import Clock

_LOG: Final = logging.getLogger(__name__)

_REFRESH_INTERVAL_S: Final = 10.0
"""Age at which the list of index buckets is read again. Until then, newly sealed messages stay in memory."""

LostBucketAlarm = Callable[[Topic, IndexBucket], None]
"""Callback for a listed index bucket that cannot be read. The callback is called once for each index bucket."""


class MeasuredSnapshotReader:
    """Snapshot reader that counts and times its reads. Trackers of several topics may share this reader."""

    def __init__(self, snapshots: IndexSnapshotReader) -> None:
        self._snapshots = snapshots
        self._lock = threading.Lock()
        self.loads = 0
        """Number of footers and snapshot segments that were read."""
        self.load_s = 0.0
        """Total time of all reads, in seconds."""

    def read_footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        with self._count_and_time_read():
            return self._snapshots.read_footer(bucket)

    def read_segment(self, bucket: IndexBucket, number: int) -> DelayedRows:
        with self._count_and_time_read():
            return self._snapshots.read_segment(bucket, number)

    @contextmanager
    def _count_and_time_read(self) -> Iterator[None]:
        started_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.loads += 1
                self.load_s += time.monotonic() - started_s


class SubscriptionReader(Protocol):
    def add_due_messages(self, rows: DelayedRows) -> None:
        """Deliver due messages. The tracker no longer tracks these messages."""

    def rewind(self, position: Position) -> None:
        """Read the log again from a position. Some messages from this position on are no longer tracked."""


class SharedTracker:
    """Delayed messages of one topic, loaded by the first `refresh_bucket_list_if_old`.

    Callers of `refresh_bucket_list_if_old` and `load_due_segment_and_check_lost` must not hold `lock`. Callers of all
    other methods must hold `lock`. At any time, at most one thread reads the list, and at most one thread reads a
    snapshot segment. Results are stored under `lock`.
    """

    def __init__(
        self,
        topic: Topic,
        *,
        index: DelayedIndex,
        snapshots: IndexSnapshotReader,
        clock: Clock,
        tolerance_ms: int,
        alarm: LostBucketAlarm,
    ) -> None:
        self.lock = threading.RLock()
        self.readers: list[SubscriptionReader] = []
        self.tracker = Tracker(snapshots)
        self._topic, self._index, self._snapshots = topic, index, snapshots
        self._list_lock, self._segment_lock = threading.Lock(), threading.Lock()
        self._clock, self._tolerance_ms = clock, tolerance_ms
        self._alarm = alarm
        self._reported: set[LedgerId] = set()
        self._refreshed_s: float | None = None

    def due_ms(self) -> int:
        return self._clock.now_us() // 1000 + self._tolerance_ms

    def refresh_bucket_list_if_old(self) -> None:
        """Load the list of index buckets if it is old. If another thread is reloading an old list, return at once.

        After `StoreUnavailable` or `CatalogBusy` the next call tries again.
        """
        if self._is_fresh() or not self._list_lock.acquire(blocking=self._refreshed_s is None):
            return
        try:
            if not self._is_fresh():
                now_s = self._clock.monotonic_s()
                self._load_list()
                self._refreshed_s = now_s
        finally:
            self._list_lock.release()

    def offer_due_and_check_more(self, limit: int) -> bool:
        """Offer up to `limit` due messages to all readers. Return whether more due messages may be in memory."""
        rows = self.tracker.take_due_messages(self.due_ms(), limit)
        for reader in self.readers:
            reader.add_due_messages(rows)
        self._rewind(self.tracker.pop_rewinds())
        return len(rows) == limit

    def must_read(self) -> bool:
        """Return whether a snapshot segment with due messages must be loaded, or a lost index bucket had no alarm."""
        return bool(self._unreported_buckets()) or self.tracker.bucket_to_read(self.due_ms()) is not None

    def load_due_segment_and_check_lost(self) -> None:
        """Load a snapshot segment with due messages, if one must be loaded. Reload the list if index buckets are lost.

        After `StoreUnavailable` or `CatalogBusy` the next call tries again.
        """
        with self._segment_lock:
            with self.lock:
                source = self.tracker.bucket_to_read(self.due_ms())
            if source:
                segment = source.read_next_segment()
                with self.lock:
                    self.tracker.load_bucket_segment(source, segment)
                    self._rewind(self.tracker.pop_rewinds())
        self._reload_list_for_lost_buckets()

    def track_waiting_and_return_due(self, ledger_id: LedgerId, later: Mapping[int, int]) -> list[tuple[int, Position]]:
        messages = [(deliver_at_ms, Position(ledger_id, entry_id)) for entry_id, deliver_at_ms in later.items()]
        return [message for message in messages if not self.tracker.track_unless_due(message[1], message[0])]

    def _rewind(self, positions: list[Position]) -> None:
        for position in positions:
            for reader in self.readers:
                reader.rewind(position)

    def _is_fresh(self) -> bool:
        return self._refreshed_s is not None and self._clock.monotonic_s() < self._refreshed_s + _REFRESH_INTERVAL_S

    def _load_list(self) -> bool:
        """Read the list. If the list version is new, load the list and return `True`. The caller holds `_list_lock`."""
        listed = self._index.get_bucket_list(self._topic.topic_id)
        with self.lock:
            if self._refreshed_s is not None and listed.version == self.tracker.bucket_list.version:
                return False
            unopened = self.tracker.find_unopened_buckets(listed)
        opened = open_index_buckets(unopened, self._snapshots)
        with self.lock:
            self._rewind(self.tracker.load_list_and_pop_rewinds(listed, opened))
        return True

    def _unreported_buckets(self) -> list[IndexBucket]:
        return [bucket for bucket in self.tracker.lost_buckets if bucket.bucket_id not in self._reported]

    def _reload_list_for_lost_buckets(self) -> None:
        """If lost index buckets had no alarm yet, read the list again. If the list is unchanged, raise their alarms."""
        with self._list_lock:
            while True:
                with self.lock:
                    unreported = self._unreported_buckets()
                if not unreported:
                    return
                if not self._load_list():
                    for bucket in unreported:
                        self._raise_alarm(bucket)

    def _raise_alarm(self, bucket: IndexBucket) -> None:
        self._reported.add(bucket.bucket_id)
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
