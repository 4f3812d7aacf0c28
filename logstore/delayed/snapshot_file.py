"""File of an index bucket's snapshot. A snapshot segment is one Parquet row group, and one byte range of the file.

The footer has all positions of the index bucket as bitmaps, and the times and the digest of each snapshot segment.
Columns are delta-encoded and compressed by zstd, and pages have checksums. The footer has no checksum, so readers
check the footer's digest (`logstore.log.segment_format.FooterDigest`) before they parse the footer.

Source: PIP-195 (bucket snapshots: metadata, then segments by time step). PIP-195 has bitmaps for each segment.
Making such bitmaps would take as long as the merge itself, so here the bitmaps are for the whole index bucket.
"""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from pyroaring import BitMap

from logstore.delayed.delayed_rows import COLUMNS, DelayedRows
from logstore.delayed.entry_bitmaps import Bitmaps, add_entries
from logstore.delayed.snapshot_footer import (
    IndexSnapshotFooter,
    IndexSnapshotSegment,
    compress_bitmaps,
    footer_to_metadata,
)
from logstore.errors import CorruptData, InvalidInput
from logstore.log.segment_format import digest_chunk, parquet_errors
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
