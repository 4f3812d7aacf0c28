"""Everything that the catalog knows of one ledger, in one transaction that only reads."""

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select, true

from infra.catalog import tables as t
from infra.catalog.deletion.claims import SEVERAL_TOPICS, stalled
from infra.catalog.deletion.intents import INTENT, to_intent
from infra.catalog.deletion.references import live_copies, live_row, references
from infra.catalog.engine.database import Database
from logstore.errors import UnknownObject
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog import Decision, FiledIntent, KnownCopy, LedgerHistory, LiveLedger
from logstore.positions import LedgerId

_A = t.audit.c


class SqlInspection:
    """The `Inspection` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def ledger(self, ledger_id: LedgerId, *, decisions: int) -> LedgerHistory:
        """See `Inspection.ledger`."""
        return self._db.read(lambda connection: self._ledger(connection, ledger_id, decisions))

    def _ledger(self, connection: Connection, ledger_id: LedgerId, decisions: int) -> LedgerHistory:
        _require_known(connection, ledger_id)
        row = live_row(connection, ledger_id)
        filed = _filed(connection, ledger_id, now_us=self._db.now_us(connection))
        live = list(live_copies(connection, row)) if row else []
        named = _names(ledger_id, _of_topics(row, filed), filed, live=row is not None)
        return LedgerHistory(
            ledger_id=ledger_id,
            live=_live(row) if row else None,
            references=list(references(connection, row)) if row else [],
            copies=[*live, *_detached(filed, live)],
            intents=filed,
            decisions=list(islice(_concerning(connection, ledger_id, filed, named), decisions)),
        )

    def decisions(self, *, topic: str | None = None, ledger_id: LedgerId | None = None, limit: int) -> list[Decision]:
        """See `Inspection.decisions`."""

        def work(connection: Connection) -> list[Decision]:
            of_topic = true() if topic is None else _A.topic == topic
            if ledger_id is None:
                return list(islice(_drawn(connection, of_topic), limit))
            filed, live = _filed(connection, ledger_id, now_us=0), live_row(connection, ledger_id) is not None
            named = and_(of_topic, _names(ledger_id, of_topic, filed, live=live))
            return list(islice(_concerning(connection, ledger_id, filed, named), limit))

        return self._db.read(work)


def _require_known(connection: Connection, ledger_id: LedgerId) -> None:
    ceiling = connection.execute(select(t.catalog.c.next_ledger_id)).scalar_one()
    if not 0 <= ledger_id < ceiling:
        raise UnknownObject("ledger", expected=f"an id that was given to a ledger, below {ceiling}", found=ledger_id)


def _live(row: Row[Any]) -> LiveLedger:
    return LiveLedger(
        state=LedgerState(row.state),
        listed=row.place is not None,
        entries=row.entries,
        size_bytes=row.size_bytes,
        generation=row.generation,
        created_us=row.created_us,
        closed_us=row.closed_us,
    )


def _filed(connection: Connection, ledger_id: LedgerId, *, now_us: int) -> list[FiledIntent]:
    p = t.pending_deletion.c
    query = select(*INTENT).add_columns(stalled(now_us).label("stalled")).where(p.ledger_id == ledger_id)
    return [
        FiledIntent(
            intent=to_intent(row),
            stalled=bool(row.stalled),
            objects_deleted=row.objects_deleted,
            bytes_deleted=row.bytes_deleted,
            created_us=row.created_us,
            finished_us=row.finished_us,
        )
        for row in connection.execute(query.order_by(p.row_id.desc()))
    ]


def _detached(filed: Iterable[FiledIntent], live: Iterable[KnownCopy]) -> Iterator[KnownCopy]:
    """Copies that only intents know: of several generations of one copy, the newest."""
    seen = {(one.intent.copy, one.intent.context.get("uuid")) for one in live}
    for found in filed:
        key = (found.intent.copy, found.intent.context.get("uuid"))
        if key not in seen:
            seen.add(key)
            yield KnownCopy(state=found.intent.state.value, intent=found.intent)


def _of_topics(row: Row[Any] | None, filed: list[FiledIntent]) -> ColumnElement[bool]:
    """Of a ledger whose topic is not known any more the whole log is read: nothing else is left to go by."""
    topics = {one.intent.topic_id for one in filed} | ({row.topic_id} if row else set())
    return _A.topic_id.in_(sorted({*topics, SEVERAL_TOPICS})) if topics else true()


def _names(
    ledger_id: LedgerId, of_topics: ColumnElement[bool], filed: list[FiledIntent], *, live: bool
) -> ColumnElement[bool]:
    """Rows on this ledger, on its batches and, of one that is gone, on a range of ledgers that it may be in."""
    within = and_(of_topics, _A.first_ledger <= ledger_id, _A.last_ledger >= ledger_id)
    if live:
        within = and_(within, _A.first_ledger == _A.last_ledger)
    return or_(within, _A.run_id.in_(sorted(_batches(filed))))


def _batches(filed: list[FiledIntent]) -> set[str]:
    return {one.intent.batch_id for one in filed} - {""}


def _concerning(
    connection: Connection, ledger_id: LedgerId, filed: list[FiledIntent], named: ColumnElement[bool]
) -> Iterator[Decision]:
    own = _batches(filed)
    return (one for one in _drawn(connection, named) if not _left_out(one, ledger_id, own))


def _left_out(found: Decision, ledger_id: LedgerId, own: Container[str | None]) -> bool:
    """Whether a range does not mean this ledger: where the sample is all of it, it tells.

    Where it is not, the ledgers of one topic go in a row; those of several topics have nothing in common.
    """
    sample, count = found.detail.get("sample"), found.detail.get("ledgers")
    if isinstance(sample, list) and count == len(sample):
        return ledger_id not in sample
    return isinstance(sample, list) and found.topic is None and found.run_id not in own


def _drawn(connection: Connection, where: ColumnElement[bool]) -> Iterator[Decision]:
    """Newest first, drawn from the database no further than asked."""
    newest = select(t.audit).where(where).order_by(_A.audit_id.desc())
    with connection.execute(newest, execution_options={"yield_per": 100}) as result:
        for row in result:
            yield Decision(
                at_us=row.at_us,
                act=row.act,
                actor=row.actor,
                reason=row.reason,
                workflow_id=row.workflow_id,
                topic=row.topic,
                run_id=row.run_id,
                detail=row.detail,
            )
