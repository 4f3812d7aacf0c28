"""The files between the jobs of a reconciliation: facts of both sides, split by groups of shards.

A group holds all of its ledgers' objects and rows, so that one task compares them and nothing is shuffled. Files are
Arrow IPC without compression, `{stem}-{task}-{group}.arrow`, each written beside its name and then renamed: a task that
runs twice leaves the same files.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.log.ledgers import SHARDS
from logstore.whole_files import replace_atomically, temporary_path

Groups = npt.NDArray[np.int64]

YOUNG: Final = 2**62
"""In the place of a time that the store does not tell: younger than any cut-off."""

OBJECTS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("number", pa.int32()),  # of the segment, or -1: `meta.json`
        ("digest", pa.uint64()),  # in the name of a `meta.json`, otherwise 0
        ("size_bytes", pa.int64()),
        ("modified_us", pa.int64()),
    ]
)
"""An object of the primary bucket."""

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
"""An object, or an unfinished upload, of a tiered bucket."""

STRANGE: Final = pa.schema(
    [("bucket", pa.string()), ("key", pa.string()), ("size_bytes", pa.int64()), ("modified_us", pa.int64())]
)
"""An object whose key is none of ours."""

LEDGERS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("list_id", pa.int64()),
        ("digest", pa.uint64()),  # of its owner; 0: its list or topic is gone
        ("creating", pa.bool_()),
        ("primary", pa.int8()),  # 0: no such copy, 1: WRITING, 2: LIVE
        ("referenced", pa.bool_()),
        ("segments", pa.int64()),
        ("last_segment", pa.int64()),
        ("size_bytes", pa.int64()),
        ("created_us", pa.int64()),
        ("differs_from_segments", pa.bool_()),  # its rows of segments are not what its row counts
        ("moment", pa.int64()),  # of its registered segments, see `sides.moments`; -1: it has one at most
    ]
)
"""A row of `ledger` with its primary copy."""

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
"""A tiered copy, as its row's context names it; a context that cannot be read names no uuid."""

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
"""An intent that is not over."""


def group_of(ledger_ids: npt.NDArray[np.int64], groups: int) -> Groups:
    """The group of each ledger; `groups` is a power of two up to 256, and a group holds whole shards."""
    return (ledger_ids & (SHARDS - 1)) * groups // SHARDS


def groups_for(ledgers: int) -> int:
    """How many groups suit a catalog of `ledgers` ledgers: half a million in each, and 4 to 256 groups."""
    found = 4
    while found < SHARDS and ledgers > found * 500_000:
        found *= 2
    return found


class GroupFiles:
    """The files of one task, opened as groups turn up."""

    def __init__(self, folder: Path, stem: str, task: int, schema: pa.Schema, groups: int) -> None:
        """Write into this folder."""
        self._folder, self._name, self._schema, self._groups = folder, f"{stem}-{task:05d}", schema, groups
        self._open: dict[int, tuple[Path, Any]] = {}
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, split by the groups of its column `ledger_id`, which has no null."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        groups = group_of(batch.column("ledger_id").to_numpy(zero_copy_only=False), self._groups)
        first = int(groups[0])
        if (groups == first).all():
            self._writer(first).write_batch(batch)
            return
        order = np.argsort(groups.astype(np.uint8), kind="stable")
        sorted_batch, ends = batch.take(pa.array(order)), np.searchsorted(groups[order], np.arange(self._groups + 1))
        for group in range(self._groups):
            start, end = int(ends[group]), int(ends[group + 1])
            if end > start:
                self._writer(group).write_batch(sorted_batch.slice(start, end - start))

    def _writer(self, group: int) -> Any:  # noqa: ANN401 - pyarrow has no types
        if group not in self._open:
            new = temporary_path(self._path(group))
            self._open[group] = (new, pa.ipc.new_file(str(new), self._schema))
        return self._open[group][1]

    def close(self) -> int:
        """Give the files their names, and say how many rows they hold."""
        for group, (new, writer) in self._open.items():
            writer.close()
            new.replace(self._path(group))
        return self.rows

    def _path(self, group: int) -> Path:
        return self._folder / f"{self._name}-{group:03d}.arrow"


def put(folder: Path, stem: str, task: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches that need no group into one file, and say how many rows."""
    rows = 0
    with (
        replace_atomically(folder / f"{stem}-{task:05d}-all.arrow") as new,
        pa.ipc.new_file(str(new), schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def read(folder: Path, stem: str, group: int | None, schema: pa.Schema) -> pa.Table:
    """All of a group's rows, or with None those of files without groups."""
    name = "all" if group is None else f"{group:03d}"
    found = [_table(path) for path in sorted(folder.glob(f"{stem}-*-{name}.arrow"))]
    return pa.concat_tables(found).combine_chunks() if found else schema.empty_table()


def _table(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def drawn(folder: Path, stem: str) -> Iterator[pa.RecordBatch]:
    """Rows of files without groups, batch by batch."""
    for path in sorted(folder.glob(f"{stem}-*-all.arrow")):
        with pa.memory_map(str(path)) as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
