"""What a tracker draws its messages from: runs in memory, and buckets of which one segment is in memory at a time."""

from collections.abc import Sequence
from typing import Final, Protocol

from logstore.delayed.bitmaps import Bitmaps
from logstore.delayed.buckets import Bucket
from logstore.delayed.compact import CompactSegment
from logstore.delayed.rows import DelayedRows
from logstore.delayed.snapshot_footer import SnapshotFooter
from logstore.errors import CorruptData

RUN_ROWS: Final = 100_000
"""Rows of a run of added messages, at most: memory grows by runs, and none is ever doubled."""

_LOOSE_ROWS: Final = 1_024
_LOOSE_BYTES: Final = 200
"""What a message takes that was added and is in no run yet, about."""


class SnapshotGone(Exception):
    """The store says definitely that a bucket's snapshot is not there, or the catalog that it has no such ledger."""


class Segments(Protocol):
    """Where snapshots are read. Footers are read by several threads."""

    def footer(self, bucket: Bucket) -> SnapshotFooter:
        """What the bucket's snapshot says of itself.

        Raises:
            SnapshotGone: There is none.
            CorruptData: It is damaged, or another one.
            StoreUnavailable: Storage did not answer.
        """

    def segment(self, bucket: Bucket, number: int) -> DelayedRows:
        """The rows of one of its segments, from 0; errors as `footer`."""


class Source(Protocol):
    """Rows that are drawn in order."""

    @property
    def next_ms(self) -> int | None:
        """No row is due before; None when there are none."""

    @property
    def is_loaded(self) -> bool:
        """Whether the next row is in memory."""

    def window(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        """The next rows in memory that are due, at most `limit`, and whether rows to be loaded may follow directly."""

    def advance(self, count: int) -> None:
        """So many rows were drawn."""


class Run:
    """Rows in memory."""

    def __init__(self, rows: DelayedRows) -> None:
        self._rows, self._at = CompactSegment.of(rows), 0
        self._next_ms = int(rows.deliver_at_ms[0]) if len(rows) else None

    def __len__(self) -> int:
        return len(self._rows) - self._at

    @property
    def next_ms(self) -> int | None:
        """See `Source`."""
        return self._next_ms

    @property
    def is_loaded(self) -> bool:
        """See `Source`."""
        return True

    def window(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        """See `Source`."""
        rows = self._rows.rows(self._at, self._at + limit)
        return rows.slice(0, rows.due(now_ms)), False

    def advance(self, count: int) -> None:
        """See `Source`."""
        self._at += count
        self._next_ms = self._rows.time(self._at) if len(self) else None

    def left(self) -> DelayedRows:
        """The rows that were not drawn."""
        return self._rows.rows(self._at)

    @property
    def memory_bytes(self) -> int:
        """What it takes, about."""
        return self._rows.memory_bytes


class BucketRows:
    """The messages of a bucket; its segments are loaded one at a time, each when its time has come."""

    def __init__(self, bucket: Bucket, segments: Segments) -> None:
        """Read the footer.

        Raises:
            SnapshotGone, CorruptData, StoreUnavailable: As `Segments` says.
        """
        self.bucket = bucket
        self._segments = segments
        self._facts = (footer := segments.footer(bucket)).segments
        self.bitmaps: Bitmaps = footer.bitmaps
        self.left_out: Bitmaps = {}  # messages that are not to be drawn
        self.is_spent = False  # whether all was drawn, and that was seen
        self._number = 0  # of the segment that is loaded next
        self._run = Run(DelayedRows.empty())

    @property
    def next_ms(self) -> int | None:
        """See `Source`."""
        if len(self._run):
            return self._run.next_ms
        return self._facts[self._number].first_ms if self._has_more else None

    @property
    def is_loaded(self) -> bool:
        """See `Source`."""
        return bool(len(self._run))

    def window(self, now_ms: int, limit: int) -> tuple[DelayedRows, bool]:
        """See `Source`."""
        rows, _ = self._run.window(now_ms, limit)
        return rows, len(rows) == len(self._run) and self._has_more

    def advance(self, count: int) -> None:
        """See `Source`."""
        self._run.advance(count)
        if not len(self._run):
            self._run = Run(DelayedRows.empty())

    def read(self) -> DelayedRows | None:
        """Read the segment that is loaded next, and change nothing; None: it is gone or damaged.

        Raises:
            StoreUnavailable: Storage did not answer.
        """
        try:
            return self._segments.segment(self.bucket, self._number)
        except (SnapshotGone, CorruptData):
            return None

    def put(self, segment: DelayedRows) -> None:
        """Load what was read, in place of the segment whose rows are drawn."""
        self._run = Run(segment.without(self.left_out))
        self._number += 1

    @property
    def memory_bytes(self) -> int:
        """What its loaded segment takes, about."""
        return self._run.memory_bytes if len(self._run) else 0

    @property
    def _has_more(self) -> bool:
        return self._number < len(self._facts)


class AddedRows:
    """Messages that were found in the log, in runs of bounded length."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._loose: list[tuple[int, int, int]] = []  # as rows, in no order
        self._loose_ms: int | None = None  # the earliest of them

    def add(self, row: tuple[int, int, int]) -> None:
        """Add (deliver_at_ms, ledger_id, entry_id)."""
        self._loose.append(row)
        self._loose_ms = row[0] if self._loose_ms is None else min(self._loose_ms, row[0])
        if len(self._loose) >= _LOOSE_ROWS:
            self._settle()

    def drop(self, bitmaps: Bitmaps) -> None:
        """Let these messages go."""
        self._settle()
        left = [run.left().without(bitmaps) for run in self._runs]
        self._runs = [Run(rows) for rows in left if len(rows)]

    def sources(self, now_ms: int | None = None) -> Sequence[Source]:
        """The runs; with a time, what is due by then is in one of them."""
        if now_ms is not None and self._loose_ms is not None and self._loose_ms <= now_ms:
            self._settle()
        self._runs = [run for run in self._runs if len(run)]
        return self._runs

    @property
    def next_ms(self) -> int | None:
        """No message is due before; None when there are none."""
        times = [self._loose_ms, *(run.next_ms for run in self._runs)]
        return min((time for time in times if time is not None), default=None)

    @property
    def memory_bytes(self) -> int:
        """What they take, about."""
        return sum(run.memory_bytes for run in self._runs) + len(self._loose) * _LOOSE_BYTES

    def _settle(self) -> None:
        """Make a run of what is loose, and one of the last two as long as they are of like lengths."""
        if self._loose:
            self._runs.append(Run(DelayedRows.of_tuples(self._loose)))
            self._loose, self._loose_ms = [], None
        while len(self._runs) > 1:
            one, two = self._runs[-2:]
            if len(one) > 2 * len(two) or len(one) + len(two) > RUN_ROWS:
                break
            self._runs[-2:] = [Run(DelayedRows.united([one.left(), two.left()]))]


def draw(sources: Sequence[Source], now_ms: int, limit: int) -> DelayedRows:
    """Take rows that are due from all sources, in order, as far as nothing that is still to be loaded can precede them.

    No rows: the segment that begins first is to be loaded.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    windows = [source.window(now_ms, limit) for source in sources]
    rows = DelayedRows.joined([part for part, _ in windows])
    whose = np.repeat(np.arange(len(sources)), [len(part) for part, _ in windows])
    order = rows.order()
    whose, safe = whose[order], min(limit, len(rows))
    for number, (source, (_, more)) in enumerate(zip(sources, windows, strict=True)):
        if not source.is_loaded and source.next_ms is not None:
            safe = min(safe, int(rows.deliver_at_ms[order].searchsorted(source.next_ms, side="left")))
        elif more:
            safe = min(safe, int(np.flatnonzero(whose == number)[-1]) + 1)
    for source, count in zip(sources, np.bincount(whose[:safe], minlength=len(sources)).tolist(), strict=True):
        if count:
            source.advance(count)
    return rows.at(order[:safe])
