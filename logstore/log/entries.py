"""Entries, the Parquet segment they travel in, and the footer that is compared before it is parsed.

It has no checksum of its own, and Arrow trusts what it says: with one flipped bit a column is read at another's place,
or the whole process ends.

A segment holds its entries in order, zstd-compressed. Entry ids are not stored: an entry's id is the
segment row's `first_entry` plus its offset, so a segment can be uploaded before its place is known.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from logstore.errors import CorruptData
from logstore.positions import Position
from logstore.transactions.transactions import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FOOTER_FIELD: Final = "footer"
"""Name under which a segment's own metadata holds the mark of its footer."""

_TAIL: Final = 8  # the length of what comes before, and the magic number
_MARK: Final = re.compile(r"(?P<size>[1-9][0-9]{0,8})-(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FooterDigest:
    """The length and the digest of a footer."""

    size_bytes: int  # with its own length and the magic number: the last bytes of the file
    sha256: str  # hexadecimal

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.size_bytes}-{self.sha256}"

    @staticmethod
    def parse(text: str | None, *, name: str) -> "FooterDigest":
        """Read back `str(mark)`; `name` is what to call the object in an error.

        Raises:
            CorruptData: It is none.
        """
        found = _MARK.fullmatch(text or "")
        if not found:
            raise CorruptData(f"{name}: expected length and digest of its footer, found {text!r}")
        return FooterDigest(int(found["size"]), found["sha256"])

    def check(self, footer: bytes, *, name: str) -> "pq.FileMetaData":
        """The footer, parsed.

        Raises:
            CorruptData: It is another one.
        """
        found = hashlib.sha256(footer).hexdigest()
        if found != self.sha256:
            raise CorruptData(f"{name}: expected a footer of digest {self.sha256}, found {found}")
        import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

        return pq.read_metadata(io.BytesIO(footer))


def digest_footer(file: BinaryIO) -> FooterDigest:
    """The mark of a whole file that was just written; the file is left at its end."""
    file.seek(-_TAIL, io.SEEK_END)
    size_bytes = int.from_bytes(file.read(_TAIL)[:4], "little") + _TAIL
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
"""Columns of a segment, in file order. Readers name those they need; payloads are read by choice."""


@cache
def entry_schema() -> "pa.Schema":
    """The columns with their types. Arrow is imported here: that takes as long as a command that only asks SQL."""
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
"""Columns worth a dictionary in the file; looking for repetition in payloads doubles the time of a small segment."""

STATISTICS_COLUMNS = ["publish_ms", "deliver_at_ms", "sequence_id", "txn_tc", "txn_seq"]
"""Columns whose least and greatest value the file states; of a payload they would be whole payloads, repeated."""

PARQUET_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": COMPRESSION,
    "use_dictionary": DICTIONARY_COLUMNS,
    "write_statistics": STATISTICS_COLUMNS,
    "write_page_checksum": True,  # for readers of single columns, which cannot compare the digest of the whole
}


def parquet_errors() -> tuple[type[Exception], ...]:
    """The errors that Arrow raises at a damaged file: invalid, not implemented, out of memory and others."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    return (pa.ArrowException, OSError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """An entry not yet appended. Times are milliseconds since 1970, UTC."""

    payload: bytes
    key: str | None = None
    deliver_at_ms: int | None = None
    sequence_id: int | None = None  # needs a producer; ascending within one append
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What it weighs in memory, about: its payload, key and properties."""
        texts = len(self.key or "") + sum(len(f"{name}{value}") for name, value in self.properties.items())
        return len(self.payload) + texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry as read. Columns that the reader did not ask for are None."""

    position: Position
    publish_ms: int
    key: str | None = None
    payload: bytes | None = None
    deliver_at_ms: int | None = None
    producer: str | None = None
    sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EntryMark:
    """What makes an entry a marker: the transaction that it speaks of, and how that ended."""

    txn: TransactionId
    verb: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedEntries:
    """One producer's entries of one append, in order."""

    entries: Sequence[NewEntry]
    producer: str | None = None
    txn: TransactionId | None = None  # they are part of this open transaction
    marks: Sequence[EntryMark] = ()  # of each entry, if they are markers


def encode_segment(parts: Sequence[ProducedEntries], *, publish_ms: int) -> bytes:
    """Write the parts one after the other as one segment.

    Args:
        parts: At least one entry in all; the order is the order of entry ids.
        publish_ms: The appender's clock, stored for every entry.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    rows = [(part.producer, entry) for part in parts for entry in part.entries]
    columns: dict[str, object] = {
        "publish_ms": pa.repeat(pa.scalar(publish_ms, pa.int64()), len(rows)),
        "deliver_at_ms": [entry.deliver_at_ms for _, entry in rows],
        "producer": pa.array([producer for producer, _ in rows], pa.string()).dictionary_encode(),
        "sequence_id": [entry.sequence_id for _, entry in rows],
        **_transactional(parts, len(rows)),
        "key": [entry.key for _, entry in rows],
        "payload": [entry.payload for _, entry in rows],
        "properties": [list(entry.properties.items()) for _, entry in rows],
    }
    named = [(columns[field.name], field.type) for field in entry_schema()]
    arrays = [values if isinstance(values, pa.Array) else pa.array(values, kind) for values, kind in named]
    sink = io.BytesIO()
    one_group = max(1, len(rows))  # its metadata has digests of the columns of one row group
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=entry_schema()), sink, row_group_size=one_group, **PARQUET_OPTIONS
    )
    return sink.getvalue()


def _transactional(parts: Sequence[ProducedEntries], rows: int) -> dict[str, object]:
    """The columns that say which transaction an entry is of, or speaks of."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    if not any(part.txn or part.marks for part in parts):
        nothing = pa.nulls(rows)
        return {name: nothing.cast(entry_schema().field(name).type) for name in ("txn_tc", "txn_seq", "marker")}
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

    Args:
        source: A seekable binary file; only the parts that hold the columns are read.
        columns: Names out of `COLUMNS`.
        name: What to call the object in an error.
        footer: Where it is known already; otherwise it is read first.
        prefetch: Whether to read neighbouring columns by one request; needless where they were fetched before.
        check_pages: Whether to compare the checksum of each page; needless where the whole was compared.

    Raises:
        CorruptData: The bytes are no Parquet file, it lacks a column, or a page has another checksum than it says.
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
