"""Bulk changes of rows in a replica database, in the transaction that applies record versions.

This module may write to the tables of other modules, because a replica database refuses the writes of those modules.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_dialect_insert,
    is_one_of,
)
from logstore.catalog.records.rows_from_versions import Ids

_ROWS_PER_STATEMENT: Final = 10_000
_TABLES_OF_LEDGER: Final = (t.ledger_copy, t.segment, t.buffer_hidden, t.ledger)
_TABLES_OF_TOPIC: Final = (
    t.cursor,
    t.schema_version,
    t.producer_sequence,
    t.delayed_index,
    t.delayed_bucket,
    t.transaction_snapshot,
)
_TABLES_OF_TRANSACTION: Final = (t.transaction_participant, t.buffer_range)


def upsert_rows(connection: Connection, table: Table, rows: pa.Table) -> None:
    insertion = build_dialect_insert(connection.dialect.name, table)
    keys = [column.name for column in table.primary_key]
    changes = {name: insertion.excluded[name] for name in rows.column_names if name not in keys}
    insertion = insertion.on_conflict_do_update(index_elements=keys, set_=changes)
    for page in _split_rows_into_pages(table, rows):
        connection.execute(insertion, page)


def delete_all_rows(connection: Connection, table: Table) -> None:
    connection.execute(delete(table))


def replace_all_rows(connection: Connection, table: Table, rows: pa.Table) -> None:
    connection.execute(delete(table))
    for page in _split_rows_into_pages(table, rows):
        connection.execute(insert(table), page)


def _split_rows_into_pages(table: Table, rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    json_columns = [name for name in rows.column_names if isinstance(table.c[name].type, JSON)]
    for batch in rows.to_batches(max_chunksize=_ROWS_PER_STATEMENT):
        page = batch.to_pylist()
        for name in json_columns:
            for row in page:
                row[name] = None if row[name] is None else json.loads(row[name])
        if page:
            yield page


def find_existing_ids(connection: Connection, column: Column[Any], ids: Iterable[int]) -> Ids:
    existing: list[int] = []
    for page in _split_ids_into_pages(ids):
        existing += connection.execute(select(column).where(is_one_of(connection, column, page))).scalars()
    return np.unique(np.array(existing, np.int64))


def delete_rows(
    connection: Connection, column: Column[Any], ids: Iterable[int], *conditions: ColumnElement[bool]
) -> int:
    statements = [
        delete(column.table).where(is_one_of(connection, column, page), *conditions)
        for page in _split_ids_into_pages(ids)
    ]
    return sum(connection.execute(statement).rowcount for statement in statements)


def delete_ledgers(connection: Connection, ids: Iterable[int]) -> int:
    ledger_ids = list(ids)
    return [delete_rows(connection, table.c.ledger_id, ledger_ids) for table in _TABLES_OF_LEDGER][-1]


def delete_rows_of_topics_except_ledgers(connection: Connection, topic_ids: Iterable[int]) -> None:
    """Delete the rows of deleted topics. Ledgers stay, without a place, until their own records are removed."""
    ids = list(topic_ids)
    for page in _split_ids_into_pages(ids):
        lists = select(t.ledger_list.c.list_id).where(is_one_of(connection, t.ledger_list.c.topic_id, page))
        delete_lists_and_unlist_ledgers(connection, connection.execute(lists).scalars().all())
    for table in _TABLES_OF_TOPIC:
        delete_rows(connection, table.c.topic_id, ids)


def delete_lists_and_unlist_ledgers(connection: Connection, ids: Iterable[int]) -> None:
    list_ids = list(ids)
    for page in _split_ids_into_pages(list_ids):
        listed = update(t.ledger).where(is_one_of(connection, t.ledger.c.list_id, page))
        connection.execute(listed.values(place=None))
    delete_rows(connection, t.ledger_list.c.list_id, list_ids)


def delete_transaction_parts(connection: Connection, transactions: pa.Table) -> None:
    """Delete the participants and ranges of transactions. `transactions` has the columns `tc_id` and `sequence`."""
    keys = [{"tc": row["tc_id"], "seq": row["sequence"]} for row in transactions.to_pylist()]
    for table in _TABLES_OF_TRANSACTION if keys else ():
        mine = and_(table.c.tc_id == bindparam("tc"), table.c.sequence == bindparam("seq"))
        connection.execute(delete(table).where(mine), keys)


def find_displaced_ids(
    connection: Connection, table: Table, unique_columns: tuple[str, ...], rows: pa.Table
) -> list[int]:
    """Return the ids of existing rows that have the same values in the unique columns as a new row, but another id.

    The record of such a row was deleted without a tombstone before the newer record was created.
    """
    (key,) = table.primary_key
    types = {name: BIG if pa.types.is_integer(rows.schema.field(name).type) else TEXT for name in unique_columns}
    newer = build_bulk_parameter(connection.dialect.name, "newer", {"id": BIG, **types})
    c = newer.source.c
    same_columns = [table.c[name] == c[name] for name in unique_columns]
    displaced = BulkStatement(select(key).where(exists().where(*same_columns, c.id != key)), newer)
    values = zip(*(rows.column(name).to_pylist() for name in (key.name, *unique_columns)), strict=True)
    return list(displaced.execute(connection, values).scalars())


def read_ledger_columns_for_tombstones(connection: Connection, ids: Iterable[int]) -> pa.Table:
    """Return the columns of ledgers that are also columns of tombstones, ascending by id."""
    ledger_list, ledger = t.ledger_list.c, t.ledger.c
    query = select(ledger.ledger_id, ledger_list.topic_id, ledger.list_id, ledger_list.component).join(
        t.ledger_list, ledger_list.list_id == ledger.list_id
    )
    rows: list[Any] = []
    for page in _split_ids_into_pages(ids):
        rows += connection.execute(query.where(is_one_of(connection, ledger.ledger_id, page))).all()
    columns = list(zip(*sorted(tuple(row) for row in rows), strict=True)) or [(), (), (), ()]
    types = {"id": pa.int64(), "topic_id": pa.int64(), "list_id": pa.int64(), "component": pa.string()}
    return pa.table(
        {name: pa.array(values, type_) for (name, type_), values in zip(types.items(), columns, strict=True)}
    )


def recompute_ledger_totals(connection: Connection, ids: Iterable[int]) -> None:
    s, ledger = t.segment.c, t.ledger.c

    def from_segments(aggregate: Any) -> Any:  # noqa: ANN401 - a column
        return select(aggregate).where(s.ledger_id == ledger.ledger_id).scalar_subquery()

    totals = {
        "entries": from_segments(func.coalesce(func.sum(s.entries), 0)),
        "size_bytes": from_segments(func.coalesce(func.sum(s.size_bytes), 0)),
        "segments": from_segments(func.count()),
    }
    last_segment = from_segments(func.max(s.number))
    for page in _split_ids_into_pages(ids):
        mine = update(t.ledger).where(is_one_of(connection, ledger.ledger_id, page))
        connection.execute(mine.values(totals))
        connection.execute(mine.where(ledger.last_segment < last_segment).values(last_segment=last_segment))


def unlist_ledgers(connection: Connection, list_ids: Iterable[int], named_ids: Ids, changed_ids: Iterable[int]) -> None:
    """Remove the places of ledgers that their lists no longer name, and of changed ledgers without a list.

    `list_ids` are the changed lists. `named_ids` are all ledgers that these lists name.
    """
    ledger = t.ledger.c
    unnamed_ids: list[int] = []
    for page in _split_ids_into_pages(list_ids):
        listed = select(ledger.ledger_id).where(is_one_of(connection, ledger.list_id, page), ledger.place.is_not(None))
        listed_ids = np.array(connection.execute(listed).scalars().all(), np.int64)
        unnamed_ids += np.setdiff1d(listed_ids, named_ids).tolist()
    has_no_list = ~exists().where(t.ledger_list.c.list_id == ledger.list_id)
    for ids, conditions in ((unnamed_ids, ()), (changed_ids, (has_no_list,))):
        for page in _split_ids_into_pages(ids):
            selected = update(t.ledger).where(is_one_of(connection, ledger.ledger_id, page), *conditions)
            connection.execute(selected.values(place=None))


def _split_ids_into_pages(ids: Iterable[int]) -> Iterator[list[int]]:
    plain_ids = [int(number) for number in ids]  # a statement does not accept integers of numpy as parameters
    for start in range(0, len(plain_ids), _ROWS_PER_STATEMENT):
        yield plain_ids[start : start + _ROWS_PER_STATEMENT]
