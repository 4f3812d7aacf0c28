"""Files that pass facts about storage and catalog from one job of a reconciliation to later jobs.

A fact is an object or a row. Facts are split by groups of shards, so that one task can compare one group. Files are
in Arrow's IPC format, and are named `{stem}-{task}-{group}.arrow`. A task that runs twice leaves the same files.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.atomic_files import temporary_path
from logstore.errors import PreconditionFailed
from logstore.log.ledger_object_keys import SHARDS
from logstore.ports.object_storage import OpenUpload

YOUNG: Final = 2**62
"""Substitute for a time that the store does not give. The value is younger than any cut-off."""

OBJECTS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("number", pa.int32()),  # number of the segment; -1: a `meta.json`
        ("digest", pa.uint64()),  # digest of the ledger owner in the name of a `meta.json`; 0: a segment
        ("size_bytes", pa.int64()),
        ("modified_us", pa.int64()),
    ]
)
"""Schema of an object of the primary bucket."""

TIERED_OBJECTS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("bucket", pa.string()),
        ("uuid", pa.string()),
        ("part", pa.string()),  # data, index or upload
        ("size_bytes", pa.int64()),
        ("modified_us", pa.int64()),
    ]
)
"""Schema of an object or an unfinished upload of a tiered bucket."""

STRANGE: Final = pa.schema(
    [("bucket", pa.string()), ("key", pa.string()), ("size_bytes", pa.int64()), ("modified_us", pa.int64())]
)
"""Schema of an object whose key is neither a ledger's nor an offload's."""

LEDGERS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("list_id", pa.int64()),
        ("digest", pa.uint64()),  # digest of the ledger owner; 0: the list or topic has no row, or is damaged
        ("creating", pa.bool_()),
        ("primary", pa.int8()),  # 0: no such copy, 1: WRITING, 2: LIVE
        ("referenced", pa.bool_()),
        ("segments", pa.int64()),
        ("last_segment", pa.int64()),
        ("size_bytes", pa.int64()),
        ("created_us", pa.int64()),
        ("differs_from_segments", pa.bool_()),  # sums in the row differ from sums over the rows of segments
        ("moment", pa.int64()),  # sum of `weighted_segment_terms` of the rows of segments; -1: at most one segment
    ]
)
"""Schema of a row of `ledger` with its primary copy."""

COPIES: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("bucket", pa.string()),
        ("endpoint", pa.string()),
        ("uuid", pa.string()),
        ("state", pa.string()),
        ("created_us", pa.int64()),
        ("size_bytes", pa.int64()),  # of the ledger
        ("data_bytes", pa.int64()),  # of the data object; null: the context does not state it
        ("index_bytes", pa.int64()),
    ]
)
"""Schema of a tiered copy, as the offload context names the copy. The uuid of an unreadable context is empty."""

INTENTS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("row_id", pa.int64()),
        ("copy", pa.string()),
        ("uuid", pa.string()),
        ("state", pa.string()),
        ("stalled", pa.bool_()),
        ("topic", pa.string()),
        ("size_bytes", pa.int64()),
        ("created_us", pa.int64()),
    ]
)
"""Schema of an unfinished intent or a dead letter."""


def compute_group_numbers(ledger_ids: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Return the group of each ledger. `groups` must be a power of two up to 256, so that groups have whole shards."""
    return (ledger_ids & (SHARDS - 1)) * groups // SHARDS


def choose_group_count(ledgers: int, *, max_ledgers_per_group: int = 500_000) -> int:
    """Return the lowest power of two from 4 on with at most so many ledgers per group, but not more than 256."""
    groups = 4
    while groups < SHARDS and ledgers > groups * max_ledgers_per_group:
        groups *= 2
    return groups


class GroupedFactFiles:
    """Files of one task, one for each group. A file is opened when the first row of the group is written."""

    def __init__(self, folder: Path, stem: str, task: int, schema: pa.Schema, groups: int) -> None:
        self._folder, self._name, self._schema, self._groups = folder, f"{stem}-{task:05d}", schema, groups
        self._open: dict[int, tuple[Path, Any]] = {}
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, split into groups by the column `ledger_id`, which has no null."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        groups = compute_group_numbers(batch.column("ledger_id").to_numpy(zero_copy_only=False), self._groups)
        first = int(groups[0])
        if (groups == first).all():
            self._open_writer(first).write_batch(batch)
            return
        order = np.argsort(groups.astype(np.uint8), kind="stable")
        sorted_batch, ends = batch.take(pa.array(order)), np.searchsorted(groups[order], np.arange(self._groups + 1))
        for group in range(self._groups):
            start, end = int(ends[group]), int(ends[group + 1])
            if end > start:
                self._open_writer(group).write_batch(sorted_batch.slice(start, end - start))

    def _open_writer(self, group: int) -> Any:  # noqa: ANN401 - pyarrow has no types
        if group not in self._open:
            new = temporary_path(self._path(group))
            self._open[group] = (new, pa.ipc.new_file(str(new), self._schema))
        return self._open[group][1]

    def close(self) -> int:
        """Rename the files to the final names. Return the number of rows in all files."""
        for group, (new, writer) in self._open.items():
            writer.close()
            new.replace(self._path(group))
        return self.rows

    def _path(self, group: int) -> Path:
        return self._folder / f"{self._name}-{group:03d}.arrow"


class UngroupedFactFile:
    """File of one task without groups."""

    def __init__(self, folder: Path, stem: str, task: int, schema: pa.Schema) -> None:
        self._path, self._rows = _ungrouped_path(folder, stem, task), 0
        self._new = temporary_path(self._path)
        self._writer = pa.ipc.new_file(str(self._new), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> int:
        """Rename the file to the final name. Return the number of rows."""
        self._writer.close()
        self._new.replace(self._path)
        return self._rows


def write_ungrouped_facts(
    folder: Path, stem: str, task: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> int:
    file = UngroupedFactFile(folder, stem, task, schema)
    for batch in batches:
        file.write(batch)
    return file.close()


def _ungrouped_path(folder: Path, stem: str, task: int) -> Path:
    return folder / f"{stem}-{task:05d}-all.arrow"


def read_ungrouped_facts_of_task(folder: Path, stem: str, task: int) -> pa.Table:
    with pa.memory_map(str(_ungrouped_path(folder, stem, task))) as source:
        return pa.ipc.open_file(source).read_all()


def read_facts(folder: Path, stem: str, group: int | None, schema: pa.Schema) -> pa.Table:
    """Return the rows of one group. `None` selects the files without groups.

    Raises:
        PreconditionFailed: Another build wrote a file, with other columns.
    """
    name = "all" if group is None else f"{group:03d}"
    tables = []
    for path in sorted(folder.glob(f"{stem}-*-{name}.arrow")):
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        if not table.schema.equals(schema):
            expected = f"expected the columns {', '.join(schema.names)}"
            raise PreconditionFailed(f"{path.name}: {expected}, found {', '.join(table.schema.names)}; plan again")
        tables.append(table)
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()


def read_ungrouped_batches(folder: Path, stem: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files without groups. Memory holds one batch."""
    return _read_batches(folder, f"{stem}-*-all.arrow")


def read_grouped_batches(folder: Path, stem: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all groups. Memory holds one batch."""
    return _read_batches(folder, f"{stem}-*-[0-9][0-9][0-9].arrow")


def _read_batches(folder: Path, pattern: str) -> Iterator[pa.RecordBatch]:
    for path in sorted(folder.glob(pattern)):
        with pa.memory_map(str(path)) as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


UPLOAD: Final = "upload"
"""Value of the column `part` of an unfinished upload."""

_UPLOADS_PER_BATCH: Final = 10_000


def replace_unknown_times(batch: pa.RecordBatch) -> pa.Array:
    """Return the column `modified_us` with `YOUNG` in place of null."""
    return pc.fill_null(batch.column("modified_us"), YOUNG)


def split_tiered_objects(batch: pa.RecordBatch, bucket: str, pattern: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the objects whose keys match, in the schema `TIERED_OBJECTS`, and all other rows of the batch."""
    parsed = pc.extract_regex(pc.cast(batch.column("key"), pa.string()), pattern)
    mask = pc.is_valid(parsed)
    keys, objects = parsed.filter(mask), batch.filter(mask)
    columns = [
        pc.cast(pc.struct_field(keys, "ledger"), pa.int64()),
        pa.repeat(pa.scalar(bucket, pa.string()), len(keys)),
        pc.struct_field(keys, "uuid"),
        pc.if_else(pc.equal(pc.struct_field(keys, "index"), ""), "data", "index"),
        objects.column("size_bytes"),
        replace_unknown_times(objects),
    ]
    return pa.record_batch(columns, schema=TIERED_OBJECTS), batch.filter(pc.invert(mask))


def iterate_upload_facts(uploads: Iterable[OpenUpload], bucket: str, pattern: str) -> Iterator[pa.RecordBatch]:
    """Yield facts about the uploads whose keys match, in the schema `TIERED_OBJECTS`."""
    matches = ((upload, re.fullmatch(pattern, upload.key)) for upload in uploads)
    rows = (
        {
            "ledger_id": int(match["ledger"]),
            "bucket": bucket,
            "uuid": match["uuid"],
            "part": UPLOAD,
            "size_bytes": 0,
            "modified_us": YOUNG if upload.started_us is None else upload.started_us,
        }
        for upload, match in matches
        if match
    )
    while batch := list(islice(rows, _UPLOADS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(batch, schema=TIERED_OBJECTS)
