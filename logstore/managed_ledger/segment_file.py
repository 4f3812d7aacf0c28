"""One stored segment as columns: the whole object when that is cheaper, else only the ranges that hold them."""

import io
from collections.abc import Sequence
from typing import BinaryIO, Final, cast

import pyarrow as pa

from logstore.entries import decode_segment
from logstore.errors import CorruptData
from logstore.ledgers import segment_key
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId

_WHOLE_BELOW: Final = 128 << 10
"""Bytes. A range read costs at least two requests, footer and columns: below this one is cheaper."""


class SegmentGone(Exception):
    """The store says definitely that it has no such object, or the catalog that it has no such rows."""

    def __init__(self, ledger_id: LedgerId, what: str) -> None:
        super().__init__(what)
        self.ledger_id = ledger_id


def read_columns(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> pa.Table:
    """The named columns of a segment, in entry order.

    Raises:
        SegmentGone: There is no such object.
        CorruptData: It is no segment, or has another number of entries than its row says.
        StoreUnavailable: The store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)
    table = decode_segment(_open(objects, key, segment, columns), columns=columns, name=key)
    if table.num_rows != segment.entries:
        raise CorruptData(f"{key}: expected {segment.entries} entries, found {table.num_rows}")
    return table


def _open(objects: ObjectStore, key: str, segment: Segment, columns: Sequence[str]) -> BinaryIO:
    if "payload" not in columns and segment.size_bytes > _WHOLE_BELOW:
        return cast("BinaryIO", RangeFile(objects, key, segment.size_bytes, segment.ledger_id))
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    if len(stored.body) != segment.size_bytes:
        raise CorruptData(f"{key}: expected {segment.size_bytes} bytes, found {len(stored.body)}")
    return io.BytesIO(stored.body)


class RangeFile(io.RawIOBase):
    """A read-only file over range reads of one object."""

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        size_bytes: int,
        ledger_id: LedgerId,
        *,
        held: tuple[int, bytes] | None = None,
    ) -> None:
        """Read an object of a ledger.

        Args:
            objects: Its bucket.
            key: Its key.
            size_bytes: Its length.
            ledger_id: Named when there is no such object.
            held: A part of it that was fetched already, and where it begins.
        """
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._ledger_id = ledger_id
        self._held = held or (0, b"")
        self._at = 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """See `io.RawIOBase`.

        Raises:
            SegmentGone: There is no such object.
            CorruptData: It is shorter than it should be.
        """
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        found = self._range(wanted)
        if found is None:
            raise SegmentGone(self._ledger_id, self._key)
        if len(found) != wanted:
            raise CorruptData(f"{self._key}: expected {wanted} bytes at {self._at}, found {len(found)}")
        self._at += wanted
        return found

    def _range(self, wanted: int) -> bytes | None:
        start, content = self._held
        if start <= self._at and self._at + wanted <= start + len(content):
            return content[self._at - start : self._at - start + wanted]
        return self._objects.get_range(self._key, self._at, wanted)
