"""Rows of tombstones: nothing else writes them.

They are inserted in the transaction that removes what they stand for, and leave by a raid alone.
"""

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

from infra.catalog import tables as t
from infra.catalog.engine.database import CatalogAdapter, writes
from infra.catalog.engine.dialects import BIG, Statement, among, bulk_parameter, dataclass_from_row, dialect_insert
from infra.catalog.records.outbox_rows import waits
from logstore.deletion.intents import DeletionState
from logstore.ports.catalog import RecordId, Tombstone, TombstoneCounts
from logstore.records.kinds import RecordKind

_T, _P = t.tombstone.c, t.pending_deletion.c
_LEDGER, _TOPIC = RecordKind.LEDGER.value, RecordKind.TOPIC.value
_COLUMNS = ("kind", "id", "topic_id", "list_id", "component", "generation", "epoch", "at_us")


def bury_ledgers(connection: Connection, gone: ColumnElement[bool], *, now_us: int) -> None:
    """Leave a tombstone for each of the ledgers that are about to be removed, under the locks of their lists.

    Args:
        connection: In a writing transaction, in which the rows are removed next.
        gone: Which rows of `ledger`.
        now_us: By the catalog's clock; a tombstone that is there already never gets younger by it.
    """
    ledger, of = t.ledger.c, t.ledger_list.c
    columns = (literal(_LEDGER), ledger.ledger_id, of.topic_id, ledger.list_id, of.component, ledger.generation + 1)
    rows = select(*columns, t.catalog.c.epoch, literal(now_us)).select_from(t.ledger)
    _put(connection, rows.join(t.ledger_list, of.list_id == ledger.list_id).join(t.catalog, literal(True)).where(gone))


def bury_topic(connection: Connection, topic_id: int, *, now_us: int) -> None:
    """Leave a tombstone for a topic whose row is about to be removed."""
    none = (literal(None, t.tombstone.c.list_id.type), literal(None, t.tombstone.c.component.type))
    row = select(literal(_TOPIC), literal(topic_id), literal(topic_id), *none, literal(1), t.catalog.c.epoch)
    _put(connection, row.add_columns(literal(now_us)).where(literal(True)))


def _put(connection: Connection, rows: Select[Any]) -> None:
    """One that stands there already becomes a later version of itself; its time never goes back."""
    put = dialect_insert(connection.dialect.name, t.tombstone).from_select(_COLUMNS, rows)
    new = put.excluded
    later = {
        "generation": case((_T.generation >= new.generation, _T.generation + 1), else_=new.generation),
        "epoch": new.epoch,
        "at_us": case((_T.at_us > new.at_us, _T.at_us), else_=new.at_us),
        "raid": None,
    }
    connection.execute(put.on_conflict_do_update(index_elements=["kind", "id"], set_=later))


def tombstone_of(connection: Connection, ledger_id: int) -> Tombstone | None:
    """The tombstone of the ledger, if a durable delete has left one."""
    row = connection.execute(select(t.tombstone).where(_T.kind == _LEDGER, _T.id == ledger_id)).first()
    return None if row is None else dataclass_from_row(Tombstone, row, kind=RecordKind(row.kind))


class SqlTombstones(CatalogAdapter):
    """The `Tombstones` port."""

    def counts(self) -> TombstoneCounts:
        """See `Tombstones.counts`."""
        query = select(_T.kind, func.count(), func.count(_T.raid), func.min(_T.at_us)).group_by(_T.kind)
        rows = self._db.read(lambda connection: connection.execute(query.order_by(_T.kind)).all())
        return TombstoneCounts(
            by_kind={kind: rows for kind, rows, _, _ in rows},
            candidates=sum(candidates for _, _, candidates, _ in rows),
            oldest_us=min((oldest for *_, oldest in rows), default=None),
        )

    def of_topic(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """See `Tombstones.of_topic`."""
        wanted = () if component is None else (_T.component == component,)
        mine = select(t.tombstone).where(_T.topic_id == topic_id, _T.kind == _LEDGER, _T.id > after, *wanted)
        page = mine.order_by(_T.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(page).all())
        return [dataclass_from_row(Tombstone, row, kind=RecordKind(row.kind)) for row in rows]

    def mark(self, run_id: str, *, before_us: int, after: RecordId | None, limit: int) -> tuple[int, RecordId | None]:
        """See `Tombstones.mark`; a read finds what is to be written, and a statement that writes looks at it again."""
        page = self._page(before_us, limit, *_behind(after))
        concerned = _by_kind(row for row in page if row.removable or row.raid is not None)
        stale = any(row.raid is not None for row in page)

        def work(connection: Connection) -> int:
            how, marked = _written(connection.dialect.name), 0
            for kind, ids in concerned.items():
                told = {"of_kind": kind, "before_us": before_us, "run": run_id}
                if stale:
                    how.unmark.execute(connection, ids, **told)
                marked += how.mark.execute(connection, ids, **told).rowcount
            return marked

        end = RecordId(kind=RecordKind(page[-1].kind), id=page[-1].id) if page else None
        return self._db.write(work) if concerned else 0, end

    def candidates(self, run_id: str, *, after: RecordId | None, limit: int) -> Sequence[RecordId]:
        """See `Tombstones.candidates`."""
        query = select(_T.kind, _T.id).where(_T.raid == run_id, *_behind(after)).order_by(_T.kind, _T.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return [RecordId(kind=RecordKind(row.kind), id=row.id) for row in rows]

    @writes()
    def keep(self, connection: Connection, run_id: str, kept: Collection[RecordId]) -> None:
        """See `Tombstones.keep`."""
        for kind in {one.kind for one in kept}:
            these = among(connection, _T.id, [one.id for one in kept if one.kind is kind])
            mine = update(t.tombstone).where(_T.raid == run_id, _T.kind == kind.value, these)
            connection.execute(mine.values(raid=None))

    def remove(self, run_id: str, *, before_us: int, limit: int) -> int:
        """See `Tombstones.remove`; two raids at once would wait for each other, and remove each row once."""
        page = _by_kind(self._page(before_us, limit, _T.raid == run_id))

        def work(connection: Connection) -> int:
            how, removed = _written(connection.dialect.name), 0
            for kind, ids in page.items():
                told = {"of_kind": kind, "before_us": before_us, "run": run_id}
                how.lock.execute(connection, ids, **told)
                removed += how.remove.execute(connection, ids, **told).rowcount
                how.let_go.execute(connection, ids, **told)
            return removed

        return self._db.write(work) if page else 0

    def _page(self, before_us: int, limit: int, *wanted: ColumnElement[bool]) -> Sequence[Row[Any]]:
        """Tombstones by kind and id, with their marks, and whether they are `removable` now; no writer waits for it."""
        removable = _removable(literal(before_us)).label("removable")
        rows = select(_T.kind, _T.id, _T.raid, removable).where(*wanted).order_by(_T.kind, _T.id).limit(limit)
        return self._db.read(lambda connection: connection.execute(rows).all())


class _Written(NamedTuple):
    """The statements by which a raid writes to tombstones of one kind, by their ids."""

    mark: Statement
    unmark: Statement  # what another raid has marked, or this one before, and may not be removed
    lock: Statement  # the raid's candidates, before it is judged whether they may be removed
    remove: Statement
    let_go: Statement  # those that it may not


@cache
def _written(dialect: str) -> _Written:
    """Built once: SQLite has one writer at a time, and building them takes longer than they do."""
    told = bulk_parameter(dialect, "told", {"id": BIG})
    these = and_(_T.kind == bindparam("of_kind"), _T.id.in_(select(told.source.c.id)))
    mine, removable = and_(these, _T.raid == bindparam("run")), _removable(bindparam("before_us", type_=BIG))
    candidates, none = update(t.tombstone), {"raid": None}
    sent: tuple[Executable, ...] = (
        candidates.where(these, removable).values(raid=bindparam("run")),
        candidates.where(these, _T.raid.is_not(None), not_(removable)).values(none),
        select(_T.id).where(mine).order_by(_T.id).with_for_update(),
        delete(t.tombstone).where(mine, removable),
        candidates.where(mine).values(none),
    )
    return _Written(*(Statement(sql=one, rows=told) for one in sent))


def _by_kind(rows: Iterable[Row[Any]]) -> dict[str, list[tuple[int]]]:
    """The ids of rows that come by kind."""
    return {kind: [(row.id,) for row in of_kind] for kind, of_kind in groupby(rows, attrgetter("kind"))}


def _behind(after: RecordId | None) -> list[ColumnElement[bool]]:
    return [] if after is None else [tuple_(_T.kind, _T.id) > tuple_(literal(after.kind.value), literal(after.id))]


def _removable(before_us: ColumnElement[int]) -> ColumnElement[bool]:
    """Last updated before then, with no deletion that may still put or find anything, and in a block as it is."""
    gone = DeletionState.DELETED.value
    left = exists().where(_P.ledger_id == _T.id, _P.state != gone)
    of_topic = [exists().where(_P.topic_id == _T.id, one) for one in (_P.state < gone, _P.state > gone)]  # by an index
    ledger = and_(_T.kind == _LEDGER, or_(left, waits(_LEDGER, _T.id)))
    topic = and_(_T.kind == _TOPIC, or_(*of_topic, waits(_TOPIC, _T.id)))
    return and_(_T.at_us < before_us, not_(or_(ledger, topic)))
