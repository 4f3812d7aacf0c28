"""Trims of many topics in SQL: one transaction a topic, one batch for all; whatever is told is counted from rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import ColumnElement, Connection, case, exists, func, or_, select

from infra.catalog import tables as t
from infra.catalog.deletion.detach import Order, PhaseOne
from infra.catalog.deletion.doomed import ListView, doomed
from infra.catalog.deletion.runs import share_run, stalled
from infra.catalog.engine.many import any_of
from logstore.deletion.intents import DeletionState
from logstore.failpoints import effect
from logstore.log.ledgers import Component, LedgerState
from logstore.ports.catalog import Cause, Claim, Detached, Filed
from logstore.positions import TopicId

_P = t.pending_deletion.c
_REQUEST: Final = "trim-topics"


class SqlTopicTrims(PhaseOne):
    """The `TopicTrims` port."""

    def promising(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """See `TopicTrims.promising`."""

        def work(connection: Connection) -> frozenset[TopicId]:
            now = self._db.now_us(connection)
            asked = t.topic.c.topic_id.in_(any_of(connection.dialect.name, topic_ids))
            query = select(t.topic.c.topic_id).where(asked, _may_have_something(now, now - self._newborn_us))
            return frozenset(TopicId(one) for one in connection.execute(query).scalars())

        return self._db.read(work)

    def detach_into(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """See `TopicTrims.detach_into`."""
        order = Order(ledger_ids=None, force=False, batch_id=batch_id, claim=claim, cause=cause, request=_REQUEST)

        def work(connection: Connection) -> Detached:
            view = self._view(connection, topic_id, lock=True)
            done = _of_topic(connection, view, batch_id)
            if done.intents:
                return done
            filed = self._replace(connection, view, doomed(connection, view, None, force=False), order).filed
            return _of_topic(connection, view, batch_id, filed=filed)

        with effect("catalog.detach_into"):
            return self._db.write(work)

    def _open(self, connection: Connection, result: Detached, view: ListView, order: Order) -> None:
        share_run(connection, result.batch_id, order.claim, view.now_us, request=order.request)

    def detached_into(self, batch_id: str) -> Detached:
        """See `TopicTrims.detached_into`."""
        return self._db.read(lambda connection: _counted(connection, batch_id, _P.batch_id == batch_id))


def _of_topic(connection: Connection, view: ListView, batch_id: str, *, filed: Sequence[Filed] = ()) -> Detached:
    """The topic's part of the batch, whose phase two has not begun: found by the index that has the topic."""
    mine = (_P.state == DeletionState.PENDING.value, _P.topic_id == view.topic_id, _P.batch_id == batch_id)
    return replace(_counted(connection, batch_id, *mine), filed=filed)


def _counted(connection: Connection, batch_id: str, *rows: ColumnElement[bool]) -> Detached:
    """Intents, and the ledgers of those that were filed for the batch and not taken up by it."""
    opened = select(t.run.c.created_us).where(t.run.c.run_id == batch_id).scalar_subquery()
    own = case((_P.created_us >= opened, _P.ledger_id))
    found = connection.execute(select(func.count(), func.count(own.distinct())).where(*rows)).one()
    return Detached(batch_id=batch_id, ledgers=found[1], intents=found[0])


def _may_have_something(now_us: int, abandoned_us: int) -> ColumnElement[bool]:
    """A closed data ledger, an intent that nobody works on, or a newborn that its creator left."""
    lists, ledger = t.ledger_list.c, t.ledger.c
    mine = (ledger.list_id == lists.list_id, lists.topic_id == t.topic.c.topic_id)
    data = lists.component == Component.MANAGED_LEDGER.value
    return or_(
        exists().where(*mine, data, ledger.place.is_not(None), ledger.state == LedgerState.CLOSED.value),
        exists().where(*mine, ledger.place.is_(None), ledger.created_us < abandoned_us),
        exists().where(_P.topic_id == t.topic.c.topic_id, stalled(now_us)),
    )
