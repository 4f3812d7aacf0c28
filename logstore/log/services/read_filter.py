"""Selection of the visible entries of a segment, and of the columns to fetch.

A consumer gets no message before the delivery time of the message. The requested entries of a large segment may all be
delayed messages. In this case, delivery times are fetched first, and message payloads only if an entry is due.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyroaring import BitMap

from logstore.cursors.cursor_state import CursorState
from logstore.log.entries import Entry
from logstore.log.services.segment_reader import MAX_WHOLE_READ_BYTES
from logstore.ports.catalog.log import Ledger, Segment
from logstore.positions import LedgerId, Position
from logstore.retrying_clock import Clock

if TYPE_CHECKING:
    import pyarrow as pa

    Fetch = Callable[[Ledger, Segment, Sequence[str]], pa.Table]

READABLE_COLUMNS: Final = ("publish_ms", "deliver_at_ms", "producer", "sequence_id", "key", "payload", "properties")

_DELIVERY_COLUMN: Final = "deliver_at_ms"
_ENTRIES_PER_CHUNK: Final = 1024
"""Number of entries that are converted together. With a small number, a reader that stops early wastes little work."""
_EMPTY_BITMAP: Final = BitMap()


class ExcludedEntries(Protocol):
    """Entries that a reader skips, by ledger. Any mapping from ledger to entries implements this protocol."""

    def get(self, ledger_id: LedgerId, default: BitMap, /) -> BitMap:
        """Return the excluded entries of a ledger. A reader calls this before it fetches a segment of the ledger."""


class Postponer(Protocol):
    """Receiver of delayed messages that a reader skips because they are not due."""

    def due_ms(self) -> int:
        """Return the time up to which messages are due now, inclusive, in milliseconds since 1970."""

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None:
        """Receive the delivery times of skipped messages, by entry id. A message may be received several times."""


@dataclass(frozen=True, slots=True)
class DiscardingPostponer:
    clock: Clock

    def due_ms(self) -> int:
        return self.clock.now_us() // 1000

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFilter:
    columns: tuple[str, ...]
    state: CursorState | None = None
    up_to: Position | None = None
    hidden: Mapping[LedgerId, BitMap] = field(default_factory=dict)
    excluded: ExcludedEntries = field(default_factory=dict[LedgerId, BitMap])  # asked for each segment
    postponer: Postponer | None = None  # None: messages that are not due are also returned

    def select_entries(self, segment: Segment, at: Position) -> BitMap:
        """Return the entries of the segment from `at` on that pass the filter. Delivery times are ignored."""
        first, end = segment.first_entry, segment.first_entry + segment.entries
        if segment.ledger_id == at.ledger_id:
            first = max(first, at.entry_id)
        if self.up_to and segment.ledger_id >= self.up_to.ledger_id:
            end = min(end, self.up_to.entry_id + 1) if segment.ledger_id == self.up_to.ledger_id else first
        left_out = self.hidden.get(segment.ledger_id, _EMPTY_BITMAP)
        if self.state is not None:
            mark = self.state.mark_delete
            if segment.ledger_id <= mark.ledger_id:
                first = max(first, mark.entry_id + 1) if segment.ledger_id == mark.ledger_id else end
            left_out = left_out | self.state.acknowledged.get(segment.ledger_id, _EMPTY_BITMAP)
        return BitMap(range(first, end)) - left_out - self.excluded.get(segment.ledger_id, _EMPTY_BITMAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSegment:
    """Visible entries of one segment, with their columns."""

    segment: Segment
    ids: BitMap
    table: "pa.Table | None"  # all rows of the segment; None: `ids` is empty
    deliver_at_ms_by_entry: Mapping[int, int]  # delivery time by entry id, for entries that are not due

    @property
    def end(self) -> Position:
        return Position(self.segment.ledger_id, self.segment.first_entry + self.segment.entries)

    def iterate_entries(self, columns: Sequence[str]) -> Iterator[Entry]:
        remaining = iter(self.ids)
        while self.table is not None and (entry_ids := list(islice(remaining, _ENTRIES_PER_CHUNK))):
            rows = self.table.take([entry_id - self.segment.first_entry for entry_id in entry_ids])
            values = {name: rows.column(name).to_pylist() for name in columns}
            for at, entry_id in enumerate(entry_ids):
                row = {name: column[at] for name, column in values.items()}
                yield _to_entry(Position(self.segment.ledger_id, entry_id), row)


def fetch_segment(
    fetch: "Fetch", ledger: Ledger, segment: Segment, ids: BitMap, read_filter: ReadFilter
) -> FetchedSegment:
    """Fetch the columns of the entries `ids`. `fetch` has the parameters of `SegmentSource.read`."""
    if read_filter.postponer is None or not ids or segment.delayed == 0:
        table = fetch(ledger, segment, read_filter.columns) if ids else None
        return FetchedSegment(segment=segment, ids=ids, table=table, deliver_at_ms_by_entry={})
    has_due_entries = segment.delayed < len(ids)
    fetches_times_first = (
        "payload" in read_filter.columns and segment.size_bytes > MAX_WHOLE_READ_BYTES and not has_due_entries
    )
    first_columns = (
        (_DELIVERY_COLUMN,) if fetches_times_first else tuple(dict.fromkeys((*read_filter.columns, _DELIVERY_COLUMN)))
    )
    table = fetch(ledger, segment, first_columns)
    later = _find_messages_not_due(table, segment, ids, read_filter.postponer.due_ms())
    due = ids - BitMap(later)
    if fetches_times_first:
        table = fetch(ledger, segment, read_filter.columns) if due else None
    return FetchedSegment(segment=segment, ids=due, table=table if due else None, deliver_at_ms_by_entry=later)


def _find_messages_not_due(table: "pa.Table", segment: Segment, ids: BitMap, due_ms: int) -> dict[int, int]:
    import numpy as np  # noqa: PLC0415 - start-up time

    times = table.column(_DELIVERY_COLUMN).fill_null(0).to_numpy()
    entries = np.asarray(ids.to_array(), dtype=np.int64)
    entry_times = times[entries - segment.first_entry]
    is_postponed = entry_times > due_ms
    return dict(zip(entries[is_postponed].tolist(), entry_times[is_postponed].tolist(), strict=True))


def _to_entry(position: Position, row: dict[str, Any]) -> Entry:
    row["properties"] = dict(row.get("properties") or ())
    return Entry(position=position, **row)
