"""Delayed messages for tests, and snapshots in memory."""

import io
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow.parquet as pq

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.snapshot_file import IndexSnapshotFooter, IndexSnapshotWriter, parse_snapshot_footer, read_segment
from logstore.delayed.tracker import IndexSnapshotGone, Tracker
from logstore.errors import StoreUnavailable
from logstore.positions import LedgerId, Position, TopicId

TOPIC = TopicId(7)
START_MS = 1_700_000_000_000

Kind = Literal["random", "delay", "minute"]


def made(count: int, ledgers: Sequence[int] = (1,), *, kind: Kind = "random", seed: int = 0) -> DelayedRows:
    """So many messages, evenly on these ledgers: due at random within an hour, after one delay, or at whole minutes."""
    random = np.random.default_rng(seed)
    each = count // len(ledgers)
    ledger_ids = np.repeat(np.array(ledgers, dtype=np.int64), each)
    entries = np.tile(np.arange(each, dtype=np.int64), len(ledgers))
    times = {
        "random": random.integers(0, 3_600_000, len(entries)),
        "delay": np.arange(len(entries)) * 7,
        "minute": random.integers(0, 60, len(entries)) * 60_000,
    }[kind]
    return DelayedRows.from_columns(times.astype(np.int64) + START_MS, ledger_ids, entries)


def windows(rows: DelayedRows, size: int) -> Iterator[DelayedRows]:
    """The rows in windows of one size."""
    for at in range(0, len(rows), size):
        yield rows.slice(at, at + size)


def written(rows: DelayedRows, *, segment_rows: tuple[int, int] = (10_000, 100_000), step_ms: int = 300_000) -> bytes:
    """A snapshot file of these rows."""
    file = io.BytesIO()
    positions = rows.positions()
    writer = IndexSnapshotWriter(
        file, TOPIC, min(positions), max(positions), segment_rows=segment_rows, step_ms=step_ms
    )
    writer.add_rows(rows)
    writer.close()
    return file.getvalue()


def take_due(tracker: Tracker, now_ms: int, limit: int) -> DelayedRows:
    """What is due, at most so many; segments that hold it are read.

    Raises:
        StoreUnavailable: Storage did not answer, and nothing was taken.
    """
    parts = [tracker.take_due_messages(now_ms, limit)]
    try:
        while (left := limit - sum(map(len, parts))) and (rows := tracker.bucket_to_read(now_ms)):
            tracker.load_bucket_segment(rows, rows.read_next_segment())
            parts.append(tracker.take_due_messages(now_ms, left))
    except StoreUnavailable:
        if not any(map(len, parts)):
            raise
    return DelayedRows.concatenate(parts)


class Snapshots:
    """Snapshots in memory, as `Segments` says; some are gone, damaged, or in a store that does not answer."""

    def __init__(self, *, segment_rows: tuple[int, int] = (1, 3), step_ms: int = 10) -> None:
        self.files: dict[LedgerId, bytes] = {}
        self.errors: dict[LedgerId, Exception] = {}  # of every look at this one
        self.damaged: dict[tuple[LedgerId, int], Exception] = {}  # of a look at this segment
        self.reads: list[tuple[LedgerId, int | None]] = []  # segment, or None for a footer
        self._shape = (segment_rows, step_ms)

    def put(self, bucket_id: int, rows: DelayedRows, first: Position, last: Position) -> IndexBucket:
        """Store a bucket."""
        file, (segment_rows, step_ms) = io.BytesIO(), self._shape
        writer = IndexSnapshotWriter(file, TOPIC, first, last, segment_rows=segment_rows, step_ms=step_ms)
        writer.add_rows(rows)
        footer = writer.close()
        self.files[LedgerId(bucket_id)] = file.getvalue()
        return IndexBucket(
            bucket_id=LedgerId(bucket_id),
            first=first,
            last=last,
            messages=footer.messages,
            segments=len(footer.segments),
            first_ms=footer.first_ms,
            last_ms=footer.last_ms,
        )

    def read_footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        self.reads.append((bucket.bucket_id, None))
        return self._footer(bucket)

    def read_segment(self, bucket: IndexBucket, number: int) -> DelayedRows:
        self.reads.append((bucket.bucket_id, number))
        if error := self.damaged.get((bucket.bucket_id, number)):
            raise error
        footer = self._footer(bucket)
        file = io.BytesIO(self.files[bucket.bucket_id])
        return read_segment(file, number, footer=footer, metadata=pq.read_metadata(file), name="snapshot")

    def _footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        if error := self.errors.get(bucket.bucket_id):
            raise error
        if bucket.bucket_id not in self.files:
            raise IndexSnapshotGone(f"bucket {bucket.bucket_id}")
        return parse_snapshot_footer(pq.read_metadata(io.BytesIO(self.files[bucket.bucket_id])), "snapshot")
