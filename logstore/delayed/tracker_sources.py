"""Sources of a tracker's messages: runs of rows in memory, and index buckets, which are loaded segment by segment."""

from collections.abc import Sequence
from typing import Final, Protocol

from logstore.delayed.compressed_rows import CompressedRows
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.entry_bitmaps import Bitmaps
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.snapshot_footer import IndexSnapshotFooter
from logstore.errors import CorruptData

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
