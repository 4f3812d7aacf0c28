"""What of the log goes into a new bucket, and where a bucket ends.

Source: PIP-195 (sealing the last mutable bucket); field case 57.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap

from logstore.delayed.buckets import BucketLimits
from logstore.delayed.merging import interleaved
from logstore.delayed.rows import DelayedRows
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa


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
