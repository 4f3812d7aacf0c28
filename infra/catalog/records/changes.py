"""What changed since the last flush, read in one transaction: the rows of the records that the outbox names.

A statement reads the rows of one kind, joined with what belongs to them. What it cannot read in one row, as the
participants of a transaction, is read for each batch by one more statement. A batch that cannot be made is halved until
the row that is the cause stands alone.
"""

import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64
from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    true,
)
from sqlalchemy import select as selecting

from infra.catalog import tables as t
from infra.catalog.identity.catalog_row import read_catalog_row
from infra.catalog.records.outbox_rows import SOURCES
from logstore.log.ledgers import Component, CopyKind
from logstore.ports.catalog import Unrecordable
from logstore.records.kinds import FIELDS, TOMBSTONED, RecordKind, schema

_BATCH: Final = 50_000  # rows
_LISTS: Final = 500  # rows, each of which has as many ids as its list has ledgers
_SHOWN: Final = 100  # characters of a value that no block can hold
_NOT_HELD: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
_EXPECTED: Final = {"int64": "a whole number of 64 bits", "string": "text that UTF-8 can hold", "bool": "true or false"}
_O, _S = t.record_outbox.c, t.tombstone.c
_PRIMARY, _TIERED = t.ledger_copy.alias("primary_copy"), t.ledger_copy.alias("tiered_copy")
_OTHERWISE: Final = {"list_version": "version", "ledger_epoch": "epoch"}  # field → column
_PARTS: Final[Mapping[RecordKind, Mapping[str, tuple[Table, tuple[str, ...]]]]] = {
    RecordKind.TRANSACTION: {
        "participants": (t.transaction_participant, ("sequence", "tc_id")),
        "ranges": (t.buffer_range, ("sequence", "tc_id")),
    },
    RecordKind.INDEX: {"buckets": (t.delayed_bucket, ("topic_id",))},
}
"""Fields of aggregates: the rows of another table, as JSON, with all columns but these, which are the record's key."""


class SqlChanges:
    """The `Changes` of one transaction that reads."""

    def __init__(self, connection: Connection, *, cursors: bool, page: int | None, at_us: int) -> None:
        """Read which outbox rows there are; by this statement the transaction's moment is fixed.

        They are kept as a bitmap: there may be many millions of them, most of them in a row.
        """
        self._connection, self._at_us = connection, at_us
        self._chosen = _chosen(cursors=cursors) if page is None else _oldest(connection, page, cursors=cursors)
        versions = selecting(_O.version).where(self._chosen)
        rows = connection.execute(versions, execution_options={"yield_per": _BATCH})
        self._taken = BitMap64()
        self._refused: list[Unrecordable] = []
        for part in rows.scalars().partitions(_BATCH):
            self._taken.update(part)
        kinds = connection.execute(selecting(_O.kind).where(self._chosen).distinct()).scalars()
        self._kinds = sorted(RecordKind(kind) for kind in kinds)
        self._epoch = int(read_catalog_row(connection).epoch)

    @property
    def at_us(self) -> int:
        """See `Changes.at_us`."""
        return self._at_us

    @property
    def taken(self) -> Collection[int]:
        """See `Changes.taken`."""
        return self._taken  # type: ignore[return-value]  # a collection; it may be asked for numbers alone

    @property
    def refused(self) -> Sequence[Unrecordable]:
        """See `Changes.refused`."""
        return self._refused

    def batches(self) -> Iterator[tuple[RecordKind, pa.RecordBatch]]:
        """See `Changes.batches`; of lists a batch is shorter, because each of them names all of its ledgers."""
        for kind in self._kinds:
            size = _LISTS if kind is RecordKind.LIST else _BATCH
            latest = _latest(kind, self._chosen)
            query = _query(kind, latest, self._epoch, self._connection.dialect.name)
            with self._connection.execute(query, execution_options={"yield_per": size}) as result:
                for rows in result.partitions(size):
                    for batch in self._halved(kind, latest, list(result.keys()), rows):
                        yield kind, batch

    def _halved(
        self, kind: RecordKind, latest: FromClause, names: Sequence[str], rows: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        """The rows as one batch; those among which is one that cannot be held, in halves, until it stands alone."""
        try:
            yield self._batch(kind, latest, names, rows)
        except _NOT_HELD as error:
            if len(rows) == 1:
                self._refused.append(_unrecordable(kind, names, rows[0], error))
                self._taken.discard(rows[0].version)
                return
            middle = len(rows) // 2
            yield from self._halved(kind, latest, names, rows[:middle])
            yield from self._halved(kind, latest, names, rows[middle:])

    def _batch(self, kind: RecordKind, latest: FromClause, names: Sequence[str], rows: Sequence[Any]) -> pa.RecordBatch:
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True))
        if kind is RecordKind.LIST:
            columns["ledgers"] = tuple(_bitmap(found) for found in columns["ledgers"])
        for name, (table, keys) in _PARTS.get(kind, {}).items():
            parts = _parts(self._connection, table, keys, latest, first=rows[0].id, last=rows[-1].id)
            columns[name] = tuple(json.dumps(parts[row.id, row.sub]) for row in rows)
        wanted = schema(kind)
        return pa.record_batch([pa.array(columns[one.name], one.type) for one in wanted], schema=wanted)


def _unrecordable(kind: RecordKind, names: Sequence[str], row: Any, error: Exception) -> Unrecordable:  # noqa: ANN401
    """Which field it is: the first one whose value alone cannot be held."""
    values = dict(zip(names, row, strict=True))
    field, expected, found = "", "values that Arrow can hold", ascii(str(error))
    for one in schema(kind):
        try:
            if one.name in values and not pa.types.is_binary(one.type):
                pa.array([values[one.name]], one.type)
        except _NOT_HELD:
            field, expected, found = one.name, _EXPECTED[str(one.type)], ascii(values[one.name])
            break
    sub = row.sub.encode("ascii", "backslashreplace").decode()
    return Unrecordable(kind=kind, id=row.id, sub=sub, field=field, expected=expected, found=found[:_SHOWN])


def _chosen(*, cursors: bool) -> ColumnElement[bool]:
    """Which outbox rows are read.

    Those of cursors may wait, but not in a topic that has let the snapshot of a cursor go: no intent of a snapshot is
    in a block while the cursor that named it is there only as it was before. Nor where a transaction has acknowledged:
    of a commit that is in a block all is there, or half of it would be undone.
    """
    if cursors:
        return true()
    p, filed = t.pending_deletion.c, t.record_outbox.alias("filed")
    intents = t.pending_deletion.join(filed, and_(filed.c.kind == RecordKind.DELETION.value, filed.c.id == p.row_id))
    topics = selecting(p.topic_id).select_from(intents).where(p.component == Component.MANAGED_CURSOR.value)
    hurried = selecting(t.cursor.c.cursor_id).where(t.cursor.c.topic_id.in_(topics))
    return or_(_O.kind != RecordKind.CURSOR.value, _O.id.in_(hurried), _O.id.in_(_acknowledged_in_transactions()))


def _oldest(connection: Connection, page: int, *, cursors: bool) -> ColumnElement[bool]:
    """The `page` oldest outbox rows; unless `cursors`, without those of cursors, which the end of a flush takes."""
    wanted = true() if cursors else _O.kind != RecordKind.CURSOR.value
    first = selecting(_O.version).where(wanted).order_by(_O.version).limit(page).subquery("page")
    last = connection.execute(selecting(func.max(first.c.version))).scalar()
    return and_(wanted, _O.version <= (-1 if last is None else last))


def _acknowledged_in_transactions() -> Select[tuple[int]]:
    """Cursors of the subscriptions that transactions with changes have acknowledged in."""
    p, changed = t.transaction_participant.c, t.record_outbox.alias("changed")
    named = and_(changed.c.kind == RecordKind.TRANSACTION.value, changed.c.id == p.sequence)
    of_cursor = and_(t.cursor.c.topic_id == p.topic_id, t.cursor.c.name == p.subscription)
    joined = t.transaction_participant.join(changed, and_(named, changed.c.sub == cast(p.tc_id, Text)))
    return selecting(t.cursor.c.cursor_id).select_from(joined.join(t.cursor, of_cursor)).where(p.subscription != "")


def _latest(kind: RecordKind, chosen: ColumnElement[bool]) -> FromClause:
    """The newest version of each record of a kind that has changed."""
    newest = (func.max(_O.version).label("version"), func.max(_O.at_us).label("at_us"))
    mine = selecting(_O.id, _O.sub, *newest).where(_O.kind == kind.value, chosen)
    return mine.group_by(_O.id, _O.sub).subquery("latest")


def _query(kind: RecordKind, latest: FromClause, epoch: int, dialect: str) -> Select[Any]:
    """Versions of a kind, by id and sub, with its columns by their names."""
    source, of = SOURCES[kind], latest.c
    row = t.metadata.tables[source.table]
    key, has_generation = row.c[source.id], "generation" in row.c
    generation: ColumnElement[Any] = row.c.generation if has_generation else literal(0)
    at_us: ColumnElement[Any] = of.at_us
    found = latest.outerjoin(row, _same(kind, of, row))
    standing: ColumnElement[bool] = key.is_not(None)
    if kind in TOMBSTONED:
        found = found.outerjoin(t.tombstone, and_(_S.kind == kind.value, _S.id == of.id))
        generation = case((key.is_(None), _S.generation), else_=generation)
        at_us = case((key.is_(None), _S.at_us), else_=at_us)
        standing = or_(standing, _S.id.is_not(None))
    if kind is RecordKind.LEDGER:
        found = _with_copies(found)
    columns = {
        "id": of.id, "sub": of.sub, "epoch": literal(epoch), "version": of.version,
        "generation": generation, "at_us": at_us, "tombstone": key.is_(None),
    } | _fields(kind, row, dialect)  # fmt: skip
    sub = of.sub if dialect == "sqlite" else of.sub.collate("C")
    shown = [column.label(name) for name, column in columns.items()]
    return selecting(*shown).select_from(found).where(standing).order_by(of.id, sub)


def _same(kind: RecordKind, of: Any, row: Any) -> ColumnElement[bool]:  # noqa: ANN401 - columns
    """Whether the row is that of the outbox's record."""
    source = SOURCES[kind]
    mine: ColumnElement[bool] = row.c[source.id] == of.id
    if not source.sub:
        return mine
    column = row.c[source.sub]
    return and_(mine, column == (cast(of.sub, column.type) if source.number else of.sub))


def _with_copies(found: Any) -> Any:  # noqa: ANN401 - a join
    """A ledger's row with those of its list, its topic and its copies."""
    of, ledger = t.ledger_list.c, t.ledger.c
    found = found.outerjoin(t.ledger_list, of.list_id == ledger.list_id)
    found = found.outerjoin(t.topic, t.topic.c.topic_id == of.topic_id)
    for copy, kind in ((_PRIMARY, CopyKind.LEDGER), (_TIERED, CopyKind.OFFLOADED_LEDGER)):
        found = found.outerjoin(copy, and_(copy.c.ledger_id == ledger.ledger_id, copy.c.kind == kind.value))
    return found


def _fields(kind: RecordKind, row: Any, dialect: str) -> dict[str, ColumnElement[Any]]:  # noqa: ANN401 - a table
    """The row's columns of the kind's fields, and those that a ledger and a list have of other rows."""
    more: dict[str, ColumnElement[Any]] = {}
    if kind is RecordKind.LIST:
        more["ledgers"] = _listed(row.c.list_id, dialect)
    elif kind is RecordKind.LEDGER:
        of = t.ledger_list.c
        more |= {"topic_id": of.topic_id, "topic": t.topic.c.name, "component": of.component, "owner": of.owner}
        for name, copy in (("primary", _PRIMARY), ("tiered", _TIERED)):
            more |= {f"{name}_state": copy.c.state, f"{name}_context": _told(copy.c.context)}
    own = [name for name, _ in FIELDS[kind] if name not in more and name not in _PARTS.get(kind, {})]
    return {name: _told(row.c[_OTHERWISE.get(name, name)]) for name in own} | more


def _told(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, Text) if isinstance(column.type, JSON) else column


def _listed(list_id: ColumnElement[int], dialect: str) -> ColumnElement[Any]:
    """Places of the listed ledgers, which are ids: JSON on SQLite, an array on PostgreSQL."""
    place = t.ledger.c.place
    many = func.json_group_array(place) if dialect == "sqlite" else func.array_agg(place)
    return selecting(many).where(t.ledger.c.list_id == list_id, place.is_not(None)).scalar_subquery()


def _bitmap(found: str | Sequence[int] | None) -> bytes:
    ids = json.loads(found) if isinstance(found, str) else found
    return bytes(BitMap64(ids or ()).serialize())


def _parts(
    connection: Connection,
    table: Table,
    keys: tuple[str, ...],
    latest: FromClause,
    *,
    first: int,
    last: int,
) -> Mapping[tuple[int, str], list[dict[str, Any]]]:
    """The table's rows of changed records with ids from `first` to `last`, by id and sub."""
    of, c = latest.c, table.c
    same = [c[keys[0]] == of.id, *(c[key] == cast(of.sub, c[key].type) for key in keys[1:])]
    names = [name for name in c.keys() if name not in keys]  # noqa: SIM118 - a collection of columns
    rows = selecting(of.id.label("record"), of.sub.label("record_sub"), *(c[name] for name in names))
    mine = rows.join_from(table, latest, and_(*same)).where(of.id.between(first, last))
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for record, sub, *values in connection.execute(mine.order_by(*table.primary_key)):
        found[record, sub].append({name: _json(value) for name, value in zip(names, values, strict=True)})
    return found


def _json(value: object) -> object:
    return b64encode(value).decode() if isinstance(value, bytes) else value
