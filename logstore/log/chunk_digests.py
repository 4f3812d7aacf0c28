"""Digests of the column chunks of a Parquet file, for readers that fetch single columns by ranges.

A page carries its checksum with it, so the bytes of another file pass where they are laid out alike. The digest of a
chunk is kept apart from its bytes: in a segment's metadata, in the index of a tiered copy, in the footer of a snapshot.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.errors import CorruptData

if TYPE_CHECKING:
    import pyarrow.parquet as pq

CHUNKS_FIELD: Final = "chunks"
"""Name under which a segment's own metadata holds the digests of its column chunks."""

_DIGEST_BYTES: Final = 12
"""Of SHA-256. They tell bytes of another file or a flipped bit, and ten of them fit beside all else in metadata."""
_GAP_BYTES: Final = 8192
"""Bytes between two chunks that are fetched with them: as many as Arrow reads to spare a request."""
_DIGEST_LENGTH: Final = _DIGEST_BYTES * 4 // 3
_DIGESTS: Final = re.compile(rf"(?:[A-Za-z0-9_-]{{{_DIGEST_LENGTH}}})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """The bytes of one leaf column in one row group."""

    column: str  # the column of the table that the leaf is part of
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.start + self.size_bytes


def column_chunks(footer: "pq.FileMetaData", group: int) -> list[ColumnChunk]:
    """Chunks of a row group, in file order."""
    row_group = footer.row_group(group)
    leaves = (row_group.column(number) for number in range(row_group.num_columns))
    return [
        ColumnChunk(
            column=leaf.path_in_schema.partition(".")[0],
            start=leaf.dictionary_page_offset or leaf.data_page_offset,
            size_bytes=leaf.total_compressed_size,
        )
        for leaf in leaves
    ]


def digest_chunk(content: bytes | bytearray | memoryview) -> str:
    """Digest of one chunk, or of one whole row group, as text of 16 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()[:_DIGEST_BYTES]).decode()


def digest_chunks(read: Callable[[int, int], bytes | memoryview], chunks: Iterable[ColumnChunk]) -> str:
    """Digests of chunks, one behind the other.

    Args:
        read: Returns the bytes from an offset, of a length.
        chunks: In file order.
    """
    return "".join(digest_chunk(read(chunk.start, chunk.size_bytes)) for chunk in chunks)


def parse_digests(text: str, chunks: Sequence[ColumnChunk], *, name: str) -> dict[ColumnChunk, str]:
    """Digest by chunk.

    Args:
        text: From `digest_chunks`.
        chunks: The same ones in the same order.
        name: What to call the object in an error.

    Raises:
        CorruptData: The text is no digests, or those of another number of chunks.
    """
    if not _DIGESTS.fullmatch(text) or len(text) != len(chunks) * _DIGEST_LENGTH:
        raise CorruptData(f"{name}: expected digests of {len(chunks)} column chunks, found {text!r}")
    starts = range(0, len(text), _DIGEST_LENGTH)
    return {chunk: text[at : at + _DIGEST_LENGTH] for chunk, at in zip(chunks, starts, strict=True)}


def fetch_chunks(
    read: Callable[[int, int], bytes],
    digests: Mapping[ColumnChunk, str],
    columns: Collection[str],
    *,
    name: str,
) -> list[tuple[int, bytes]]:
    """Fetch the chunks of some columns, neighbours together, and compare each with its digest.

    Arrow must not prefetch from these parts: it would ask for what lies between two of them.

    Args:
        read: Fetches the bytes from an offset, of a length.
        digests: Of all chunks that may be read, in file order.
        columns: Of the table.
        name: What to call the object in an error.

    Returns:
        Parts of the file, each with its offset.

    Raises:
        CorruptData: A chunk has another digest.
    """
    wanted = [chunk for chunk in digests if chunk.column in columns]
    parts: list[tuple[int, bytes]] = []
    for run in _adjacent(wanted):
        start = run[0].start
        content = read(start, run[-1].end - start)
        for chunk in run:
            found = digest_chunk(memoryview(content)[chunk.start - start : chunk.end - start])
            if found != digests[chunk]:
                what = f"column {chunk.column} at byte {chunk.start}"
                raise CorruptData(f"{name}: expected {what} of digest {digests[chunk]}, found {found}")
        parts.append((start, content))
    return parts


def _adjacent(chunks: Sequence[ColumnChunk]) -> Iterable[list[ColumnChunk]]:
    """Runs of chunks between which hardly anything lies."""
    runs: list[list[ColumnChunk]] = []
    for chunk in chunks:
        if runs and chunk.start <= runs[-1][-1].end + _GAP_BYTES:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs
