"""The queue of phase two in SQL: intents are read by range, claimed, ended, counted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, union_all

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.intent_rows import end_rows, hold, move_rows, take
from infra.catalog.deletion.intents import INTENT, is_dead_letter, next_ranges, tally_of, to_intent
from infra.catalog.deletion.runs import finish_run, holder, pause_run, release_run, renew_run, resume_run, with_pauses
from infra.catalog.engine.database import reads, writes
from infra.catalog.engine.dialects import BIG, Statement, among, as_text, context_or_none, rows_of
from infra.catalog.log.ledgers import require_epoch
from infra.catalog.ownership.fences import LeasedPort, hold_lease
from logstore.deletion.intents import DeletionIntent, DeletionState, require_topic
from logstore.deletion.rules import require_free
from logstore.errors import ClaimHeld, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Cause, Claim, Ended, Inflight, RowRange, Tally
from logstore.positions import LedgerId, TopicId

T = TypeVar("T")

_P = t.pending_deletion.c
_PENDING = DeletionState.PENDING.value
_A = t.audit.c
_ANY = "*"  # no uuid is that
_KEY = (_P.ledger_id == bindparam("ledger"), _P.copy == bindparam("kind"), _P.generation == bindparam("detached"))
_BY_KEY = select(*INTENT).where(*_KEY).with_for_update()


class SqlDeletions(LeasedPort):
    """The `Deletions` port."""

    def _write(self, work: Callable[[Connection], T]) -> T:
        def fenced(connection: Connection) -> T:
            hold_lease(connection, self._lease)
            return work(connection)

        return super()._write(fenced)

    def ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[RowRange]:
        """See `Deletions.ranges`."""
        return self._db.read(lambda c: next_ranges(c, batch_id, after=after, rows=rows, limit=limit))

    def intents(self, batch_id: str, chunk: RowRange) -> list[DeletionIntent]:
        """See `Deletions.intents`."""
        rows = (_P.batch_id == batch_id, _P.row_id >= chunk.first, _P.row_id <= chunk.last)
        query = select(*INTENT).where(*rows).order_by(_P.row_id)
        return self._db.read(lambda connection: _with_references(connection, connection.execute(query).all()))

    @writes("catalog.renew")
    def renew(self, connection: Connection, batch_id: str, claim: Claim) -> None:
        """See `Deletions.renew`."""
        renew_run(connection, batch_id, claim, self._db.now_us(connection))

    @writes("catalog.pause")
    def pause(self, connection: Connection, batch_id: str) -> None:
        """See `Deletions.pause`."""
        pause_run(connection, batch_id, self._db.now_us(connection))

    @writes("catalog.resume")
    def resume(self, connection: Connection, batch_id: str) -> None:
        """See `Deletions.resume`."""
        resume_run(connection, batch_id)

    @writes("catalog.release")
    def release(self, connection: Connection, batch_id: str) -> bool:
        """See `Deletions.release`."""
        return release_run(connection, batch_id, self._db.now_us(connection))

    def finish(self, ended: Sequence[Ended], *, holder: str) -> frozenset[int]:
        """See `Deletions.finish`.

        A row that a workflow of its own ended is audited, because the row of its batch says that it was retrying.
        """

        def work(connection: Connection) -> frozenset[int]:
            now = self._db.now_us(connection)
            rows = end_rows(connection, ended, holder, now_us=now)
            for one in ended:
                if one.row_id in rows and rows[one.row_id].claim_workflow == holder:
                    _audit_alone(connection, rows[one.row_id], one, at_us=now)
            return frozenset(rows)

        if not ended:
            return frozenset()
        with effect("catalog.finish"):
            return self._write(work)

    def hand_over(
        self, row_ids: Mapping[int, str], *, batch_id: str, errors: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        """See `Deletions.hand_over`."""

        def work(connection: Connection) -> frozenset[int]:
            until_us = self._db.now_us(connection) + int(ttl_s * 1_000_000)
            return move_rows(connection, row_ids, batch_id, errors, until_us=until_us)

        if not row_ids:
            return frozenset()
        with effect("catalog.hand_over"):
            return self._write(work)

    @writes("catalog.take")
    def take(
        self,
        connection: Connection,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        """See `Deletions.take`."""
        require_epoch(connection, epoch)
        key = {"ledger": ledger_id, "kind": copy.value, "detached": generation}
        row = connection.execute(_BY_KEY, key).first()
        if row is None:
            expected = "an intent that was filed and not yet removed"
            raise UnknownObject("deletion", expected=expected, found=claim.workflow_id)
        intent = to_intent(row)
        require_topic(intent, topic)
        if intent.state is not DeletionState.PENDING:
            return intent
        now = self._db.now_us(connection)
        own = (row.claim_workflow, row.claim_until_us)
        batch = None if row.claim_workflow else holder(connection, row.batch_id, now)
        require_free(row.ledger_id, claim.workflow_id, claim=own, batch=batch, now_us=now)
        attempts = row.attempts + int(attempt)
        return _with_references(connection, [take(connection, row.row_id, claim, attempts=attempts, now_us=now)])[0]

    @writes("catalog.hold")
    def hold(
        self,
        connection: Connection,
        row_id: int,
        claim: Claim,
        *,
        error: str | None = None,
        keys_left: int | None = None,
    ) -> int:
        """See `Deletions.hold`."""
        now = self._db.now_us(connection)
        attempts = hold(connection, row_id, claim, error=error, keys_left=keys_left, now_us=now)
        if attempts is None:  # one that ended needs no claim; one that is another's must be left to it
            query = select(_P.claim_workflow, _P.batch_id).where(_P.row_id == row_id, _P.state == _PENDING)
            if other := connection.execute(query).first():
                found = other[0] or f"batch {other[1]!r}"
                raise ClaimHeld(f"deletion {row_id}: expected to hold it, found {found}")
        return 0 if attempts is None or keys_left is None else attempts

    def tally(self, batch_id: str) -> Tally:
        """See `Deletions.tally`."""
        return self._db.read(lambda connection: tally_of(connection, _P.batch_id == batch_id))

    @writes("catalog.close")
    def close(self, connection: Connection, batch_id: str, cause: Cause) -> Tally:
        """See `Deletions.close`; the run's `finished_us` decides which of two calls writes the audit row."""
        now = self._db.now_us(connection)
        topic_id, outcome = finish_run(connection, batch_id, now), tally_of(connection, _P.batch_id == batch_id)
        if topic_id is None:
            return outcome
        _audit_batch(connection, batch_id, topic_id, cause, outcome, at_us=now)
        return replace(outcome, closed=True)

    def inflight(self) -> Inflight:
        """See `Deletions.inflight`."""
        each, gone = select(_P.state, func.count()).group_by(_P.state), DeletionState.DELETED.value
        query = union_all(each.where(_P.state < gone), each.where(_P.state > gone))  # through the index, past what went
        first = select(func.min(_P.row_id)).where(_P.state == _PENDING).scalar_subquery()  # through the index as well
        oldest = select(_P.created_us).where(_P.row_id == first)
        found, oldest_us = self._db.read(lambda c: (c.execute(query).all(), c.execute(oldest).scalar_one_or_none()))
        counts = {row[0]: row[1] for row in found}
        pending = counts.pop(_PENDING, 0)
        return Inflight(estimated_inflight=pending, dead_lettered=sum(counts.values()), oldest_us=oldest_us)

    def list(
        self, state: DeletionState | None, *, topic: str | None = None, ledger_id: LedgerId | None = None, limit: int
    ) -> list[DeletionIntent]:
        """See `Deletions.list`."""
        dead = state is DeletionState.DEAD_LETTERED  # few: found by their state, and not by walking over what went
        query = select(*INTENT).order_by((_P.row_id + 0 if dead else _P.row_id).desc()).limit(limit)
        if topic is not None:
            query = query.where(_P.topic == topic)
        if ledger_id is not None:
            query = query.where(_P.ledger_id == ledger_id)
        if state:
            query = query.where(is_dead_letter() if dead else _P.state == state.value)
        return self._db.read(lambda c: with_pauses(c, [to_intent(row) for row in c.execute(query)]))

    @reads
    def failures(
        self,
        connection: Connection,
        *,
        topic_id: TopicId | None = None,
        batch_id: str | None = None,
        ledger_ids: Sequence[LedgerId] | None = None,
        limit: int,
    ) -> Sequence[DeletionIntent]:
        """See `Deletions.failures`."""
        alone = and_(_P.state == _PENDING, _P.claim_workflow.is_not(None))
        query = select(*INTENT).where(or_(is_dead_letter(), alone)).order_by(_P.row_id.desc()).limit(limit)
        if topic_id is not None:
            query = query.where(_P.topic_id == topic_id)
        if batch_id is not None:
            query = query.where(_P.batch_id == batch_id)
        of_ledgers = among(connection, _P.ledger_id, ledger_ids or ())
        wanted = query if ledger_ids is None else query.where(of_ledgers)
        return [to_intent(row) for row in connection.execute(wanted)]


def _with_references(connection: Connection, rows: Sequence[Row[Any]]) -> list[DeletionIntent]:
    """The rows as intents; compares the copy's uuid, because a copy made anew is another one.

    A listed copy of which the uuid cannot be read may be any: it keeps whatever was of its kind.
    """
    found = [to_intent(row) for row in rows]
    named = _copies(connection.dialect.name).execute(connection, {(one.ledger_id,) for one in found})
    live: dict[tuple[int, str], str | None] = {}
    for row in named:
        context = context_or_none(row.context)
        live[row.ledger_id, row.kind] = _ANY if context is None else context.get("uuid")
    keys = [(one.ledger_id, one.copy.value) for one in found]
    return [
        replace(one, referenced=key in live and live[key] in {_ANY, one.context.get("uuid")})
        for one, key in zip(found, keys, strict=True)
    ]


@cache
def _copies(dialect: str) -> Statement:
    """The copies that ledgers have which still are in the catalog."""
    ledgers, c = rows_of(dialect, "ledgers", {"id": BIG}), t.ledger_copy.c
    listed = t.ledger_copy.join(t.ledger, t.ledger.c.ledger_id == c.ledger_id)
    query = select(c.ledger_id, c.kind, as_text(c.context)).select_from(listed)
    return Statement(sql=query.where(c.ledger_id.in_(select(ledgers.source.c.id))), rows=ledgers)


def _audit_alone(connection: Connection, row: Row[Any], one: Ended, *, at_us: int) -> None:
    actor, reason = _decided(connection, row)
    detail = {
        "ledger": row.ledger_id,
        "copy": row.copy,
        "generation": row.generation,
        "outcome": one.outcome.value,
        "objects": one.objects,
        "size_bytes": one.size_bytes,
        "error": one.error,
    }
    audit(
        connection,
        "delete-ledger",
        Cause(actor=actor, reason=reason, workflow_id=row.claim_workflow),
        at_us=at_us,
        topic_id=TopicId(row.topic_id),
        topic=row.topic,
        run_id=row.batch_id or None,
        detail=detail,
    )


def _decided(connection: Connection, row: Row[Any]) -> tuple[str, str]:
    """Return actor and reason of the detach. A ledger that its creator gave up has those of its batch."""
    if row.actor:
        return row.actor, row.reason
    of_batch = select(_A.actor, _A.reason).where(_A.run_id == row.batch_id).order_by(_A.audit_id).limit(1)
    found = connection.execute(of_batch).first()
    return (found.actor, found.reason) if found else ("sexton", "")


def _audit_batch(
    connection: Connection, batch_id: str, topic_id: TopicId, cause: Cause, outcome: Tally, *, at_us: int
) -> None:
    """Write down how a batch ended, and which ledgers it was about."""
    names = select(func.min(_P.topic), func.max(_P.topic)).where(_P.batch_id == batch_id)
    topic, other = connection.execute(names).one()
    audit(
        connection,
        "delete-ledgers",
        cause,
        at_us=at_us,
        topic_id=topic_id,
        topic=topic if topic == other else None,  # a batch may be of several topics
        run_id=batch_id,
        detail={"outcomes": dict(outcome.outcomes), "objects": outcome.objects, "size_bytes": outcome.size_bytes},
        span=Span.selected(connection, _P.ledger_id, _P.batch_id == batch_id),
    )
