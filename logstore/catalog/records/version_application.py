"""Application of record versions: which of them get rows, and the rows as Arrow tables.

`apply_versions` decides for a rebuild and for a replica. Each has its own `RowSink`:

- A rebuild writes files in parallel, one task for each range of ids, and loads them into an empty database. All record
  versions of the range are in memory. So totals and places are computed before the load.
- A replica writes to a database that has older rows and knows only the newer record versions. So parents are looked up
  in the database, rows of tombstones and of displaced records are removed, and SQL computes totals and places again.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from sqlalchemy import Table

from logstore.catalog import tables as t
from logstore.catalog.engine.arrow_bulk import to_arrow_type
from logstore.catalog.records.recorded_tables import RECORDED_TABLES
from logstore.log.ledgers import CopyKind
from logstore.records.newest_versions import SplitNewestVersions, split_newest_versions
from logstore.records.record_kinds import TOMBSTONED_KINDS, RecordKind, block_schema

Ids = npt.NDArray[np.int64]
TableRows = tuple[Table, pa.Table]


class RowSink(Protocol):
    """Destination of the records of one catalog. Parents are written before their children."""

    def find_parent_ids(self, parent: RecordKind, ids: Ids) -> Ids:
        """Return the ids of records with a row, ascending. Ids that are not in `ids` may be left out.

        `ids` may be in any order, and may have an id more than once.
        """

    def write_tombstones(self, kind: RecordKind, newest: SplitNewestVersions) -> None:
        """Write the tombstones of a range of ids. `newest.live` are the records of the range without a tombstone."""

    def write_records(self, kind: RecordKind, live: pa.Table) -> None:
        """Write records that get rows. `live` ascends by `id` and `sub`."""


def apply_versions(kind: RecordKind, versions: Iterable[pa.Table], sink: RowSink) -> None:
    """Write the records and tombstones of one kind to the sink.

    Each table in `versions` has all record versions of a range of ids, in any order. A record gets a row if its newest
    version is no tombstone, its parent has a row, and no newer record has the same unique values. If the kind has
    unique columns, all its records must fit in memory.
    """
    recorded = RECORDED_TABLES[kind]
    uniquely_named = [block_schema(kind).empty_table()]
    for newest in map(split_newest_versions, versions):
        if kind in TOMBSTONED_KINDS:
            sink.write_tombstones(kind, newest)
        live = newest.live
        if recorded.parent:
            parents_of_records = read_id_column(live, recorded.field_by_column[recorded.parent_column])
            parent_ids = sink.find_parent_ids(recorded.parent, parents_of_records)
            live = live.filter(pa.array(mask_contained_ids(parent_ids, parents_of_records)))
        if recorded.unique:
            uniquely_named.append(live)
        else:
            sink.write_records(kind, live)
    if recorded.unique:
        sink.write_records(kind, _select_newest_by_columns(pa.concat_tables(uniquely_named), recorded.unique))


def cast_to_columns(table: Table, rows: pa.Table) -> pa.Table:
    fields = [pa.field(name, to_arrow_type(table.c[name])) for name in rows.column_names]
    return rows.cast(pa.schema(fields))


def build_rows(kind: RecordKind, live: pa.Table) -> Iterator[TableRows]:
    """Yield the rows of records, and then the rows of parts that are stored as JSON. `live` ascends by id."""
    table, rows = _build_rows_of_own_table(kind, live)
    yield table, rows
    for part in RECORDED_TABLES[kind].parts:
        if part.json_field:
            yield _parse_parts(part.table, live.column(part.json_field), rows.select(list(part.keys)))


def _build_rows_of_own_table(kind: RecordKind, live: pa.Table, **computed: Any) -> TableRows:  # noqa: ANN401 - arrays
    """Return table and rows of a kind. `computed` has values by column. Columns without a value are left out."""
    recorded = RECORDED_TABLES[kind]
    columns = {column: live.column(name) for column, name in recorded.field_by_column.items()}
    columns |= {
        column: pa.repeat(pa.scalar(value, pa.int64()), live.num_rows)
        for column, value in recorded.unrecorded.items()
        if value is not None
    }
    return recorded.table, cast_to_columns(recorded.table, pa.table(columns | computed))


def read_id_column(table: pa.Table, name: str = "id") -> Ids:
    ids: Ids = table.column(name).to_numpy()
    return ids


def mask_contained_ids(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Return for each id in `ids` whether `sorted_ids`, which must ascend, contain the id."""
    places = np.searchsorted(sorted_ids, ids)
    contains: npt.NDArray[np.bool_] = np.zeros(len(ids), bool)
    is_inside = places < len(sorted_ids)
    contains[is_inside] = sorted_ids[places[is_inside]] == ids[is_inside]
    return contains


def _select_newest_by_columns(versions: pa.Table, unique_columns: Iterable[str]) -> pa.Table:
    """Return the newest record version for each combination of unique values, in the order of `versions`.

    The record versions that are left out belong to records that were deleted without a tombstone.
    """
    names = list(unique_columns)
    order = [(name, "ascending") for name in names] + [("epoch", "descending"), ("version", "descending")]
    indices = pc.sort_indices(versions, sort_keys=order)
    values = versions.select(names).take(indices)
    is_first = np.ones(versions.num_rows, bool)
    if versions.num_rows > 1:
        columns = [values.column(name).combine_chunks() for name in names]
        repeats = [pc.fill_null(pc.equal(column[1:], column[:-1]), False) for column in columns]
        is_first[1:] = ~np.logical_and.reduce([repeat.to_numpy(zero_copy_only=False) for repeat in repeats])
    if is_first.all():
        return versions
    return versions.take(pa.array(np.sort(indices.to_numpy()[is_first])))


def unpack_listed_ledger_ids(lists: pa.Table) -> Ids:
    """Return the ids of all ledgers in the lists, ascending."""
    bitmaps = [BitMap64.deserialize(packed) for packed in lists.column("ledgers").to_pylist() if packed]
    return np.sort(
        np.fromiter((ledger_id for bitmap in bitmaps for ledger_id in bitmap), np.int64, sum(map(len, bitmaps)))
    )


def build_ledger_and_copy_rows(ledgers: pa.Table, segments: pa.Table, listed_ids: Ids) -> Iterator[TableRows]:
    """Yield rows of ledgers with their totals, then rows of copies. A ledger outside `listed_ids` gets no place.

    All `segments` must belong to `ledgers`. `listed_ids` must ascend.
    """
    ids = read_id_column(ledgers)
    totals = _sum_segments(ids, segments)
    is_listed = pa.array(mask_contained_ids(listed_ids, ids))
    places = pc.if_else(is_listed, ledgers.column("place"), pa.scalar(None, pa.int64()))
    last_segments = ledgers.column("last_segment").fill_null(-1).to_numpy().copy()
    if segments.num_rows:
        numbers = pc.cast(segments.column("sub"), pa.int64()).to_numpy()
        np.maximum.at(last_segments, np.searchsorted(ids, read_id_column(segments)), numbers)
    yield _build_rows_of_own_table(RecordKind.LEDGER, ledgers, place=places, last_segment=last_segments, **totals)
    yield _build_copy_rows(ledgers)


def _sum_segments(ledger_ids: Ids, segments: pa.Table) -> dict[str, Ids]:
    segment_ledgers = read_id_column(segments)
    order = np.argsort(segment_ledgers, kind="stable")
    starts, ends = (np.searchsorted(segment_ledgers[order], ledger_ids, side) for side in ("left", "right"))
    totals = {"segments": ends - starts}
    for name in ("entries", "size_bytes"):
        cumulated = np.concatenate([[0], np.cumsum(segments.column(name).to_numpy()[order])])
        totals[name] = cumulated[ends] - cumulated[starts]
    return totals


def _build_copy_rows(ledgers: pa.Table) -> TableRows:
    parts = []
    for kind, name in ((CopyKind.LEDGER, "primary"), (CopyKind.OFFLOADED_LEDGER, "tiered")):
        with_copy = ledgers.filter(pc.is_valid(ledgers.column(f"{name}_state")))
        parts.append(
            pa.table(
                {
                    "ledger_id": with_copy.column("id"),
                    "kind": pa.repeat(pa.scalar(kind.value), with_copy.num_rows),
                    "state": with_copy.column(f"{name}_state"),
                    "context": with_copy.column(f"{name}_context").fill_null("{}"),
                }
            )
        )
    rows = pa.concat_tables(parts).sort_by([("ledger_id", "ascending"), ("kind", "ascending")])
    return t.ledger_copy, cast_to_columns(t.ledger_copy, rows)


def _parse_parts(table: Table, documents: pa.ChunkedArray, keys: pa.Table) -> TableRows:
    has_parts = pc.and_(pc.is_valid(documents), pc.not_equal(documents, "[]"))
    aggregates = zip(keys.filter(has_parts).to_pylist(), documents.filter(has_parts).to_pylist(), strict=True)
    parts = [part | key for key, document in aggregates for part in json.loads(document)]
    columns = {}
    for column in table.c:
        arrow = to_arrow_type(column)
        values = [part.get(column.name) for part in parts]
        if pa.types.is_binary(arrow):
            values = [None if value is None else base64.b64decode(value) for value in values]
        columns[column.name] = pa.array(values, arrow)
    return table, pa.table(columns)


def build_tombstone_rows(tombstones: pa.Table, covered_versions: pa.Table, kind: RecordKind) -> TableRows:
    """Return rows of tombstones. Topic, list and component come from `covered_versions`, from before the deletion.

    Both tables must ascend by id. `covered_versions` must have at most one record version of each record.
    """
    ids, covered_ids = read_id_column(tombstones), read_id_column(covered_versions)
    is_covered = mask_contained_ids(covered_ids, ids)
    indices = pa.array(np.where(is_covered, np.searchsorted(covered_ids, ids), 0), mask=~is_covered)
    columns: dict[str, Any] = {
        "kind": pa.repeat(pa.scalar(kind.value), len(ids)),
        "id": ids,
        "generation": tombstones.column("generation"),
        "epoch": tombstones.column("epoch"),
        "at_us": tombstones.column("at_us"),
    }
    if kind is RecordKind.LEDGER:
        columns |= {name: covered_versions.column(name).take(indices) for name in ("topic_id", "list_id", "component")}
    else:
        columns["topic_id"] = ids
    return t.tombstone, cast_to_columns(t.tombstone, pa.table(columns))
