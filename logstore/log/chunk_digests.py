"""Digests of the column chunks of a Parquet file, for readers that fetch single columns by ranges.

The digests are stored outside of the file. The page checksums of Parquet do not suffice, because a chunk of another
file with the same layout would pass them.
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
"""Metadata field of a segment with the digests of its column chunks."""

_DIGEST_BYTES: Final = 12
"""Number of bytes of a SHA-256 in a digest. Digests of all columns of a segment fit into object metadata."""
_MAX_GAP_BYTES: Final = 8192
"""Maximum gap between two chunks that are fetched by one request. Arrow has the same limit."""
_DIGEST_CHARACTERS: Final = _DIGEST_BYTES * 4 // 3
_DIGESTS_FORM: Final = re.compile(rf"(?:[A-Za-z0-9_-]{{{_DIGEST_CHARACTERS}}})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """Range of bytes in a Parquet file, with one leaf column of one row group."""

    column: str  # top-level column of the leaf
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


def list_column_chunks(footer: "pq.FileMetaData", group: int) -> list[ColumnChunk]:
    """Return the column chunks of a row group, in file order."""
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
    """Return the digest of a chunk or of a whole row group. The digest has 16 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()[:_DIGEST_BYTES]).decode()


def digest_chunks(read: Callable[[int, int], bytes | memoryview], chunks: Iterable[ColumnChunk]) -> str:
    """Return the digests of `chunks`, concatenated. `chunks` must be in file order. `read` gets offset and length."""
    return "".join(digest_chunk(read(chunk.start, chunk.size_bytes)) for chunk in chunks)


def parse_digests(text: str, chunks: Sequence[ColumnChunk], *, name: str) -> dict[ColumnChunk, str]:
    """Return the digest of each chunk. `text` is the result of `digest_chunks` for the same chunks in the same order.

    Raise `CorruptData` if the text is not a list with one digest for each chunk.
    """
    if not _DIGESTS_FORM.fullmatch(text) or len(text) != len(chunks) * _DIGEST_CHARACTERS:
        raise CorruptData(f"{name}: expected digests of {len(chunks)} column chunks, found {text!r}")
    starts = range(0, len(text), _DIGEST_CHARACTERS)
    return {chunk: text[at : at + _DIGEST_CHARACTERS] for chunk, at in zip(chunks, starts, strict=True)}


def fetch_verified_chunks(
    read: Callable[[int, int], bytes],
    digest_by_chunk: Mapping[ColumnChunk, str],
    columns: Collection[str],
    *,
    name: str,
) -> list[tuple[int, bytes]]:
    """Fetch the chunks of `columns`. Return parts of the file, each with its offset.

    Chunks with a small gap between them are fetched by one request. `read` gets offset and length. `digest_by_chunk` is
    in file order. Raise `CorruptData` if a fetched chunk does not match its digest.

    Do not let Arrow prefetch from the returned parts, because Arrow would also read the gaps between the parts.
    """
    requested_chunks = [chunk for chunk in digest_by_chunk if chunk.column in columns]
    parts: list[tuple[int, bytes]] = []
    for run in _group_nearby_chunks(requested_chunks):
        start = run[0].start
        content = read(start, run[-1].end - start)
        for chunk in run:
            digest = digest_chunk(memoryview(content)[chunk.start - start : chunk.end - start])
            if digest != digest_by_chunk[chunk]:
                location = f"column {chunk.column} at byte {chunk.start}"
                raise CorruptData(f"{name}: expected {location} of digest {digest_by_chunk[chunk]}, found {digest}")
        parts.append((start, content))
    return parts


def _group_nearby_chunks(chunks: Sequence[ColumnChunk]) -> Iterable[list[ColumnChunk]]:
    runs: list[list[ColumnChunk]] = []
    for chunk in chunks:
        if runs and chunk.start <= runs[-1][-1].end + _MAX_GAP_BYTES:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs
