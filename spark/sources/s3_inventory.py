"""Inventories that replace listings: a manifest and parts in Parquet or CSV. All files are checked before use.

Keys in CSV parts are URL-encoded. The inventory of a versioned bucket also has object versions that are not the latest.
Source: Amazon S3 Inventory.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from logstore.atomic_files import open_regular_file, read_regular_file
from logstore.errors import CorruptData, InvalidInput
from spark.sources.bucket_listings import LISTING_SCHEMA

_REQUIRED_COLUMNS: Final = ("key", "size", "last_modified_date")
_VERSION_COLUMNS: Final = ("is_latest", "is_delete_marker")
_PARQUET_NAME_BY_CSV_NAME: Final = {
    "Bucket": "bucket",
    "Key": "key",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}
_PARQUET_FIELD: Final = re.compile(r"(?:required|optional)\s+\w+\s+(\w+)")
_ROWS_PER_TASK: Final = 1_000_000
_BYTES_PER_READ: Final = 1 << 24
_MAX_MANIFEST_BYTES: Final = 64 << 20  # each part takes 200 bytes of the manifest and has a million rows
_MAX_CLOCK_LEAD_US: Final = 60_000_000  # clocks differ, and count whole seconds; the age floor is an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryTaskPart:
    path: str
    format: str
    columns: tuple[str, ...]  # columns of the file, named as in Parquet inventories
    row_groups: tuple[int, ...] = ()  # row groups of a Parquet part


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    bucket: str
    created_us: int  # start of the inventory, by the object store's clock
    format: str
    columns: tuple[str, ...]
    files: tuple[tuple[str, int, str], ...]  # path, size in bytes, MD5 in hex


def read_inventory_manifest(path: Path, *, now_us: int) -> Inventory:
    """Read a manifest and find the parts in nearby folders. `now_us` is the present time of the object store's clock.

    `InvalidInput` means that the manifest is malformed, has a future time, lacks a column, or names an absent part.
    """
    try:
        manifest: Mapping[str, Any] = json.loads(read_regular_file(path, max_bytes=_MAX_MANIFEST_BYTES))
        inventory = Inventory(
            bucket=str(manifest["sourceBucket"]).removeprefix("arn:aws:s3:::"),
            created_us=int(manifest["creationTimestamp"]) * 1_000,
            format=str(manifest["fileFormat"]),
            columns=_parse_schema(str(manifest["fileFormat"]), str(manifest["fileSchema"])),
            files=tuple(
                (_find_part_path(path, file["key"]), int(file["size"]), str(file["MD5checksum"]))
                for file in manifest["files"]
            ),
        )
    except OSError as error:
        expected = f"the path of a manifest.json ({error.strerror})"
        raise InvalidInput("inventory", expected=expected, found=str(path)) from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput("inventory", expected="a manifest of S3 Inventory", found=f"{path}: {error!r}") from error
    if inventory.format not in {"Parquet", "CSV"}:
        raise InvalidInput("inventory: fileFormat", expected="Parquet or CSV", found=inventory.format)
    for name in _REQUIRED_COLUMNS:
        if name not in inventory.columns:
            found = ", ".join(inventory.columns)
            raise InvalidInput("inventory: fileSchema", expected=f"the column {name}", found=found)
    if not 0 < inventory.created_us <= now_us + _MAX_CLOCK_LEAD_US:
        expected = f"a time in milliseconds, at most {now_us // 1_000:,}, which is now"
        found = f"{inventory.created_us // 1_000:,}"
        raise InvalidInput("inventory: creationTimestamp", expected=expected, found=found)
    if not inventory.files:
        raise InvalidInput("inventory: files", expected="one part or more", found="none")
    return inventory


def _parse_schema(file_format: str, schema: str) -> tuple[str, ...]:
    """Return column names in Parquet's spelling. `schema` is a list of names (CSV), or Parquet's text of a schema."""
    if file_format == "CSV":
        return tuple(_PARQUET_NAME_BY_CSV_NAME.get(name.strip(), name.strip().lower()) for name in schema.split(","))
    return tuple(_PARQUET_FIELD.findall(schema))


def _find_part_path(manifest: Path, key: str) -> str:
    """Return the path of a part. Parts are below the manifest's folder, or below that folder's parent or grandparent.

    In a copied inventory, leading folders of `key` may be absent. Below the parent and the grandparent, the last folder
    of `key` must exist.
    """
    names = key.split("/")
    if any(name in {"", ".", ".."} for name in names):
        raise InvalidInput("inventory: files: key", expected="names joined by /, none of them . or ..", found=key)
    candidates = [(manifest.parent, first) for first in range(len(names))]
    candidates += [(root, first) for root in manifest.parents[1:3] if root.name for first in range(len(names) - 1)]
    for root, first in candidates:
        path = root.joinpath(*names[first:])
        if path.is_file():
            if path.resolve().is_relative_to(root.resolve()):
                return str(path)
            expected = f"the part {key} below {root}"
            raise InvalidInput("inventory", expected=expected, found=f"a link to {path.resolve()}")
    raise InvalidInput("inventory", expected=f"the part {key} beside {manifest}", found="none")


def check_part_checksum(file: tuple[str, int, str]) -> int:
    """Return the length of a part in bytes. Raise `InvalidInput` if length or MD5 differs, or reading fails."""
    path, size_bytes, expected_md5 = file
    digest, length = hashlib.md5(usedforsecurity=False), 0
    try:
        with open_regular_file(Path(path)) as part:
            while length <= size_bytes and (block := part.read(_BYTES_PER_READ)):
                digest.update(block)
                length += len(block)
    except OSError as error:
        raise InvalidInput(
            f"inventory: {Path(path).name}", expected="a file that every executor can read", found=error.strerror
        ) from error
    md5 = digest.hexdigest()
    if (length, md5) != (size_bytes, expected_md5):
        expected = f"{size_bytes} bytes with MD5 {expected_md5}"
        raise InvalidInput(f"inventory: {Path(path).name}", expected=expected, found=f"{length}, {md5}")
    return length


def list_inventory_parts(inventory: Inventory) -> list[InventoryTaskPart]:
    """Return the parts for tasks: whole CSV parts, and Parquet parts of about a million rows.

    Raise `InvalidInput` if a Parquet part lacks a column, and `CorruptData` if a part cannot be read.
    """
    parts: list[InventoryTaskPart] = []
    for path, _, _ in inventory.files:
        if inventory.format == "CSV":
            parts.append(InventoryTaskPart(path=path, format="CSV", columns=inventory.columns))
            continue
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(f"inventory: {path}: {error}") from error
        columns = tuple(metadata.schema.to_arrow_schema().names)
        missing = [name for name in _REQUIRED_COLUMNS if name not in columns]
        if missing:
            raise InvalidInput(
                f"inventory: {Path(path).name}", expected=f"the column {missing[0]}", found=list(columns)
            )
        groups: list[int] = []
        rows = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            rows += metadata.row_group(group).num_rows
            if rows >= _ROWS_PER_TASK or group == metadata.num_row_groups - 1:
                parts.append(InventoryTaskPart(path=path, format="Parquet", columns=columns, row_groups=tuple(groups)))
                groups, rows = [], 0
    return parts


def read_part(part: InventoryTaskPart) -> Iterator[pa.RecordBatch]:
    """Yield the latest object versions of a part, in `LISTING_SCHEMA`. Raise `CorruptData` for an unreadable part."""
    columns: list[str] = [name for name in (*_REQUIRED_COLUMNS, *_VERSION_COLUMNS) if name in part.columns]
    try:
        for table in _read_csv(part, columns) if part.format == "CSV" else _read_parquet(part, columns):
            yield from _select_latest(table).to_batches()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptData(f"inventory: {part.path}: {error}") from error


def _read_parquet(part: InventoryTaskPart, columns: list[str]) -> Iterator[pa.Table]:
    file = pq.ParquetFile(part.path)
    for group in part.row_groups:
        yield file.read_row_group(group, columns=columns, use_threads=False)


def _read_csv(part: InventoryTaskPart, columns: list[str]) -> Iterator[pa.Table]:
    with pa.input_stream(part.path) as stream:
        if not stream.read(1):  # the part of an empty bucket's inventory is empty, which Arrow refuses
            return
    types = {"key": pa.string(), "size": pa.int64(), "last_modified_date": pa.timestamp("us", tz="UTC")}
    reader = pa_csv.open_csv(
        part.path,
        read_options=pa_csv.ReadOptions(column_names=list(part.columns), block_size=_BYTES_PER_READ, use_threads=False),
        convert_options=pa_csv.ConvertOptions(
            include_columns=columns, column_types={name: types.get(name, pa.bool_()) for name in columns}
        ),
    )
    for batch in reader:
        table = pa.Table.from_batches([batch])
        keys = pa.array([unquote_plus(key) for key in table["key"].to_pylist()], pa.string())
        yield table.set_column(table.schema.get_field_index("key"), "key", keys)


def _select_latest(table: pa.Table) -> pa.Table:
    """Return the rows that a listing would show, in `LISTING_SCHEMA`. Rows of delete markers have no size."""
    is_listed = pc.is_valid(table["size"])
    if "is_latest" in table.column_names:
        is_listed = pc.and_(is_listed, pc.fill_null(table["is_latest"], True))
    if "is_delete_marker" in table.column_names:
        is_listed = pc.and_(is_listed, pc.invert(pc.fill_null(table["is_delete_marker"], False)))
    if not pc.all(is_listed).as_py():
        table = table.filter(is_listed)
    if table["key"].null_count:
        raise ValueError("a row without a key")
    times = pc.cast(pc.cast(table["last_modified_date"], pa.timestamp("us")), pa.int64())
    columns = [pc.cast(table["key"], pa.large_string()), pc.cast(table["size"], pa.int64()), times]
    return pa.table(columns, schema=LISTING_SCHEMA).combine_chunks()
