"""File of an index bucket's snapshot. A snapshot segment is one Parquet row group, and one byte range of the file.

The footer has the covered range, all positions of the index bucket as bitmaps, and the times and the digest of each
snapshot segment. Columns are delta-encoded and compressed by zstd, and pages have checksums. The footer itself has no
checksum, so readers check its digest (`logstore.log.segment_format.FooterDigest`) before they parse it.

Source: PIP-195 (bucket snapshots: metadata, then segments by time step). PIP-195 has bitmaps for each segment.
Making such bitmaps would take as long as the merge itself, so here the bitmaps are for the whole index bucket.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from pyroaring import BitMap

from logstore.cursors.cursor_state import pack_acknowledged, unpack_acknowledged
from logstore.delayed.delayed_rows import COLUMNS, DelayedRows
from logstore.delayed.entry_bitmaps import Bitmaps, add_entries, count_entries
from logstore.errors import CorruptData, InvalidInput
from logstore.log.segment_format import digest_chunk, parquet_errors
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_FORMAT_VERSION: Final = 1
_LENGTH_PREFIX: Final = struct.Struct("<I")
_SUMMARY_KEY: Final = b"sexton.delayed"
_BITMAPS_KEY: Final = b"sexton.delayed.bitmaps"


@dataclass(frozen=True, slots=True)
class IndexSnapshotSegment:
    """Summary of one snapshot segment. Times are delivery times in milliseconds since 1970, UTC."""

    messages: int  # 1 or more
    first_ms: int
    last_ms: int  # inclusive


@dataclass(frozen=True, kw_only=True)
class IndexSnapshotFooter:
    topic_id: TopicId
    first: Position  # first entry of the range that the index bucket covers
    last: Position  # last entry of that range, inclusive
    segments: tuple[IndexSnapshotSegment, ...]  # ascending by time; 1 or more
    compressed_bitmaps: bytes
    digests: tuple[str, ...]  # digest of the bytes of each snapshot segment
    name: str = "delayed snapshot"  # name of the object in errors

    @property
    def messages(self) -> int:
        return sum(segment.messages for segment in self.segments)

    @property
    def first_ms(self) -> int:
        return self.segments[0].first_ms

    @property
    def last_ms(self) -> int:
        return self.segments[-1].last_ms

    @cached_property
    def bitmaps(self) -> Mapping[LedgerId, BitMap]:
        """Entries of the whole index bucket, by ledger. Callers share the bitmaps and must not change them.

        Raise `CorruptData` if the bitmaps cannot be read, or disagree with the snapshot segments or the covered range.
        """
        entries = unpack_acknowledged(_decompress_bitmaps(self.compressed_bitmaps, self.name))
        entry_count = count_entries(entries)
        if entry_count != self.messages:
            raise CorruptData(f"{self.name}: expected bitmaps of {self.messages} messages, found {entry_count}")
        ends = [
            Position(ledger_id, entry_id)
            for ledger_id, bits in entries.items()
            if bits
            for entry_id in (bits.min(), bits.max())
        ]
        if ends and not self.first <= min(ends) <= max(ends) <= self.last:
            raise CorruptData(f"{self.name}: expected {self.first} to {self.last}, found {min(ends)} to {max(ends)}")
        return entries


def parse_snapshot_footer(metadata: "pq.FileMetaData", name: str) -> IndexSnapshotFooter:
    """Return the content of a snapshot's footer. The caller must have checked the digest of `metadata`.

    Raise `CorruptData` if the file is no snapshot, has an unknown format, or contradicts itself.
    """
    pairs: Mapping[bytes, bytes] = metadata.metadata or {}
    try:
        summary = json.loads(pairs[_SUMMARY_KEY])
        version = summary["version"]
        if version != _FORMAT_VERSION:
            raise CorruptData(f"{name}: expected version {_FORMAT_VERSION} of a delayed snapshot, found {version}")
        footer = IndexSnapshotFooter(
            topic_id=TopicId(int(summary["topic_id"])),
            first=_parse_position(summary["first"]),
            last=_parse_position(summary["last"]),
            segments=tuple(IndexSnapshotSegment(*(int(value) for value in segment)) for segment in summary["segments"]),
            compressed_bitmaps=pairs[_BITMAPS_KEY],
            digests=tuple(str(digest) for digest in summary["digests"]),
            name=name,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{name}: not a delayed snapshot: {error!r}") from error
    times = [ms for segment in footer.segments for ms in (segment.first_ms, segment.last_ms)]
    if times != sorted(times):
        raise CorruptData(f"{name}: expected segments in the order of their times, found {times[:20]}")
    row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    expected_counts = [segment.messages for segment in footer.segments]
    if not row_counts or row_counts != expected_counts:
        raise CorruptData(f"{name}: expected segments of {expected_counts} rows, found {row_counts}")
    if len(footer.digests) != len(row_counts):
        raise CorruptData(f"{name}: expected digests of {len(row_counts)} segments, found {len(footer.digests)}")
    return footer


def check_segment_digest(footer: IndexSnapshotFooter, number: int, content: bytes) -> None:
    if digest_chunk(content) != footer.digests[number]:
        expected, found = footer.digests[number], digest_chunk(content)
        raise CorruptData(f"{footer.name}, segment {number}: expected digest {expected}, found {found}")


def footer_to_metadata(footer: IndexSnapshotFooter) -> dict[bytes, bytes]:
    summary = {
        "version": _FORMAT_VERSION,
        "topic_id": int(footer.topic_id),
        "first": [int(footer.first.ledger_id), footer.first.entry_id],
        "last": [int(footer.last.ledger_id), footer.last.entry_id],
        "segments": [[segment.messages, segment.first_ms, segment.last_ms] for segment in footer.segments],
        "digests": list(footer.digests),
    }
    return {_SUMMARY_KEY: json.dumps(summary, sort_keys=True).encode(), _BITMAPS_KEY: footer.compressed_bitmaps}


def compress_bitmaps(bitmaps: Bitmaps) -> bytes:
    """Pack and compress bitmaps. The result begins with the length of the packed, uncompressed bitmaps.

    An entry id that does not adjoin another id of its bitmap is packed into two bytes. The high byte varies little and
    compresses well.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    packed = pack_acknowledged(bitmaps)
    return _LENGTH_PREFIX.pack(len(packed)) + bytes(pa.compress(packed, codec="zstd", asbytes=True))


def _decompress_bitmaps(compressed: bytes, name: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    if len(compressed) < _LENGTH_PREFIX.size:
        raise CorruptData(f"{name}: expected bitmaps, found {len(compressed)} bytes")
    (length,) = _LENGTH_PREFIX.unpack_from(compressed)
    try:
        return bytes(pa.decompress(compressed[_LENGTH_PREFIX.size :], length, codec="zstd", asbytes=True))
    except parquet_errors() as error:
        raise CorruptData(f"{name}: the bitmaps cannot be read: {error}") from error


def _parse_position(pair: Any) -> Position:  # noqa: ANN401 - of JSON
    ledger_id, entry_id = pair
    return Position(LedgerId(int(ledger_id)), int(entry_id))


STEP_MS: Final = 300_000
"""Range of delivery times in a snapshot segment. To satisfy `SEGMENT_ROWS`, the range may be larger or smaller."""

SEGMENT_ROWS: Final = (10_000, 100_000)
"""Minimum and maximum number of rows of a snapshot segment. Only the last snapshot segment may have fewer rows."""

_MIN_ROWS_PER_BITMAP_UPDATE: Final = 250_000
"""Minimum rows that are added to bitmaps in one update. Few large updates are faster than many small updates."""


class _SegmentDigestingSink:
    """Binary file that digests each snapshot segment while writing it."""

    closed = False

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._segment_content = bytearray()

    def write(self, content: bytes) -> int:
        self._segment_content += content
        return self._target.write(content)

    def flush(self) -> None:
        self._target.flush()

    def tell(self) -> int:
        return self._target.tell()

    def end_segment(self) -> str:
        digest = digest_chunk(self._segment_content)
        self._segment_content.clear()
        return digest


class IndexSnapshotWriter:
    """Writer of one snapshot. Memory has the rows of some snapshot segments, and the bitmaps of all entries.

    `target` is a path, or an open binary file, which the writer does not close. The index bucket covers the range from
    `first` to `last`, inclusive. `entries` are the entries of all rows that will be added. If `entries` is `None`, the
    writer collects the entries.
    """

    def __init__(
        self,
        target: Path | BinaryIO,
        topic_id: TopicId,
        first: Position,
        last: Position,
        *,
        step_ms: int = STEP_MS,
        segment_rows: tuple[int, int] = SEGMENT_ROWS,
        entries: Bitmaps | None = None,
    ) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

        self._topic_id, self._first, self._last = topic_id, first, last
        self._step_ms, (self._min_rows, self._max_rows) = step_ms, segment_rows
        self._pending_parts: list[DelayedRows] = []
        self._pending_rows = 0
        self._last_ms: int | None = None
        self._segments: list[IndexSnapshotSegment] = []
        self._digests: list[str] = []
        self._known_entries = entries
        self._collected_entries: dict[LedgerId, BitMap] = {}
        self._uncollected_parts: list[DelayedRows] = []  # written rows that are in no bitmap yet
        self._own_file = target.open("wb") if isinstance(target, Path) else None
        self._sink = _SegmentDigestingSink(self._own_file or cast("BinaryIO", target))
        self._file = pq.ParquetWriter(
            self._sink,
            DelayedRows.empty().to_table().schema,
            compression="zstd",
            use_dictionary=False,
            column_encoding=dict.fromkeys(COLUMNS, "DELTA_BINARY_PACKED"),
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        )
        self._sink.end_segment()  # Parquet's magic number belongs to no snapshot segment

    def add_rows(self, rows: DelayedRows) -> None:
        """Append rows. Raise `InvalidInput` if the first row is due before the last row of the previous call."""
        if not len(rows):
            return
        first_ms = int(rows.deliver_at_ms[0])
        if self._last_ms is not None and first_ms < self._last_ms:
            raise InvalidInput("rows", expected=f"a time from {self._last_ms}", found=first_ms)
        self._last_ms = int(rows.deliver_at_ms[-1])
        self._pending_parts.append(rows)
        self._pending_rows += len(rows)
        if self._pending_rows >= self._max_rows:
            self._write_segments(is_last=False)

    def close(self) -> IndexSnapshotFooter:
        """Write the remaining rows and the footer. Close the file if `target` is a path.

        Raise `InvalidInput` if there are no rows, or if a position is outside the index bucket's range or occurs twice.
        """
        self._write_segments(is_last=True)
        self._collect_entries()
        entries = self._collected_entries if self._known_entries is None else self._known_entries
        footer = IndexSnapshotFooter(
            topic_id=self._topic_id,
            first=self._first,
            last=self._last,
            segments=tuple(self._segments),
            compressed_bitmaps=compress_bitmaps(entries),
            digests=tuple(self._digests),
        )
        if not footer.messages:
            raise InvalidInput("rows", expected="1 or more", found=0)
        try:
            _ = footer.bitmaps  # checks number and range of the entries
        except CorruptData as error:
            raise InvalidInput(
                "rows", expected="positions of the bucket's range, none twice", found=str(error)
            ) from error
        self._file.add_key_value_metadata(footer_to_metadata(footer))
        self.close_without_footer()
        return footer

    def close_without_footer(self) -> None:
        self._file.close()
        if self._own_file is not None:
            self._own_file.close()

    def _write_segments(self, *, is_last: bool) -> None:
        """Write all full snapshot segments and keep the remaining rows. With `is_last`, write all rows."""
        rows, start = DelayedRows.concatenate(self._pending_parts), 0
        while start < len(rows) and (is_last or len(rows) - start >= self._max_rows):
            end = self._find_segment_end(rows, start)
            self._write_segment(rows.slice(start, end))
            start = end
        self._pending_parts, self._pending_rows = [rows.slice(start)], len(rows) - start

    def _find_segment_end(self, rows: DelayedRows, start: int) -> int:
        times = rows.slice(start, start + self._max_rows).deliver_at_ms
        rows_in_step = int(times.searchsorted(int(times[0]) + self._step_ms, side="left"))
        return start + min(max(rows_in_step, self._min_rows), len(times))

    def _write_segment(self, rows: DelayedRows) -> None:
        table = rows.to_table()
        self._file.write_table(table, row_group_size=len(rows))
        self._digests.append(self._sink.end_segment())
        self._segments.append(IndexSnapshotSegment(len(rows), int(rows.deliver_at_ms[0]), int(rows.deliver_at_ms[-1])))
        if self._known_entries is not None:
            return
        self._uncollected_parts.append(rows)
        if sum(len(part) for part in self._uncollected_parts) >= _MIN_ROWS_PER_BITMAP_UPDATE:
            self._collect_entries()

    def _collect_entries(self) -> None:
        add_entries(self._collected_entries, DelayedRows.concatenate(self._uncollected_parts).to_bitmaps())
        self._uncollected_parts = []


def read_segment(
    source: BinaryIO, number: int, *, footer: IndexSnapshotFooter, metadata: "pq.FileMetaData", name: str
) -> DelayedRows:
    """Return the rows of one snapshot segment. Only the snapshot segment's byte range of `source` is read.

    `number` counts from 0. The caller must have checked the digest of `metadata`. Raise `CorruptData` if the rows
    differ from the footer, or if a page has a wrong checksum.
    """
    rows = DelayedRows.from_table(_read_row_group(source, number, metadata, name), name=f"{name}, segment {number}")
    expected = footer.segments[number]
    found = (
        IndexSnapshotSegment(len(rows), int(rows.deliver_at_ms[0]), int(rows.deliver_at_ms[-1])) if len(rows) else None
    )
    if found != expected:
        raise CorruptData(f"{name}, segment {number}: expected {expected}, found {found}")
    return rows


def _read_row_group(source: BinaryIO, number: int, metadata: "pq.FileMetaData", name: str) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        opened = pa.PythonFile(source, mode="r")
        with pq.ParquetFile(opened, metadata=metadata, page_checksum_verification=True) as file:
            return file.read_row_group(number, columns=list(COLUMNS), use_threads=False)
    except parquet_errors() as error:
        raise CorruptData(f"{name}, segment {number}: cannot be read: {error}") from error
