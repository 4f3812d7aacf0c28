"""Tracker of a topic's delayed messages: waiting messages and due messages.

A tracker is a cache of one process, shared by all subscriptions of the topic. Any process can build a tracker from the
list of index buckets and the log. For each index bucket the tracker has bitmaps and at most one snapshot segment in
memory. Readers of the log add messages that are in no index bucket. The tracker holds these messages in runs of rows.

Storage may answer late, so the caller can read storage first, and then pass the result to the tracker.

Contract between tracker and readers of the log:

1. `take_due_messages` returns each tracked message that is due. Then the message is no longer tracked.
2. A reader skips each tracked message.
3. A reader delivers an untracked message if it is due. Otherwise the reader adds the message to the tracker.

Readers therefore find each untracked message in the log, and the loss of an index bucket loses no message.

Source: PIP-195 (BucketDelayedDeliveryTracker). The rules prevent these failures of Pulsar's tracker:
apache/pulsar#26251 (a merge loses messages), #26230 (a tracked message is never delivered), #22735 (failed recovery
hangs the dispatcher), #16490 (an index buffer cannot grow), #25076 (a message is counted twice), #26117 (bitmaps keep
their capacity).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final, Protocol

from pyroaring import BitMap

from logstore.delayed import entry_bitmaps
from logstore.delayed.delayed_rows import CompressedRows, DelayedRows
from logstore.delayed.entry_bitmaps import Bitmaps
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.delayed.snapshot_file import IndexSnapshotFooter
from logstore.errors import CorruptData
from logstore.positions import LedgerId, Position

MAX_ROWS_PER_RUN: Final = 100_000
"""Maximum rows of a run. Memory grows by one run at a time, and no array is ever doubled (apache/pulsar#16490)."""

_MAX_LOOSE_ROWS: Final = 1_024
_BYTES_PER_LOOSE_ROW: Final = 200  # approximate size of a tuple of three integers in a list


class IndexSnapshotGone(Exception):
    """Error: an index bucket has no snapshot, because storage has no object or the catalog has no ledger."""


class IndexSnapshotReader(Protocol):
    """Reader of the snapshots of index buckets. Several threads may read footers at once."""

    def read_footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        """Return the footer of the index bucket's snapshot.

        Raises:
            IndexSnapshotGone: There is no snapshot.
            CorruptData: The snapshot is damaged or belongs to another index bucket.
            StoreUnavailable: Storage did not answer.
        """

    def read_segment(self, bucket: IndexBucket, number: int) -> DelayedRows:
        """Return the rows of one snapshot segment. `number` counts from 0. Raise the errors of `read_footer`."""


class DelayedRowSource(Protocol):
    """Source of sorted rows, which are taken from the beginning."""

    @property
    def next_ms(self) -> int | None:
        """Lower bound of the next row's delivery time. `None` if no rows remain."""

    @property
    def is_loaded(self) -> bool: ...

    def peek_due(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        """Return at most `limit` due rows that are in memory. Also return whether the row after them must be loaded."""

    def advance(self, count: int) -> None: ...


class SortedRowRun:
    def __init__(self, rows: DelayedRows) -> None:
        self._rows, self._drawn_rows = CompressedRows.from_rows(rows), 0
        self._next_ms = int(rows.deliver_at_ms[0]) if len(rows) else None

    def __len__(self) -> int:
        return len(self._rows) - self._drawn_rows

    @property
    def next_ms(self) -> int | None:
        return self._next_ms

    @property
    def is_loaded(self) -> bool:
        return True

    def peek_due(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        rows = self._rows.decode_rows(self._drawn_rows, self._drawn_rows + limit)
        return rows.slice(0, rows.count_due(now_ms)), False

    def advance(self, count: int) -> None:
        self._drawn_rows += count
        self._next_ms = self._rows.deliver_at_ms(self._drawn_rows) if len(self) else None

    def remaining_rows(self) -> DelayedRows:
        return self._rows.decode_rows(self._drawn_rows)

    @property
    def memory_bytes(self) -> int:
        return self._rows.memory_bytes


class IndexBucketSource:
    """Messages of an index bucket. The constructor reads the footer and raises the errors of `read_footer`.

    One snapshot segment at a time is in memory. A snapshot segment is loaded when its first row is due.
    """

    def __init__(self, bucket: IndexBucket, snapshots: IndexSnapshotReader) -> None:
        self.bucket = bucket
        self._snapshots = snapshots
        footer = snapshots.read_footer(bucket)
        self._segments = footer.segments
        self.bitmaps: Bitmaps = footer.bitmaps
        self.excluded: Bitmaps = {}  # entries that are left out
        self.is_exhausted = False  # whether the tracker has seen that no row remains
        self._next_segment = 0  # number of the next segment to load
        self._run = SortedRowRun(DelayedRows.empty())

    @property
    def next_ms(self) -> int | None:
        """Delivery time of the next row in memory. If no row is in memory, first time of the next snapshot segment."""
        if len(self._run):
            return self._run.next_ms
        return self._segments[self._next_segment].first_ms if self._has_more_segments else None

    @property
    def is_loaded(self) -> bool:
        return bool(len(self._run))

    def peek_due(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        rows, _ = self._run.peek_due(now_ms, limit)
        return rows, len(rows) == len(self._run) and self._has_more_segments

    def advance(self, count: int) -> None:
        self._run.advance(count)
        if not len(self._run):
            self._run = SortedRowRun(DelayedRows.empty())

    def read_next_segment(self) -> DelayedRows | None:
        """Return the next snapshot segment, or `None` if it is gone or damaged. The source does not change."""
        try:
            return self._snapshots.read_segment(self.bucket, self._next_segment)
        except (IndexSnapshotGone, CorruptData):
            return None

    def load_segment(self, segment: DelayedRows) -> None:
        """Replace the snapshot segment in memory by the rows that `read_next_segment` returned."""
        self._run = SortedRowRun(segment.drop_entries(self.excluded))
        self._next_segment += 1

    @property
    def memory_bytes(self) -> int:
        return self._run.memory_bytes if len(self._run) else 0

    @property
    def _has_more_segments(self) -> bool:
        return self._next_segment < len(self._segments)


class LogMessageSource:
    """Messages that readers found in the log, in runs of bounded length."""

    def __init__(self) -> None:
        self._runs: list[SortedRowRun] = []
        self._loose_rows: list[tuple[int, int, int]] = []  # added rows that are in no run yet, unsorted
        self._loose_next_ms: int | None = None  # earliest delivery time of the loose rows

    def add_row(self, row: tuple[int, int, int]) -> None:
        self._loose_rows.append(row)
        self._loose_next_ms = row[0] if self._loose_next_ms is None else min(self._loose_next_ms, row[0])
        if len(self._loose_rows) >= _MAX_LOOSE_ROWS:
            self._flush_loose_rows()

    def remove_entries(self, bitmaps: Bitmaps) -> None:
        self._flush_loose_rows()
        remaining = [run.remaining_rows().drop_entries(bitmaps) for run in self._runs]
        self._runs = [SortedRowRun(rows) for rows in remaining if len(rows)]

    def list_runs(self, now_ms: int | None = None) -> Sequence[DelayedRowSource]:
        """If a loose row (a row in no run) is due at `now_ms`, move all loose rows into a run. Return the runs."""
        if now_ms is not None and self._loose_next_ms is not None and self._loose_next_ms <= now_ms:
            self._flush_loose_rows()
        self._runs = [run for run in self._runs if len(run)]
        return self._runs

    @property
    def next_ms(self) -> int | None:
        times = [self._loose_next_ms, *(run.next_ms for run in self._runs)]
        return min((time for time in times if time is not None), default=None)

    @property
    def memory_bytes(self) -> int:
        return sum(run.memory_bytes for run in self._runs) + len(self._loose_rows) * _BYTES_PER_LOOSE_ROW

    def _flush_loose_rows(self) -> None:
        """Sort loose rows into a run, then merge the last runs if they have similar lengths."""
        if self._loose_rows:
            self._runs.append(SortedRowRun(DelayedRows.from_tuples(self._loose_rows)))
            self._loose_rows, self._loose_next_ms = [], None
        while len(self._runs) > 1:
            earlier, later = self._runs[-2:]
            if len(earlier) > 2 * len(later) or len(earlier) + len(later) > MAX_ROWS_PER_RUN:
                break
            self._runs[-2:] = [SortedRowRun(DelayedRows.merge([earlier.remaining_rows(), later.remaining_rows()]))]


def take_due_rows(sources: Sequence[DelayedRowSource], now_ms: int, limit: int) -> DelayedRows:
    """Take at most `limit` due rows from all sources, in order. Stop if the next row may be one that is not in memory.

    If rows are due but the result is empty, the source with the lowest `next_ms` must load its next snapshot segment.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    windows = [source.peek_due(now_ms, limit) for source in sources]
    rows = DelayedRows.concatenate([window for window, _ in windows])
    order = rows.sorted_row_numbers()
    source_numbers = np.repeat(np.arange(len(sources)), [len(window) for window, _ in windows])[order]
    taken_rows = min(limit, len(rows))
    for number, (source, (_, may_continue)) in enumerate(zip(sources, windows, strict=True)):
        if not source.is_loaded and source.next_ms is not None:
            taken_rows = min(taken_rows, int(rows.deliver_at_ms[order].searchsorted(source.next_ms, side="left")))
        elif may_continue:
            taken_rows = min(taken_rows, int(np.flatnonzero(source_numbers == number)[-1]) + 1)
    taken_by_source = np.bincount(source_numbers[:taken_rows], minlength=len(sources)).tolist()
    for source, count in zip(sources, taken_by_source, strict=True):
        if count:
            source.advance(count)
    return rows.select_rows(order[:taken_rows])


_MAX_CONCURRENT_FOOTERS: Final = 8


def open_index_buckets(
    buckets: Sequence[IndexBucket], snapshots: IndexSnapshotReader
) -> dict[LedgerId, IndexBucketSource | None]:
    """Read the footers of index buckets concurrently. `None` marks an index bucket that cannot be read."""

    def open_bucket(bucket: IndexBucket) -> IndexBucketSource | None:
        try:
            return IndexBucketSource(bucket, snapshots)
        except (IndexSnapshotGone, CorruptData):
            return None

    with ThreadPoolExecutor(_MAX_CONCURRENT_FOOTERS) as threads:
        return dict(zip((bucket.bucket_id for bucket in buckets), threads.map(open_bucket, buckets), strict=True))


class Tracker:
    """View of the delayed messages of one topic.

    A tracker is empty before the first `load_list_and_pop_rewinds`. Not thread-safe.
    """

    def __init__(self, snapshots: IndexSnapshotReader) -> None:
        self._segments = snapshots
        self._bucket_list = IndexBucketList()
        self._source_by_bucket: dict[LedgerId, IndexBucketSource] = {}
        self._added = LogMessageSource()
        self._tracked: dict[LedgerId, BitMap] = {}
        self._added_bits: dict[LedgerId, BitMap] = {}  # tracked entries that are in no index bucket
        self._taken: dict[
            LedgerId, BitMap
        ] = {}  # taken entries that are in an index bucket, or may be in a later index bucket
        self._now_ms: int | None = None
        self._lost: dict[LedgerId, IndexBucket] = {}
        self._rewinds: list[Position] = []

    @property
    def bucket_list(self) -> IndexBucketList:
        return self._bucket_list

    @property
    def lost_buckets(self) -> tuple[IndexBucket, ...]:
        """Index buckets that the last `load_list_and_pop_rewinds`, or a later call, could not read.

        Check this property after `load_list_and_pop_rewinds`, `load_bucket_segment` and `take_due_messages`. If an
        index bucket is lost, read the list again. If the list has changed, load the new list. Otherwise raise an
        alarm, because readers must find the lost messages in the log.
        """
        return tuple(self._lost.values())

    @property
    def messages(self) -> int:
        return entry_bitmaps.count_entries(self._tracked)

    @property
    def memory_bytes(self) -> int:
        sources = self._source_by_bucket.values()
        rows_bytes = self._added.memory_bytes + sum(source.memory_bytes for source in sources)
        entry_sets = (self._tracked, self._added_bits, self._taken, *(source.bitmaps for source in sources))
        return rows_bytes + sum(entry_bitmaps.bitmaps_memory_bytes(entries) for entries in entry_sets)

    def tracked_entries(self) -> Mapping[LedgerId, BitMap]:
        """Return a read-only view of the tracked entries, which changes with the tracker."""
        return MappingProxyType(self._tracked)

    def contains(self, position: Position) -> bool:
        return position.entry_id in self._tracked.get(position.ledger_id, ())

    def track_unless_due(self, position: Position, deliver_at_ms: int) -> bool:
        """Track a message of the log. Return whether the message is tracked now. Idempotent.

        `False` means that the message was due at the last `take_due_messages`. The reader then delivers the message.
        """
        if self.contains(position):
            return True
        if self._now_ms is not None and deliver_at_ms <= self._now_ms:
            return False
        entry = {position.ledger_id: BitMap([position.entry_id])}
        entry_bitmaps.add_entries(self._tracked, entry)
        entry_bitmaps.add_entries(self._added_bits, entry)
        entry_bitmaps.remove_entries(self._taken, entry)
        self._added.add_row((deliver_at_ms, position.ledger_id, position.entry_id))
        return True

    def next_ms(self) -> int | None:
        """Return a lower bound of the next delivery time, in ms since 1970, or `None` if nothing is tracked."""
        times = [self._added.next_ms, *(source.next_ms for source in self._source_by_bucket.values())]
        return min((time for time in times if time is not None), default=None)

    def find_unopened_buckets(self, listed: IndexBucketList) -> list[IndexBucket]:
        """Return the listed index buckets whose footers `load_list_and_pop_rewinds` needs."""
        return [bucket for bucket in listed.buckets if bucket.bucket_id not in self._source_by_bucket]

    def load_list_and_pop_rewinds(
        self, bucket_list: IndexBucketList, opened_sources: Mapping[LedgerId, IndexBucketSource | None] | None = None
    ) -> list[Position]:
        """Replace the tracked index buckets by the listed ones. Return positions where readers must reread the log.

        The message at each returned position is no longer tracked. An index bucket that cannot be read is lost, and the
        next call of this method tries to read it again. Messages that readers added stay tracked. `opened_sources` is
        the result of `open_index_buckets`. Without `opened_sources`, this call reads the footers.

        Messages that `take_due_messages` returned are usually not tracked again. Exception: if a bulk job began before
        a message was due, an index bucket of this job may have the message. Readers drop messages that they have.

        Raise `StoreUnavailable`, without any change, if storage does not answer.
        """
        sources, lost = dict[LedgerId, IndexBucketSource](), dict[LedgerId, IndexBucket]()
        new_sources = (
            open_index_buckets(self.find_unopened_buckets(bucket_list), self._segments)
            if opened_sources is None
            else opened_sources
        )
        for bucket in bucket_list.buckets:
            # An index bucket that was open when the footers were read may have been lost since.
            source = self._source_by_bucket.get(bucket.bucket_id) or new_sources.get(bucket.bucket_id)
            if source:
                sources[bucket.bucket_id] = source
            else:
                lost[bucket.bucket_id] = bucket
        tracked_before, bucket_entries = self._tracked, self._exclude_taken_and_unite(sources)
        self._bucket_list, self._source_by_bucket, self._lost, self._tracked = (
            bucket_list,
            sources,
            lost,
            bucket_entries,
        )
        if duplicates := entry_bitmaps.intersect_entries(self._added_bits, bucket_entries):
            self._added.remove_entries(duplicates)
            entry_bitmaps.remove_entries(self._added_bits, duplicates)
        entry_bitmaps.add_entries(self._tracked, self._added_bits)
        self._prune_taken()
        self._request_rewind(entry_bitmaps.subtract_entries(tracked_before, self._tracked))
        return self.pop_rewinds()

    def pop_rewinds(self) -> list[Position]:
        rewinds, self._rewinds = self._rewinds, []
        return rewinds

    def take_due_messages(self, now_ms: int, limit: int) -> DelayedRows:
        """Return at most `limit` due messages that are in memory, in order, and stop tracking them.

        If the result has fewer than `limit` messages, either no more messages are due, or the caller must first load
        the next snapshot segment of `bucket_to_read`.
        """
        self._now_ms = now_ms
        parts: list[DelayedRows] = []
        while (
            limit > 0 and (sources := self._due_sources(now_ms)) and len(part := take_due_rows(sources, now_ms, limit))
        ):
            self._mark_taken_and_check_buckets(part)
            parts.append(part)
            limit -= len(part)
        return DelayedRows.concatenate(parts)

    def bucket_to_read(self, now_ms: int) -> IndexBucketSource | None:
        """Return the index bucket of the snapshot segment to load before `take_due_messages` can return more rows."""
        unloaded = [
            source
            for source in self._due_sources(now_ms)
            if isinstance(source, IndexBucketSource) and not source.is_loaded
        ]
        return min(unloaded, key=lambda source: source.next_ms or 0, default=None)

    def load_bucket_segment(self, source: IndexBucketSource, segment: DelayedRows | None) -> None:
        """Load the next snapshot segment of an index bucket. Do nothing if the index bucket is no longer tracked.

        `None` as `segment` says that the snapshot segment cannot be read. The index bucket is then lost, and
        `pop_rewinds` returns the position from which readers find its messages in the log.
        """
        if self._source_by_bucket.get(source.bucket.bucket_id) is not source:
            return
        if segment is None:
            self._lose_bucket(source)
        else:
            source.load_segment(segment)

    def _exclude_taken_and_unite(self, sources: Mapping[LedgerId, IndexBucketSource]) -> dict[LedgerId, BitMap]:
        """Return the entries to track. Exclude taken entries, and entries of earlier sources, from each new source."""
        united: dict[LedgerId, BitMap] = {}
        for bucket_id, source in sources.items():
            if bucket_id in self._source_by_bucket:
                entry_bitmaps.add_entries(united, self._remaining_entries(source))
                continue
            excluded = entry_bitmaps.intersect_entries(source.bitmaps, self._taken)
            entry_bitmaps.add_entries(excluded, entry_bitmaps.intersect_entries(source.bitmaps, united))
            source.excluded = excluded
            entry_bitmaps.add_entries(united, entry_bitmaps.subtract_entries(source.bitmaps, excluded))
        return united

    def _remaining_entries(self, source: IndexBucketSource) -> dict[LedgerId, BitMap]:
        return entry_bitmaps.subtract_entries(
            entry_bitmaps.intersect_entries(source.bitmaps, self._tracked), self._added_bits
        )

    def _prune_taken(self) -> None:
        relevant = entry_bitmaps.entries_behind(self._taken, self._bucket_list.sealed_to)
        for source in self._source_by_bucket.values():
            entry_bitmaps.add_entries(relevant, entry_bitmaps.intersect_entries(source.bitmaps, self._taken))
        for bucket in self._lost.values():  # may be readable at the next load
            entry_bitmaps.add_entries(relevant, entry_bitmaps.entries_between(self._taken, bucket.first, bucket.last))
        self._taken = relevant

    def _request_rewind(self, untracked: Bitmaps) -> None:
        if first := entry_bitmaps.first_position(untracked):
            self._rewinds.append(first)

    def _due_sources(self, now_ms: int) -> list[DelayedRowSource]:
        sources = [*self._source_by_bucket.values(), *self._added.list_runs(now_ms)]
        return [source for source in sources if source.next_ms is not None and source.next_ms <= now_ms]

    def _mark_taken_and_check_buckets(self, rows: DelayedRows) -> None:
        """Stop tracking taken rows. Lose each index bucket that has no more rows although entries of it remain."""
        entries = rows.to_bitmaps()
        entry_bitmaps.remove_entries(self._tracked, entries)
        entry_bitmaps.remove_entries(self._added_bits, entries)
        entry_bitmaps.add_entries(self._taken, entries)
        for source in list(self._source_by_bucket.values()):
            if source.next_ms is None and not source.is_exhausted:
                source.is_exhausted = True
                if self._remaining_entries(source):
                    self._lose_bucket(source)

    def _lose_bucket(self, source: IndexBucketSource) -> None:
        """Stop tracking an index bucket. Readers find the remaining messages of the index bucket in the log."""
        remaining = self._remaining_entries(source)
        del self._source_by_bucket[source.bucket.bucket_id]
        self._lost[source.bucket.bucket_id] = source.bucket
        entry_bitmaps.remove_entries(self._tracked, remaining)
        self._request_rewind(remaining)
