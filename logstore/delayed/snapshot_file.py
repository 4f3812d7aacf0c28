"""The file of a bucket's snapshot: Parquet whose row groups are segments of time, with facts and bitmaps in its footer.

A reader that has the footer knows all positions of the bucket and when each segment begins, and needs one range of the
file for each segment. Columns are delta-encoded and zstd-compressed, and pages carry checksums. The footer has a digest
of each segment, and no checksum of its own: its digest is compared before it is parsed
(`logstore.log.entries.FooterMark`).

Source: PIP-195 (bucket snapshots: metadata, then segments by time step). Bitmaps are of the whole bucket: those of each
segment, as in the proposal, take as long as the merge itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from pyroaring import BitMap

from logstore.delayed.bitmaps import Bitmaps, add_to
from logstore.delayed.rows import COLUMNS, DelayedRows
from logstore.delayed.snapshot_footer import SegmentFacts, SnapshotFooter, compressed, to_metadata
from logstore.errors import CorruptData, InvalidInput
from logstore.log.chunk_digests import chunk_digest
from logstore.log.entries import unreadable
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

STEP_MS: Final = 300_000
SEGMENT_ROWS: Final = (10_000, 100_000)
"""The least rows of a segment that is not the last one, and the most of any."""

_MAPPED_ROWS: Final = 250_000
"""How many rows are put into bitmaps together: enough to have many of each ledger."""


class _SegmentSink:
    """A file-like object over a binary file that digests what is written between two segments' ends."""

    closed = False

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._written = bytearray()

    def write(self, content: bytes) -> int:
        self._written += content
        return self._target.write(content)

    def flush(self) -> None:
        self._target.flush()

    def tell(self) -> int:
        return self._target.tell()

    def end_segment(self) -> str:
        """Return the digest of what was written since the last call."""
        digest = chunk_digest(self._written)
        self._written.clear()
        return digest


class SnapshotWriter:
    """Writes one snapshot. In memory are the rows of some segments, and bitmaps."""

    def __init__(
        self,
        target: Path | BinaryIO,
        topic_id: TopicId,
        first: Position,
        last: Position,
        *,
        step_ms: int = STEP_MS,
        segment_rows: tuple[int, int] = SEGMENT_ROWS,
        known: Bitmaps | None = None,
    ) -> None:
        """Begin a file.

        Args:
            target: Where to write; a file that is given stays open.
            topic_id: Whose messages they are.
            first: The first entry of the range that the bucket covers.
            last: The last one.
            step_ms: How many milliseconds a segment spans, unless it has too few or too many rows.
            segment_rows: The least and the most rows of a segment.
            known: The entries of all rows that will have been added when it is closed; without them they are gathered.
        """
        import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

        self._whose = (topic_id, first, last)
        self._step_ms, (self._least, self._most) = step_ms, segment_rows
        self._parts: list[DelayedRows] = []
        self._waiting = 0
        self._last_ms: int | None = None
        self._segments: list[SegmentFacts] = []
        self._known = known
        self._bitmaps: dict[LedgerId, BitMap] = {}
        self._unmapped: list[DelayedRows] = []  # what is in no bitmap yet
        self._digests: list[str] = []
        self._owned = target.open("wb") if isinstance(target, Path) else None  # a file that is given stays open
        self._sink = _SegmentSink(self._owned or cast("BinaryIO", target))
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
        self._sink.end_segment()  # the magic number, which is of no segment

    def add(self, rows: DelayedRows) -> None:
        """Add rows behind all that were added before.

        Raises:
            InvalidInput: They begin before the time at which the last ones ended.
        """
        if not len(rows):
            return
        first_ms = int(rows.deliver_at_ms[0])
        if self._last_ms is not None and first_ms < self._last_ms:
            raise InvalidInput("rows", expected=f"a time from {self._last_ms}", found=first_ms)
        self._last_ms = int(rows.deliver_at_ms[-1])
        self._parts.append(rows)
        self._waiting += len(rows)
        if self._waiting >= self._most:
            self._write(whole=False)

    def close(self) -> SnapshotFooter:
        """Write what waits and the footer.

        Raises:
            InvalidInput: There are no rows, or a position outside the bucket's range or twice.
        """
        self._write(whole=True)
        self._map()
        found = SnapshotFooter(
            topic_id=self._whose[0],
            first=self._whose[1],
            last=self._whose[2],
            segments=tuple(self._segments),
            packed=compressed(self._bitmaps if self._known is None else self._known),
            digests=tuple(self._digests),
        )
        if not found.messages:
            raise InvalidInput("rows", expected="1 or more", found=0)
        try:
            _ = found.bitmaps
        except CorruptData as other:
            raise InvalidInput(
                "rows", expected="positions of the bucket's range, none twice", found=str(other)
            ) from other
        self._file.add_key_value_metadata(to_metadata(found))
        self.abandon()
        return found

    def abandon(self) -> None:
        """Close the file as it is: it is no snapshot."""
        self._file.close()
        if self._owned is not None:
            self._owned.close()

    def _write(self, *, whole: bool) -> None:
        """Write segments; unless it is the whole, keep what may still belong to one that is not full."""
        rows, at = DelayedRows.joined(self._parts), 0
        while at < len(rows) and (whole or len(rows) - at >= self._most):
            end = self._end(rows, at)
            self._segment(rows.slice(at, end))
            at = end
        self._parts, self._waiting = [rows.slice(at)], len(rows) - at

    def _end(self, rows: DelayedRows, at: int) -> int:
        """Where the segment ends that begins at this row."""
        step = rows.slice(at, at + self._most).deliver_at_ms
        within = int(step.searchsorted(int(step[0]) + self._step_ms, side="left"))
        return at + min(max(within, self._least), len(step))

    def _segment(self, rows: DelayedRows) -> None:
        table = rows.to_table()
        self._file.write_table(table, row_group_size=len(rows))
        self._digests.append(self._sink.end_segment())
        self._segments.append(SegmentFacts(len(rows), int(rows.deliver_at_ms[0]), int(rows.deliver_at_ms[-1])))
        if self._known is not None:
            return
        self._unmapped.append(rows)
        if sum(len(part) for part in self._unmapped) >= _MAPPED_ROWS:
            self._map()

    def _map(self) -> None:
        add_to(self._bitmaps, DelayedRows.joined(self._unmapped).bitmaps())
        self._unmapped = []


def read_segment(
    source: BinaryIO, number: int, *, footer: SnapshotFooter, metadata: "pq.FileMetaData", name: str
) -> DelayedRows:
    """The rows of one segment.

    Args:
        source: A seekable binary file; only the part that holds the segment is read.
        number: From 0.
        footer: What the metadata says.
        metadata: The footer, compared with its digest and parsed.
        name: What to call the object in an error.

    Raises:
        CorruptData: It is not what the footer says, or a page has another checksum than it says.
    """
    rows = DelayedRows.from_table(_group(source, number, metadata, name), name=f"{name}, segment {number}")
    facts = footer.segments[number]
    found = SegmentFacts(len(rows), int(rows.deliver_at_ms[0]), int(rows.deliver_at_ms[-1])) if len(rows) else None
    if found != facts:
        raise CorruptData(f"{name}, segment {number}: expected {facts}, found {found}")
    return rows


def _group(source: BinaryIO, number: int, metadata: "pq.FileMetaData", name: str) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        opened = pa.PythonFile(source, mode="r")
        with pq.ParquetFile(opened, metadata=metadata, page_checksum_verification=True) as file:
            return file.read_row_group(number, columns=list(COLUMNS), use_threads=False)
    except unreadable() as error:
        raise CorruptData(f"{name}, segment {number}: cannot be read: {error}") from error
