"""Rows of an answer that are too many for the memory: kept in a file, read again as often as they are needed.

An answer is written once all of its rows are known: a failure halfway through is one JSON document too, and the widths
of a table's columns are those of all rows.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, object]

_IN_MEMORY_BYTES = 4 * 1024 * 1024


class SpooledRows:
    """Rows in the order in which they were added; each is what JSON can hold."""

    def __init__(self) -> None:
        """Begin without rows. The file is closed with the last reference to it."""
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - see `__del__`
        self._count = 0

    def __del__(self) -> None:
        """Close the file."""
        self._file.close()

    @staticmethod
    def of(rows: Iterable[Row]) -> "SpooledRows":
        """Draw all of the rows."""
        spooled = SpooledRows()
        try:
            for row in rows:
                spooled._file.write(json.dumps(row).encode() + b"\n")
                spooled._count += 1
        except BaseException:
            spooled._file.close()  # the error's traceback keeps a reference
            raise
        return spooled

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Read the rows again. Only one such iteration may be under way."""
        self._file.seek(0)
        return map(json.loads, self._file)


@dataclass(frozen=True, slots=True)
class ConvertedRows:
    """Rows that are made of spooled ones as they are read."""

    rows: SpooledRows
    convert: Callable[[dict[str, Any]], Row]

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        """Read and convert the rows again."""
        return map(self.convert, self.rows)
