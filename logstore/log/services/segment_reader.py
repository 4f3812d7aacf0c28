"""Reader of one stored segment: the whole object if that is cheaper, otherwise ranges of the requested columns.

A whole object is compared with the digest in the segment's row. Ranges are compared with the digests of column chunks
in the object's metadata. A segment of an earlier build has no digests of column chunks. If the objects of two such
segments were exchanged, the page checksums may not show this.
"""

import io
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.catalog.offload.tiered_copies import Offloads
from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.segment_format import (
    CHUNKS_FIELD,
    DIGEST_FIELD,
    FOOTER_FIELD,
    ColumnChunk,
    FooterDigest,
    decode_segment,
    digest_chunks,
    digest_footer,
    fetch_verified_chunks,
    list_column_chunks,
    parquet_errors,
    parse_digests,
    sha256_hex,
)
from logstore.log.services.upload_read_back import reread_if_corrupt
from logstore.offload.tiered_copy import (
    RowGroupEntries,
    TieredIndex,
    data_key,
    index_key,
    parse_uuid_and_location,
)
from logstore.ports.catalog.log import Ledger, Segment
from logstore.ports.object_storage import BucketAtLocation, ObjectStore, StoredObject
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


MAX_WHOLE_READ_BYTES: Final = 128 << 10
"""Maximum size of a segment that is always read whole. A read by ranges needs two requests or more."""


class SegmentGone(Exception):
    """Error: the object or the row of a segment does not exist."""

    def __init__(self, ledger_id: LedgerId, what: str) -> None:
        super().__init__(what)
        self.ledger_id = ledger_id


def describe_damage(topic: str, segment: Segment, error: CorruptData) -> CorruptData:
    """Return an error that names the unreadable entries, and a command that explains what to do."""
    entries = f"entries {segment.first_entry} to {segment.first_entry + segment.entries - 1}"
    what = f"{topic}: ledger {segment.ledger_id}, segment {segment.number} ({entries}) is corrupt in every copy"
    return CorruptData(f"{what}: {error}. Run `sexton ledger explain {segment.ledger_id}`: it says what to do")


def read_columns(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> "pa.Table":
    """Read the named columns of a segment, in entry order. If the data is corrupt, read once more.

    Raises:
        SegmentGone: The object does not exist.
        CorruptData: The object is not a segment, or differs from the segment's row.
        StoreUnavailable: The store did not answer.
    """
    return reread_if_corrupt(lambda: _read_columns_once(objects, segment, columns))


def _read_columns_once(objects: ObjectStore, segment: Segment, columns: Sequence[str]) -> "pa.Table":
    key = segment_key(segment.ledger_id, segment.number)
    if "payload" in columns or segment.size_bytes <= MAX_WHOLE_READ_BYTES:
        source = _open_whole_segment(objects, key, segment)
        table = decode_segment(source, columns=columns, name=key, check_pages=segment.sha256 is None)
    else:
        table = read_columns_by_ranges(
            objects, segment, columns, read_footer(objects, segment) if segment.sha256 else None
        )
    if table.num_rows != segment.entries:
        raise CorruptData(f"{key}: expected {segment.entries} entries, found {table.num_rows}")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """Verified footer of a segment, and the digests of column chunks from the object's metadata."""

    parsed: "pq.FileMetaData"
    digests: Mapping[ColumnChunk, str] | None  # of chunks without payload; None: segment of an earlier build


def read_columns_by_ranges(
    objects: ObjectStore, segment: Segment, columns: Sequence[str], footer: SegmentFooter | None
) -> "pa.Table":
    """Fetch columns other than `payload`. Compare the fetched chunks with the digests in `footer`, if any.

    `footer` is `None` for a segment of an earlier build without a digest. Raise the errors of `read_columns`.
    """
    key, file = segment_key(segment.ledger_id, segment.number), open_range_file(objects, segment)
    if footer is None:
        return decode_segment(cast("BinaryIO", file), columns=columns, name=key)
    if footer.digests is not None:
        file.hold_parts(
            fetch_verified_chunks(file.read_range, footer.digests, columns, name=key), refuse_other_reads=True
        )
    source, prefetch = cast("BinaryIO", file), footer.digests is None
    return decode_segment(source, columns=columns, name=key, footer=footer.parsed, prefetch=prefetch)


def open_range_file(objects: ObjectStore, segment: Segment) -> "RangeFile":
    key, expected_metadata = (
        segment_key(segment.ledger_id, segment.number),
        {DIGEST_FIELD: segment.sha256} if segment.sha256 else {},
    )
    return RangeFile(objects, key, segment.size_bytes, segment.ledger_id, expected_metadata=expected_metadata)


def _open_whole_segment(objects: ObjectStore, key: str, segment: Segment) -> BinaryIO:
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    verify_segment_body(segment, stored)
    return io.BytesIO(stored.body)


def read_footer(objects: ObjectStore, segment: Segment) -> SegmentFooter:
    """Read the footer of a segment whose row has a digest. Compare the footer with its digest in the object's metadata.

    Raise the errors of `read_columns`.
    """
    key = segment_key(segment.ledger_id, segment.number)
    head = objects.head(key)
    if head is None:
        raise SegmentGone(segment.ledger_id, key)
    _verify_metadata_digest(segment, key, head[1])
    return read_footer_with_metadata(objects, segment, head[1])


def read_footer_with_metadata(objects: ObjectStore, segment: Segment, metadata: Mapping[str, str]) -> SegmentFooter:
    key, file = segment_key(segment.ledger_id, segment.number), open_range_file(objects, segment)
    footer_digest = FooterDigest.parse(metadata.get(FOOTER_FIELD), name=key)
    file.seek(-footer_digest.size_bytes, io.SEEK_END)
    parsed, chunk_digests = footer_digest.check(file.read(), name=key), metadata.get(CHUNKS_FIELD)
    return SegmentFooter(
        parsed=parsed,
        digests=None
        if chunk_digests is None
        else parse_digests(chunk_digests, _chunks_without_payload(parsed), name=key),
    )


def row_group_byte_range(footer: "pq.FileMetaData", number: int) -> tuple[int, int]:
    """Return offset and length, in bytes, of a row group."""
    chunks = list_column_chunks(footer, number)
    start = min(chunk.start for chunk in chunks)
    return start, max(chunk.end for chunk in chunks) - start


def build_digest_metadata(content: bytes, sha256: str) -> dict[str, str]:
    """Return metadata with the digests of content and footer. A large segment also has digests of column chunks."""
    metadata = {DIGEST_FIELD: sha256, FOOTER_FIELD: str(digest_footer(io.BytesIO(content)))}
    if len(content) <= MAX_WHOLE_READ_BYTES:
        return metadata
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    view = memoryview(content)
    chunks = _chunks_without_payload(pq.read_metadata(io.BytesIO(content)))
    return metadata | {CHUNKS_FIELD: digest_chunks(lambda start, length: view[start : start + length], chunks)}


def _chunks_without_payload(footer: "pq.FileMetaData") -> list[ColumnChunk]:
    """Return the chunks of all columns but `payload`. To read `payload`, a reader fetches the whole object."""
    groups = (list_column_chunks(footer, number) for number in range(footer.num_row_groups))
    return [chunk for group in groups for chunk in group if chunk.column != "payload"]


def verify_segment_body(segment: Segment, stored: StoredObject) -> None:
    """Raise `CorruptData` if the object differs from the segment's row in length or digest.

    The object's metadata must also have the row's digest. Segments of earlier builds have no digest.
    """
    if len(stored.body) != segment.size_bytes:
        raise CorruptData(f"{stored.key}: expected {segment.size_bytes} bytes, found {len(stored.body)}")
    if segment.sha256 is None:
        return
    digest = sha256_hex(stored.body)
    if digest != segment.sha256:
        raise CorruptData(f"{stored.key}: expected digest {segment.sha256}, found {digest}")
    _verify_metadata_digest(segment, stored.key, stored.metadata)


def _verify_metadata_digest(segment: Segment, key: str, metadata: Mapping[str, str]) -> None:
    if metadata.get(DIGEST_FIELD) != segment.sha256:
        raise CorruptData(
            f"{key}: expected digest {segment.sha256} in its metadata, found {metadata.get(DIGEST_FIELD)}"
        )


def find_segment_problem(objects: ObjectStore, segment: Segment) -> str:
    """Read and verify a whole segment. Return a description of the problem, or "" if the segment is intact.

    Raise `StoreUnavailable` if the store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)

    def find_problem_once() -> str:
        stored = objects.get(key)
        if stored is None:
            return f"{key}: the store has no such object"
        verify_segment_body(segment, stored)
        return ""

    try:
        return reread_if_corrupt(find_problem_once)
    except CorruptData as error:
        return str(error)


class RangeFile(io.RawIOBase):
    """Read-only file that fetches ranges of one object. The object's metadata must contain `expected_metadata`."""

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        size_bytes: int,
        ledger_id: LedgerId,
        *,
        expected_metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._ledger_id = ledger_id
        self._held: list[tuple[int, bytes]] = []
        self._refuses_other_reads = False
        self._expected_metadata = expected_metadata or {}
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, size: int | None = -1) -> bytes:
        """Read at most `size` bytes from the current offset. `None` or -1: read to the end of the object.

        Raises:
            SegmentGone: The object does not exist.
            CorruptData: The object is too short, or its metadata lacks `expected_metadata`.
        """
        remaining = max(0, self._size - self._offset)
        wanted_bytes = remaining if size is None or size < 0 else min(size, remaining)
        if not wanted_bytes:
            return b""
        content = self._read_held_or_fetch(wanted_bytes)
        if content is None:
            raise SegmentGone(self._ledger_id, self._key)
        if len(content) != wanted_bytes:
            raise CorruptData(f"{self._key}: expected {wanted_bytes} bytes at {self._offset}, found {len(content)}")
        self._offset += wanted_bytes
        return content

    def read_range(self, start: int, length: int) -> bytes:
        self.seek(start)
        return self.read(length)

    def hold_parts(self, parts: Sequence[tuple[int, bytes]], *, refuse_other_reads: bool) -> None:
        """Serve reads from `parts` (offset, content). With `refuse_other_reads`, other reads raise `CorruptData`."""
        self._held, self._refuses_other_reads = list(parts), refuse_other_reads

    def _read_held_or_fetch(self, wanted_bytes: int) -> bytes | None:
        for start, content in self._held:
            if start <= self._offset and self._offset + wanted_bytes <= start + len(content):
                return content[self._offset - start : self._offset - start + wanted_bytes]
        if self._refuses_other_reads:
            raise CorruptData(
                f"{self._key}: expected a read of what was compared, found one of {wanted_bytes} at {self._offset}"
            )
        return self._objects.get_range(self._key, self._offset, wanted_bytes, expected_metadata=self._expected_metadata)


_LOG: Final = logging.getLogger(__name__)
_MAX_OPEN_COPIES: Final = 4
"""Maximum number of tiered copies that a scan keeps open. A few suffice, because a scan reads ledgers in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TieredCopy:
    objects: ObjectStore
    key: str
    size_bytes: int
    groups: dict[RowGroupEntries, int]  # number of the row group in the file, by the row group's entries
    expected_metadata: dict[str, str]
    footer: "pq.FileMetaData"
    chunks: tuple[str, ...]  # digests of column chunks, by row group


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredCopyFinder:
    """Access to the tiered copies of all ledgers."""

    offloads: Offloads
    buckets: BucketAtLocation


class SegmentSource:
    """Source of segments for one scan. Thread-safe. `topic` is the topic's name in an error."""

    def __init__(self, objects: ObjectStore, tiered: TieredCopyFinder | None, *, topic: str) -> None:
        self._objects = objects
        self._topic = topic
        self._tiered = tiered
        self._opened_copies: dict[str, _TieredCopy] = {}
        self._warned: set[LedgerId] = set()
        self._lock = threading.Lock()

    def read(self, ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        """Read the named columns of a segment, in entry order. Copies may have been deleted since `ledger` was read.

        Raises:
            SegmentGone: The segment is in no copy of the ledger.
            CorruptData: No copy can be read. The message tells an operator what to do.
            StoreUnavailable, CatalogBusy: Storage or catalog did not answer.
        """
        try:
            return self._read_from_copies(ledger, segment, columns)
        except CorruptData as error:
            raise describe_damage(self._topic, segment, error) from error

    def _read_from_copies(self, ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        if CopyKind.LEDGER not in ledger.copies and self._tiered:
            return self._read_tiered_copy(segment, columns, SegmentGone(ledger.ledger_id, f"ledger {ledger.ledger_id}"))
        try:
            return read_columns(self._objects, segment, columns)
        except (SegmentGone, CorruptData) as missed:
            return self._read_tiered_copy(segment, columns, missed)

    def _read_tiered_copy(self, segment: Segment, columns: Sequence[str], primary_error: Exception) -> "pa.Table":
        copies = self._tiered.offloads.find_readable_copies(segment.ledger_id) if self._tiered else None
        if self._tiered is None or copies is None or copies.tiered is None:
            raise primary_error
        with self._lock:
            is_known = segment.ledger_id in self._warned or not copies.primary
            self._warned.add(segment.ledger_id)
        if not is_known:  # the removal of a primary copy is expected
            message = "ledger %s: its primary copy is damaged, reading the tiered one: %s"
            _LOG.warning(message, segment.ledger_id, primary_error)
        buckets, context = self._tiered.buckets, copies.tiered
        try:
            return reread_if_corrupt(lambda: self._read_row_group(buckets, segment, context, columns))
        except SegmentGone as gone:
            raise primary_error if isinstance(primary_error, CorruptData) else gone from primary_error

    def _read_row_group(
        self, buckets: BucketAtLocation, segment: Segment, context: Mapping[str, str], columns: Sequence[str]
    ) -> "pa.Table":
        uuid, location = parse_uuid_and_location(segment.ledger_id, context)
        with self._lock:
            if uuid not in self._opened_copies:
                self._opened_copies[uuid] = _open_tiered_copy(buckets(location), uuid, segment.ledger_id)
            copy = self._opened_copies[uuid]
            while len(self._opened_copies) > _MAX_OPEN_COPIES:
                del self._opened_copies[next(iter(self._opened_copies))]
        number = copy.groups.get(RowGroupEntries(first_entry=segment.first_entry, entries=segment.entries))
        if number is None:
            what = f"{segment.entries} entries at {segment.first_entry}"
            raise CorruptData(f"{copy.key}: expected a row group of {what}, found none in its index")
        table = _read_row_group(copy, segment.ledger_id, number, columns)
        if table.num_rows != segment.entries:
            raise CorruptData(f"{copy.key}: expected {segment.entries} entries, found {table.num_rows}")
        return table


def _open_tiered_copy(objects: ObjectStore, uuid: str, ledger_id: LedgerId) -> _TieredCopy:
    key, index_name = data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    index_object = objects.get(index_name)
    if index_object is None:
        raise SegmentGone(ledger_id, index_name)
    index = TieredIndex.from_json(index_object.body, name=index_name)
    footer = _read_tiered_footer(objects, key, index)
    if footer.num_row_groups != len(index.row_groups):
        expected, found = len(index.row_groups), footer.num_row_groups
        raise CorruptData(f"{key}: expected {expected} row groups, found {found}")
    if len(index.chunks) != len(index.row_groups):
        raise CorruptData(
            f"{index_name}: expected digests of {len(index.row_groups)} row groups, found {len(index.chunks)}"
        )
    metadata = index.statement.to_metadata()
    groups = {group: number for number, group in enumerate(index.row_groups)}
    return _TieredCopy(
        objects=objects,
        key=key,
        size_bytes=index.size_bytes,
        groups=groups,
        expected_metadata=metadata,
        footer=footer,
        chunks=index.chunks,
    )


def _read_tiered_footer(objects: ObjectStore, key: str, index: TieredIndex) -> "pq.FileMetaData":
    footer_digest = FooterDigest.parse(index.footer, name=key)
    start = max(0, index.size_bytes - footer_digest.size_bytes)
    end = objects.get_range(key, start, index.size_bytes - start, expected_metadata=index.statement.to_metadata())
    if end is None:
        raise SegmentGone(index.statement.ledger_id, key)
    return footer_digest.check(end, name=key)


def _read_row_group(copy: _TieredCopy, ledger_id: LedgerId, number: int, columns: Sequence[str]) -> "pa.Table":
    file = RangeFile(copy.objects, copy.key, copy.size_bytes, ledger_id, expected_metadata=copy.expected_metadata)
    chunks = list_column_chunks(copy.footer, number)
    digests = parse_digests(copy.chunks[number], chunks, name=f"{copy.key}, row group {number}")
    # Payloads take nearly all of a row group, so one request fetches the whole group.
    fetched_columns = {chunk.column for chunk in chunks} if "payload" in columns else columns
    file.hold_parts(
        fetch_verified_chunks(file.read_range, digests, fetched_columns, name=copy.key), refuse_other_reads=True
    )
    try:
        table = _open_tiered_parquet(copy.key, file, copy.footer).read_row_group(number, columns=list(columns))
    except parquet_errors() as error:
        raise CorruptData(f"{copy.key}: row group {number} cannot be read: {error}") from error
    missing = set(columns) - set(table.column_names)
    if missing:
        raise CorruptData(f"{copy.key}: a tiered copy without columns {sorted(missing)}")
    return table


def _open_tiered_parquet(key: str, file: RangeFile, footer: "pq.FileMetaData") -> "pq.ParquetFile":
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        source = pa.PythonFile(cast("io.BytesIO", file), mode="r")
        return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=False)
    except parquet_errors() as error:
        raise CorruptData(f"{key}: not a tiered copy: {error}") from error
