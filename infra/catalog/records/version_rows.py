"""Winning versions of records as rows of the catalog's tables: pure functions of Arrow tables.

Every function takes versions of one kind in the schema of that kind, one a record, ascending by id, none of them a
tombstone; and answers tables in the columns and the types that a bulk load takes.
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

from infra.catalog import tables as t
from infra.catalog.engine.adbc import arrow_type
from logstore.log.ledgers import CopyKind
from logstore.records.kinds import FIELDS, RecordKind

Ids = npt.NDArray[np.int64]
Rows = tuple[Table, pa.Table]

_KEYS: Final[Mapping[RecordKind, tuple[Table, Mapping[str, str | int]]]] = {
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
"""The table of each kind, and where its columns come from that are not the kind's own under the same name."""

UNIQUE: Final[Mapping[RecordKind, tuple[str, ...]]] = {
    RecordKind.TOPIC: ("name",),
    RecordKind.LIST: ("topic_id", "component", "owner"),
    RecordKind.CURSOR: ("topic_id", "name"),
}
"""Columns by which the rows of a kind are unique, beside their ids; a name may be used again after a plain delete."""


def with_types(table: Table, rows: pa.Table) -> pa.Table:
    """The rows in the types of their columns."""
    fields = [pa.field(name, arrow_type(table.c[name])) for name in rows.column_names]
    return rows.cast(pa.schema(fields))


def rows_of(kind: RecordKind, versions: pa.Table, **computed: Any) -> Rows:  # noqa: ANN401 - arrays of numpy's or Arrow's
    """The rows of a kind; columns that are neither recorded nor computed are left to the database."""
    table, keys = _KEYS[kind]
    recorded = {name for name, _ in FIELDS[kind]}
    found: dict[str, Any] = {}
    for column in table.c:
        source = keys.get(column.name, column.name)
        if column.name in computed:
            found[column.name] = computed[column.name]
        elif isinstance(source, int):
            found[column.name] = pa.repeat(pa.scalar(source, pa.int64()), versions.num_rows)
        elif column.name in keys or source in recorded:
            found[column.name] = versions.column(source)
    return table, with_types(table, pa.table(found))


def ids_of(table: pa.Table, column: str = "id") -> Ids:
    """A column of numbers, none null."""
    found: Ids = table.column(column).to_numpy()
    return found


def among(values: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """Which of the values are known; the known ones ascend."""
    at = np.searchsorted(known, values)
    found: npt.NDArray[np.bool_] = np.zeros(len(values), bool)
    inside = at < len(known)
    found[inside] = known[at[inside]] == values[inside]
    return found


def with_parent(versions: pa.Table, parents: Ids, column: str = "id") -> pa.Table:
    """Those of the versions whose parent lives."""
    return versions.filter(pa.array(among(ids_of(versions, column), parents)))


def newest_of_each(versions: pa.Table, key: Iterable[str]) -> pa.Table:
    """Of the versions that say the same in the columns of a unique key the newest; the order stays.

    Two rows were never there at once: when the newer one was written the older one had gone, by a plain delete.
    """
    names = list(key)
    order = [(name, "ascending") for name in names] + [("epoch", "descending"), ("version", "descending")]
    at = pc.sort_indices(versions, sort_keys=order)
    by_key = versions.select(names).take(at)
    first = np.ones(versions.num_rows, bool)
    if versions.num_rows > 1:
        same = [
            pc.equal(by_key.column(name).combine_chunks()[1:], by_key.column(name).combine_chunks()[:-1])
            for name in names
        ]
        first[1:] = ~np.logical_and.reduce([pc.fill_null(one, False).to_numpy(zero_copy_only=False) for one in same])
    if first.all():
        return versions
    return versions.take(pa.array(np.sort(at.to_numpy()[first])))


def listed_by(lists: pa.Table) -> Ids:
    """Ids of the ledgers that versions of lists name, ascending."""
    named = [BitMap64.deserialize(one) for one in lists.column("ledgers").to_pylist() if one]
    found = np.fromiter((one for bitmap in named for one in bitmap), np.int64, sum(map(len, named)))
    return np.sort(found)


def ledger_rows(ledgers: pa.Table, segments: pa.Table, listed: Ids) -> Iterator[Rows]:
    """Ledgers with their totals, and their copies.

    A ledger that no list names has no place: it came back because its delete was plain, or it was never listed.

    Args:
        ledgers: Versions.
        segments: Versions of the segments of these ledgers, and of no other.
        listed: Ids of ledgers that a list names, ascending.
    """
    ids = ids_of(ledgers)
    sums = _sums(ids, segments)
    places = pc.if_else(pa.array(among(ids, listed)), ledgers.column("place"), pa.scalar(None, pa.int64()))
    last = ledgers.column("last_segment").fill_null(-1).to_numpy().copy()
    if segments.num_rows:
        numbers = pc.cast(segments.column("sub"), pa.int64()).to_numpy()
        np.maximum.at(last, np.searchsorted(ids, ids_of(segments)), numbers)
    yield rows_of(RecordKind.LEDGER, ledgers, place=places, last_segment=last, **sums)
    yield _copies(ledgers)


def _sums(ids: Ids, segments: pa.Table) -> dict[str, Ids]:
    of_segments = ids_of(segments)
    order = np.argsort(of_segments, kind="stable")
    starts, ends = (np.searchsorted(of_segments[order], ids, side) for side in ("left", "right"))
    sums = {"segments": ends - starts}
    for name in ("entries", "size_bytes"):
        total = np.concatenate([[0], np.cumsum(segments.column(name).to_numpy()[order])])
        sums[name] = total[ends] - total[starts]
    return sums


def _copies(ledgers: pa.Table) -> Rows:
    """Both kinds, by ledger."""
    parts = []
    for kind, name in ((CopyKind.LEDGER, "primary"), (CopyKind.OFFLOADED_LEDGER, "tiered")):
        there = ledgers.filter(pc.is_valid(ledgers.column(f"{name}_state")))
        parts.append(
            pa.table(
                {
                    "ledger_id": there.column("id"),
                    "kind": pa.repeat(pa.scalar(kind.value), there.num_rows),
                    "state": there.column(f"{name}_state"),
                    "context": there.column(f"{name}_context").fill_null("{}"),
                }
            )
        )
    rows = pa.concat_tables(parts).sort_by([("ledger_id", "ascending"), ("kind", "ascending")])
    return t.ledger_copy, with_types(t.ledger_copy, rows)


def transaction_rows(versions: pa.Table) -> Iterator[Rows]:
    """Transactions with their participants and the ranges of entries that are not settled."""
    table, rows = rows_of(RecordKind.TRANSACTION, versions)
    yield table, rows
    keys = rows.select(["tc_id", "sequence"])
    yield _told(t.transaction_participant, versions.column("participants"), keys)
    yield _told(t.buffer_range, versions.column("ranges"), keys)


def index_rows(versions: pa.Table) -> Iterator[Rows]:
    """Indexes of delayed messages with their buckets."""
    table, rows = rows_of(RecordKind.INDEX, versions)
    yield table, rows
    yield _told(t.delayed_bucket, versions.column("buckets"), rows.select(["topic_id"]))


def _told(table: Table, documents: pa.ChunkedArray, keys: pa.Table) -> Rows:
    """Rows that aggregates tell as JSON, bytes in base64, each with the key of its aggregate."""
    told = pc.and_(pc.is_valid(documents), pc.not_equal(documents, "[]"))
    rows = zip(keys.filter(told).to_pylist(), documents.filter(told).to_pylist(), strict=True)
    said = [one | key for key, text in rows for one in json.loads(text)]
    columns = {}
    for column in table.c:
        kind = arrow_type(column)
        values = [one.get(column.name) for one in said]
        if pa.types.is_binary(kind):
            values = [None if value is None else base64.b64decode(value) for value in values]
        columns[column.name] = pa.array(values, kind)
    return table, pa.table(columns)


def tombstone_rows(tombstones: pa.Table, covered: pa.Table, kind: RecordKind) -> Rows:
    """Tombstones of a kind, with what the versions that they cover tell of their record.

    Args:
        tombstones: Versions that are tombstones, ascending by id.
        covered: Versions of the same records that are none, one a record at the most, ascending by id.
        kind: Topic or ledger.
    """
    ids, known = ids_of(tombstones), ids_of(covered)
    at = np.searchsorted(known, ids)
    there = among(ids, known)
    take = pa.array(np.where(there, at, 0), mask=~there)
    columns: dict[str, Any] = {
        "kind": pa.repeat(pa.scalar(kind.value), len(ids)),
        "id": ids,
        "generation": tombstones.column("generation"),
        "epoch": tombstones.column("epoch"),
        "at_us": tombstones.column("at_us"),
    }
    if kind is RecordKind.LEDGER:
        columns |= {name: covered.column(name).take(take) for name in ("topic_id", "list_id", "component")}
    else:
        columns["topic_id"] = ids
    return t.tombstone, with_types(t.tombstone, pa.table(columns))
