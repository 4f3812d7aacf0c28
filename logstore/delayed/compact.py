"""A loaded segment in few bytes: each column as small numbers beside what most of them have in common.

Times rise, and entries that were appended together are often due together; so neighbours differ by little. A column is
held as differences between neighbours or as distances from one value, each in 0, 1, 2, 4 or 8 bytes, whichever takes
least, and the few that do not fit are held beside it. For messages of one delay, or of whole minutes, that is 1 byte a
message or less. A bitmap for each time and ledger, as in other trackers, takes 2 bytes an entry unless they are dense.

Source: frame of reference with patches (Zukowski et al., "Super-Scalar RAM-CPU Cache Compression", 2006).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.delayed.rows import DelayedRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logstore.delayed.rows import Numbers

_BLOCK: Final = 1_024
"""Rows between two points at which a column of differences can be entered."""

_SAMPLE: Final = 1_024
_PATCH_BYTES: Final = 12
_WIDTHS: Final = (0, 1, 2, 4)
_OBJECT_BYTES: Final = 112
"""Of an array of numpy beside its numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """One column. `entered` is empty where `small` are distances, otherwise the value at the begin of each block."""

    length: int
    base: int
    width: int  # bytes of each of `small`
    small: "npt.NDArray[Any]"
    patched: "npt.NDArray[np.uint32]"  # rows whose number did not fit, ascending
    patches: "Numbers"  # those numbers
    entered: "Numbers"

    @staticmethod
    def of(values: "Numbers") -> "_Column":
        import numpy as np  # noqa: PLC0415 - start-up time

        steps = np.diff(values, prepend=values[:1])
        forms = [(*_cheapest(numbers), numbers) for numbers in (values, steps)]
        _, base, width, numbers = min(forms, key=lambda form: form[0])
        entered = values[::_BLOCK].copy() if numbers is steps else values[:0]
        if width == 8:
            return _Column(len(values), 0, 8, numbers.copy(), np.empty(0, np.uint32), values[:0], entered)
        distances = numbers - base
        odd = np.flatnonzero((distances < 0) | (distances >= 1 << (8 * width)))
        distances[odd] = 0
        small = distances.astype(f"u{width}") if width else np.empty(0, np.uint8)
        return _Column(len(values), base, width, small, odd.astype(np.uint32), numbers[odd], entered)

    def values(self, start: int, stop: int) -> "Numbers":
        """Rows from `start` up to and without `stop`."""
        if not len(self.entered):
            return self._numbers(start, stop)
        block = start // _BLOCK
        steps = self._numbers(block * _BLOCK, stop)
        steps[:1] = self.entered[block : block + 1]
        found: Numbers = steps.cumsum()[start - block * _BLOCK :]
        return found

    def _numbers(self, start: int, stop: int) -> "Numbers":
        import numpy as np  # noqa: PLC0415 - start-up time

        if self.width:
            found = self.small[start:stop].astype(np.int64)
            found += self.base
        else:
            found = np.full(stop - start, self.base, np.int64)
        low, high = self.patched.searchsorted([start, stop])
        found[self.patched[low:high] - start] = self.patches[low:high]
        return found

    @property
    def memory_bytes(self) -> int:
        parts = (self.small, self.patched, self.patches, self.entered)
        return sum(part.nbytes + (_OBJECT_BYTES if len(part) else 0) for part in parts)


class CompactSegment:
    """Rows of a segment, held small. They never change."""

    def __init__(self, length: int, columns: tuple[_Column, _Column, _Column]) -> None:
        self._length, self._columns = length, columns

    @staticmethod
    def of(rows: DelayedRows) -> "CompactSegment":
        """Hold these rows."""
        columns = (rows.deliver_at_ms, rows.ledger_id, rows.entry_id)
        first, second, third = (_Column.of(column) for column in columns)
        return CompactSegment(len(rows), (first, second, third))

    def __len__(self) -> int:
        return self._length

    def rows(self, start: int = 0, stop: int | None = None) -> DelayedRows:
        """Rows from `start` up to and without `stop`."""
        end = min(len(self) if stop is None else stop, len(self))
        return DelayedRows(*(column.values(min(start, end), end) for column in self._columns))

    def time(self, number: int) -> int:
        """When the message of one row is due."""
        return int(self._columns[0].values(number, number + 1)[0])

    @property
    def memory_bytes(self) -> int:
        """What the rows take in memory, about."""
        return sum(column.memory_bytes for column in self._columns)


def _cheapest(numbers: "Numbers") -> tuple[float, int, int]:
    """What a column of these numbers takes, about, with its base and its width: judged by a sample."""
    sample = numbers[:: len(numbers) // _SAMPLE + 1].copy()
    sample.sort()
    forms = [(8.0 * len(numbers), 0, 8)]
    for width in _WIDTHS if len(sample) else ():
        span = (1 << (8 * width)) - 1
        ends = sample.searchsorted(sample + span, side="right")
        held = ends - range(len(sample))
        best = int(held.argmax())
        odd = (len(sample) - int(held[best])) / len(sample)
        forms.append((len(numbers) * (width + odd * _PATCH_BYTES), int(sample[best]), width))
    return min(forms)
