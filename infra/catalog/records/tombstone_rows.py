"""Rows of tombstones: nothing else writes them.

They are inserted in the transaction that removes what they stand for, and leave by a raid alone.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
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

from infra.catalog import tables as t
from infra.catalog.engine.database import OnDatabase
from infra.catalog.engine.many import among, inserting, value_of
from logstore.deletion.intents import DeletionState
from logstore.ports.catalog import RecordId, Tombstone, TombstoneCounts
from logstore.records.kinds import RecordKind

_T, _O, _P = t.tombstone.c, t.record_outbox.c, t.pending_deletion.c
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
    put = inserting(connection.dialect.name, t.tombstone).from_select(_COLUMNS, rows)
    new = put.excluded
    later = {
        "generation": case((_T.generation >= new.generation, _T.generation + 1), else_=new.generation),
        "epoch": new.epoch,
        "at_us": case((_T.at_us > new.at_us, _T.at_us), else_=new.at_us),
        "raid": None,
    }
    connection.execute(put.on_conflict_do_update(index_elements=["kind", "id"], set_=later))


def tombstone_of(connection: Connection, ledger_id: int) -> Tombstone | None:
    """What a durable delete left of the ledger, if there is one."""
    row = connection.execute(select(t.tombstone).where(_T.kind == _LEDGER, _T.id == ledger_id)).first()
    return None if row is None else value_of(Tombstone, row, kind=RecordKind(row.kind))


class SqlTombstones(OnDatabase):
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

    def of_topic(self, topic_id: int, *, component: str | None = None) -> Sequence[Tombstone]:
        """See `Tombstones.of_topic`."""
        wanted = () if component is None else (_T.component == component,)
        mine = select(t.tombstone).where(_T.topic_id == topic_id, _T.kind == _LEDGER, *wanted)
        rows = self._db.read(lambda connection: connection.execute(mine.order_by(_T.id)).all())
        return [value_of(Tombstone, row, kind=RecordKind(row.kind)) for row in rows]

    def mark(self, run_id: str, *, before_us: int, after: RecordId | None, limit: int) -> tuple[int, RecordId | None]:
        """See `Tombstones.mark`."""
        page = select(_T.kind, _T.id).where(*_behind(after)).order_by(_T.kind, _T.id).limit(limit).subquery()
        last = select(page.c.kind, page.c.id).order_by(page.c.kind.desc(), page.c.id.desc()).limit(1)

        def work(connection: Connection) -> tuple[int, RecordId | None]:
            row = connection.execute(last).first()
            if row is None:
                return 0, None
            end = RecordId(kind=RecordKind(row.kind), id=row.id)
            these = and_(*_behind(after), _key() <= _key_of(end))
            removable = _removable(before_us)
            connection.execute(
                update(t.tombstone).where(these, _T.raid.is_not(None), not_(removable)).values(raid=None)
            )
            return connection.execute(update(t.tombstone).where(these, removable).values(raid=run_id)).rowcount, end

        return self._db.write(work)

    def candidates(self, run_id: str, *, after: RecordId | None, limit: int) -> Sequence[RecordId]:
        """See `Tombstones.candidates`."""
        query = select(_T.kind, _T.id).where(_T.raid == run_id, *_behind(after)).order_by(_T.kind, _T.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return [RecordId(kind=RecordKind(row.kind), id=row.id) for row in rows]

    def keep(self, run_id: str, kept: Collection[RecordId]) -> None:
        """See `Tombstones.keep`."""

        def work(connection: Connection) -> None:
            for kind in {one.kind for one in kept}:
                these = among(connection, _T.id, [one.id for one in kept if one.kind is kind])
                mine = update(t.tombstone).where(_T.raid == run_id, _T.kind == kind.value, these)
                connection.execute(mine.values(raid=None))

        self._db.write(work)

    def remove(self, run_id: str, *, before_us: int, limit: int) -> int:
        """See `Tombstones.remove`; two raids at once would wait for each other, and remove each row once."""

        def work(connection: Connection) -> int:
            page = select(_T.kind, _T.id).where(_T.raid == run_id).order_by(_T.kind, _T.id).limit(limit)
            rows = connection.execute(page.with_for_update()).all()
            removed = 0
            for kind in {row.kind for row in rows}:
                these = and_(_T.kind == kind, among(connection, _T.id, [row.id for row in rows if row.kind == kind]))
                gone = delete(t.tombstone).where(these, _T.raid == run_id, _removable(before_us))
                removed += connection.execute(gone).rowcount
                connection.execute(update(t.tombstone).where(these, _T.raid == run_id).values(raid=None))
            return removed

        return self._db.write(work)


def _behind(after: RecordId | None) -> list[ColumnElement[bool]]:
    return [] if after is None else [_key() > _key_of(after)]


def _key() -> ColumnElement[Any]:
    return tuple_(_T.kind, _T.id)


def _key_of(record: RecordId) -> ColumnElement[Any]:
    return tuple_(literal(record.kind.value), literal(record.id))


def _removable(before_us: int) -> ColumnElement[bool]:
    """Last updated before then, with no deletion that may still put or find anything, and in a block as it is."""
    left = _P.state != DeletionState.DELETED.value
    of_ledger = and_(_T.kind == _LEDGER, exists().where(_P.ledger_id == _T.id, left))
    of_topic = and_(_T.kind == _TOPIC, exists().where(_P.topic_id == _T.id, left))
    changed = exists().where(_O.kind == _T.kind, _O.id == _T.id)
    return and_(_T.at_us < before_us, not_(or_(of_ledger, of_topic)), ~changed)
