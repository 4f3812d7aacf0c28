"""Phase one in SQL: one transaction that locks the list, evaluates the rule, and replaces ledgers by intents.

Either all of it is committed or none: a ledger is listed, or has an intent, and never neither.

Source: PIP-186, first phase; there it is a message and a metadata update, which can part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, exists, func, insert, select

from infra.catalog import claims
from infra.catalog import tables as t
from infra.catalog.cursors import spans, store, subscription
from infra.catalog.database import Database
from infra.catalog.intents import file_intents
from infra.catalog.ledgers import data_list, raise_version
from infra.catalog.topics import topic_row
from logstore.cursors import CursorState, advance
from logstore.errors import InvalidInput, LedgerStillNeeded, UnknownObject
from logstore.failpoints import effect
from logstore.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog import Cause, Claim, Detached
from logstore.positions import LedgerId, Position, TopicId
from logstore.retention import LedgerFacts, RetentionPolicy, detachable_prefix, reason_to_keep

_MOST_IDS = 10_000  # SQLite takes 32,766 parameters in a statement


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A topic's locked list and what the rule needs of it."""

    topic_id: TopicId
    topic: str
    list_id: int
    policy: RetentionPolicy
    last: LedgerId
    cursors: dict[str, CursorState]
    now_us: int

    @property
    def marks(self) -> dict[str, Position]:
        return {name: state.mark_delete for name, state in self.cursors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Who asks for what, under which name."""

    ledger_ids: Sequence[LedgerId] | None
    batch_id: str
    claim: Claim
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doomed:
    """Which listed ledgers go."""

    ids: Sequence[LedgerId]
    rows: ColumnElement[bool]
    finished: dict[str, int]  # asked for and ended before: outcome -> rows


class PhaseOne:
    """Preview and detach; a part of `SqlDeletions`."""

    def __init__(self, database: Database, *, registration_timeout_s: float) -> None:
        """Work on `database`; a ledger not attached within the timeout is taken for abandoned."""
        self._db = database
        self._newborn_us = int(registration_timeout_s * 1_000_000)

    def preview(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool) -> list[LedgerId]:
        """See `Deletions.preview`."""
        return self._db.read(
            lambda c: list(_doomed(c, self._view(c, topic_id, lock=False), ledger_ids, force=force).ids)
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
        order = _Order(ledger_ids=ledger_ids, batch_id=batch_id, claim=claim, cause=cause)

        def work(connection: Connection) -> Detached:
            view = self._view(connection, topic_id, lock=True)
            done = _done_before(connection, batch_id)
            if done:
                return done
            doomed = _doomed(connection, view, ledger_ids, force=force)
            return self._replace(connection, view, doomed, order)

        with effect("catalog.detach"):
            return self._db.write(work)

    def _view(self, connection: Connection, topic_id: TopicId, *, lock: bool) -> _List:
        topic = topic_row(connection, topic_id, share=lock)
        list_id = data_list(connection, topic_id, lock=lock)
        cursors = connection.execute(select(t.cursor).where(t.cursor.c.topic_id == topic_id)).all()
        last = connection.execute(select(func.max(t.ledger.c.ledger_id)).where(*_listed(list_id))).scalar_one_or_none()
        return _List(
            topic_id=topic_id,
            topic=topic.name,
            list_id=list_id,
            policy=topic.policy,
            last=LedgerId(-1 if last is None else last),
            cursors={row.name: subscription(row).state for row in cursors},
            now_us=self._db.now_us(connection),
        )

    def _replace(self, connection: Connection, view: _List, doomed: _Doomed, order: _Order) -> Detached:
        batch_id, asked, now = order.batch_id, order.ledger_ids, view.now_us
        stalled = claims.adopt_stalled(connection, view.topic_id, asked, batch_id=batch_id, now_us=now)
        newborn = self._abandon_newborn(connection, view, batch_id) if asked is None else 0
        filed = file_intents(connection, doomed.rows, batch_id=batch_id, now_us=now) if doomed.ids else 0
        _close_holes(connection, view, doomed.ids)
        intents = stalled + newborn + filed
        result = Detached(batch_id=batch_id, ledgers=len(doomed.ids), intents=intents, finished=doomed.finished)
        if intents or asked is not None:
            claims.open_run(connection, result, view.topic_id, order.claim, now)
        if doomed.ids:
            raise_version(connection, view.list_id)
            _audit(connection, view, doomed, order.cause)
        return result

    def _abandon_newborn(self, connection: Connection, view: _List, batch_id: str) -> int:
        """Detach ledgers whose creator gave up or died before attaching them (apache/pulsar#350)."""
        abandoned = (
            (t.ledger.c.list_id == view.list_id)
            & (t.ledger.c.state == LedgerState.CREATING.value)
            & (t.ledger.c.created_us < view.now_us - self._newborn_us)
        )
        return file_intents(connection, abandoned, batch_id=batch_id, now_us=view.now_us)


def _listed(list_id: int) -> tuple[ColumnElement[bool], ...]:
    return (t.ledger.c.list_id == list_id, t.ledger.c.place.is_not(None))


def _done_before(connection: Connection, batch_id: str) -> Detached | None:
    summary = connection.execute(select(t.run.c.summary).where(t.run.c.run_id == batch_id)).scalar_one_or_none()
    return Detached(batch_id=batch_id, **summary) if summary else None


def _doomed(connection: Connection, view: _List, asked: Sequence[LedgerId] | None, *, force: bool) -> _Doomed:
    return _by_retention(connection, view) if asked is None else _by_id(connection, view, asked, force=force)


def _by_retention(connection: Connection, view: _List) -> _Doomed:
    total = connection.execute(select(func.sum(t.ledger.c.size_bytes)).where(*_listed(view.list_id))).scalar_one()
    prefix = detachable_prefix(
        _facts(connection, t.ledger.c.list_id == view.list_id),
        marks=view.marks,
        policy=view.policy,
        total_bytes=int(total or 0),
        last=view.last,
        now_us=view.now_us,
    )
    ids = [ledger.ledger_id for ledger in prefix]
    end = ids[-1] if ids else -1
    rows = (t.ledger.c.list_id == view.list_id) & t.ledger.c.place.is_not(None) & (t.ledger.c.ledger_id <= end)
    return _Doomed(ids=ids, rows=rows, finished={})


def _by_id(connection: Connection, view: _List, asked: Sequence[LedgerId], *, force: bool) -> _Doomed:
    wanted = sorted(set(asked))
    if not 0 < len(wanted) <= _MOST_IDS:
        raise InvalidInput("ledger ids", expected=f"1 to {_MOST_IDS} ids", found=len(wanted))
    rows = (t.ledger.c.list_id == view.list_id) & t.ledger.c.ledger_id.in_(wanted)
    found = {ledger.ledger_id: ledger for ledger in _facts(connection, rows)}
    finished = _ended(connection, view, [ledger_id for ledger_id in wanted if ledger_id not in found])
    marks = {} if force else view.marks
    reasons = [
        f"ledger {ledger.ledger_id}: {reason}"
        for ledger in found.values()
        if (reason := reason_to_keep(ledger, last=view.last, marks=marks))
    ]
    if reasons:
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        raise LedgerStillNeeded(f"topic {view.topic}: {'; '.join(reasons[:5])}{more}")
    return _Doomed(ids=sorted(found), rows=rows & t.ledger.c.place.is_not(None), finished=finished)


def _ended(connection: Connection, view: _List, ids: list[LedgerId]) -> dict[str, int]:
    """Outcomes of ledgers that were detached before.

    Raises:
        UnknownObject: One of them never was in this topic's list, or its row has been removed.
    """
    p = t.pending_deletion.c
    query = select(p.ledger_id, p.outcome).where(p.topic_id == view.topic_id, p.ledger_id.in_(ids))
    rows = connection.execute(query).all() if ids else []
    unknown = sorted(set(ids) - {row.ledger_id for row in rows})
    if unknown:
        raise UnknownObject("ledger", expected=f"a ledger of {view.topic}", found=unknown[0])
    outcomes = [row.outcome for row in rows if row.outcome]
    return {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}


def _facts(connection: Connection, rows: ColumnElement[bool]) -> Iterator[LedgerFacts]:
    """Listed ledgers in order, drawn from the database as the rule walks."""
    c = t.ledger_copy.c
    writing = exists().where(
        c.ledger_id == t.ledger.c.ledger_id,
        c.kind == CopyKind.OFFLOADED_LEDGER.value,
        c.state == CopyState.WRITING.value,
    )
    columns = (t.ledger.c.ledger_id, t.ledger.c.state, t.ledger.c.entries, t.ledger.c.size_bytes, t.ledger.c.closed_us)
    query = select(*columns, writing.label("offloading")).where(rows, t.ledger.c.place.is_not(None))
    result = connection.execution_options(yield_per=1000).execute(query.order_by(t.ledger.c.ledger_id))
    with result:
        for row in result:
            yield LedgerFacts(
                ledger_id=LedgerId(row.ledger_id),
                state=LedgerState(row.state),
                entries=row.entries,
                size_bytes=row.size_bytes,
                closed_us=row.closed_us,
                offloading=bool(row.offloading),
            )


def _close_holes(connection: Connection, view: _List, removed: Sequence[LedgerId]) -> None:
    """Move cursors over ledgers that are gone; only a forced detach leaves any cursor before them."""
    if not removed:
        return
    behind = {name: state for name, state in view.cursors.items() if state.mark_delete.ledger_id <= max(removed)}
    listed = spans(connection, view.topic_id) if behind else []
    gone = set(removed)
    for name, state in sorted(behind.items()):
        kept = {ledger: bits for ledger, bits in state.acknowledged.items() if ledger not in gone}
        moved = advance(CursorState(state.mark_delete, kept), listed)
        if moved != state:
            store(connection, view.topic_id, name, moved)


def _audit(connection: Connection, view: _List, doomed: _Doomed, cause: Cause) -> None:
    detail = {
        "ledgers": len(doomed.ids),
        "first": doomed.ids[0],
        "last": doomed.ids[-1],
        "sample": [int(ledger_id) for ledger_id in doomed.ids[:20]],
    }
    connection.execute(
        insert(t.audit).values(
            at_us=view.now_us,
            act="detach",
            actor=cause.actor,
            reason=cause.reason,
            workflow_id=cause.workflow_id,
            topic_id=view.topic_id,
            topic=view.topic,
            detail=detail,
        )
    )
