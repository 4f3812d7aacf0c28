"""Conversion of record versions to rows of the catalog's tables, as Arrow tables.

Functions require the newest record version of each record of one kind, ascending by id, without tombstones. Results
have the columns and types that a bulk load needs.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from sqlalchemy import Table

from logstore.catalog import tables as t
from logstore.catalog.engine.arrow_bulk import to_arrow_type
from logstore.log.ledgers import CopyKind
from logstore.records.record_kinds import COLUMNS_BY_KIND, RecordKind

Ids = npt.NDArray[np.int64]
TableRows = tuple[Table, pa.Table]

_TABLES: Final[Mapping[RecordKind, tuple[Table, Mapping[str, str | int]]]] = {
    RecordKind.TOPIC: (t.topic, {"topic_id": "id"}),
    RecordKind.LIST: (t.ledger_list, {"list_id": "id", "version": "list_version"}),
    RecordKind.LEDGER: (t.ledger, {"ledger_id": "id", "generation": "generation", "epoch": "ledger_epoch"}),
    RecordKind.SEGMENT: (t.segment, {"ledger_id": "id", "number": "sub"}),
    RecordKind.CURSOR: (t.cursor, {"cursor_id": "id"}),
    RecordKind.SCHEMA: (t.schema_version, {"topic_id": "id", "version": "sub"}),
    RecordKind.PRODUCER: (t.producer_sequence, {"topic_id": "id", "producer": "sub"}),
    RecordKind.DELETION: (
        t.pending_deletion,
        {"row_id": "id", "generation": "generation", "epoch": "ledger_epoch", "keys_left_attempts": 0},
    ),
    RecordKind.TRANSACTION: (t.transaction, {"tc_id": "sub", "sequence": "id"}),
    RecordKind.HIDDEN: (t.buffer_hidden, {"ledger_id": "id"}),
    RecordKind.INDEX: (t.delayed_index, {"topic_id": "id", "version": "list_version", "unsealed": 0}),
    RecordKind.SNAPSHOT: (t.transaction_snapshot, {"topic_id": "id", "changes": 0}),
}
"""For each kind, the table, and the source of each column that has no field of its name: a field or a constant."""

UNIQUE_COLUMNS: Final[Mapping[RecordKind, tuple[str, ...]]] = {
    RecordKind.TOPIC: ("name",),
    RecordKind.LIST: ("topic_id", "component", "owner"),
    RecordKind.CURSOR: ("topic_id", "name"),
}
"""Unique columns besides the id. A record that was deleted without a tombstone may have the values of a newer one."""


def cast_to_columns(table: Table, rows: pa.Table) -> pa.Table:
    fields = [pa.field(name, to_arrow_type(table.c[name])) for name in rows.column_names]
    return rows.cast(pa.schema(fields))


def build_table_rows(kind: RecordKind, versions: pa.Table, **computed: Any) -> TableRows:  # noqa: ANN401 - arrays
    """Return table and rows of a kind. `computed` has values by column. Columns without a source are left out."""
    table, sources = _TABLES[kind]
    field_names = {name for name, _ in COLUMNS_BY_KIND[kind]}
    columns: dict[str, Any] = {}
    for column in table.c:
        source = sources.get(column.name, column.name)
        if column.name in computed:
            columns[column.name] = computed[column.name]
        elif isinstance(source, int):
            columns[column.name] = pa.repeat(pa.scalar(source, pa.int64()), versions.num_rows)
        elif column.name in sources or source in field_names:
            columns[column.name] = versions.column(source)
    return table, cast_to_columns(table, pa.table(columns))


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


def select_with_parent(versions: pa.Table, parent_ids: Ids, column: str = "id") -> pa.Table:
    """Return the record versions whose parent exists. `parent_ids` must ascend."""
    return versions.filter(pa.array(mask_contained_ids(parent_ids, read_id_column(versions, column))))


def select_newest_by_unique_columns(versions: pa.Table, unique_columns: Iterable[str]) -> pa.Table:
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
    yield build_table_rows(RecordKind.LEDGER, ledgers, place=places, last_segment=last_segments, **totals)
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


def build_transaction_and_part_rows(versions: pa.Table) -> Iterator[TableRows]:
    table, rows = build_table_rows(RecordKind.TRANSACTION, versions)
    yield table, rows
    keys = rows.select(["tc_id", "sequence"])
    yield _parse_parts(t.transaction_participant, versions.column("participants"), keys)
    yield _parse_parts(t.buffer_range, versions.column("ranges"), keys)


def build_delayed_index_and_bucket_rows(versions: pa.Table) -> Iterator[TableRows]:
    table, rows = build_table_rows(RecordKind.INDEX, versions)
    yield table, rows
    yield _parse_parts(t.delayed_bucket, versions.column("buckets"), rows.select(["topic_id"]))


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
