"""Source of segments: the primary copy, or the tiered copy if the primary copy cannot be read.

In a tiered copy each segment is one row group. Column chunks are compared with digests in the copy's index object.
"""

import io
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from logstore.catalog.offload.tiered_copies import Offloads
from logstore.errors import CorruptData
from logstore.log.chunk_digests import fetch_verified_chunks, list_column_chunks, parse_digests
from logstore.log.ledgers import CopyKind
from logstore.log.segment_format import FooterDigest, parquet_errors
from logstore.log.services.segment_reader import RangeFile, SegmentGone, describe_damage, read_columns
from logstore.log.services.upload_read_back import reread_if_corrupt
from logstore.offload.tiered_copy import (
    CopyLocation,
    RowGroupEntries,
    TieredIndex,
    data_key,
    index_key,
    parse_uuid_and_location,
)
from logstore.ports.catalog.log import Ledger, Segment
from logstore.ports.catalog.offload import ReadableCopies
from logstore.ports.object_storage import BucketAtLocation, ObjectStore
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


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


class TieredCopyFinder:
    def __init__(self, *, offloads: Offloads, buckets: BucketAtLocation) -> None:
        self._offloads = offloads
        self._buckets = buckets

    def copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        return self._offloads.find_readable_copies(ledger_id)

    def scan(self) -> "TieredCopyScan":
        return TieredCopyScan(self._buckets)


class TieredCopyScan:
    """Reader of tiered copies for one scan. Thread-safe."""

    def __init__(self, buckets: BucketAtLocation) -> None:
        self._buckets = buckets
        self._opened: dict[str, _TieredCopy] = {}
        self._lock = threading.Lock()

    def read_columns(self, segment: Segment, copies: ReadableCopies, columns: Sequence[str]) -> "pa.Table":
        """Read the named columns of a segment, in entry order. Raise the errors of `segment_reader.read_columns`."""
        context = copies.tiered
        if context is None:
            raise SegmentGone(segment.ledger_id, f"a tiered copy of ledger {segment.ledger_id}")
        return reread_if_corrupt(lambda: self._read_columns(segment, context, columns))

    def _read_columns(self, segment: Segment, context: Mapping[str, str], columns: Sequence[str]) -> "pa.Table":
        copy = self._open_copy_once(segment, *parse_uuid_and_location(segment.ledger_id, context))
        number = copy.groups.get(RowGroupEntries(first_entry=segment.first_entry, entries=segment.entries))
        if number is None:
            what = f"{segment.entries} entries at {segment.first_entry}"
            raise CorruptData(f"{copy.key}: expected a row group of {what}, found none in its index")
        table = _read_row_group(copy, segment.ledger_id, number, columns)
        if table.num_rows != segment.entries:
            raise CorruptData(f"{copy.key}: expected {segment.entries} entries, found {table.num_rows}")
        return table

    def _open_copy_once(self, segment: Segment, uuid: str, location: CopyLocation) -> _TieredCopy:
        with self._lock:
            if uuid not in self._opened:
                self._opened[uuid] = _open_tiered_copy(self._buckets(location), uuid, segment.ledger_id)
            opened = self._opened[uuid]
            while len(self._opened) > _MAX_OPEN_COPIES:
                del self._opened[next(iter(self._opened))]
            return opened


class SegmentSource:
    """Source of segments for one scan. Thread-safe. `topic` is the topic's name in an error."""

    def __init__(self, objects: ObjectStore, tiered: TieredCopyFinder | None, *, topic: str) -> None:
        self._objects = objects
        self._topic = topic
        self._tiered = tiered
        self._scan = tiered.scan() if tiered else None
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
        copies = self._tiered.copies(segment.ledger_id) if self._tiered else None
        if self._scan is None or copies is None or copies.tiered is None:
            raise primary_error
        with self._lock:
            is_known = segment.ledger_id in self._warned or not copies.primary
            self._warned.add(segment.ledger_id)
        if not is_known:  # the removal of a primary copy is expected
            message = "ledger %s: its primary copy is damaged, reading the tiered one: %s"
            _LOG.warning(message, segment.ledger_id, primary_error)
        try:
            return self._scan.read_columns(segment, copies, columns)
        except SegmentGone as gone:
            raise primary_error if isinstance(primary_error, CorruptData) else gone from primary_error


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
