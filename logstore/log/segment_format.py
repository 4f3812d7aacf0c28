"""Parquet format of a segment, and the verified footer of a segment.

Entry ids are not stored. The id of an entry is `first_entry` in the segment's row plus the entry's offset in the
segment. A segment can therefore be uploaded before the ids of its entries are known.

A Parquet footer has no checksum, and Arrow trusts the footer. After one flipped bit, Arrow may read a column at a wrong
place or crash the process. The footer is therefore compared with a stored digest before the footer is parsed.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from logstore.errors import CorruptData
from logstore.log.entries import ProducedEntries
from logstore.transactions.transaction_ids_and_states import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


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
