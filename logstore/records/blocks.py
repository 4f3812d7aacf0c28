"""The file of a block: Parquet with versions of records of one kind, sorted by id and sub, its format in the footer.

Columns of integers are stored as differences where that is smaller than a dictionary: ids ascend, while sizes are
often a few numbers that come again and again. Row groups are short and tell their ids, so that a reader of a
range of ids decodes what it needs alone. A reader of the whole object compares its digest first.

Source: Aerospike's write blocks of 8 MiB; Apache Parquet (DELTA_BINARY_PACKED).
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import CorruptData, InvalidInput, Unsupported
from logstore.log.entries import parquet_errors
from logstore.log.ledgers import sha256_hex
from logstore.records.kinds import FORMAT, RecordKind, schema
from logstore.records.manifest import Block

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

VERSIONS: Final = 100_000
BLOCK_BYTES: Final = 8 << 20
"""The most versions and the most bytes of a block; a block of one version may have more bytes."""

GROUP_ROWS: Final = 20_000
"""Of a row group: what a reader of few ids decodes at least."""

_TOLD: Final = b"sexton.records"


def encode(kind: RecordKind, versions: "pa.Table") -> bytes:
    """The file of a block.

    Args:
        kind: Of all versions.
        versions: 1 or more, with the columns of the kind, ascending by id and sub.

    Raises:
        InvalidInput: The columns are others, there is no row, or the ids do not ascend.
    """
    wanted = schema(kind)
    if versions.schema.remove_metadata() != wanted:
        raise InvalidInput("versions", expected=f"columns of {kind}: {wanted.names}", found=versions.schema.names)
    if not versions.num_rows or not _ascending(versions):
        raise InvalidInput("versions", expected="1 or more, ascending by id", found=f"{versions.num_rows} versions")
    whole = [field.name for field in wanted if str(field.type) == "int64"]
    plain, delta = (_written(kind, versions, names) for names in ((), whole))
    sizes = [_column_sizes(file) for file in (plain, delta)]
    smaller = [name for name in whole if sizes[1][name] < sizes[0][name]]
    if not smaller:
        return plain
    return delta if smaller == whole else _written(kind, versions, smaller)


def encoded(kind: RecordKind, versions: "pa.Table") -> "Iterator[tuple[pa.Table, bytes]]":
    """The versions as blocks of at most `VERSIONS` and `BLOCK_BYTES`, in their order: what each holds, and its file."""
    for start in range(0, versions.num_rows, VERSIONS):
        yield from _halved(kind, versions.slice(start, VERSIONS))


def _halved(kind: RecordKind, part: "pa.Table") -> "Iterator[tuple[pa.Table, bytes]]":
    file = encode(kind, part)
    if len(file) <= BLOCK_BYTES or part.num_rows == 1:
        yield part, file
        return
    middle = part.num_rows // 2
    yield from _halved(kind, part.slice(0, middle))
    yield from _halved(kind, part.slice(middle))


def describe(block_id: str, kind: RecordKind, versions: "pa.Table", file: bytes) -> Block:
    """What a manifest says of a block with these versions."""
    import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

    ids = versions.column("id")
    return Block(
        block_id=block_id,
        kind=kind,
        records=versions.num_rows,
        tombstones=int(pc.sum(versions.column("tombstone")).as_py() or 0),
        size_bytes=len(file),
        sha256=sha256_hex(file),
        first_id=ids[0].as_py(),
        last_id=ids[-1].as_py(),
    )


def decode(
    block: Block, file: bytes, *, columns: Sequence[str] | None = None, ids: tuple[int, int] | None = None
) -> "pa.Table":
    """The versions of a block, ascending by id and sub.

    Args:
        block: What the manifest says of it.
        file: The whole object.
        columns: Those to read, in this order; all of them if it is None.
        ids: Only versions of ids from the first to the last of the two, both inclusive.

    Raises:
        CorruptData: It is not the object that the manifest names, or cannot be read.
        Unsupported: It is of a newer format.
    """
    if (len(file), sha256_hex(file)) != (block.size_bytes, block.sha256):
        found = f"{len(file)} bytes of SHA-256 {sha256_hex(file)}"
        raise CorruptData(f"{block.key}: expected {block.size_bytes} bytes of SHA-256 {block.sha256}, found {found}")
    return read(file, block.kind, name=block.key, columns=columns, ids=ids, rows=block.records)


def read(
    file: bytes,
    kind: RecordKind,
    *,
    name: str,
    columns: Sequence[str] | None = None,
    ids: tuple[int, int] | None = None,
    rows: int | None = None,
) -> "pa.Table":
    """As `decode`, of a file whose digest is compared or not known; `rows` is how many versions it should have."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    wanted = schema(kind)
    chosen = list(wanted.names if columns is None else columns)
    try:
        with pq.ParquetFile(pa.BufferReader(file), page_checksum_verification=True) as opened:
            _require_format(opened.metadata, kind, rows, name)
            groups = _groups(opened.metadata, ids)
            asked = dict.fromkeys(chosen if ids is None else ["id", *chosen])
            table = opened.read_row_groups(groups, columns=list(asked), use_threads=False)
            table = table.select(list(asked)).cast(pa.schema([wanted.field(one) for one in asked]))
    except parquet_errors() as error:
        raise CorruptData(f"{name}: expected a block of kind {kind}, found a file that cannot be read: {error}") from (
            error
        )
    return (table if ids is None else _within(table, ids)).select(chosen)


def _require_format(metadata: "pq.FileMetaData", kind: RecordKind, rows: int | None, name: str) -> None:
    try:
        told: dict[str, Any] = json.loads((metadata.metadata or {})[_TOLD])
        found, of = int(told["format"]), str(told["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{name}: expected a block of the record log, found no format in its footer") from error
    if found > FORMAT:
        raise Unsupported(f"{name}: expected format {FORMAT} at most, found {found}: a newer build wrote it")
    if of != kind or rows not in (None, metadata.num_rows):
        raise CorruptData(f"{name}: expected {rows} versions of {kind}, found {metadata.num_rows} of {of}")


def _groups(metadata: "pq.FileMetaData", ids: tuple[int, int] | None) -> list[int]:
    """The row groups that may hold one of the ids; the first column is the id, and has statistics."""
    if ids is None:
        return list(range(metadata.num_row_groups))
    facts = [metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)]
    return [at for at, one in enumerate(facts) if one is None or (one.min <= ids[1] and one.max >= ids[0])]


def _within(table: "pa.Table", ids: tuple[int, int]) -> "pa.Table":
    import numpy as np  # noqa: PLC0415 - start-up time

    start, stop = np.searchsorted(table.column("id").to_numpy(), [ids[0], ids[1] + 1]).tolist()
    return table.slice(start, stop - start)


def _ascending(versions: "pa.Table") -> bool:
    ids = versions.column("id").to_numpy()
    return bool((ids[1:] >= ids[:-1]).all())


def _written(kind: RecordKind, versions: "pa.Table", delta: Sequence[str]) -> bytes:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        versions.schema,
        compression="zstd",
        use_dictionary=[name for name in versions.schema.names if name not in delta],
        column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        write_statistics=["id"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(versions, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata({_TOLD: json.dumps({"format": FORMAT, "kind": kind}).encode()})
    return sink.getvalue()


def _column_sizes(file: bytes) -> dict[str, int]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    metadata = pq.read_metadata(pa.BufferReader(file))
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_compressed_size
    return sizes
