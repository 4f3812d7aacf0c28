"""Rows of the delayed-message index: when a message is due and where it stands, as three columns of numbers.

All that the index sorts, merges, stores and hands out is such rows. Rows are ordered by delivery time, then by ledger,
then by entry, and no position is in them twice.

Source: PIP-195, whose priority queue holds the same three numbers.
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

    Numbers = npt.NDArray[np.int64]

COLUMNS: Final = ("deliver_at_ms", "ledger_id", "entry_id")
"""In the order by which rows are sorted."""

_DENSE: Final = 32
"""How many times as long a table of flags may be as what is looked up in it."""

_FEW: Final = 16
"""Up to this number, values are looked at one by one; for more, a table is faster."""


@dataclass(frozen=True, slots=True, eq=False)
class DelayedRows:
    """Delayed messages, ascending by (deliver_at_ms, ledger_id, entry_id). The arrays are never changed.

    Times are milliseconds since 1970, UTC. All three arrays are int64, of one length.
    """

    deliver_at_ms: "Numbers"
    ledger_id: "Numbers"
    entry_id: "Numbers"

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    def __eq__(self, other: object) -> bool:
        import numpy as np  # noqa: PLC0415 - start-up time

        if not isinstance(other, DelayedRows):
            return NotImplemented
        return all(np.array_equal(mine, yours) for mine, yours in zip(self.columns(), other.columns(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def empty() -> "DelayedRows":
        """No rows."""
        return DelayedRows.of(())

    @staticmethod
    def of(messages: Iterable[tuple[int, Position]]) -> "DelayedRows":
        """Rows of messages, each a delivery time and a position, in any order; none twice."""
        return DelayedRows.of_tuples([(deliver_at_ms, at.ledger_id, at.entry_id) for deliver_at_ms, at in messages])

    @staticmethod
    def of_tuples(rows: Iterable[tuple[int, int, int]]) -> "DelayedRows":
        """Rows (deliver_at_ms, ledger_id, entry_id) in any order; none twice."""
        import numpy as np  # noqa: PLC0415 - start-up time

        table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
        return DelayedRows(*(np.ascontiguousarray(table[:, column]) for column in range(3)))

    @staticmethod
    def sort(deliver_at_ms: "Numbers", ledger_id: "Numbers", entry_id: "Numbers") -> "DelayedRows":
        """Rows of columns in any order; those in log order are sorted fastest."""
        unsorted = DelayedRows(deliver_at_ms, ledger_id, entry_id)
        return unsorted.at(unsorted.order())

    @staticmethod
    def joined(parts: Sequence["DelayedRows"]) -> "DelayedRows":
        """The rows of all parts in their order: the parts are not interleaved in time."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if len(parts) == 1:
            return parts[0]
        if not parts:
            return DelayedRows.empty()
        columns = zip(*(part.columns() for part in parts), strict=True)
        return DelayedRows(*(np.concatenate(column) for column in columns))

    @staticmethod
    def united(parts: Sequence["DelayedRows"]) -> "DelayedRows":
        """The rows of all parts, sorted."""
        whole = DelayedRows.joined(parts)
        return whole if len(parts) == 1 else whole.at(whole.order())

    @staticmethod
    def from_table(table: "pa.Table", *, name: str) -> "DelayedRows":
        """The rows of a table with these columns.

        Args:
            table: Its columns are int64.
            name: What to call it in an error.

        Raises:
            CorruptData: A column is missing or of another type, has nulls, or the rows are not sorted.
        """
        found = {field.name: str(field.type) for field in table.schema}
        nulls = sum(column.null_count for column in table.columns)
        if found != dict.fromkeys(COLUMNS, "int64") or nulls:
            raise CorruptData(f"{name}: expected columns {COLUMNS} of int64, found {found} with {nulls} nulls")
        rows = DelayedRows(*(table.column(column).to_numpy() for column in COLUMNS))
        if not _ascending(*rows.columns()):
            raise CorruptData(f"{name}: expected rows ascending by {COLUMNS}")
        return rows

    def to_table(self) -> "pa.Table":
        """A table that `from_table` reads back; it shares the memory."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in COLUMNS])
        return pa.Table.from_arrays([pa.array(column) for column in self.columns()], schema=schema)

    def slice(self, start: int, stop: int | None = None) -> "DelayedRows":
        """Rows from `start` up to and without `stop`; they share the memory."""
        return DelayedRows(*(column[start:stop] for column in self.columns()))

    def order(self) -> "npt.NDArray[np.intp]":
        """The numbers of the rows in the order in which they should be: of rows that are not sorted yet."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if _ascending(self.ledger_id, self.entry_id):
            return self.deliver_at_ms.argsort(kind="stable")
        return np.lexsort((self.entry_id, self.ledger_id, self.deliver_at_ms))

    def at(self, numbers: "npt.NDArray[np.intp]") -> "DelayedRows":
        """The rows of these numbers, in this order."""
        return DelayedRows(*(column[numbers] for column in self.columns()))

    def due(self, now_ms: int) -> int:
        """How many rows are due: all of them stand before the others."""
        return int(self.deliver_at_ms.searchsorted(now_ms, side="right"))

    def position(self, number: int) -> Position:
        """Where the message of one row stands."""
        return Position(LedgerId(int(self.ledger_id[number])), int(self.entry_id[number]))

    def positions(self) -> list[Position]:
        """Where the messages stand, in the order of the rows."""
        both = zip(self.ledger_id.tolist(), self.entry_id.tolist(), strict=True)
        return [Position(LedgerId(ledger_id), entry_id) for ledger_id, entry_id in both]

    def bitmaps(self) -> dict[LedgerId, BitMap]:
        """The entries as one bitmap a ledger, ascending by ledger.

        Raises:
            OverflowError: An entry id is below 0 or above 2**32 - 1, which no bitmap holds.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        if not len(self):
            return {}
        low, high = int(self.entry_id.min()), int(self.entry_id.max())
        if low < 0 or high >> 32:
            raise OverflowError(f"an entry id beyond 32 bits: {low} or {high}")
        ledger_ids, numbers = self._ledgers()
        span = high - low + 1
        keys = _distinct(numbers * span + (self.entry_id - low), span * len(ledger_ids))
        found = {}
        ends = keys.searchsorted(np.arange(1, len(ledger_ids) + 1) * span).tolist()
        for number, (ledger_id, start, end) in enumerate(zip(ledger_ids, [0, *ends], ends, strict=False)):
            found[ledger_id] = _bitmap((keys[start:end] - (number * span - low)).astype(np.uint32))
        return found

    def without(self, bitmaps: Mapping[LedgerId, BitMap]) -> "DelayedRows":
        """The rows whose entries are in none of the bitmaps."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if not bitmaps or not len(self):
            return self
        keep = np.ones(len(self), dtype=bool)
        ledger_ids, numbers = self._ledgers()
        found = [(number, bits) for number, ledger_id in enumerate(ledger_ids) if (bits := bitmaps.get(ledger_id))]
        for (_, bits), at in zip(found, _offsets([number for number, _ in found], numbers), strict=True):
            keep[at] = ~_member(self.entry_id[at], bits)
        return self if keep.all() else DelayedRows(*(column[keep] for column in self.columns()))

    def _ledgers(self) -> "tuple[list[LedgerId], npt.NDArray[np.intp]]":
        """The ledgers, ascending, and the number among them of each row's."""
        import numpy as np  # noqa: PLC0415 - start-up time

        low = int(self.ledger_id.min())
        spread = int(self.ledger_id.max()) - low
        if not spread:
            return [LedgerId(low)], np.zeros(len(self), np.intp)
        if spread >= _DENSE * len(self):
            found, numbers = np.unique(self.ledger_id, return_inverse=True)
        else:
            offsets = self.ledger_id - low
            present = np.zeros(spread + 1, dtype=bool)
            present[offsets] = True
            found = np.flatnonzero(present) + low
            numbers = (present.cumsum() - 1)[offsets]
        return [LedgerId(one) for one in found.tolist()], numbers

    def columns(self) -> "tuple[Numbers, Numbers, Numbers]":
        """The three arrays, in the order by which rows are sorted."""
        return (self.deliver_at_ms, self.ledger_id, self.entry_id)


def _distinct(keys: "Numbers", end: int) -> "Numbers":
    """The distinct numbers, from 0 and below `end`, ascending. A small table of flags is faster than sorting."""
    import numpy as np  # noqa: PLC0415 - start-up time

    if end > _DENSE * len(keys):
        return np.unique(keys)
    flags = np.zeros(end, dtype=bool)
    flags[keys] = True
    return np.flatnonzero(flags)


def _bitmap(ascending: "npt.NDArray[np.uint32]") -> BitMap:
    bits = BitMap(array("I", ascending.tobytes()))  # of an array of numpy it would take each number by itself
    bits.run_optimize()
    return bits


def _offsets(wanted: Sequence[int], numbers: "npt.NDArray[np.intp]") -> "Iterator[npt.NDArray[np.intp]]":
    """Where each of the wanted numbers, which ascend, stands; many are found by one sort, and few by a look at all."""
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(wanted) <= _FEW:
        return (np.flatnonzero(numbers == number) for number in wanted)
    order = numbers.argsort(kind="stable")
    ends = numbers[order].searchsorted(np.array([wanted, np.array(wanted) + 1])).T.tolist()
    return (order[start:end] for start, end in ends)


def _member(entry_ids: "Numbers", bits: BitMap) -> "npt.NDArray[np.bool_]":
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(entry_ids) <= _FEW:
        return np.array([entry_id in bits for entry_id in entry_ids.tolist()], dtype=bool)
    found = np.asarray(bits.to_array())
    low, high = int(found[0]), int(found[-1])
    if high - low >= _DENSE * (len(entry_ids) + len(found)):
        return np.isin(entry_ids, found)
    flags = np.zeros(high - low + 2, dtype=bool)  # the last one is for all that lies outside
    flags[found - low] = True
    inside = (entry_ids >= low) & (entry_ids <= high)
    return flags[np.where(inside, entry_ids - low, high - low + 1)]


def _ascending(*columns: "Numbers") -> bool:
    """Whether each row is above the one before, compared by the columns in their order."""
    import numpy as np  # noqa: PLC0415 - start-up time

    if len(columns[0]) < 2:
        return True
    rising = np.zeros(len(columns[0]) - 1, dtype=bool)
    for column in reversed(columns):
        rising = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & rising)
    return bool(rising.all())
