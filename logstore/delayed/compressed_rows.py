"""Rows of the index of delayed messages, compressed in memory.

Rows ascend by delivery time, and entries that were appended together are often due together. So a row differs little
from the previous row. A column is encoded in the smaller of two forms:

1. for each row, the value minus a base value of the column;
2. for each row, the difference to the previous row's value, minus a base difference of the column.

All numbers of a column have the same width: 0, 1, 2, 4 or 8 bytes. Numbers that do not fit into this width are stored
separately, with their row numbers. If all messages have the same delay, or delays of whole minutes, a message takes at
most 1 byte. Bitmaps would need 2 bytes for each entry whose id is not adjacent to the id of another entry.

Source: frame of reference with patches (Zukowski et al., "Super-Scalar RAM-CPU Cache Compression", 2006).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.delayed.delayed_rows import DelayedRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logstore.delayed.delayed_rows import Int64Array

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
