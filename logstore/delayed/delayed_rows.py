"""Rows of the index of delayed messages: delivery times and positions, as three columns of integers.

Rows are ordered by delivery time, then by ledger, then by entry. No position occurs twice.

*Merge.* Each source of a merge yields the rows of one index bucket in windows, which are sorted `DelayedRows`. Memory
has one window of each source, never a whole index bucket.

*Compression.* Rows ascend by delivery time, and entries that were appended together are often due together. So a row
differs little from the previous row. A column is encoded in the smaller of two forms:

1. for each row, the value minus a base value of the column;
2. for each row, the difference to the previous row's value, minus a base difference of the column.

All numbers of a column have the same width: 0, 1, 2, 4 or 8 bytes. Numbers that do not fit into this width are stored
separately, with their row numbers. If all messages have the same delay, or delays of whole minutes, a message takes at
most 1 byte. Bitmaps would need 2 bytes for each entry whose id is not adjacent to the id of another entry.

Source: PIP-195 (priority queue of three columns, sealing and merging of index buckets); apache/pulsar#26251, where a
merge skipped the first snapshot segment; frame of reference with patches (Zukowski et al., "Super-Scalar RAM-CPU Cache
Compression", 2006).
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from logstore.errors import CorruptData
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Int64Array = npt.NDArray[np.int64]


COLUMNS: Final = ("deliver_at_ms", "ledger_id", "entry_id")
"""Column names, in sort order."""

_MAX_FLAGS_PER_VALUE: Final = 32
"""Maximum number of flags in a lookup table, for each value to look up. Sorting is faster than a larger table."""

_MAX_VALUES_WITHOUT_TABLE: Final = 16
"""Maximum number of values that are looked up one by one. For more values, a table or a sort is faster."""


@dataclass(frozen=True, slots=True, eq=False)
class DelayedRows:
    """Delayed messages, sorted by `COLUMNS`. Each column is an immutable int64 array.

    Times are milliseconds since 1970, UTC.
    """

    deliver_at_ms: "Int64Array"
    ledger_id: "Int64Array"
    entry_id: "Int64Array"

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    def __eq__(self, other: object) -> bool:
        import numpy as np  # noqa: PLC0415 - start-up time

        if not isinstance(other, DelayedRows):
            return NotImplemented
        return all(np.array_equal(left, right) for left, right in zip(self.columns(), other.columns(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def empty() -> "DelayedRows":
        return DelayedRows.from_messages(())

    @staticmethod
    def from_messages(messages: Iterable[tuple[int, Position]]) -> "DelayedRows":
        """Return the rows of (delivery time, position) pairs, sorted. The positions must be distinct."""
        return DelayedRows.from_tuples(
            (time_ms, position.ledger_id, position.entry_id) for time_ms, position in messages
        )

    @staticmethod
    def from_tuples(rows: Iterable[tuple[int, int, int]]) -> "DelayedRows":
        import numpy as np  # noqa: PLC0415 - start-up time

        table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
        return DelayedRows(*(np.ascontiguousarray(table[:, column]) for column in range(3)))

    @staticmethod
    def from_columns(deliver_at_ms: "Int64Array", ledger_id: "Int64Array", entry_id: "Int64Array") -> "DelayedRows":
        """Return the rows of three columns, sorted. Columns in log order are sorted fastest."""
        unsorted = DelayedRows(deliver_at_ms, ledger_id, entry_id)
        return unsorted.select_rows(unsorted.sorted_row_numbers())

    @staticmethod
    def concatenate(parts: Sequence["DelayedRows"]) -> "DelayedRows":
        """Return the rows of all parts, one part after another. If parts overlap, the result is not sorted."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if len(parts) == 1:
            return parts[0]
        if not parts:
            return DelayedRows.empty()
        columns = zip(*(part.columns() for part in parts), strict=True)
        return DelayedRows(*(np.concatenate(column) for column in columns))

    @staticmethod
    def merge(parts: Sequence["DelayedRows"]) -> "DelayedRows":
        """Return the rows of all parts, sorted. Parts may overlap."""
        rows = DelayedRows.concatenate(parts)
        return rows if len(parts) == 1 else rows.select_rows(rows.sorted_row_numbers())

    @staticmethod
    def from_table(table: "pa.Table", *, name: str) -> "DelayedRows":
        """Return the rows of a table with int64 `COLUMNS`. Raise `CorruptData` for other columns or unsorted rows."""
        column_types = {field.name: str(field.type) for field in table.schema}
        nulls = sum(column.null_count for column in table.columns)
        if column_types != dict.fromkeys(COLUMNS, "int64") or nulls:
            raise CorruptData(f"{name}: expected columns {COLUMNS} of int64, found {column_types} with {nulls} nulls")
        rows = DelayedRows(*(table.column(column).to_numpy() for column in COLUMNS))
        if not _is_ascending(*rows.columns()):
            raise CorruptData(f"{name}: expected rows ascending by {COLUMNS}")
        return rows

    def to_table(self) -> "pa.Table":
        """Return a table that shares memory with the rows."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in COLUMNS])
        return pa.Table.from_arrays([pa.array(column) for column in self.columns()], schema=schema)

    def slice(self, start: int, stop: int | None = None) -> "DelayedRows":
        """Return the rows from `start` to `stop`, exclusive. The result shares memory with these rows."""
        return DelayedRows(*(column[start:stop] for column in self.columns()))

    def sorted_row_numbers(self) -> "npt.NDArray[np.intp]":
        """Return the row numbers in the order that sorts the rows by `COLUMNS`. The rows may be unsorted."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if _is_ascending(self.ledger_id, self.entry_id):
            return self.deliver_at_ms.argsort(kind="stable")
        return np.lexsort((self.entry_id, self.ledger_id, self.deliver_at_ms))

    def select_rows(self, row_numbers: "npt.NDArray[np.intp]") -> "DelayedRows":
        return DelayedRows(*(column[row_numbers] for column in self.columns()))

    def count_due(self, now_ms: int) -> int:
        """Return the number of rows that are due at `now_ms`, inclusive. Due rows precede all other rows."""
        return int(self.deliver_at_ms.searchsorted(now_ms, side="right"))

    def position(self, row: int) -> Position:
        return Position(LedgerId(int(self.ledger_id[row])), int(self.entry_id[row]))

    def positions(self) -> list[Position]:
        pairs = zip(self.ledger_id.tolist(), self.entry_id.tolist(), strict=True)
        return [Position(LedgerId(ledger_id), entry_id) for ledger_id, entry_id in pairs]

    def to_bitmaps(self) -> dict[LedgerId, BitMap]:
        """Return the entries by ledger. Ledgers ascend. Raise `OverflowError` if an entry id exceeds 32 bits."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if not len(self):
            return {}
        low, high = int(self.entry_id.min()), int(self.entry_id.max())
        if low < 0 or high >> 32:
            raise OverflowError(f"entry_id: expected an integer of 32 bits, found {low} to {high}")
        ledger_ids, ledger_numbers = self._number_ledgers()
        span = high - low + 1
        # One key per entry, in the order of (ledger, entry), so that each ledger's entries are one slice.
        keys = _sorted_distinct(ledger_numbers * span + (self.entry_id - low), span * len(ledger_ids))
        bitmap_by_ledger = {}
        ends = keys.searchsorted(np.arange(1, len(ledger_ids) + 1) * span).tolist()
        for number, (ledger_id, start, end) in enumerate(zip(ledger_ids, [0, *ends], ends, strict=False)):
            entry_ids = keys[start:end] - (number * span - low)
            bitmap_by_ledger[ledger_id] = _build_bitmap(entry_ids.astype(np.uint32))
        return bitmap_by_ledger

    def drop_entries(self, entries: Mapping[LedgerId, BitMap]) -> "DelayedRows":
        import numpy as np  # noqa: PLC0415 - start-up time

        if not entries or not len(self):
            return self
        keep = np.ones(len(self), dtype=bool)
        ledger_ids, ledger_numbers = self._number_ledgers()
        excluded = [(number, bits) for number, ledger_id in enumerate(ledger_ids) if (bits := entries.get(ledger_id))]
        rows_by_ledger = _find_rows([number for number, _ in excluded], ledger_numbers)
        for (_, bits), rows in zip(excluded, rows_by_ledger, strict=True):
            keep[rows] = ~_contains(bits, self.entry_id[rows])
        return self if keep.all() else DelayedRows(*(column[keep] for column in self.columns()))

    def _number_ledgers(self) -> "tuple[list[LedgerId], npt.NDArray[np.intp]]":
        """Return a list of distinct ledger ids, ascending, and for each row the index of its ledger id in the list."""
        import numpy as np  # noqa: PLC0415 - start-up time

        low = int(self.ledger_id.min())
        spread = int(self.ledger_id.max()) - low
        if not spread:
            return [LedgerId(low)], np.zeros(len(self), np.intp)
        if spread >= _MAX_FLAGS_PER_VALUE * len(self):
            ledger_ids, numbers = np.unique(self.ledger_id, return_inverse=True)
        else:
            offsets = self.ledger_id - low
            is_present = np.zeros(spread + 1, dtype=bool)
            is_present[offsets] = True
            ledger_ids = np.flatnonzero(is_present) + low
            numbers = (is_present.cumsum() - 1)[offsets]
        return [LedgerId(ledger_id) for ledger_id in ledger_ids.tolist()], numbers

    def columns(self) -> "tuple[Int64Array, Int64Array, Int64Array]":
        return (self.deliver_at_ms, self.ledger_id, self.entry_id)


def _sorted_distinct(keys: "Int64Array", end: int) -> "Int64Array":
    import numpy as np  # noqa: PLC0415 - start-up time

    if end > _MAX_FLAGS_PER_VALUE * len(keys):
        return np.unique(keys)
    flags = np.zeros(end, dtype=bool)
    flags[keys] = True
    return np.flatnonzero(flags)


def _build_bitmap(ascending: "npt.NDArray[np.uint32]") -> BitMap:
    bits = BitMap(array("I", ascending.tobytes()))  # from a numpy array, BitMap would convert each number separately
    bits.run_optimize()
    return bits


def _find_rows(
    wanted_numbers: Sequence[int], ledger_numbers: "npt.NDArray[np.intp]"
) -> "Iterator[npt.NDArray[np.intp]]":
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(wanted_numbers) <= _MAX_VALUES_WITHOUT_TABLE:
        return (np.flatnonzero(ledger_numbers == number) for number in wanted_numbers)
    order = ledger_numbers.argsort(kind="stable")
    bounds = np.array([wanted_numbers, np.array(wanted_numbers) + 1])
    ends = ledger_numbers[order].searchsorted(bounds).T.tolist()
    return (order[start:end] for start, end in ends)


def _contains(bits: BitMap, entry_ids: "Int64Array") -> "npt.NDArray[np.bool_]":
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(entry_ids) <= _MAX_VALUES_WITHOUT_TABLE:
        return np.array([entry_id in bits for entry_id in entry_ids.tolist()], dtype=bool)
    members = np.asarray(bits.to_array())
    low, high = int(members[0]), int(members[-1])
    if high - low >= _MAX_FLAGS_PER_VALUE * (len(entry_ids) + len(members)):
        return np.isin(entry_ids, members)
    flags = np.zeros(high - low + 2, dtype=bool)  # the last flag is for all ids outside the bitmap's range
    flags[members - low] = True
    is_inside = (entry_ids >= low) & (entry_ids <= high)
    return flags[np.where(is_inside, entry_ids - low, high - low + 1)]


def _is_ascending(*columns: "Int64Array") -> bool:
    """Return whether each row is greater than the previous row, compared by the columns in order."""
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(columns[0]) < 2:
        return True
    is_rising = np.zeros(len(columns[0]) - 1, dtype=bool)
    for column in reversed(columns):
        is_rising = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & is_rising)
    return bool(is_rising.all())


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


_ROWS_PER_BLOCK: Final = 1_024
"""Number of rows in a block of a compressed column. Decoding can begin at the first row of any block."""

_MAX_SAMPLE_ROWS: Final = 1_024
_BYTES_PER_PATCH: Final = 12  # an int64 value and a uint32 row number
_WIDTHS_BYTES: Final = (0, 1, 2, 4)
_ARRAY_OVERHEAD_BYTES: Final = 112
"""Size of a numpy array without its numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class _CompressedColumn:
    length: int
    base: int
    width: int  # bytes of each number in `packed`
    packed: "npt.NDArray[Any]"
    patched_rows: "npt.NDArray[np.uint32]"  # row numbers, ascending, of numbers that do not fit into `width`
    patched_numbers: "Int64Array"
    block_starts: "Int64Array"  # value of each block's first row; empty unless `packed` has differences

    @staticmethod
    def encode(values: "Int64Array") -> "_CompressedColumn":
        import numpy as np  # noqa: PLC0415 - start-up time

        steps = np.diff(values, prepend=values[:1])
        forms = [(*_estimate_smallest_packing(numbers), numbers) for numbers in (values, steps)]
        _, base, width, numbers = min(forms, key=lambda form: form[0])
        block_starts = values[::_ROWS_PER_BLOCK].copy() if numbers is steps else values[:0]
        if width == 8:
            return _CompressedColumn(
                len(values), 0, 8, numbers.copy(), np.empty(0, np.uint32), values[:0], block_starts
            )
        distances = numbers - base
        patched = np.flatnonzero((distances < 0) | (distances >= 1 << (8 * width)))
        distances[patched] = 0
        packed = distances.astype(f"u{width}") if width else np.empty(0, np.uint8)
        return _CompressedColumn(
            len(values), base, width, packed, patched.astype(np.uint32), numbers[patched], block_starts
        )

    def decode(self, start: int, stop: int) -> "Int64Array":
        if not len(self.block_starts):
            return self._unpack_values_or_steps(start, stop)
        block = start // _ROWS_PER_BLOCK
        steps = self._unpack_values_or_steps(block * _ROWS_PER_BLOCK, stop)
        steps[:1] = self.block_starts[block : block + 1]
        values: Int64Array = steps.cumsum()[start - block * _ROWS_PER_BLOCK :]
        return values

    def _unpack_values_or_steps(self, start: int, stop: int) -> "Int64Array":
        import numpy as np  # noqa: PLC0415 - start-up time

        if self.width:
            numbers = self.packed[start:stop].astype(np.int64)
            numbers += self.base
        else:
            numbers = np.full(stop - start, self.base, np.int64)
        low, high = self.patched_rows.searchsorted([start, stop])
        numbers[self.patched_rows[low:high] - start] = self.patched_numbers[low:high]
        return numbers

    @property
    def memory_bytes(self) -> int:
        arrays = (self.packed, self.patched_rows, self.patched_numbers, self.block_starts)
        return sum(array.nbytes + (_ARRAY_OVERHEAD_BYTES if len(array) else 0) for array in arrays)


class CompressedRows:
    def __init__(self, length: int, columns: tuple[_CompressedColumn, _CompressedColumn, _CompressedColumn]) -> None:
        self._length, self._columns = length, columns

    @staticmethod
    def from_rows(rows: DelayedRows) -> "CompressedRows":
        times, ledger_ids, entry_ids = (_CompressedColumn.encode(column) for column in rows.columns())
        return CompressedRows(len(rows), (times, ledger_ids, entry_ids))

    def __len__(self) -> int:
        return self._length

    def decode_rows(self, start: int = 0, stop: int | None = None) -> DelayedRows:
        end = min(len(self) if stop is None else stop, len(self))
        return DelayedRows(*(column.decode(min(start, end), end) for column in self._columns))

    def deliver_at_ms(self, row: int) -> int:
        return int(self._columns[0].decode(row, row + 1)[0])

    @property
    def memory_bytes(self) -> int:
        return sum(column.memory_bytes for column in self._columns)


def _estimate_smallest_packing(numbers: "Int64Array") -> tuple[float, int, int]:
    """Estimate the smallest packing from a sample of `numbers`. Return its size in bytes, its base and its width."""
    sample = numbers[:: len(numbers) // _MAX_SAMPLE_ROWS + 1].copy()
    sample.sort()
    forms = [(8.0 * len(numbers), 0, 8)]
    for width in _WIDTHS_BYTES if len(sample) else ():
        span = (1 << (8 * width)) - 1
        ends = sample.searchsorted(sample + span, side="right")
        fitting = ends - range(len(sample))
        best = int(fitting.argmax())
        patched_share = (len(sample) - int(fitting[best])) / len(sample)
        forms.append((len(numbers) * (width + patched_share * _BYTES_PER_PATCH), int(sample[best]), width))
    return min(forms)
