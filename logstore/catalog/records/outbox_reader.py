"""Changes since the last flush, read in one transaction as record versions.

One statement reads the rows of one kind. A second statement reads rows of another table if a record consists of several
rows. If rows cannot be converted to Arrow, each half of the rows is converted separately, until only rows with a bad
value are left out.
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
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
)

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.records.recorded_tables import RECORDED_TABLES, PartTable
from logstore.log.ledgers import Component, CopyKind
from logstore.ports.catalog.records import UnrecordableRecord
from logstore.records.record_kinds import COLUMNS_BY_KIND, TOMBSTONED_KINDS, RecordKind, block_schema

_ROWS_PER_BATCH: Final = 50_000
_LISTS_PER_BATCH: Final = 500  # each row has all ledger ids of a list
_MAX_VALUE_CHARACTERS: Final = 100  # longest text of an unrecordable value in a message
_CONVERSION_ERRORS: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
_EXPECTED_BY_TYPE: Final = {
    "int64": "a whole number of 64 bits",
    "string": "text that UTF-8 can hold",
    "bool": "true or false",
}
_O, _S = t.record_outbox.c, t.tombstone.c
_PRIMARY, _TIERED = t.ledger_copy.alias("primary_copy"), t.ledger_copy.alias("tiered_copy")


class OutboxChanges:
    """Changes in the outbox at one moment of the catalog."""

    def __init__(self, connection: Connection, *, cursors: bool, page: int | None, at_us: int) -> None:
        """Read the `version` of each outbox row to flush. The first statement takes the transaction's snapshot."""
        self._connection, self._at_us = connection, at_us
        self._condition = (
            _match_changes_to_flush(cursors=cursors)
            if page is None
            else _match_oldest_changes(connection, page, cursors)
        )
        versions = select(_O.version).where(self._condition)
        rows = connection.execute(versions, execution_options={"yield_per": _ROWS_PER_BATCH})
        self._versions = BitMap64()
        self._refused: list[UnrecordableRecord] = []
        for part in rows.scalars().partitions(_ROWS_PER_BATCH):
            self._versions.update(part)
        kinds = connection.execute(select(_O.kind).where(self._condition).distinct()).scalars()
        self._kinds = sorted(RecordKind(kind) for kind in kinds)
        self._epoch = int(read_catalog_row(connection).epoch)

    @property
    def at_us(self) -> int:
        return self._at_us

    @property
    def outbox_rows(self) -> Collection[int]:
        """Ids of the outbox rows that `iterate_version_batches` has processed so far."""
        return self._versions  # type: ignore[return-value]  # its `in` accepts only numbers

    @property
    def unrecordable(self) -> Sequence[UnrecordableRecord]:
        """Records that `iterate_version_batches` left out so far. Their newest outbox rows are not in `outbox_rows`."""
        return self._refused

    def iterate_version_batches(self) -> Iterator[tuple[RecordKind, pa.RecordBatch]]:
        """Yield record versions in the schema of their kind, grouped by kind. Within a kind, `id` and `sub` ascend.

        The column `version` has the id of the record's newest outbox row. The flush replaces this id by the manifest
        number. Removed records without a tombstone are left out.
        """
        for kind in self._kinds:
            size = _LISTS_PER_BATCH if kind is RecordKind.LIST else _ROWS_PER_BATCH
            newest = (func.max(_O.version).label("version"), func.max(_O.at_us).label("at_us"))
            mine = select(_O.id, _O.sub, *newest).where(_O.kind == kind.value, self._condition)
            latest = mine.group_by(_O.id, _O.sub).subquery("latest")
            query = _select_record_versions(kind, latest, self._epoch, self._connection.dialect.name)
            with self._connection.execute(query, execution_options={"yield_per": size}) as result:
                for rows in result.partitions(size):
                    for batch in self._iterate_convertible_batches(kind, latest, list(result.keys()), rows):
                        yield kind, batch

    def _iterate_convertible_batches(
        self, kind: RecordKind, latest: FromClause, names: Sequence[str], rows: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as one batch. If this fails, yield smaller batches without the rows that no block can hold."""
        try:
            yield self._build_batch(kind, latest, names, rows)
        except _CONVERSION_ERRORS as error:
            if len(rows) == 1:
                self._refused.append(_describe_unrecordable_row(kind, names, rows[0], error))
                self._versions.discard(rows[0].version)
                return
            middle = len(rows) // 2
            yield from self._iterate_convertible_batches(kind, latest, names, rows[:middle])
            yield from self._iterate_convertible_batches(kind, latest, names, rows[middle:])

    def _build_batch(
        self, kind: RecordKind, latest: FromClause, names: Sequence[str], rows: Sequence[Any]
    ) -> pa.RecordBatch:
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True))
        if kind is RecordKind.LIST:
            columns["ledgers"] = tuple(_pack_ids(ids) for ids in columns["ledgers"])
        for part in RECORDED_TABLES[kind].parts:
            if part.json_field:
                parts = _read_part_rows(self._connection, part, latest, first=rows[0].id, last=rows[-1].id)
                columns[part.json_field] = tuple(json.dumps(parts[row.id, row.sub]) for row in rows)
        arrays = [pa.array(columns[field.name], field.type) for field in block_schema(kind)]
        return pa.record_batch(arrays, schema=block_schema(kind))


def _describe_unrecordable_row(
    kind: RecordKind,
    names: Sequence[str],
    row: Any,  # noqa: ANN401
    error: Exception,
) -> UnrecordableRecord:
    """Describe a row that no block can hold, with the first field that cannot be converted, if there is one."""
    values = dict(zip(names, row, strict=True))
    name, expected, found_value = "", "values that Arrow can hold", ascii(str(error))
    for field in block_schema(kind):
        try:
            if field.name in values and not pa.types.is_binary(field.type):
                pa.array([values[field.name]], field.type)
        except _CONVERSION_ERRORS:
            name, expected, found_value = field.name, _EXPECTED_BY_TYPE[str(field.type)], ascii(values[field.name])
            break
    sub = row.sub.encode("ascii", "backslashreplace").decode()
    return UnrecordableRecord(
        kind=kind, id=row.id, sub=sub, field=name, expected=expected, found=found_value[:_MAX_VALUE_CHARACTERS]
    )


def _match_changes_to_flush(*, cursors: bool) -> ColumnElement[bool]:
    """Select all outbox rows. Without `cursors`, leave out changes of cursors that can wait for a later flush.

    A change of a cursor cannot wait in two cases:

    1. A cursor snapshot of the topic has an intent in the outbox. The flush that writes the intent must also write that
       the cursor no longer names the snapshot.
    2. A transaction with acknowledgements of the subscription has changed. If the cursor's change waited, a rebuild
       would undo half of a commit.
    """
    if cursors:
        return true()
    p, filed = t.pending_deletion.c, t.record_outbox.alias("filed")
    intents = t.pending_deletion.join(filed, and_(filed.c.kind == RecordKind.DELETION.value, filed.c.id == p.row_id))
    topic_ids = select(p.topic_id).select_from(intents).where(p.component == Component.MANAGED_CURSOR.value)
    cursor_ids = select(t.cursor.c.cursor_id).where(t.cursor.c.topic_id.in_(topic_ids))
    return or_(
        _O.kind != RecordKind.CURSOR.value, _O.id.in_(cursor_ids), _O.id.in_(_select_cursors_of_changed_transactions())
    )


def _match_oldest_changes(connection: Connection, page: int, cursors: bool) -> ColumnElement[bool]:
    """Select the `page` oldest outbox rows. Without `cursors`, leave out changes of cursors."""
    is_selected = true() if cursors else _O.kind != RecordKind.CURSOR.value
    first_rows = select(_O.version).where(is_selected).order_by(_O.version).limit(page).subquery("page")
    last = connection.execute(select(func.max(first_rows.c.version))).scalar()
    return and_(is_selected, _O.version <= (-1 if last is None else last))


def _select_cursors_of_changed_transactions() -> Select[tuple[int]]:
    p, changed = t.transaction_participant.c, t.record_outbox.alias("changed")
    same_sequence = and_(changed.c.kind == RecordKind.TRANSACTION.value, changed.c.id == p.sequence)
    same_cursor = and_(t.cursor.c.topic_id == p.topic_id, t.cursor.c.name == p.subscription)
    joined = t.transaction_participant.join(changed, and_(same_sequence, changed.c.sub == cast(p.tc_id, Text)))
    return select(t.cursor.c.cursor_id).select_from(joined.join(t.cursor, same_cursor)).where(p.subscription != "")


def _select_record_versions(kind: RecordKind, latest: FromClause, epoch: int, dialect: str) -> Select[Any]:
    """Select the record version of each changed record, ascending by key, with the columns of the kind."""
    recorded, changed = RECORDED_TABLES[kind], latest.c
    row = recorded.table
    key: ColumnElement[Any] = row.c[recorded.id]
    generation: ColumnElement[Any] = row.c.generation if "generation" in row.c else literal(0)
    at_us: ColumnElement[Any] = changed.at_us
    joined = latest.outerjoin(row, recorded.match_key(changed.id, changed.sub))
    exists_now: ColumnElement[bool] = key.is_not(None)
    if kind in TOMBSTONED_KINDS:
        joined = joined.outerjoin(t.tombstone, and_(_S.kind == kind.value, _S.id == changed.id))
        generation = case((key.is_(None), _S.generation), else_=generation)
        at_us = case((key.is_(None), _S.at_us), else_=at_us)
        exists_now = or_(exists_now, _S.id.is_not(None))
    if kind is RecordKind.LEDGER:
        joined = _join_ledger_parts(joined)
    columns = {
        "id": changed.id, "sub": changed.sub, "epoch": literal(epoch), "version": changed.version,
        "generation": generation, "at_us": at_us, "tombstone": key.is_(None),
    } | _build_field_columns(kind, dialect)  # fmt: skip
    sub = changed.sub if dialect == "sqlite" else changed.sub.collate("C")
    labelled = [column.label(name) for name, column in columns.items()]
    return select(*labelled).select_from(joined).where(exists_now).order_by(changed.id, sub)


def _join_ledger_parts(ledgers: Any) -> Any:  # noqa: ANN401 - a join
    ledger_list, ledger = t.ledger_list.c, t.ledger.c
    joined = ledgers.outerjoin(t.ledger_list, ledger_list.list_id == ledger.list_id)
    joined = joined.outerjoin(t.topic, t.topic.c.topic_id == ledger_list.topic_id)
    for copy, kind in ((_PRIMARY, CopyKind.LEDGER), (_TIERED, CopyKind.OFFLOADED_LEDGER)):
        joined = joined.outerjoin(copy, and_(copy.c.ledger_id == ledger.ledger_id, copy.c.kind == kind.value))
    return joined


def _build_field_columns(kind: RecordKind, dialect: str) -> dict[str, ColumnElement[Any]]:
    joined: dict[str, ColumnElement[Any]] = {}
    if kind is RecordKind.LIST:
        joined["ledgers"] = _select_listed(t.ledger_list.c.list_id, dialect)
    elif kind is RecordKind.LEDGER:
        ledger_list = t.ledger_list.c
        joined = {"topic_id": ledger_list.topic_id, "topic": t.topic.c.name}
        joined |= {"component": ledger_list.component, "owner": ledger_list.owner}
        for name, copy in (("primary", _PRIMARY), ("tiered", _TIERED)):
            joined |= {f"{name}_state": copy.c.state, f"{name}_context": _json_as_text(copy.c.context)}
    recorded, fields = RECORDED_TABLES[kind], {name for name, _ in COLUMNS_BY_KIND[kind]}
    own = {name: recorded.table.c[column] for column, name in recorded.field_by_column.items() if name in fields}
    return {name: _json_as_text(column) for name, column in own.items()} | joined


def _json_as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, Text) if isinstance(column.type, JSON) else column


def _select_listed(list_id: ColumnElement[int], dialect: str) -> ColumnElement[Any]:
    place = t.ledger.c.place
    places = func.json_group_array(place) if dialect == "sqlite" else func.array_agg(place)
    return select(places).where(t.ledger.c.list_id == list_id, place.is_not(None)).scalar_subquery()


def _pack_ids(ids: str | Sequence[int] | None) -> bytes:
    parsed = json.loads(ids) if isinstance(ids, str) else ids
    return bytes(BitMap64(parsed or ()).serialize())


def _read_part_rows(
    connection: Connection, part: PartTable, latest: FromClause, *, first: int, last: int
) -> Mapping[tuple[int, str], list[dict[str, Any]]]:
    table, changed, c = part.table, latest.c, part.table.c
    same_key = [c[part.keys[0]] == changed.id, *(c[key] == cast(changed.sub, c[key].type) for key in part.keys[1:])]
    names = [name for name in c.keys() if name not in part.keys]  # noqa: SIM118 - a collection of columns
    columns = (changed.id.label("record"), changed.sub.label("record_sub"), *(c[name] for name in names))
    rows = select(*columns).join_from(table, latest, and_(*same_key)).where(changed.id.between(first, last))
    parts: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for record_id, sub, *values in connection.execute(rows.order_by(*table.primary_key)):
        json_values = [b64encode(value).decode() if isinstance(value, bytes) else value for value in values]
        parts[record_id, sub].append(dict(zip(names, json_values, strict=True)))
    return parts
