"""Parquet format of a segment, its digests, and the metadata by which storage identifies each upload.

Entry ids are not stored. The id of an entry is `first_entry` in the segment's row plus the entry's offset in the
segment. A segment can therefore be uploaded before the ids of its entries are known.

A Parquet footer has no checksum, and Arrow trusts the footer. After one flipped bit, Arrow may read a column at a wrong
place or crash the process. The footer is therefore compared with a stored digest before the footer is parsed. Readers
that fetch single columns by ranges compare digests of column chunks, which are also stored outside of the file. The
page checksums of Parquet do not suffice, because a chunk of another file with the same layout would pass them.

If another writer was faster, a writer uploads its entries again with a higher segment number. If the catalog is lost,
storage must show which upload was registered. The metadata of each upload therefore names the append, and the extent
of the ledger before the upload. A *confirmation* is an upload without entries. It states the registered extent, and is
never registered.
"""

import base64
import hashlib
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from logstore.errors import CorruptData
from logstore.log.entries import ProducedEntries
from logstore.transactions.transaction_ids_and_states import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


DIGEST_FIELD: Final = "sha256"
"""Metadata field of a segment with the SHA-256 of its content."""


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


UPLOAD_ID_FIELD: Final = "append"
"""Metadata field with the `SegmentUploadId`."""

EXTENT_FIELD: Final = "behind"
"""Metadata field with the `RegisteredLedgerExtent`."""

_UPLOAD_ID_FORM: Final = re.compile(r"(?P<append>[0-9a-f]{32})-(?P<nth>[1-9][0-9]{0,8})")
_EXTENT_FORM: Final = re.compile(r"(?P<segment>-1|[0-9]{1,8}):(?P<entries>[0-9]{1,18})")


class SegmentUploadId(NamedTuple):
    """Id of an upload: the append's id, and the upload's number. Only an append's last upload can be registered."""

    append_id: str  # 32 hexadecimal digits
    number: int  # from 1, in order of upload

    def __str__(self) -> str:
        return f"{self.append_id}-{self.number}"

    @staticmethod
    def parse(text: str | None) -> "SegmentUploadId | None":
        """Parse the text form of an upload id. Return `None` for any other text. Older objects have no upload id."""
        match = _UPLOAD_ID_FORM.fullmatch(text or "")
        return SegmentUploadId(match["append"], int(match["nth"])) if match else None


class RegisteredLedgerExtent(NamedTuple):
    """Part of a ledger that was registered at one time. Later registrations only add to this part."""

    last_segment: int  # highest registered segment number, -1: none; later registrations have higher numbers
    entries: int  # entries of all registered segments

    def __str__(self) -> str:
        return f"{self.last_segment}:{self.entries}"

    @staticmethod
    def parse(text: str | None) -> "RegisteredLedgerExtent | None":
        match = _EXTENT_FORM.fullmatch(text or "")
        return RegisteredLedgerExtent(int(match["segment"]), int(match["entries"])) if match else None


MIN_CONFIRMATION_GAP: Final = (1 << 16) + 1
MAX_CONFIRMATION_GAP: Final = 2 << 16
"""Smallest and largest distance from a segment's number to the number of its confirmation, both inclusive.

The smallest distance exceeds the number of segments of any ledger. So a confirmation never takes a segment's number.
"""


def is_confirmation(number: int, metadata: Mapping[str, str]) -> bool:
    """Return whether an upload is a confirmation: the segment number in its extent is far below `number`."""
    extent = RegisteredLedgerExtent.parse(metadata.get(EXTENT_FIELD))
    return extent is not None and MIN_CONFIRMATION_GAP <= number - extent.last_segment <= MAX_CONFIRMATION_GAP


FOOTER_FIELD: Final = "footer"
"""Metadata field of a segment with the digest of its footer."""

_TAIL_BYTES: Final = 8  # length of the footer, and the magic number
_DIGEST_FORM: Final = re.compile(r"(?P<size>[1-9][0-9]{0,8})-(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FooterDigest:
    size_bytes: int  # from the end of the file, including the length field and the magic number
    sha256: str  # hexadecimal

    def __str__(self) -> str:
        return f"{self.size_bytes}-{self.sha256}"

    @staticmethod
    def parse(text: str | None, *, name: str) -> "FooterDigest":
        """Parse the text form of a digest. Raise `CorruptData` for any other text."""
        match = _DIGEST_FORM.fullmatch(text or "")
        if not match:
            raise CorruptData(f"{name}: expected length and digest of its footer, found {text!r}")
        return FooterDigest(int(match["size"]), match["sha256"])

    def check(self, footer: bytes, *, name: str) -> "pq.FileMetaData":
        """Return the parsed footer. Raise `CorruptData` if the footer has another digest."""
        digest = hashlib.sha256(footer).hexdigest()
        if digest != self.sha256:
            raise CorruptData(f"{name}: expected a footer of digest {self.sha256}, found {digest}")
        import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

        return pq.read_metadata(io.BytesIO(footer))


def digest_footer(file: BinaryIO) -> FooterDigest:
    """Return the digest of the footer of a complete file. Afterwards the file's offset is the end of the file."""
    file.seek(-_TAIL_BYTES, io.SEEK_END)
    size_bytes = int.from_bytes(file.read(_TAIL_BYTES)[:4], "little") + _TAIL_BYTES
    file.seek(-size_bytes, io.SEEK_END)
    return FooterDigest(size_bytes, hashlib.sha256(file.read(size_bytes)).hexdigest())


COLUMNS = (
    "publish_ms",
    "deliver_at_ms",
    "producer",
    "sequence_id",
    "txn_tc",
    "txn_seq",
    "marker",
    "key",
    "payload",
    "properties",
)
"""Columns of a segment, in file order."""


@cache
def entry_schema() -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    integer, text = pa.int64(), pa.string()
    kinds = (
        integer,
        integer,
        pa.dictionary(pa.int32(), text),
        integer,
        integer,
        integer,
        text,
        text,
        pa.binary(),
        pa.map_(text, text),
    )
    first = pa.field(COLUMNS[0], integer, nullable=False)
    return pa.schema([first, *(pa.field(name, kind) for name, kind in zip(COLUMNS[1:], kinds[1:], strict=True))])


COMPRESSION = "zstd"
DICTIONARY_COLUMNS = ["producer", "key", "properties.key_value.key", "properties.key_value.value"]
"""Columns with a dictionary. A dictionary of message payloads would double the time to write a small segment."""

STATISTICS_COLUMNS = ["publish_ms", "deliver_at_ms", "sequence_id", "txn_tc", "txn_seq"]
"""Columns whose minimum and maximum are in the file. Statistics of `payload` would repeat message payloads."""

PARQUET_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": COMPRESSION,
    "use_dictionary": DICTIONARY_COLUMNS,
    "write_statistics": STATISTICS_COLUMNS,
    "write_page_checksum": True,  # readers of single columns cannot compare the digest of the whole object
}


def parquet_errors() -> tuple[type[Exception], ...]:
    """Return the errors that Arrow raises for a damaged file."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    return (pa.ArrowException, OSError, ValueError, OverflowError)


def encode_segment(parts: Sequence[ProducedEntries], *, publish_ms: int) -> bytes:
    """Encode the entries of all parts, in order, as one segment. All entries get the publish time `publish_ms`."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    rows = [(part.producer, entry) for part in parts for entry in part.entries]
    columns: dict[str, object] = {
        "publish_ms": pa.repeat(pa.scalar(publish_ms, pa.int64()), len(rows)),
        "deliver_at_ms": [entry.deliver_at_ms for _, entry in rows],
        "producer": pa.array([producer for producer, _ in rows], pa.string()).dictionary_encode(),
        "sequence_id": [entry.sequence_id for _, entry in rows],
        **_transaction_columns(parts, len(rows)),
        "key": [entry.key for _, entry in rows],
        "payload": [entry.payload for _, entry in rows],
        "properties": [list(entry.properties.items()) for _, entry in rows],
    }
    values_by_column = [(columns[field.name], field.type) for field in entry_schema()]
    arrays = [values if isinstance(values, pa.Array) else pa.array(values, kind) for values, kind in values_by_column]
    sink = io.BytesIO()
    rows_per_group = max(1, len(rows))  # one row group, because the metadata has digests of its columns
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=entry_schema()), sink, row_group_size=rows_per_group, **PARQUET_OPTIONS
    )
    return sink.getvalue()


def _transaction_columns(parts: Sequence[ProducedEntries], rows: int) -> dict[str, object]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    if not any(part.txn or part.marks for part in parts):
        nulls = pa.nulls(rows)
        return {name: nulls.cast(entry_schema().field(name).type) for name in ("txn_tc", "txn_seq", "marker")}
    txns: list[TransactionId | None] = []
    verbs: list[str | None] = []
    for part in parts:
        txns += [mark.txn for mark in part.marks] or [part.txn] * len(part.entries)
        verbs += [mark.verb for mark in part.marks] or [None] * len(part.entries)
    return {
        "txn_tc": [None if txn is None else txn.tc_id for txn in txns],
        "txn_seq": [None if txn is None else txn.sequence for txn in txns],
        "marker": verbs,
    }


def decode_segment(
    source: BinaryIO,
    *,
    columns: Sequence[str],
    name: str,
    footer: "pq.FileMetaData | None" = None,
    check_pages: bool = True,
    prefetch: bool = True,
) -> "pa.Table":
    """Read the named columns of a segment, in entry order.

    Raise `CorruptData` if `source` is not a Parquet file, lacks a column, or has a page with a wrong checksum.

    Args:
        source: A seekable binary file. Only the parts with the named columns are read.
        columns: Names from `COLUMNS`.
        name: Name of `source` for error messages.
        footer: Parsed footer. By default the footer is read first.
        check_pages: Whether to compare the checksum of each page. Pass `False` if the whole object was verified.
        prefetch: Whether to read adjacent columns together. Pass `False` if `source` has only parts of the file.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        opened = pa.PythonFile(source, mode="r")
        with pq.ParquetFile(
            opened, metadata=footer, page_checksum_verification=check_pages, pre_buffer=prefetch
        ) as file:
            table = file.read(columns=list(columns))
    except parquet_errors() as error:
        raise CorruptData(f"{name}: not a segment: {error}") from error
    missing = set(columns) - set(table.column_names)
    if missing:
        raise CorruptData(f"{name}: a segment without columns {sorted(missing)}")
    return table


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
