"""Statements by which a replica's rows change: many at once, by their keys, in the transaction of one step.

They write every table: a replica's database refuses the modules of writes, and has no audit log and no versions of its
own to keep.
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

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, TEXT, Statement, among, bulk_parameter, dialect_insert
from infra.catalog.records.version_rows import Ids

_PAGE: Final = 10_000
_OF_LEDGER: Final = (t.ledger_copy, t.segment, t.buffer_hidden, t.ledger)
_OF_TOPIC: Final = (
    t.cursor,
    t.schema_version,
    t.producer_sequence,
    t.delayed_index,
    t.delayed_bucket,
    t.transaction_snapshot,
)
_OF_TRANSACTION: Final = (t.transaction_participant, t.buffer_range)


def put_rows(connection: Connection, table: Table, rows: pa.Table) -> None:
    """Insert rows, or set the columns that they have where a row of their key stands."""
    put = dialect_insert(connection.dialect.name, table)
    keys = [column.name for column in table.primary_key]
    changed = {name: put.excluded[name] for name in rows.column_names if name not in keys}
    put = put.on_conflict_do_update(index_elements=keys, set_=changed)
    for page in _values(table, rows):
        connection.execute(put, page)


def empty(connection: Connection, table: Table) -> None:
    """Remove all rows of a table."""
    connection.execute(delete(table))


def insert_rows(connection: Connection, table: Table, rows: pa.Table) -> None:
    """Let these be the only rows of a table."""
    connection.execute(delete(table))
    for page in _values(table, rows):
        connection.execute(insert(table), page)


def _values(table: Table, rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    documents = [name for name in rows.column_names if isinstance(table.c[name].type, JSON)]
    for batch in rows.to_batches(max_chunksize=_PAGE):
        page = batch.to_pylist()
        for name in documents:
            for row in page:
                row[name] = None if row[name] is None else json.loads(row[name])
        if page:
            yield page


def known_among(connection: Connection, column: Column[Any], ids: Iterable[int]) -> Ids:
    """Which of the ids the column holds, ascending."""
    found: list[int] = []
    for page in _pages(ids):
        found += connection.execute(select(column).where(among(connection, column, page))).scalars()
    return np.unique(np.array(found, np.int64))


def remove(connection: Connection, column: Column[Any], ids: Iterable[int], *also: ColumnElement[bool]) -> int:
    """Remove the rows whose column holds one of the ids, and of which all the others hold; how many."""
    gone = [delete(column.table).where(among(connection, column, page), *also) for page in _pages(ids)]
    return sum(connection.execute(one).rowcount for one in gone)


def remove_ledgers(connection: Connection, ids: Iterable[int]) -> int:
    """Remove ledgers with what is theirs; how many ledgers."""
    gone = list(ids)
    return [remove(connection, table.c.ledger_id, gone) for table in _OF_LEDGER][-1]


def remove_children(connection: Connection, topic_ids: Iterable[int]) -> None:
    """Remove what topics had that are gone. Their ledgers are records of their own, and stay unlisted."""
    gone = list(topic_ids)
    column = t.ledger_list.c.topic_id
    for page in _pages(gone):
        lists = select(t.ledger_list.c.list_id).where(among(connection, column, page))
        remove_lists(connection, connection.execute(lists).scalars().all())
    for table in _OF_TOPIC:
        remove(connection, table.c.topic_id, gone)


def remove_lists(connection: Connection, ids: Iterable[int]) -> None:
    """Remove lists; ledgers that were on them are so no longer."""
    gone = list(ids)
    for page in _pages(gone):
        listed = update(t.ledger).where(among(connection, t.ledger.c.list_id, page))
        connection.execute(listed.values(place=None))
    remove(connection, t.ledger_list.c.list_id, gone)


def forget_parts(connection: Connection, transactions: pa.Table) -> None:
    """Remove what transactions with these columns `tc_id` and `sequence` have of participants and ranges."""
    keys = [{"tc": row["tc_id"], "seq": row["sequence"]} for row in transactions.to_pylist()]
    for table in _OF_TRANSACTION if keys else ():
        mine = and_(table.c.tc_id == bindparam("tc"), table.c.sequence == bindparam("seq"))
        connection.execute(delete(table).where(mine), keys)


def displaced(connection: Connection, table: Table, unique: tuple[str, ...], rows: pa.Table) -> list[int]:
    """Ids of rows that stand under the unique columns of one of the rows, and have another id than that one.

    They are older: when the newer one was written they had gone, by a plain delete.
    """
    (key,) = table.primary_key
    numbers = {name: BIG if pa.types.is_integer(rows.schema.field(name).type) else TEXT for name in unique}
    asked = bulk_parameter(connection.dialect.name, "asked", {"id": BIG, **numbers})
    c = asked.source.c
    same = [table.c[name] == c[name] for name in unique]
    found = Statement(select(key).where(exists().where(*same, c.id != key)), asked)
    told = zip(*(rows.column(name).to_pylist() for name in (key.name, *unique)), strict=True)
    return list(found.execute(connection, told).scalars())


def ledgers_as_covered(connection: Connection, ids: Iterable[int]) -> pa.Table:
    """Columns of ledgers for their tombstones, ascending by id."""
    of, ledger = t.ledger_list.c, t.ledger.c
    rows: list[Any] = []
    for page in _pages(ids):
        query = select(ledger.ledger_id, of.topic_id, ledger.list_id, of.component).join(
            t.ledger_list, of.list_id == ledger.list_id
        )
        rows += connection.execute(query.where(among(connection, ledger.ledger_id, page))).all()
    columns = list(zip(*sorted(tuple(row) for row in rows), strict=True)) or [(), (), (), ()]
    kinds = (pa.int64(), pa.int64(), pa.int64(), pa.string())
    names = ("id", "topic_id", "list_id", "component")
    return pa.table({name: pa.array(one, kind) for name, one, kind in zip(names, columns, kinds, strict=True)})


def sum_ledgers(connection: Connection, ids: Iterable[int]) -> None:
    """Make the sums of ledgers over their segments again."""
    s, ledger = t.segment.c, t.ledger.c

    def of_segments(what: Any) -> Any:  # noqa: ANN401 - a column
        return select(what).where(s.ledger_id == ledger.ledger_id).scalar_subquery()

    sums = {
        "entries": of_segments(func.coalesce(func.sum(s.entries), 0)),
        "size_bytes": of_segments(func.coalesce(func.sum(s.size_bytes), 0)),
        "segments": of_segments(func.count()),
    }
    last = of_segments(func.max(s.number))
    for page in _pages(ids):
        mine = update(t.ledger).where(among(connection, ledger.ledger_id, page))
        connection.execute(mine.values(sums))
        connection.execute(mine.where(ledger.last_segment < last).values(last_segment=last))


def unlist(connection: Connection, lists: Iterable[int], named: Ids, ledgers: Iterable[int]) -> None:
    """Take ledgers off lists that do not name them any more, and those of the ledgers whose list is not there."""
    ledger = t.ledger.c
    gone: list[int] = []
    for page in _pages(lists):
        listed = select(ledger.ledger_id).where(among(connection, ledger.list_id, page), ledger.place.is_not(None))
        ids = np.array(connection.execute(listed).scalars().all(), np.int64)
        gone += np.setdiff1d(ids, named).tolist()
    for page in _pages(gone):
        connection.execute(update(t.ledger).where(among(connection, ledger.ledger_id, page)).values(place=None))
    for page in _pages(ledgers):
        lost = ~exists().where(t.ledger_list.c.list_id == ledger.list_id)
        these = update(t.ledger).where(among(connection, ledger.ledger_id, page), lost)
        connection.execute(these.values(place=None))


def _pages(ids: Iterable[int]) -> Iterator[list[int]]:
    all_ids = [int(one) for one in ids]
    for start in range(0, len(all_ids), _PAGE):
        yield all_ids[start : start + _PAGE]
