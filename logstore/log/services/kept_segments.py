"""Segments that were read by position, kept for a while: what is due next is often in the same ones.

Messages that are due one after the other stand all over the log, and a segment can only be fetched whole.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from logstore.ports.catalog import Ledger, Segment

if TYPE_CHECKING:
    import pyarrow as pa

    Fetch = Callable[[Ledger, Segment, Sequence[str]], pa.Table]

_MOST_BYTES: Final = 32 << 20
"""Of columns in memory, all readers of a process together."""


class KeptSegments:
    """Columns of segments, those that were used last. Threads share it; a segment never changes."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        """Keep so many bytes at most, and no segment that alone takes more."""
        self._most = most_bytes
        self._tables: OrderedDict[tuple[int, int, tuple[str, ...]], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, fetch: "Fetch", ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        """The named columns of a segment, from here or else by `fetch`, whose errors are passed on."""
        key = (segment.ledger_id, segment.number, tuple(columns))
        with self._lock:
            found = self._tables.pop(key, None)
            if found is not None:
                self._tables[key] = found
                return found
        found = fetch(ledger, segment, columns)
        with self._lock:
            self._tables[key] = found
            held = sum(table.nbytes for table in self._tables.values())
            while held > self._most:
                held -= self._tables.popitem(last=False)[1].nbytes
        return found
