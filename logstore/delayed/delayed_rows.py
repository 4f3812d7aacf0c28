"""Rows of the index of delayed messages: delivery times and positions, as three columns of integers.

Rows are ordered by delivery time, then by ledger, then by entry. No position occurs twice.

Source: PIP-195, whose priority queue has the same three columns.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
