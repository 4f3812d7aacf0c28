"""What of the log goes into a new bucket, where a bucket ends, and how sorted rows of buckets are merged by time.

A merge holds one window of each bucket and never a whole one.

Source: PIP-195 (sealing the last mutable bucket, merging buckets); field case 57, where a merge began behind the first
segment.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap

from logstore.delayed.buckets import BucketLimits
from logstore.delayed.rows import DelayedRows
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa


def merge(
    sources: Sequence[Iterator[DelayedRows]],
    *,
    from_ms: int | None = None,
    passed: Callable[[DelayedRows], None] = lambda _: None,
) -> Iterator[DelayedRows]:
    """Draw from sorted sources one sorted sequence of windows, none of them empty.

    In memory is one window of each source, and what is yielded.

    Args:
        sources: Ascending by range: every position of one lies before every position of the next. Each yields rows in
            order; windows may be of any length, and no larger ones are made of them.
        from_ms: Rows due before this time are left out.
        passed: Told of rows that are left out; all of them come before the first window.
    """
    heads = [_Head(source) for source in sources]
    while heads := [head for head in heads if head.fill()]:
        part = _window(heads)
        count = 0 if from_ms is None else part.due(from_ms - 1)
        if count:
            passed(part.slice(0, count))
        if count < len(part):
            yield part.slice(count)


class _Head:
    """The window of one source that stands next."""

    def __init__(self, source: Iterator[DelayedRows]) -> None:
        self._source, self.rows = source, DelayedRows.empty()

    def fill(self) -> bool:
        """Whether there are rows."""
        while not len(self.rows):
            following = next(self._source, None)
            if following is None:
                return False
            self.rows = following
        return True

    @property
    def last_ms(self) -> int:
        return int(self.rows.deliver_at_ms[-1])

    def take(self, count: int) -> DelayedRows:
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken


def _window(heads: Sequence[_Head]) -> DelayedRows:
    """All that no row still to be read can precede: up to the end of the window that ends first.

    Of rows due at that time, those of later sources wait: their source's rows stand behind what the first one has yet.
    """
    cut_ms = min(head.last_ms for head in heads)
    first = next(number for number, head in enumerate(heads) if head.last_ms == cut_ms)
    parts = [head.take(head.rows.due(cut_ms if number <= first else cut_ms - 1)) for number, head in enumerate(heads)]
    return interleaved([part for part in parts if len(part)])


def interleaved(parts: Sequence[DelayedRows]) -> DelayedRows:
    """All rows, sorted, of parts that ascend by range: of those of one time, parts stand in the order of positions."""
    if len(parts) == 1:
        return parts[0]
    whole = DelayedRows.joined(parts)
    order = whole.deliver_at_ms.argsort(kind="stable")
    return DelayedRows(whole.deliver_at_ms[order], whole.ledger_id[order], whole.entry_id[order])


def delayed_rows(
    ledger_id: LedgerId, first_entry: int, table: "pa.Table", *, wanted: range, hidden: BitMap | None, now_ms: int
) -> DelayedRows:
    """The delayed messages of a stored segment whose time has not come.

    Args:
        ledger_id: Its ledger.
        first_entry: The entry id of its first row.
        table: Its column `deliver_at_ms`, in entry order.
        wanted: Entry ids that are to be looked at, of step 1.
        hidden: Entries that no consumer sees: markers, and those of aborted transactions.
        now_ms: A message that is due at this time is left out.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    column = table.column("deliver_at_ms").combine_chunks()
    low, high = max(wanted.start - first_entry, 0), max(min(wanted.stop - first_entry, len(column)), 0)
    if low >= high:
        return DelayedRows.empty()
    times = column.slice(low, high - low)
    values = times.fill_null(now_ms).to_numpy()
    at = np.flatnonzero(values > now_ms)
    entries = at.astype(np.int64) + (first_entry + low)
    rows = DelayedRows.sort(values[at].astype(np.int64), np.full(len(at), ledger_id, np.int64), entries)
    return rows.without({ledger_id: hidden}) if hidden else rows


def is_time(limits: BucketLimits, *, entries: int, ledgers: int, idle_s: float | None) -> bool:
    """Whether what lies behind the last bucket is to be sealed.

    Args:
        limits: The operator's choice.
        entries: With a delivery time, behind the last bucket.
        ledgers: That hold them, or any others.
        idle_s: Since the newest of them came; None where there is none.
    """
    if not entries:
        return False
    return entries >= limits.messages or ledgers >= limits.ledgers or (idle_s is not None and idle_s >= limits.idle_s)


@dataclass
class Gathering:
    """A bucket that is being gathered: segments of the log are added in order until it is full."""

    first: Position  # the first entry that it covers
    last: Position | None = None  # the last one so far; None: nothing was looked at
    parts: list[DelayedRows] = field(default_factory=list)
    messages: int = 0
    ledgers: set[LedgerId] = field(default_factory=set)

    def add(self, rows: DelayedRows, *, last: Position) -> None:
        """Add what was found up to this entry."""
        self.last = last
        self.ledgers.add(last.ledger_id)
        if len(rows):
            self.parts.append(rows)
            self.messages += len(rows)

    def is_full(self, limits: BucketLimits) -> bool:
        """Whether the bucket ends here; where there are no messages it goes on, because there is nothing to store."""
        return self.messages >= limits.messages or (bool(self.messages) and len(self.ledgers) >= limits.ledgers)

    def rows(self) -> DelayedRows:
        """All that was gathered, sorted."""
        return interleaved(self.parts)
