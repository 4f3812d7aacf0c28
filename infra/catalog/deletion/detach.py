"""Phase one in SQL: one transaction that locks the list, evaluates the rule, and replaces ledgers by intents.

Either all of it is committed or none: a ledger is listed, or has an intent, and never neither.

Source: PIP-186, first phase; there it is a message and a metadata update, which can part.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.cursors.cursor_rows import close_holes
from infra.catalog.deletion.doomed import Doomed, ListView, doomed
from infra.catalog.deletion.intent_rows import adopt_stalled, file_intents
from infra.catalog.deletion.intents import filed_by
from infra.catalog.deletion.runs import done_before, open_run
from infra.catalog.engine.database import Database
from infra.catalog.log.ledger_rows import data_list, last_id, lock_lists, never_attached
from infra.catalog.log.topics import topic_row
from infra.catalog.offload.uploads import take_away_abandoned
from infra.catalog.ownership.fences import FencedWrites
from logstore.failpoints import effect
from logstore.ports.catalog import Cause, Claim, Detached
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who asks for what, under which name."""

    ledger_ids: Sequence[LedgerId] | None
    force: bool
    batch_id: str
    claim: Claim
    cause: Cause
    request: str  # what was asked, so that a batch id used twice is told from a repeated call


class PhaseOne(FencedWrites):
    """Preview and detach; a part of `SqlDeletions`."""

    def __init__(self, database: Database, *, registration_timeout_s: float) -> None:
        """Work on `database`; a ledger not attached within the timeout is taken for abandoned."""
        self._db = database
        self._newborn_us = int(registration_timeout_s * 1_000_000)

    def preview(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool) -> list[LedgerId]:
        """See `Deletions.preview`."""
        return self._db.read(
            lambda c: list(doomed(c, self._view(c, topic_id, lock=False), ledger_ids, force=force).ids)
        )

    def detach(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: Cause,
    ) -> Detached:
        """See `Deletions.detach`."""
        request = _fingerprint(topic_id, ledger_ids, force=force)
        order = Order(ledger_ids=ledger_ids, force=force, batch_id=batch_id, claim=claim, cause=cause, request=request)

        def work(connection: Connection, view: ListView) -> Detached:
            done = done_before(connection, batch_id, request)
            if done:
                return done
            return self._replace(connection, view, doomed(connection, view, ledger_ids, force=force), order)

        with effect("catalog.detach"):
            return self._write_behind(lambda connection: self._view(connection, topic_id, lock=True), work)

    def _view(self, connection: Connection, topic_id: TopicId, *, lock: bool) -> ListView:
        topic = topic_row(connection, topic_id, share=lock)
        list_id = data_list(connection, topic_id, lock=lock)
        c = t.cursor.c
        cursors = connection.execute(select(c.name, c.mark_ledger, c.mark_entry).where(c.topic_id == topic_id)).all()
        last = last_id(connection, list_id)
        return ListView(
            topic_id=topic_id,
            topic=topic.name,
            list_id=list_id,
            policy=topic.policy,
            last=LedgerId(-1 if last is None else last),
            marks={row.name: Position(LedgerId(row.mark_ledger), row.mark_entry) for row in cursors},
            now_us=self._db.now_us(connection),
        )

    def _replace(self, connection: Connection, view: ListView, gone: Doomed, order: Order) -> Detached:
        batch_id, asked, now = order.batch_id, order.ledger_ids, view.now_us
        stalled = adopt_stalled(connection, view.topic_id, asked, batch_id=batch_id, now_us=now)
        newborn = self._abandon_newborn(connection, view, order) if asked is None else 0
        filed = _file(connection, gone.rows, view, order) if gone.ids else 0
        dead = 0
        if asked is None:
            dead = take_away_abandoned(connection, view.list_id, batch_id, now, cause=order.cause)
        close_holes(connection, view.topic_id, gone.ids)
        intents = stalled + newborn + filed + dead
        result = Detached(batch_id=batch_id, ledgers=len(gone.ids), intents=intents, finished=gone.finished)
        if intents or asked is not None:
            self._open(connection, result, view, order)
        if gone.ids:
            _audit(connection, view, gone, order)
        return replace(
            result, filed=filed_by(connection, batch_id, now, topic_id=view.topic_id) if intents > stalled else ()
        )

    def _open(self, connection: Connection, result: Detached, view: ListView, order: Order) -> None:
        open_run(connection, result, view.topic_id, order.claim, view.now_us, request=order.request)

    def _abandon_newborn(self, connection: Connection, view: ListView, order: Order) -> int:
        """Detach ledgers of any component whose creator gave up or died before listing them (apache/pulsar#350)."""
        lists = t.ledger_list.c.topic_id == view.topic_id
        abandoned = never_attached(view.now_us - self._newborn_us)
        inner = select(t.ledger_list.c.list_id).where(lists)
        where = select(t.ledger.c.list_id).where(t.ledger.c.list_id.in_(inner), abandoned).distinct()
        ids = lock_lists(connection, lists, t.ledger_list.c.list_id.in_(where))
        if not ids:
            return 0
        return _file(connection, t.ledger.c.list_id.in_(ids) & abandoned, view, order)


def _file(connection: Connection, rows: ColumnElement[bool], view: ListView, order: Order) -> int:
    return file_intents(connection, rows, batch_id=order.batch_id, now_us=view.now_us, cause=order.cause)


def _fingerprint(topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool) -> str:
    ids = "retention" if ledger_ids is None else ",".join(str(ledger_id) for ledger_id in sorted(set(ledger_ids)))
    return hashlib.sha256(f"{topic_id}/{force}/{ids}".encode()).hexdigest()


def _audit(connection: Connection, view: ListView, gone: Doomed, order: Order) -> None:
    audit(
        connection,
        "detach",
        order.cause,
        at_us=view.now_us,
        topic_id=view.topic_id,
        topic=view.topic,
        run_id=order.batch_id,
        detail={"forced": True} if order.force else {},
        span=Span.of(gone.ids),
    )
