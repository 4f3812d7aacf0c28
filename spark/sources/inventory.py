"""Inventory files in the place of a listing: a manifest, and parts in Parquet or CSV, checked before they are believed.

Source: Amazon S3 Inventory. Its manifest names bucket, format, columns, time, and each part with size and MD5; keys of
CSV parts are URL-encoded, and a versioned bucket's inventory holds versions that are not the latest.
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

from logstore.errors import CorruptData, InvalidInput
from logstore.whole_files import open_regular_file, read_regular_file
from spark.sources.objects import LISTED

_NEEDED: Final = ("key", "size", "last_modified_date")
_VERSIONED: Final = ("is_latest", "is_delete_marker")
_NAMES: Final = {
    "Bucket": "bucket",
    "Key": "key",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}
_FORMATS: Final = ("Parquet", "CSV")
_PARQUET_FIELD: Final = re.compile(r"(?:required|optional)\s+\w+\s+(\w+)")
_ROWS: Final = 1_000_000  # of a task
_BLOCK: Final = 1 << 24  # bytes that are read of a CSV part at a time
_MAX_MANIFEST_BYTES: Final = 64 << 20  # a part takes 200 bytes of it and holds a million rows
_MAX_AHEAD_US: Final = 60_000_000  # clocks tell whole seconds, and differ; the age floor is an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryPart:
    """One part, or some row groups of it, as a task reads it."""

    path: str
    format: str
    columns: tuple[str, ...]  # of the file, in our spelling
    row_groups: tuple[int, ...] = ()  # of a Parquet part


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A checked manifest."""

    bucket: str
    created_us: int  # when it was begun, by the store's clock
    format: str
    columns: tuple[str, ...]
    files: tuple[tuple[str, int, str], ...]  # path, size in bytes, MD5 in hex


def read_manifest(path: Path, *, now_us: int) -> Inventory:
    """Read a manifest, and find its parts beside it.

    Args:
        path: A regular file.
        now_us: The time by the store's clock: no inventory is of a later one.

    Raises:
        InvalidInput: It is no manifest, of a format that we do not read, or of the future; it lacks a column or names
            no part; or a part is not there.
    """
    try:
        told: Mapping[str, Any] = json.loads(read_regular_file(path, max_bytes=_MAX_MANIFEST_BYTES))
        found = Inventory(
            bucket=str(told["sourceBucket"]).removeprefix("arn:aws:s3:::"),
            created_us=int(told["creationTimestamp"]) * 1_000,
            format=str(told["fileFormat"]),
            columns=_columns(str(told["fileFormat"]), str(told["fileSchema"])),
            files=tuple(
                (_beside(path, one["key"]), int(one["size"]), str(one["MD5checksum"])) for one in told["files"]
            ),
        )
    except OSError as error:
        expected = f"the path of a manifest.json ({error.strerror})"
        raise InvalidInput("inventory", expected=expected, found=str(path)) from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput("inventory", expected="a manifest of S3 Inventory", found=f"{path}: {error!r}") from error
    if found.format not in _FORMATS:
        raise InvalidInput("inventory: fileFormat", expected="Parquet or CSV", found=found.format)
    for name in _NEEDED:
        if name not in found.columns:
            raise InvalidInput("inventory: fileSchema", expected=f"the column {name}", found=", ".join(found.columns))
    if not 0 < found.created_us <= now_us + _MAX_AHEAD_US:
        expected = f"a time in milliseconds, at most {now_us // 1_000:,}, which is now"
        raise InvalidInput("inventory: creationTimestamp", expected=expected, found=f"{found.created_us // 1_000:,}")
    if not found.files:
        raise InvalidInput("inventory: files", expected="one part or more", found="none")
    return found


def _columns(form: str, told: str) -> tuple[str, ...]:
    """Column names in the spelling of Parquet inventories; of those the schema is a text of Parquet's own."""
    if form == "CSV":
        return tuple(_NAMES.get(name.strip(), name.strip().lower()) for name in told.split(","))
    return tuple(_PARQUET_FIELD.findall(told))


def _beside(manifest: Path, key: str) -> str:
    """A part is named by its key in the bucket of inventories; copies keep some of its folders.

    It stands below the folder of the manifest, or below one of the two folders above that; S3 puts the manifest into
    a folder of its own beside `data/`. There a copy has kept a folder of the key at least.
    """
    names = key.split("/")
    if any(name in {"", ".", ".."} for name in names):
        raise InvalidInput("inventory: files: key", expected="names joined by /, none of them . or ..", found=key)
    above = [root for root in manifest.parents[1:3] if root.name]
    tried = [(manifest.parent, at) for at in range(len(names))]
    tried += [(root, at) for root in above for at in range(len(names) - 1)]
    for root, at in tried:
        path = root.joinpath(*names[at:])
        if path.is_file():
            if path.resolve().is_relative_to(root.resolve()):
                return str(path)
            expected = f"the part {key} below {root}"
            raise InvalidInput("inventory", expected=expected, found=f"a link to {path.resolve()}")
    raise InvalidInput("inventory", expected=f"the part {key} beside {manifest}", found="none")


def check_part(part: tuple[str, int, str]) -> int:
    """Compare a part's length and MD5 with the manifest; its length in bytes.

    Raises:
        InvalidInput: They differ.
    """
    path, size, expected = part
    digest, length = hashlib.md5(usedforsecurity=False), 0
    try:
        with open_regular_file(Path(path)) as file:
            while length <= size and (block := file.read(_BLOCK)):
                digest.update(block)
                length += len(block)
    except OSError as error:
        raise InvalidInput(
            f"inventory: {Path(path).name}", expected="a file that every executor can read", found=error.strerror
        ) from error
    found = digest.hexdigest()
    if (length, found) != (size, expected):
        raise InvalidInput(
            f"inventory: {Path(path).name}", expected=f"{size} bytes with MD5 {expected}", found=f"{length}, {found}"
        )
    return length


def parts(inventory: Inventory) -> list[InventoryPart]:
    """The parts that tasks read: a CSV part each, or about a million rows of a Parquet one.

    Raises:
        InvalidInput: A Parquet part lacks a column.
        CorruptData: It is no Parquet.
    """
    found: list[InventoryPart] = []
    for path, _, _ in inventory.files:
        if inventory.format == "CSV":
            found.append(InventoryPart(path=path, format="CSV", columns=inventory.columns))
            continue
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(f"inventory: {path}: {error}") from error
        names = tuple(metadata.schema.to_arrow_schema().names)
        missing = [name for name in _NEEDED if name not in names]
        if missing:
            raise InvalidInput(f"inventory: {Path(path).name}", expected=f"the column {missing[0]}", found=list(names))
        groups: list[int] = []
        rows = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            rows += metadata.row_group(group).num_rows
            if rows >= _ROWS or group == metadata.num_row_groups - 1:
                found.append(InventoryPart(path=path, format="Parquet", columns=names, row_groups=tuple(groups)))
                groups, rows = [], 0
    return found


def read_part(part: InventoryPart) -> Iterator[pa.RecordBatch]:
    """The latest versions in a part, as record batches of `LISTED`.

    Raises:
        CorruptData: It cannot be read.
    """
    wanted: list[str] = [name for name in (*_NEEDED, *_VERSIONED) if name in part.columns]
    try:
        for table in _csv(part, wanted) if part.format == "CSV" else _parquet(part, wanted):
            yield from _latest(table).to_batches()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptData(f"inventory: {part.path}: {error}") from error


def _parquet(part: InventoryPart, wanted: list[str]) -> Iterator[pa.Table]:
    file = pq.ParquetFile(part.path)
    for group in part.row_groups:
        yield file.read_row_group(group, columns=wanted, use_threads=False)


def _csv(part: InventoryPart, wanted: list[str]) -> Iterator[pa.Table]:
    """Keys are URL-encoded in CSV, and only there."""
    if _is_empty(part.path):
        return
    types = {"key": pa.string(), "size": pa.int64(), "last_modified_date": pa.timestamp("us", tz="UTC")}
    reader = pa_csv.open_csv(
        part.path,
        read_options=pa_csv.ReadOptions(column_names=list(part.columns), block_size=_BLOCK, use_threads=False),
        convert_options=pa_csv.ConvertOptions(
            include_columns=wanted, column_types={n: types.get(n, pa.bool_()) for n in wanted}
        ),
    )
    for batch in reader:
        table = pa.Table.from_batches([batch])
        keys = pa.array([unquote_plus(key) for key in table["key"].to_pylist()], pa.string())
        yield table.set_column(table.schema.get_field_index("key"), "key", keys)


def _is_empty(path: str) -> bool:
    """Arrow refuses a file without a line; an inventory of nothing has such a part."""
    with pa.input_stream(path) as stream:
        return not stream.read(1)


def _latest(table: pa.Table) -> pa.Table:
    """Rows that a listing would show; a size that is null is a delete marker's."""
    shown = pc.is_valid(table["size"])
    if "is_latest" in table.column_names:
        shown = pc.and_(shown, pc.fill_null(table["is_latest"], True))
    if "is_delete_marker" in table.column_names:
        shown = pc.and_(shown, pc.invert(pc.fill_null(table["is_delete_marker"], False)))
    if not pc.all(shown).as_py():
        table = table.filter(shown)
    if table["key"].null_count:
        raise ValueError("a row without a key")
    times = pc.cast(pc.cast(table["last_modified_date"], pa.timestamp("us")), pa.int64())
    columns = [pc.cast(table["key"], pa.large_string()), pc.cast(table["size"], pa.int64()), times]
    return pa.table(columns, schema=LISTED).combine_chunks()
