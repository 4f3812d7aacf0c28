"""Sole writer of the table `tombstone`. Only a raid removes a tombstone."""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql import Executable

from logstore.catalog import tables as t
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    build_bulk_parameter,
    build_dialect_insert,
    dataclass_from_row,
    is_one_of,
)
from logstore.catalog.records.recorded_tables import match_unflushed_records
from logstore.deletion.intents import DeletionState
from logstore.ports.catalog.records import Tombstone, TombstoneCounts, TombstonedRecordId
from logstore.records.record_kinds import RecordKind

_T, _P = t.tombstone.c, t.pending_deletion.c
_LEDGER, _TOPIC = RecordKind.LEDGER.value, RecordKind.TOPIC.value
_COLUMNS = ("kind", "id", "topic_id", "list_id", "component", "generation", "epoch", "at_us")


def insert_ledger_tombstones(connection: Connection, condition: ColumnElement[bool], *, now_us: int) -> None:
    """Insert a tombstone for each row of `ledger` that satisfies `condition`.

    The caller holds the locks of the lists, and removes the ledgers afterwards in the same transaction. The time of an
    existing tombstone never decreases.
    """
    ledger, ledger_list = t.ledger.c, t.ledger_list.c
    columns = (literal(_LEDGER), ledger.ledger_id, ledger_list.topic_id, ledger.list_id, ledger_list.component)
    rows = select(*columns, ledger.generation + 1, t.catalog.c.epoch, literal(now_us)).select_from(t.ledger)
    joined = rows.join(t.ledger_list, ledger_list.list_id == ledger.list_id).join(t.catalog, literal(True))
    _upsert_tombstones(connection, joined.where(condition))


def insert_topic_tombstone(connection: Connection, topic_id: int, *, now_us: int) -> None:
    """Insert the tombstone of a topic. The caller removes the topic's row afterwards, in the same transaction."""
    none = (literal(None, t.tombstone.c.list_id.type), literal(None, t.tombstone.c.component.type))
    row = select(literal(_TOPIC), literal(topic_id), literal(topic_id), *none, literal(1), t.catalog.c.epoch)
    _upsert_tombstones(connection, row.add_columns(literal(now_us)).where(literal(True)))


def _upsert_tombstones(connection: Connection, rows: Select[Any]) -> None:
    """Insert tombstones. The generation of an existing tombstone rises, and its raid mark is removed."""
    insertion = build_dialect_insert(connection.dialect.name, t.tombstone).from_select(_COLUMNS, rows)
    new = insertion.excluded
    changes = {
        "generation": case((_T.generation >= new.generation, _T.generation + 1), else_=new.generation),
        "epoch": new.epoch,
        "at_us": case((_T.at_us > new.at_us, _T.at_us), else_=new.at_us),
        "raid": None,
    }
    connection.execute(insertion.on_conflict_do_update(index_elements=["kind", "id"], set_=changes))


def find_tombstone(connection: Connection, ledger_id: int) -> Tombstone | None:
    row = connection.execute(select(t.tombstone).where(_T.kind == _LEDGER, _T.id == ledger_id)).first()
    return None if row is None else dataclass_from_row(Tombstone, row, kind=RecordKind(row.kind))


class Tombstones(CatalogAdapter):
    def count_tombstones(self) -> TombstoneCounts:
        query = select(_T.kind, func.count(), func.count(_T.raid), func.min(_T.at_us)).group_by(_T.kind)
        rows = self._db.read(lambda connection: connection.execute(query.order_by(_T.kind)).all())
        return TombstoneCounts(
            by_kind={kind: count for kind, count, _, _ in rows},
            candidates=sum(candidates for _, _, candidates, _ in rows),
            oldest_us=min((oldest_us for *_, oldest_us in rows), default=None),
        )

    def list_topic_tombstones(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """Return a page of the tombstones of a topic's ledgers, ascending by id.

        Without `component`, tombstones of all components are returned. `after` is a ledger id, exclusive.
        """
        conditions = [_T.topic_id == topic_id, _T.kind == _LEDGER, _T.id > after]
        if component is not None:
            conditions.append(_T.component == component)
        page = select(t.tombstone).where(*conditions).order_by(_T.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(page).all())
        return [dataclass_from_row(Tombstone, row, kind=RecordKind(row.kind)) for row in rows]

    def mark_raid_candidates(
        self, run_id: str, *, before_us: int, after: TombstonedRecordId | None, limit: int
    ) -> tuple[int, TombstonedRecordId | None]:
        """In one page, mark tombstones last updated before `before_us` as candidates of the raid (cenotaphs).

        Tombstones that are in no block, or have an unfinished or dead-lettered deletion, are not marked. Marks of other
        raids in the page are removed. `after` is the last record of the previous page, by kind and id. Writers may have
        to wait while a page is marked.

        Returns:
            The number of marked tombstones, and the last record of the page, or `None` if the page is empty.
        """
        page = self._read_page(before_us, limit, *_match_records_after(after))
        ids_by_kind = _group_ids(row for row in page if row.removable or row.raid is not None)
        has_marks = any(row.raid is not None for row in page)

        def mark_page(connection: Connection) -> int:
            statements, marked = _compile_raid_statements(connection.dialect.name), 0
            for kind, ids in ids_by_kind.items():
                values = {"of_kind": kind, "before_us": before_us, "run": run_id}
                if has_marks:
                    statements.unmark.execute(connection, ids, **values)
                marked += statements.mark.execute(connection, ids, **values).rowcount
            return marked

        last = TombstonedRecordId(kind=RecordKind(page[-1].kind), id=page[-1].id) if page else None
        return self._db.write(mark_page) if ids_by_kind else 0, last

    def list_raid_candidates(
        self, run_id: str, *, after: TombstonedRecordId | None, limit: int
    ) -> Sequence[TombstonedRecordId]:
        """Return a page of the raid's candidates, ascending by kind and id."""
        query = (
            select(_T.kind, _T.id)
            .where(_T.raid == run_id, *_match_records_after(after))
            .order_by(_T.kind, _T.id)
            .limit(limit)
        )
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return [TombstonedRecordId(kind=RecordKind(row.kind), id=row.id) for row in rows]

    @in_write_transaction()
    def unmark_raid_candidates(self, connection: Connection, run_id: str, kept: Collection[TombstonedRecordId]) -> None:
        for kind in {record.kind for record in kept}:
            same_id = is_one_of(connection, _T.id, [record.id for record in kept if record.kind is kind])
            mine = update(t.tombstone).where(_T.raid == run_id, _T.kind == kind.value, same_id)
            connection.execute(mine.values(raid=None))

    def remove_raid_candidates(self, run_id: str, *, before_us: int, limit: int) -> int:
        """Remove up to `limit` candidates that have not changed since `mark_raid_candidates`. Return their number.

        The rows are locked before they are removed. So two raids at the same time count each row only once.
        """
        ids_by_kind = _group_ids(self._read_page(before_us, limit, _T.raid == run_id))

        def remove_page(connection: Connection) -> int:
            statements, removed = _compile_raid_statements(connection.dialect.name), 0
            for kind, ids in ids_by_kind.items():
                values = {"of_kind": kind, "before_us": before_us, "run": run_id}
                statements.lock.execute(connection, ids, **values)
                removed += statements.remove.execute(connection, ids, **values).rowcount
                statements.unmark_rest.execute(connection, ids, **values)
            return removed

        return self._db.write(remove_page) if ids_by_kind else 0

    def _read_page(self, before_us: int, limit: int, *conditions: ColumnElement[bool]) -> Sequence[Row[Any]]:
        """Return tombstones, ascending by kind and id. The column `removable` says whether a raid may remove it."""
        removable = _match_removable_tombstones(literal(before_us)).label("removable")
        rows = select(_T.kind, _T.id, _T.raid, removable).where(*conditions).order_by(_T.kind, _T.id).limit(limit)
        return self._db.read(lambda connection: connection.execute(rows).all())


class _RaidStatements(NamedTuple):
    mark: BulkStatement
    unmark: BulkStatement  # removes marks of any raid from tombstones that must stay
    lock: BulkStatement  # locks the raid's candidates, before `remove` checks the candidates again
    remove: BulkStatement
    unmark_rest: BulkStatement  # removes the marks of candidates that `remove` did not remove


@cache
def _compile_raid_statements(dialect: str) -> _RaidStatements:
    """Compile once, because compilation takes longer than execution. Other writers of SQLite wait meanwhile."""
    page = build_bulk_parameter(dialect, "page", {"id": BIG})
    in_page = and_(_T.kind == bindparam("of_kind"), _T.id.in_(select(page.source.c.id)))
    mine, removable = (
        and_(in_page, _T.raid == bindparam("run")),
        _match_removable_tombstones(bindparam("before_us", type_=BIG)),
    )
    tombstones, unmarked = update(t.tombstone), {"raid": None}
    statements: tuple[Executable, ...] = (
        tombstones.where(in_page, removable).values(raid=bindparam("run")),
        tombstones.where(in_page, _T.raid.is_not(None), not_(removable)).values(unmarked),
        select(_T.id).where(mine).order_by(_T.id).with_for_update(),
        delete(t.tombstone).where(mine, removable),
        tombstones.where(mine).values(unmarked),
    )
    return _RaidStatements(*(BulkStatement(sql=statement, rows=page) for statement in statements))


def _group_ids(rows: Iterable[Row[Any]]) -> dict[str, list[tuple[int]]]:
    return {kind: [(row.id,) for row in of_kind] for kind, of_kind in groupby(rows, attrgetter("kind"))}


def _match_records_after(record: TombstonedRecordId | None) -> list[ColumnElement[bool]]:
    return [] if record is None else [tuple_(_T.kind, _T.id) > tuple_(literal(record.kind.value), literal(record.id))]


def _match_removable_tombstones(before_us: ColumnElement[int]) -> ColumnElement[bool]:
    """Select tombstones that are old enough, have no change in the outbox, and have no unfinished deletion."""
    finished = DeletionState.DELETED.value
    has_intent = exists().where(_P.ledger_id == _T.id, _P.state != finished)
    # Two comparisons instead of `!=`, because `!=` does not use the index on `state`.
    has_topic_intent = [
        exists().where(_P.topic_id == _T.id, unfinished) for unfinished in (_P.state < finished, _P.state > finished)
    ]
    ledger = and_(_T.kind == _LEDGER, or_(has_intent, match_unflushed_records(_LEDGER, _T.id)))
    topic = and_(_T.kind == _TOPIC, or_(*has_topic_intent, match_unflushed_records(_TOPIC, _T.id)))
    return and_(_T.at_us < before_us, not_(or_(ledger, topic)))
