"""What of a topic's log a reader sees: which entries of a segment, and which of their columns are fetched for that.

A consumer does not see a message before its delivery time. Where such messages may be all that it would fetch, their
delivery times are fetched alone, and payloads only if one of them is due.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyroaring import BitMap

from logstore.clock import Clock
from logstore.cursors.state import CursorState
from logstore.log.entries import Entry
from logstore.log.services.segment_file import MAX_WHOLE_READ_BYTES
from logstore.ports.catalog import Ledger, Segment
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa

    Fetch = Callable[[Ledger, Segment, Sequence[str]], pa.Table]

READABLE_COLUMNS: Final = ("publish_ms", "deliver_at_ms", "producer", "sequence_id", "key", "payload", "properties")
"""Columns that a reader may ask for."""

_DELIVERY: Final = "deliver_at_ms"
_ROWS: Final = 1024
"""Entries made at a time: a reader that stops early pays for no more of a large segment."""
_NONE: Final = BitMap()


class ExcludedEntries(Protocol):
    """Entries that a reader leaves out, by ledger; any mapping is one."""

    def get(self, ledger_id: LedgerId, default: BitMap, /) -> BitMap:
        """Those of a ledger; asked when a segment is about to be fetched."""


class Postponer(Protocol):
    """What a consumer does with messages whose time has not come."""

    def due_ms(self) -> int:
        """The latest delivery time that is due now, inclusive, milliseconds since 1970."""

    def postpone(self, ledger_id: LedgerId, later: Mapping[int, int]) -> None:
        """Messages that the reader passes over: entry ids with their delivery times, perhaps not for the first time."""


@dataclass(frozen=True, slots=True)
class DiscardingPostponer:
    """Passes over messages that are not due, and does not remember them."""

    clock: Clock

    def due_ms(self) -> int:
        """See `Postponer`."""
        return self.clock.now_us() // 1000

    def postpone(self, ledger_id: LedgerId, later: Mapping[int, int]) -> None:
        """See `Postponer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFilter:
    """What of the log a reader wants to see."""

    columns: tuple[str, ...]
    state: CursorState | None = None
    upto: Position | None = None
    unseen: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # markers, and messages of aborted transactions
    without: ExcludedEntries = field(default_factory=dict[LedgerId, BitMap])  # asked anew for each segment
    postponing: Postponer | None = None  # None: messages that are not due are seen as all others

    def wanted(self, segment: Segment, at: Position) -> BitMap:
        """Entry ids of the segment at or after `at`, up to the limit, that nothing leaves out, due or not."""
        first, end = segment.first_entry, segment.first_entry + segment.entries
        if segment.ledger_id == at.ledger_id:
            first = max(first, at.entry_id)
        if self.upto and segment.ledger_id >= self.upto.ledger_id:
            end = min(end, self.upto.entry_id + 1) if segment.ledger_id == self.upto.ledger_id else first
        left_out = self.unseen.get(segment.ledger_id, _NONE)
        if self.state is not None:
            mark = self.state.mark_delete
            if segment.ledger_id <= mark.ledger_id:
                first = max(first, mark.entry_id + 1) if segment.ledger_id == mark.ledger_id else end
            left_out = left_out | self.state.acknowledged.get(segment.ledger_id, _NONE)
        return BitMap(range(first, end)) - left_out - self.without.get(segment.ledger_id, _NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSegment:
    """What a view shows of one segment."""

    segment: Segment
    ids: BitMap
    table: "pa.Table | None"  # all rows of the segment; None: `ids` is empty
    later: Mapping[int, int]  # entry ids and delivery times of those that are not due

    @property
    def end(self) -> Position:
        """Behind the segment's last entry."""
        return Position(self.segment.ledger_id, self.segment.first_entry + self.segment.entries)

    def entries(self, columns: Sequence[str]) -> Iterator[Entry]:
        """Those that are due, by id; of columns that are not named the value is None."""
        remaining = iter(self.ids)
        while self.table is not None and (chosen := list(islice(remaining, _ROWS))):
            rows = self.table.take([entry_id - self.segment.first_entry for entry_id in chosen])
            values = {name: rows.column(name).to_pylist() for name in columns}
            for at, entry_id in enumerate(chosen):
                row = {name: column[at] for name, column in values.items()}
                yield _entry(Position(self.segment.ledger_id, entry_id), row)


def fetch_segment(fetch: "Fetch", ledger: Ledger, segment: Segment, ids: BitMap, view: ReadFilter) -> FetchedSegment:
    """Fetch what the view shows of these entries, by `SegmentSource.read` or as that does.

    Raises:
        SegmentGone, CorruptData, StoreUnavailable, CatalogBusy: What `fetch` raises.
    """
    if view.postponing is None or not ids or segment.delayed == 0:
        table = fetch(ledger, segment, view.columns) if ids else None
        return FetchedSegment(segment=segment, ids=ids, table=table, later={})
    some_are_due = segment.delayed < len(ids)
    apart = "payload" in view.columns and segment.size_bytes > MAX_WHOLE_READ_BYTES and not some_are_due
    fetched = (_DELIVERY,) if apart else tuple(dict.fromkeys((*view.columns, _DELIVERY)))
    table = fetch(ledger, segment, fetched)
    later = _later(table, segment, ids, view.postponing.due_ms())
    due = ids - BitMap(later)
    if apart:
        table = fetch(ledger, segment, view.columns) if due else None
    return FetchedSegment(segment=segment, ids=due, table=table if due else None, later=later)


def _later(table: "pa.Table", segment: Segment, ids: BitMap, due_ms: int) -> dict[int, int]:
    """Those of the entries whose delivery time lies behind `due_ms`, ascending, with that time."""
    import numpy as np  # noqa: PLC0415 - start-up time

    times = table.column(_DELIVERY).fill_null(0).to_numpy()
    entries = np.asarray(ids.to_array(), dtype=np.int64)
    of_entries = times[entries - segment.first_entry]
    late = of_entries > due_ms
    return dict(zip(entries[late].tolist(), of_entries[late].tolist(), strict=True))


def _entry(position: Position, row: dict[str, Any]) -> Entry:
    row["properties"] = dict(row.get("properties") or ())
    return Entry(position=position, **row)
