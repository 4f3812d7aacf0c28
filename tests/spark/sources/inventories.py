"""Inventories as S3 writes them: a manifest, and parts in a folder beside it."""

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
"""`key`, `size` and `modified_us`; of a versioned bucket `is_latest` and `is_delete_marker` too."""

_COLUMNS = {
    "bucket": "Bucket",
    "key": "Key",
    "is_latest": "IsLatest",
    "is_delete_marker": "IsDeleteMarker",
    "size": "Size",
    "last_modified_date": "LastModifiedDate",
}
_SCHEMA = pa.schema(
    [
        ("bucket", pa.string()),
        ("key", pa.string()),
        ("is_latest", pa.bool_()),
        ("is_delete_marker", pa.bool_()),
        ("size", pa.int64()),
        ("last_modified_date", pa.timestamp("ms", tz="UTC")),
    ]
)
_KINDS = {"bucket": "binary", "key": "binary", "is_latest": "boolean", "is_delete_marker": "boolean"}


def row(key: str, size: int | None = 1, modified_us: int | None = 1_700_000_000_123_000, **more: object) -> Row:
    """One object."""
    return {"key": key, "size": size, "modified_us": modified_us, **more}


def write(
    folder: Path,
    bucket: str,
    parts: Sequence[Sequence[Row]],
    *,
    form: str = "Parquet",
    left_out: Sequence[str] = ("is_latest", "is_delete_marker"),
    at_ms: int = 1_800_000_000_000,
    **manifest: object,
) -> Path:
    """An inventory of one bucket, and the path of its manifest; `left_out` are columns that it does not have."""
    columns = [name for name in _COLUMNS if name not in left_out]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    files = []
    for number, rows in enumerate(parts):
        full = [{**one, "bucket": bucket, "last_modified_date": one["modified_us"]} for one in rows]
        name, body = f"{number}.{'parquet' if form == 'Parquet' else 'csv.gz'}", _BODIES[form](full, columns)
        (folder / "data" / name).write_bytes(body)
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        files.append({"key": f"{bucket}/daily/data/{name}", "size": len(body), "MD5checksum": md5})
    fields = " ".join(f"optional {_KINDS.get(name, 'int64')} {name};" for name in columns)
    schema = f"message s3.inventory {{ {fields} }}" if form == "Parquet" else ", ".join(map(_COLUMNS.get, columns))  # type: ignore[arg-type]
    told = {
        "sourceBucket": bucket,
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str(at_ms),
        "fileFormat": form,
        "fileSchema": schema,
        "files": files,
    }
    path = folder / "2026-01-01T00-00Z" / "manifest.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(told | manifest), encoding="utf-8")
    return path


def _parquet(rows: list[Row], columns: list[str]) -> bytes:
    schema = pa.schema([_SCHEMA.field(name) for name in columns])
    target, time = io.BytesIO(), pa.timestamp("us", tz="UTC")
    arrays = []
    for field in schema:
        values = [one.get(field.name) for one in rows]
        if field.name == "last_modified_date":
            arrays.append(pa.array(values, pa.int64()).cast(time).cast(field.type, safe=False))
        else:
            arrays.append(pa.array(values, field.type))
    pq.write_table(pa.table(arrays, schema=schema), target, row_group_size=2)
    return target.getvalue()


def _csv(rows: list[Row], columns: list[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for one in rows:
        writer.writerow([_cell(name, one.get(name)) for name in columns])
    return gzip.compress(text.getvalue().encode())


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "key":
        return quote_plus(value, safe="/")
    if name == "last_modified_date":
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value).lower() if isinstance(value, bool) else str(value)


_BODIES = {"Parquet": _parquet, "CSV": _csv}
