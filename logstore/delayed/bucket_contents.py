"""Contents of new index buckets: messages selected from the log, limits that trigger a seal, and merge of rows.

Each source of a merge yields the rows of one index bucket in windows, which are sorted `DelayedRows`. Memory has one
window of each source, never a whole index bucket.

Source: PIP-195 (sealing and merging of index buckets); apache/pulsar#26251, where a merge skipped the first snapshot
segment.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa


def merge_sorted_sources(
    sources: Sequence[Iterator[DelayedRows]],
    *,
    from_ms: int | None = None,
    on_skipped: Callable[[DelayedRows], None] = lambda _: None,
) -> Iterator[DelayedRows]:
    """Merge sorted sources into one sorted sequence of windows. No window is empty.

    All positions of a source must precede all positions of the next source. Rows that are due before `from_ms` are
    skipped. `on_skipped` receives all skipped rows, in one or more calls, before the first window is yielded.
    """
    heads = [_SourceWindow(source) for source in sources]
    while heads := [head for head in heads if head.load_next_if_empty()]:
        window = _take_window(heads)
        skipped_rows = 0 if from_ms is None else window.count_due(from_ms - 1)
        if skipped_rows:
            on_skipped(window.slice(0, skipped_rows))
        if skipped_rows < len(window):
            yield window.slice(skipped_rows)


class _SourceWindow:
    def __init__(self, source: Iterator[DelayedRows]) -> None:
        self._source, self.rows = source, DelayedRows.empty()

    def load_next_if_empty(self) -> bool:
        while not len(self.rows):
            following = next(self._source, None)
            if following is None:
                return False
            self.rows = following
        return True

    @property
    def last_ms(self) -> int:
        return int(self.rows.deliver_at_ms[-1])

    def take_rows(self, count: int) -> DelayedRows:
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken


def _take_window(heads: Sequence[_SourceWindow]) -> DelayedRows:
    """Remove and return all rows in memory that no unread row can precede.

    Each window ends at its last delivery time. The *cut* is the earliest of these ends. From all sources, rows that are
    due before the cut are taken. From the first source whose window ends at the cut, and from the sources before it,
    rows that are due at the cut are also taken. Later sources keep such rows, because unread rows of the first source
    may be due at the cut.
    """
    cut_ms = min(head.last_ms for head in heads)
    first = next(number for number, head in enumerate(heads) if head.last_ms == cut_ms)
    parts = [
        head.take_rows(head.rows.count_due(cut_ms if number <= first else cut_ms - 1))
        for number, head in enumerate(heads)
    ]
    return merge_row_ranges([part for part in parts if len(part)])


def merge_row_ranges(parts: Sequence[DelayedRows]) -> DelayedRows:
    """Return the rows of all parts, sorted. All positions of a part must precede all positions of the next part."""
    if len(parts) == 1:
        return parts[0]
    rows = DelayedRows.concatenate(parts)
    return rows.select_rows(rows.deliver_at_ms.argsort(kind="stable"))


def select_delayed_rows(
    ledger_id: LedgerId, first_entry: int, table: "pa.Table", *, wanted: range, hidden: BitMap | None, now_ms: int
) -> DelayedRows:
    """Return those messages of a stored segment that are not due at `now_ms`. Leave out `hidden` entries.

    `table` has the segment's column `deliver_at_ms`, in entry order. `first_entry` is the entry id of the table's first
    row. Entries with ids outside `wanted`, a range with step 1, are left out.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    column = table.column("deliver_at_ms").combine_chunks()
    low, high = max(wanted.start - first_entry, 0), max(min(wanted.stop - first_entry, len(column)), 0)
    if low >= high:
        return DelayedRows.empty()
    times = column.slice(low, high - low).fill_null(now_ms).to_numpy()
    offsets = np.flatnonzero(times > now_ms)
    entry_ids = offsets.astype(np.int64) + (first_entry + low)
    ledger_ids = np.full(len(offsets), ledger_id, np.int64)
    rows = DelayedRows.from_columns(times[offsets].astype(np.int64), ledger_ids, entry_ids)
    return rows.drop_entries({ledger_id: hidden}) if hidden else rows


def should_seal(limits: SealAndMergeLimits, *, entries: int, ledgers: int, idle_s: float | None) -> bool:
    """Return whether the unsealed part of a log has reached one of `limits`.

    `entries` is the number of unsealed entries with a delivery time. `ledgers` is the number of ledgers with unsealed
    entries of any kind. `idle_s` is the age of the newest entry with a delivery time, or `None` if unknown.
    """
    if not entries:
        return False
    return entries >= limits.messages or ledgers >= limits.ledgers or (idle_s is not None and idle_s >= limits.idle_s)


@dataclass
class IndexBucketDraft:
    """Index bucket that is being filled. Segments are added in the order of the log."""

    first: Position  # first entry of the covered range
    last: Position | None = None  # last entry of the covered range; None before the first `add_segment`
    parts: list[DelayedRows] = field(default_factory=list)
    messages: int = 0
    ledgers: set[LedgerId] = field(default_factory=set)

    def add_segment(self, rows: DelayedRows, *, last: Position) -> None:
        self.last = last
        self.ledgers.add(last.ledger_id)
        if len(rows):
            self.parts.append(rows)
            self.messages += len(rows)

    def is_full(self, limits: SealAndMergeLimits) -> bool:
        """Return whether the draft has reached one of `limits`. A draft without messages is never full."""
        return self.messages >= limits.messages or (bool(self.messages) and len(self.ledgers) >= limits.ledgers)

    def merge_rows(self) -> DelayedRows:
        return merge_row_ranges(self.parts)
