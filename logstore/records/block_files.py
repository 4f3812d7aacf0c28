"""Parquet files of blocks. Rows ascend by the columns `id` and `sub`, and the footer has the format number.

An integer column is delta-encoded if the result is smaller than with a dictionary. Row groups are short and have
statistics of ids, so a reader of a range of ids decodes only a few row groups.

Source: Aerospike's write blocks of 8 MiB; Apache Parquet (DELTA_BINARY_PACKED).
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import CorruptData, InvalidInput, Unsupported
from logstore.log.segment_format import parquet_errors, sha256_hex
from logstore.records.manifest import Block
from logstore.records.record_kinds import RECORD_LOG_FORMAT, RecordKind, block_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_VERSIONS_PER_BLOCK: Final = 100_000
MAX_BLOCK_BYTES: Final = 8 << 20
"""Largest size of a block. A block with a single record version may be larger."""

ROWS_PER_GROUP: Final = 20_000
"""Rows of a row group. A reader decodes whole row groups."""

_FOOTER_KEY: Final = b"sexton.records"


def encode_block(kind: RecordKind, versions: "pa.Table") -> bytes:
    """Return the Parquet file of a block. `versions` has at least 1 record version, and ascends by `id` and `sub`."""
    columns = block_schema(kind)
    if versions.schema.remove_metadata() != columns:
        raise InvalidInput("versions", expected=f"columns of {kind}: {columns.names}", found=versions.schema.names)
    ids = versions.column("id").to_numpy()
    if not versions.num_rows or not (ids[1:] >= ids[:-1]).all():
        raise InvalidInput("versions", expected="1 or more, ascending by id", found=f"{versions.num_rows} versions")
    integer_names = [field.name for field in columns if str(field.type) == "int64"]
    plain, delta = (_encode_parquet(kind, versions, names) for names in ((), integer_names))
    plain_sizes, delta_sizes = _column_sizes(plain), _column_sizes(delta)
    smaller_as_delta = [name for name in integer_names if delta_sizes[name] < plain_sizes[name]]
    if not smaller_as_delta:
        return plain
    return delta if smaller_as_delta == integer_names else _encode_parquet(kind, versions, smaller_as_delta)


def encode_blocks(kind: RecordKind, versions: "pa.Table") -> "Iterator[tuple[pa.Table, bytes]]":
    """Split record versions into blocks. Yield the record versions and the file of each block, in order."""
    for start in range(0, versions.num_rows, MAX_VERSIONS_PER_BLOCK):
        yield from _split_by_bytes(kind, versions.slice(start, MAX_VERSIONS_PER_BLOCK))


def _split_by_bytes(kind: RecordKind, versions: "pa.Table") -> "Iterator[tuple[pa.Table, bytes]]":
    file = encode_block(kind, versions)
    if len(file) <= MAX_BLOCK_BYTES or versions.num_rows == 1:
        yield versions, file
        return
    middle = versions.num_rows // 2
    yield from _split_by_bytes(kind, versions.slice(0, middle))
    yield from _split_by_bytes(kind, versions.slice(middle))


def describe_block(block_id: str, kind: RecordKind, versions: "pa.Table", file: bytes) -> Block:
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


def decode_block(
    block: Block, file: bytes, *, columns: Sequence[str] | None = None, ids: tuple[int, int] | None = None
) -> "pa.Table":
    """Return the record versions of a block, ascending by `id` and `sub`.

    `columns` are returned in the given order. `ids` are the first and last id to read, both inclusive.
    """
    if (len(file), sha256_hex(file)) != (block.size_bytes, block.sha256):
        found = f"{len(file)} bytes of SHA-256 {sha256_hex(file)}"
        raise CorruptData(f"{block.key}: expected {block.size_bytes} bytes of SHA-256 {block.sha256}, found {found}")
    return decode_block_columns(file, block.kind, name=block.key, columns=columns, ids=ids, expected_rows=block.records)


def decode_block_columns(
    file: bytes,
    kind: RecordKind,
    *,
    name: str,
    columns: Sequence[str] | None = None,
    ids: tuple[int, int] | None = None,
    expected_rows: int | None = None,
) -> "pa.Table":
    """Decode a block's file without checking its digest. `expected_rows` is the expected number of record versions."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    schema = block_schema(kind)
    names = list(schema.names if columns is None else columns)
    try:
        with pq.ParquetFile(pa.BufferReader(file), page_checksum_verification=True) as reader:
            _require_format(reader.metadata, kind, expected_rows, name)
            read_names = list(dict.fromkeys(names if ids is None else ["id", *names]))
            table = reader.read_row_groups(
                _select_row_groups(reader.metadata, ids), columns=read_names, use_threads=False
            )
            table = table.select(read_names).cast(pa.schema([schema.field(name) for name in read_names]))
    except parquet_errors() as error:
        raise CorruptData(f"{name}: expected a block of kind {kind}, found a file that cannot be read: {error}") from (
            error
        )
    return (table if ids is None else _within(table, ids)).select(names)


def _require_format(metadata: "pq.FileMetaData", kind: RecordKind, expected_rows: int | None, name: str) -> None:
    try:
        footer: dict[str, Any] = json.loads((metadata.metadata or {})[_FOOTER_KEY])
        found_format, found_kind = int(footer["format"]), str(footer["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{name}: expected a block of the record log, found no format in its footer") from error
    if found_format > RECORD_LOG_FORMAT:
        raise Unsupported(
            f"{name}: expected format {RECORD_LOG_FORMAT} at most, found {found_format}: a newer build wrote it"
        )
    if found_kind != kind or expected_rows not in (None, metadata.num_rows):
        raise CorruptData(
            f"{name}: expected {expected_rows} versions of {kind}, found {metadata.num_rows} of {found_kind}"
        )


def _select_row_groups(metadata: "pq.FileMetaData", ids: tuple[int, int] | None) -> list[int]:
    if ids is None:
        return list(range(metadata.num_row_groups))
    statistics = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
    return [
        group
        for group, bounds in enumerate(statistics)
        if bounds is None or (bounds.min <= ids[1] and bounds.max >= ids[0])
    ]


def _within(table: "pa.Table", ids: tuple[int, int]) -> "pa.Table":
    import numpy as np  # noqa: PLC0415 - start-up time

    start, stop = np.searchsorted(table.column("id").to_numpy(), [ids[0], ids[1] + 1]).tolist()
    return table.slice(start, stop - start)


def _encode_parquet(kind: RecordKind, versions: "pa.Table", delta_names: Sequence[str]) -> bytes:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        versions.schema,
        compression="zstd",
        use_dictionary=[name for name in versions.schema.names if name not in delta_names],
        column_encoding=dict.fromkeys(delta_names, "DELTA_BINARY_PACKED"),
        write_statistics=["id"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(versions, row_group_size=ROWS_PER_GROUP)
        writer.add_key_value_metadata({_FOOTER_KEY: json.dumps({"format": RECORD_LOG_FORMAT, "kind": kind}).encode()})
    return sink.getvalue()


def _column_sizes(file: bytes) -> dict[str, int]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    metadata = pq.read_metadata(pa.BufferReader(file))
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            column = metadata.row_group(group).column(position)
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_compressed_size
    return sizes
