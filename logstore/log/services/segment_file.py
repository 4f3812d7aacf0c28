"""One stored segment as columns: the whole object when that is cheaper, otherwise only the ranges that hold them."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.errors import CorruptData
from logstore.log.entries import FOOTER, FooterMark, decode_segment, mark_footer
from logstore.log.ledgers import DIGEST, digest_of, segment_key
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectStore, StoredObject
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


WHOLE_BELOW: Final = 128 << 10
"""Bytes. A range read costs at least two requests, footer and columns: below this one is cheaper."""


class SegmentGone(Exception):
    """The store says definitely that it has no such object, or the catalog that it has no such rows."""

    def __init__(self, ledger_id: LedgerId, what: str) -> None:
        super().__init__(what)
        self.ledger_id = ledger_id


def read_columns(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> "pa.Table":
    """The named columns of a segment, in entry order.

    Raises:
        SegmentGone: There is no such object.
        CorruptData: It is no segment, or not the one that its row says: another digest, another number of entries.
        StoreUnavailable: The store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)
    if "payload" in columns or segment.size_bytes <= WHOLE_BELOW:
        source = _whole(objects, key, segment)
        table = decode_segment(source, columns=columns, name=key, check_pages=segment.sha256 is None)
    else:
        footer = read_footer(objects, segment) if segment.sha256 else None
        table = decode_segment(ranges_of(objects, segment), columns=columns, name=key, footer=footer)
    if table.num_rows != segment.entries:
        raise CorruptData(f"{key}: expected {segment.entries} entries, found {table.num_rows}")
    return table


def ranges_of(objects: ObjectStore, segment: Segment, *, held: tuple[int, bytes] | None = None) -> BinaryIO:
    """The registered object as a file of which only what is read is fetched.

    Args:
        objects: The primary bucket.
        segment: Its row.
        held: A part of it that was fetched already, and where it begins.
    """
    key, stating = segment_key(segment.ledger_id, segment.number), {DIGEST: segment.sha256} if segment.sha256 else {}
    file = RangeFile(objects, key, segment.size_bytes, segment.ledger_id, held=held, stating=stating)
    return cast("BinaryIO", file)


def _whole(objects: ObjectStore, key: str, segment: Segment) -> BinaryIO:
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    check_whole(segment, stored)
    return io.BytesIO(stored.body)


def read_footer(objects: ObjectStore, segment: Segment) -> "pq.FileMetaData":
    """The footer of the registered object, compared with the digest that its metadata has.

    Args:
        objects: The primary bucket.
        segment: Its row, with a digest.

    Raises:
        SegmentGone: There is no such object.
        CorruptData: It is another one than was registered, or its footer is not the one that it was stored with.
        StoreUnavailable: The store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)
    seen = objects.head(key)
    if seen is None:
        raise SegmentGone(segment.ledger_id, key)
    _check_stated(segment, key, seen[1])
    mark = FooterMark.parse(seen[1].get(FOOTER), name=key)
    file = ranges_of(objects, segment)
    file.seek(-mark.size_bytes, io.SEEK_END)
    return mark.check(file.read(), name=key)


def group_range(footer: "pq.FileMetaData", number: int) -> tuple[int, int]:
    """Where a row group begins in its file, and its length in bytes: it is fetched by one request."""
    group = footer.row_group(number)
    chunks = [group.column(at) for at in range(group.num_columns)]
    starts = [each.dictionary_page_offset or each.data_page_offset for each in chunks]
    ends = [start + each.total_compressed_size for start, each in zip(starts, chunks, strict=True)]
    return min(starts), max(ends) - min(starts)


def vouching(content: bytes, sha256: str) -> dict[str, str]:
    """The part of a segment's metadata that names digests of its content: of the whole, and of the footer."""
    return {DIGEST: sha256, FOOTER: str(mark_footer(io.BytesIO(content)))}


def check_whole(segment: Segment, stored: StoredObject) -> None:
    """Require the object that was registered: its length, and the digest that its row and its own metadata have.

    Of a segment from before digests only the length is known.

    Raises:
        CorruptData: It is another one, or was damaged.
    """
    if len(stored.body) != segment.size_bytes:
        raise CorruptData(f"{stored.key}: expected {segment.size_bytes} bytes, found {len(stored.body)}")
    if segment.sha256 is None:
        return
    found = digest_of(stored.body)
    if found != segment.sha256:
        raise CorruptData(f"{stored.key}: expected digest {segment.sha256}, found {found}")
    _check_stated(segment, stored.key, stored.metadata)


def _check_stated(segment: Segment, key: str, metadata: Mapping[str, str]) -> None:
    if metadata.get(DIGEST) != segment.sha256:
        raise CorruptData(f"{key}: expected digest {segment.sha256} in its metadata, found {metadata.get(DIGEST)}")


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
        stating: Mapping[str, str] | None = None,
    ) -> None:
        """Read an object of a ledger.

        Args:
            objects: Its bucket.
            key: Its key.
            size_bytes: Its length.
            ledger_id: Named when there is no such object.
            held: A part of it that was fetched already, and where it begins.
            stating: What its metadata says: an object that says otherwise is another one.
        """
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._ledger_id = ledger_id
        self._held = held or (0, b"")
        self._stating = stating or {}
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
            CorruptData: It is shorter than it should be, or another one.
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
        return self._objects.get_range(self._key, self._at, wanted, stating=self._stating)
