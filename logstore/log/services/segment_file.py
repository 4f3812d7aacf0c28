"""One stored segment as columns: the whole object when that is cheaper, otherwise only the ranges that hold them.

A whole object is compared with the digest in its row. Ranges are compared with digests of column chunks, which the
object's metadata holds. A segment that an earlier build stored has none: checksums of pages and the digest that each
answer states for its object protect it, which a store that mixes up bytes of two objects can pass.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.errors import CorruptData
from logstore.log.chunk_digests import (
    CHUNKS_FIELD,
    ColumnChunk,
    column_chunks,
    digest_chunks,
    fetch_chunks,
    parse_digests,
)
from logstore.log.entries import FOOTER_FIELD, FooterDigest, decode_segment, digest_footer
from logstore.log.ledgers import DIGEST_FIELD, segment_key, sha256_hex
from logstore.log.services.read_back import read_twice
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectStore, StoredObject
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


MAX_WHOLE_READ_BYTES: Final = 128 << 10
"""Bytes. A range read costs at least two requests, footer and columns: below this one is cheaper."""


class SegmentGone(Exception):
    """The store says definitely that it has no such object, or the catalog that it has no such rows."""

    def __init__(self, ledger_id: LedgerId, what: str) -> None:
        super().__init__(what)
        self.ledger_id = ledger_id


def describe_damage(topic: str, segment: Segment, error: CorruptData) -> CorruptData:
    """The error for people: which entries of which ledger and topic cannot be read, and where to read what to do."""
    entries = f"entries {segment.first_entry} to {segment.first_entry + segment.entries - 1}"
    what = f"{topic}: ledger {segment.ledger_id}, segment {segment.number} ({entries}) is corrupt in every copy"
    return CorruptData(f"{what}: {error}. Run `sexton ledger explain {segment.ledger_id}`: it says what to do")


def read_columns(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> "pa.Table":
    """The named columns of a segment, in entry order.

    What is corrupt is read once more: an answer may have been cut off on its way.

    Raises:
        SegmentGone: There is no such object.
        CorruptData: It is no segment, or not the one that its row says: another digest, another number of entries.
        StoreUnavailable: The store did not answer.
    """
    return read_twice(lambda: _read_once(objects, segment, columns))


def _read_once(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> "pa.Table":
    key = segment_key(segment.ledger_id, segment.number)
    if "payload" in columns or segment.size_bytes <= MAX_WHOLE_READ_BYTES:
        source = _whole(objects, key, segment)
        table = decode_segment(source, columns=columns, name=key, check_pages=segment.sha256 is None)
    else:
        table = read_by_ranges(objects, segment, columns, read_footer(objects, segment) if segment.sha256 else None)
    if table.num_rows != segment.entries:
        raise CorruptData(f"{key}: expected {segment.entries} entries, found {table.num_rows}")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """The compared footer of a segment, and what its object's metadata vouches for beside it."""

    parsed: "pq.FileMetaData"
    digests: Mapping[ColumnChunk, str] | None  # of chunks without payloads; None: stored before chunks had digests


def read_by_ranges(
    objects: ObjectStore, segment: Segment, columns: Sequence[str], footer: SegmentFooter | None
) -> "pa.Table":
    """Fetch columns other than the payload, and compare their chunks where the footer has digests.

    Args:
        objects: The primary bucket.
        segment: Its row.
        columns: Names out of `COLUMNS`, without `payload`.
        footer: Its footer; None: from a time before segments had digests.

    Raises:
        SegmentGone, CorruptData, StoreUnavailable: As `read_columns`.
    """
    key, file = segment_key(segment.ledger_id, segment.number), open_ranges(objects, segment)
    if footer is None:
        return decode_segment(cast("BinaryIO", file), columns=columns, name=key)
    if footer.digests is not None:
        file.hold(fetch_chunks(file.read_range, footer.digests, columns, name=key), compared=True)
    source, prefetch = cast("BinaryIO", file), footer.digests is None
    return decode_segment(source, columns=columns, name=key, footer=footer.parsed, prefetch=prefetch)


def open_ranges(objects: ObjectStore, segment: Segment) -> "RangeFile":
    """The registered object as a file of which only what is read is fetched."""
    key, expected_metadata = (
        segment_key(segment.ledger_id, segment.number),
        {DIGEST_FIELD: segment.sha256} if segment.sha256 else {},
    )
    return RangeFile(objects, key, segment.size_bytes, segment.ledger_id, expected_metadata=expected_metadata)


def _whole(objects: ObjectStore, key: str, segment: Segment) -> BinaryIO:
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    verify_segment(segment, stored)
    return io.BytesIO(stored.body)


def read_footer(objects: ObjectStore, segment: Segment) -> SegmentFooter:
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
    return read_footer_with_metadata(objects, segment, seen[1])


def read_footer_with_metadata(objects: ObjectStore, segment: Segment, metadata: Mapping[str, str]) -> SegmentFooter:
    """The footer that the object's metadata vouches for; raises as `read_footer`."""
    key, file = segment_key(segment.ledger_id, segment.number), open_ranges(objects, segment)
    mark = FooterDigest.parse(metadata.get(FOOTER_FIELD), name=key)
    file.seek(-mark.size_bytes, io.SEEK_END)
    parsed, text = mark.check(file.read(), name=key), metadata.get(CHUNKS_FIELD)
    return SegmentFooter(
        parsed=parsed, digests=None if text is None else parse_digests(text, _small_chunks(parsed), name=key)
    )


def row_group_range(footer: "pq.FileMetaData", number: int) -> tuple[int, int]:
    """Where a row group begins in its file, and its length in bytes: it is fetched by one request."""
    chunks = column_chunks(footer, number)
    start = min(chunk.start for chunk in chunks)
    return start, max(chunk.end for chunk in chunks) - start


def digest_metadata(content: bytes, sha256: str) -> dict[str, str]:
    """The part of a segment's metadata that names digests of its content.

    They are of the whole and of the footer; of a segment that may be read by ranges, also of its column chunks.
    """
    told = {DIGEST_FIELD: sha256, FOOTER_FIELD: str(digest_footer(io.BytesIO(content)))}
    if len(content) <= MAX_WHOLE_READ_BYTES:
        return told
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    view = memoryview(content)
    chunks = _small_chunks(pq.read_metadata(io.BytesIO(content)))
    return told | {CHUNKS_FIELD: digest_chunks(lambda start, length: view[start : start + length], chunks)}


def _small_chunks(footer: "pq.FileMetaData") -> list[ColumnChunk]:
    """Chunks of all columns but the payload: who wants payloads fetches the whole object."""
    groups = (column_chunks(footer, number) for number in range(footer.num_row_groups))
    return [chunk for group in groups for chunk in group if chunk.column != "payload"]


def verify_segment(segment: Segment, stored: StoredObject) -> None:
    """Require the object that was registered: its length, and the digest that its row and its own metadata have.

    Of a segment from before digests only the length is known.

    Raises:
        CorruptData: It is another one, or was damaged.
    """
    if len(stored.body) != segment.size_bytes:
        raise CorruptData(f"{stored.key}: expected {segment.size_bytes} bytes, found {len(stored.body)}")
    if segment.sha256 is None:
        return
    found = sha256_hex(stored.body)
    if found != segment.sha256:
        raise CorruptData(f"{stored.key}: expected digest {segment.sha256}, found {found}")
    _check_stated(segment, stored.key, stored.metadata)


def _check_stated(segment: Segment, key: str, metadata: Mapping[str, str]) -> None:
    if metadata.get(DIGEST_FIELD) != segment.sha256:
        raise CorruptData(
            f"{key}: expected digest {segment.sha256} in its metadata, found {metadata.get(DIGEST_FIELD)}"
        )


def find_segment_problem(objects: ObjectStore, segment: Segment) -> str:
    """Read a whole segment, and say what is wrong with it; empty where nothing is.

    Args:
        objects: The primary bucket.
        segment: Its row, with a digest.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)

    def compare() -> str:
        stored = objects.get(key)
        if stored is None:
            return f"{key}: the store has no such object"
        verify_segment(segment, stored)
        return ""

    try:
        return read_twice(compare)
    except CorruptData as error:
        return str(error)


class RangeFile(io.RawIOBase):
    """A read-only file over range reads of one object."""

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        size_bytes: int,
        ledger_id: LedgerId,
        *,
        expected_metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Read an object of a ledger.

        Args:
            objects: Its bucket.
            key: Its key.
            size_bytes: Its length.
            ledger_id: Named when there is no such object.
            expected_metadata: Entries that the metadata must have.
        """
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._ledger_id = ledger_id
        self._held: list[tuple[int, bytes]] = []
        self._only_held = False
        self._stating = expected_metadata or {}
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

    def read_range(self, start: int, length: int) -> bytes:
        """Read so many bytes from an offset; raises as `read`."""
        self.seek(start)
        return self.read(length)

    def hold(self, parts: Sequence[tuple[int, bytes]], *, compared: bool) -> None:
        """Keep parts that were fetched, each given with its offset.

        Args:
            parts: Read from now on in the place of requests.
            compared: Whether they were compared with digests; then nothing else is read.
        """
        self._held, self._only_held = list(parts), compared

    def _range(self, wanted: int) -> bytes | None:
        for start, content in self._held:
            if start <= self._at and self._at + wanted <= start + len(content):
                return content[self._at - start : self._at - start + wanted]
        if self._only_held:
            raise CorruptData(f"{self._key}: expected a read of what was compared, found one of {wanted} at {self._at}")
        return self._objects.get_range(self._key, self._at, wanted, expected_metadata=self._stating)
