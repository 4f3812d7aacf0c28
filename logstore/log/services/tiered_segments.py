"""Which copy a segment is read from: the primary one, and where that fails the tiered one.

In a tiered copy each segment is one row group, read by ranges of the one object. Each column chunk is compared with its
digest in the index.
"""

import io
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from logstore.errors import CorruptData
from logstore.log.chunk_digests import column_chunks, fetch_chunks, parse_digests
from logstore.log.entries import FooterDigest, parquet_errors
from logstore.log.ledgers import CopyKind
from logstore.log.services.read_back import read_twice
from logstore.log.services.segment_file import RangeFile, SegmentGone, describe_damage, read_columns
from logstore.offload.tiered import CopyLocation, RowGroup, TieredIndex, data_key, index_key, parse_copy_location
from logstore.ports.catalog import Ledger, Offloads, ReadableCopies, Segment
from logstore.ports.objects import Buckets, ObjectStore
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_LOG: Final = logging.getLogger(__name__)
_KEPT_OPEN: Final = 4
"""Copies whose footer a scan keeps: it goes from ledger to ledger, and reads two segments ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What one scan knows of one tiered copy."""

    objects: ObjectStore
    key: str
    size_bytes: int
    groups: dict[RowGroup, int]  # to its number in the file
    expected_metadata: dict[str, str]  # what its metadata says
    footer: "pq.FileMetaData"
    chunks: tuple[str, ...]  # digests of column chunks by row group; empty: the index has none


class TieredSegments:
    """Where tiered copies are found and read."""

    def __init__(self, *, offloads: Offloads, buckets: Buckets) -> None:
        """Ask `offloads` which copy is LIVE, and read it where its context says."""
        self._offloads = offloads
        self._buckets = buckets

    def copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        """Where the ledger can be read now, or None when no list has it."""
        return self._offloads.copies(ledger_id)

    def scan(self) -> "TieredScan":
        """Reads of one scan, which opens each copy once."""
        return TieredScan(self._buckets)


class TieredScan:
    """Reads of one scan; threads that read ahead share it."""

    def __init__(self, buckets: Buckets) -> None:
        """Know nothing yet."""
        self._buckets = buckets
        self._opened: dict[str, _Opened] = {}
        self._lock = threading.Lock()

    def read_columns(self, segment: Segment, copies: ReadableCopies, columns: Sequence[str]) -> "pa.Table":
        """The named columns of a segment, in entry order.

        Raises:
            SegmentGone: There is no such object, or no tiered copy at all.
            CorruptData: It is not what its index or the segment's row says.
            StoreUnavailable: The store did not answer.
        """
        context = copies.tiered
        if context is None:
            raise SegmentGone(segment.ledger_id, f"a tiered copy of ledger {segment.ledger_id}")
        return read_twice(lambda: self._read_columns(segment, context, columns))

    def _read_columns(self, segment: Segment, context: Mapping[str, str], columns: Sequence[str]) -> "pa.Table":
        copy = self._open(segment, *parse_copy_location(segment.ledger_id, context))
        number = copy.groups.get(RowGroup(first_entry=segment.first_entry, entries=segment.entries))
        if number is None:
            what = f"{segment.entries} entries at {segment.first_entry}"
            raise CorruptData(f"{copy.key}: expected a row group of {what}, found none in its index")
        table = _read(copy, segment.ledger_id, number, columns)
        if table.num_rows != segment.entries:
            raise CorruptData(f"{copy.key}: expected {segment.entries} entries, found {table.num_rows}")
        return table

    def _open(self, segment: Segment, uuid: str, location: CopyLocation) -> _Opened:
        with self._lock:
            if uuid not in self._opened:
                self._opened[uuid] = _open(self._buckets(location), uuid, segment.ledger_id)
            opened = self._opened[uuid]
            while len(self._opened) > _KEPT_OPEN:
                del self._opened[next(iter(self._opened))]
            return opened


class SegmentSource:
    """Segments for one scan; threads that read ahead share it."""

    def __init__(self, objects: ObjectStore, tiered: TieredSegments | None, *, topic: str) -> None:
        """Read the primary bucket that `objects` is, and `tiered` copies if there are any.

        Args:
            objects: The primary bucket.
            tiered: Where tiered copies are found.
            topic: What to call the topic in an error.
        """
        self._objects = objects
        self._topic = topic
        self._tiered = tiered
        self._scan = tiered.scan() if tiered else None
        self._warned: set[LedgerId] = set()
        self._lock = threading.Lock()

    def read(self, ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        """The named columns of a segment, in entry order.

        Args:
            ledger: As it was listed; its copies may have changed since.
            segment: Which.
            columns: Names of columns.

        Raises:
            SegmentGone: No copy that the catalog names now holds it.
            CorruptData: No copy of it can be read. Names topic, ledger and entries, and what to do.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        try:
            return self._read(ledger, segment, columns)
        except CorruptData as error:
            raise describe_damage(self._topic, segment, error) from error

    def _read(self, ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        if CopyKind.LEDGER not in ledger.copies and self._tiered:
            return self._from_tiered(segment, columns, SegmentGone(ledger.ledger_id, f"ledger {ledger.ledger_id}"))
        try:
            return read_columns(self._objects, segment, columns)
        except (SegmentGone, CorruptData) as missed:
            return self._from_tiered(segment, columns, missed)

    def _from_tiered(self, segment: Segment, columns: Sequence[str], missed: Exception) -> "pa.Table":
        """Ask the catalog anew: the primary copy may have been removed since the ledger was listed."""
        copies = self._tiered.copies(segment.ledger_id) if self._tiered else None
        if self._scan is None or copies is None or copies.tiered is None:
            raise missed
        with self._lock:
            told = segment.ledger_id in self._warned or not copies.primary
            self._warned.add(segment.ledger_id)
        if not told:  # that a primary copy was removed is no news
            what = "ledger %s: its primary copy is damaged, reading the tiered one: %s"
            _LOG.warning(what, segment.ledger_id, missed)
        try:
            return self._scan.read_columns(segment, copies, columns)
        except SegmentGone as gone:
            raise missed if isinstance(missed, CorruptData) else gone from missed


def _open(objects: ObjectStore, uuid: str, ledger_id: LedgerId) -> _Opened:
    key, name = data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored = objects.get(name)
    if stored is None:
        raise SegmentGone(ledger_id, name)
    index = TieredIndex.from_json(stored.body, name=name)
    footer = _footer(objects, key, index)
    if footer.num_row_groups != len(index.row_groups):
        expected, found = len(index.row_groups), footer.num_row_groups
        raise CorruptData(f"{key}: expected {expected} row groups, found {found}")
    if len(index.chunks) != len(index.row_groups):
        raise CorruptData(f"{name}: expected digests of {len(index.row_groups)} row groups, found {len(index.chunks)}")
    expected_metadata = index.statement.to_metadata()
    groups = {group: number for number, group in enumerate(index.row_groups)}
    return _Opened(
        objects=objects,
        key=key,
        size_bytes=index.size_bytes,
        groups=groups,
        expected_metadata=expected_metadata,
        footer=footer,
        chunks=index.chunks,
    )


def _footer(objects: ObjectStore, key: str, index: TieredIndex) -> "pq.FileMetaData":
    mark = FooterDigest.parse(index.footer, name=key)
    start = max(0, index.size_bytes - mark.size_bytes)
    end = objects.get_range(key, start, index.size_bytes - start, expected_metadata=index.statement.to_metadata())
    if end is None:
        raise SegmentGone(index.statement.ledger_id, key)
    return mark.check(end, name=key)


def _read(copy: _Opened, ledger_id: LedgerId, number: int, columns: Sequence[str]) -> "pa.Table":
    file = RangeFile(copy.objects, copy.key, copy.size_bytes, ledger_id, expected_metadata=copy.expected_metadata)
    chunks = column_chunks(copy.footer, number)
    digests = parse_digests(copy.chunks[number], chunks, name=f"{copy.key}, row group {number}")
    # Payloads are nearly all of a row group, so one request fetches it all.
    wanted = {chunk.column for chunk in chunks} if "payload" in columns else columns
    file.hold(fetch_chunks(file.read_range, digests, wanted, name=copy.key), compared=True)
    try:
        table = _parquet(copy.key, file, copy.footer).read_row_group(number, columns=list(columns))
    except parquet_errors() as error:
        raise CorruptData(f"{copy.key}: row group {number} cannot be read: {error}") from error
    missing = set(columns) - set(table.column_names)
    if missing:
        raise CorruptData(f"{copy.key}: a tiered copy without columns {sorted(missing)}")
    return table


def _parquet(key: str, file: RangeFile, footer: "pq.FileMetaData") -> "pq.ParquetFile":
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        source = pa.PythonFile(cast("io.BytesIO", file), mode="r")
        return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=False)
    except parquet_errors() as error:
        raise CorruptData(f"{key}: not a tiered copy: {error}") from error
