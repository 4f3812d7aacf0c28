"""Queue of phase two in SQL: claims, outcomes and audit rows of intents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, union_all

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.catalog_row import require_epoch
from logstore.catalog.deletion.intent_queries import (
    INTENT_COLUMNS,
    intent_from_row,
    match_dead_letters,
    read_next_row_ranges,
    tally_intents,
)
from logstore.catalog.deletion.intent_rows import (
    claim_intent,
    end_intents,
    hand_over_intents,
    renew_claim_and_count_stuck_attempts,
)
from logstore.catalog.deletion.run_rows import (
    find_run_holder,
    finish_run,
    mark_paused_intents,
    pause_run,
    release_paused_run,
    renew_or_claim_run,
    resume_run,
)
from logstore.catalog.engine.database import in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    build_bulk_parameter,
    cast_to_text,
    is_one_of,
    parse_offload_context,
)
from logstore.catalog.ownership.fences import LeaseBoundAdapter, lock_fence_of_lease
from logstore.deletion.intent_queue_rules import require_unclaimed
from logstore.deletion.intents import DeletionIntent, DeletionState, require_topic
from logstore.errors import ClaimHeld, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import (
    AuditCause,
    Claim,
    IntentResult,
    IntentRowRange,
    IntentTally,
    UndeletedCopyCounts,
)
from logstore.positions import LedgerId, TopicId

T = TypeVar("T")

_P = t.pending_deletion.c
_PENDING = DeletionState.PENDING.value
_A = t.audit.c
_ANY_UUID = "*"
_KEY = (_P.ledger_id == bindparam("ledger"), _P.copy == bindparam("kind"), _P.generation == bindparam("detached"))
_LOCK_BY_KEY = select(*INTENT_COLUMNS).where(*_KEY).with_for_update()


class PhaseTwoQueue(LeaseBoundAdapter):
    """Queue of phase two. Under an outdated lease, each method that writes raises `NotOwner` and changes nothing."""

    def _write(self, work: Callable[[Connection], T]) -> T:
        def lock_fence_then_work(connection: Connection) -> T:
            lock_fence_of_lease(connection, self._lease)
            return work(connection)

        return super()._write(lock_fence_then_work)

    def list_unfinished_ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[IntentRowRange]:
        """Return up to `limit` ranges of unfinished intents of the batch, with row ids above `after`.

        A range has at most `rows` intents. No intent in a range is finished or has a workflow of its own.
        """
        return self._db.read(lambda c: read_next_row_ranges(c, batch_id, after=after, rows_per_range=rows, limit=limit))

    def list_intents_in_range(self, batch_id: str, row_range: IntentRowRange) -> list[DeletionIntent]:
        """Return all intents of the batch in the range, ascending by row id. Fill in `referenced`."""
        rows = (_P.batch_id == batch_id, _P.row_id >= row_range.first, _P.row_id <= row_range.last)
        query = select(*INTENT_COLUMNS).where(*rows).order_by(_P.row_id)
        return self._db.read(
            lambda connection: _build_intents_with_referenced_flag(connection, connection.execute(query).all())
        )

    @in_write_transaction("catalog.renew")
    def renew_batch_claim(self, connection: Connection, batch_id: str, claim: Claim) -> None:
        """Claim the batch for `claim.ttl_s` from now. A workflow run never shortens its own claim.

        Claims are long while a batch is paused. A released batch cannot be claimed again, because a late renewal by a
        dead workflow would hide the batch from sweeps.

        Raises:
            UnknownObject: The batch does not exist.
            ClaimHeld: The batch is finished, was released, or is claimed by another workflow.
        """
        renew_or_claim_run(connection, batch_id, claim, self._db.now_us(connection))

    @in_write_transaction("catalog.pause")
    def pause_batch(self, connection: Connection, batch_id: str) -> None:
        """Pause the batch until it is resumed or released. Rows that have a workflow of their own continue.

        No workflow takes over rows of a paused batch, even after the batch's claim has expired.

        Idempotency: a second pause keeps the time of the first pause.

        Raises:
            UnknownObject: The batch does not exist.
            PreconditionFailed: The batch is finished or was released.
        """
        pause_run(connection, batch_id, self._db.now_us(connection))

    @in_write_transaction("catalog.resume")
    def resume_batch(self, connection: Connection, batch_id: str) -> None:
        """End the pause of the batch. If the batch's claim has expired, the next sweep takes over the rows.

        Raises:
            UnknownObject, PreconditionFailed: The batch does not exist or is finished.
        """
        resume_run(connection, batch_id)

    @in_write_transaction("catalog.release")
    def release_paused_batch(self, connection: Connection, batch_id: str) -> bool:
        """End the claim of a paused batch whose workflow is gone. The next sweep then takes over the rows of the batch.

        Only a person may request a release. If the batch is finished or not paused, change nothing and return `False`.
        """
        return release_paused_run(connection, batch_id, self._db.now_us(connection))

    def record_outcomes(self, results: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        """Record the outcomes of PENDING rows of the holder. Return the ids of the rows that this call finished.

        Other rows do not change. A row that moved to another batch stays unfinished, even if storage confirmed that
        nothing is left. The creator of a newborn ledger may have stored `meta.json` after this confirmation. So
        the other batch checks storage again.

        If a row had a workflow of its own, the audit log gets a row `delete-ledger` with the batch's actor and reason.

        `holder` is the id of the workflow that has claimed the rows, or of the batch of the rows. With a batch id, the
        call also finishes rows that an overlapping attempt of the chunk has moved to workflows of their own.
        """

        def work(connection: Connection) -> frozenset[int]:
            now = self._db.now_us(connection)
            rows = end_intents(connection, results, holder, now_us=now)
            for result in results:
                # The audit row of the batch counts this intent as RETRYING, so the intent gets its own audit row.
                if result.row_id in rows and rows[result.row_id].claim_workflow == holder:
                    _audit_ended_intent(connection, rows[result.row_id], result, at_us=now)
            return frozenset(rows)

        if not results:
            return frozenset()
        with effect("catalog.finish"):
            return self._write(work)

    def move_to_own_workflows(
        self, workflow_id_by_row: Mapping[int, str], *, batch_id: str, error_by_row: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        """Move the claims of PENDING rows of the batch to the given workflows. Return the ids of the moved rows.

        The move counts as the first attempt of each row. Rows that an earlier call moved, or that another batch has
        taken over, do not change.
        """

        def work(connection: Connection) -> frozenset[int]:
            until_us = self._db.now_us(connection) + int(ttl_s * 1_000_000)
            return hand_over_intents(connection, workflow_id_by_row, batch_id, error_by_row, until_us=until_us)

        if not workflow_id_by_row:
            return frozenset()
        with effect("catalog.hand_over"):
            return self._write(work)

    @in_write_transaction("catalog.take")
    def claim_intent(
        self,
        connection: Connection,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        counts_attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        """Claim one row. With `counts_attempt`, count an attempt. Return the intent, with `referenced` filled in.

        A finished row is returned unchanged. `topic` is the encoded name that the row must have. If `topic` is `None`
        or the row is damaged, the name is not checked.

        Raises:
            StaleCatalog: `epoch` is not the catalog's epoch. Nothing changed.
            InvalidInput: The row has another topic. Nothing changed.
            UnknownObject: The row was never filed, or was removed.
            ClaimHeld: Another workflow has claimed the row.
        """
        require_epoch(connection, epoch)
        key = {"ledger": ledger_id, "kind": copy.value, "detached": generation}
        row = connection.execute(_LOCK_BY_KEY, key).first()
        if row is None:
            expected = "an intent that was filed and not yet removed"
            raise UnknownObject("deletion", expected=expected, found=claim.workflow_id)
        intent = intent_from_row(row)
        require_topic(intent, topic)
        if intent.state is not DeletionState.PENDING:
            return intent
        now = self._db.now_us(connection)
        own = (row.claim_workflow, row.claim_until_us)
        batch = None if row.claim_workflow else find_run_holder(connection, row.batch_id, now)
        require_unclaimed(row.ledger_id, claim.workflow_id, claim=own, batch=batch, now_us=now)
        attempts = row.attempts + int(counts_attempt)
        claimed = claim_intent(connection, row.row_id, claim, attempts=attempts, now_us=now)
        return _build_intents_with_referenced_flag(connection, [claimed])[0]

    @in_write_transaction("catalog.hold")
    def record_attempt_and_extend_claim(
        self,
        connection: Connection,
        row_id: int,
        claim: Claim,
        *,
        error: str | None = None,
        keys_left: int | None = None,
    ) -> int:
        """Claim the row for `claim.ttl_s` from now, and store the error of an attempt. A finished row does not change.

        `keys_left` is the number of keys that storage kept, or `None` if storage did not answer for all keys. Return
        the number of consecutive attempts that left `keys_left` keys, including this attempt. Attempts in which storage
        did not answer for all keys are ignored. If `keys_left` is `None`, the result is 0.

        Raise `ClaimHeld` if another workflow has claimed the row.
        """
        now = self._db.now_us(connection)
        attempts = renew_claim_and_count_stuck_attempts(
            connection, row_id, claim, error=error, keys_left=keys_left, now_us=now
        )
        if attempts is None:  # a row that ended needs no claim
            query = select(_P.claim_workflow, _P.batch_id).where(_P.row_id == row_id, _P.state == _PENDING)
            if other := connection.execute(query).first():
                found_holder = other[0] or f"batch {other[1]!r}"
                raise ClaimHeld(f"deletion {row_id}: expected to hold it, found {found_holder}")
        return 0 if attempts is None or keys_left is None else attempts

    def tally_batch(self, batch_id: str) -> IntentTally:
        return self._db.read(lambda connection: tally_intents(connection, _P.batch_id == batch_id))

    @in_write_transaction("catalog.close")
    def close_batch(self, connection: Connection, batch_id: str, cause: AuditCause) -> IntentTally:
        """Return the tally of the batch. The first call closes the batch and writes the audit row."""
        now = self._db.now_us(connection)
        topic_id, tally = finish_run(connection, batch_id, now), tally_intents(connection, _P.batch_id == batch_id)
        if topic_id is None:  # an earlier call finished the run
            return tally
        _audit_closed_batch(connection, batch_id, topic_id, cause, tally, at_us=now)
        return replace(tally, closed=True)

    def count_undeleted_copies(self) -> UndeletedCopyCounts:
        by_state, deleted = select(_P.state, func.count()).group_by(_P.state), DeletionState.DELETED.value
        # Two ranges instead of `!=`, because the index then skips the many deleted rows.
        query = union_all(by_state.where(_P.state < deleted), by_state.where(_P.state > deleted))
        first = select(func.min(_P.row_id)).where(_P.state == _PENDING).scalar_subquery()
        oldest = select(_P.created_us).where(_P.row_id == first)
        state_counts, oldest_us = self._db.read(
            lambda c: (c.execute(query).all(), c.execute(oldest).scalar_one_or_none())
        )
        counts = {row[0]: row[1] for row in state_counts}
        pending = counts.pop(_PENDING, 0)
        return UndeletedCopyCounts(estimated_inflight=pending, dead_lettered=sum(counts.values()), oldest_us=oldest_us)

    def list_intents(
        self, state: DeletionState | None, *, topic: str | None = None, ledger_id: LedgerId | None = None, limit: int
    ) -> list[DeletionIntent]:
        """Return intents in `state`, newest first. `None` selects all states. Fill in `paused`.

        `topic` is an encoded name, which selects the rows of all topics that ever had this name.
        """
        is_dead = (
            state is DeletionState.DEAD_LETTERED
        )  # few rows: `row_id + 0` makes the planner use the index of states
        query = select(*INTENT_COLUMNS).order_by((_P.row_id + 0 if is_dead else _P.row_id).desc()).limit(limit)
        if topic is not None:
            query = query.where(_P.topic == topic)
        if ledger_id is not None:
            query = query.where(_P.ledger_id == ledger_id)
        if state:
            query = query.where(match_dead_letters() if is_dead else _P.state == state.value)
        return self._db.read(lambda c: mark_paused_intents(c, [intent_from_row(row) for row in c.execute(query)]))

    @in_read_transaction
    def list_failed_intents(
        self,
        connection: Connection,
        *,
        topic_id: TopicId | None = None,
        batch_id: str | None = None,
        ledger_ids: Sequence[LedgerId] | None = None,
        limit: int,
    ) -> Sequence[DeletionIntent]:
        """Return dead letters and intents that have a workflow of their own, newest first.

        A filter that is `None` selects all intents. `ledger_ids` has at most 10,000 ids.
        """
        alone = and_(_P.state == _PENDING, _P.claim_workflow.is_not(None))
        query = select(*INTENT_COLUMNS).where(or_(match_dead_letters(), alone)).order_by(_P.row_id.desc()).limit(limit)
        if topic_id is not None:
            query = query.where(_P.topic_id == topic_id)
        if batch_id is not None:
            query = query.where(_P.batch_id == batch_id)
        if ledger_ids is not None:
            query = query.where(is_one_of(connection, _P.ledger_id, ledger_ids))
        return [intent_from_row(row) for row in connection.execute(query)]


def _build_intents_with_referenced_flag(connection: Connection, rows: Sequence[Row[Any]]) -> list[DeletionIntent]:
    """Convert rows to intents, and set `referenced`.

    An intent is referenced if the catalog has the copy, with the intent's uuid or with an unreadable uuid.
    """
    intents = [intent_from_row(row) for row in rows]
    copies = _compile_listed_copies(connection.dialect.name).execute(
        connection, {(intent.ledger_id,) for intent in intents}
    )
    uuid_by_copy: dict[tuple[int, str], str | None] = {}
    for row in copies:
        context = parse_offload_context(row.context)
        uuid_by_copy[row.ledger_id, row.kind] = _ANY_UUID if context is None else context.get("uuid")
    keys = [(intent.ledger_id, intent.copy.value) for intent in intents]
    return [
        replace(intent, referenced=key in uuid_by_copy and uuid_by_copy[key] in {_ANY_UUID, intent.context.get("uuid")})
        for intent, key in zip(intents, keys, strict=True)
    ]


@cache
def _compile_listed_copies(dialect: str) -> BulkStatement:
    ledgers, c = build_bulk_parameter(dialect, "ledgers", {"id": BIG}), t.ledger_copy.c
    listed = t.ledger_copy.join(t.ledger, t.ledger.c.ledger_id == c.ledger_id)
    query = select(c.ledger_id, c.kind, cast_to_text(c.context)).select_from(listed)
    return BulkStatement(sql=query.where(c.ledger_id.in_(select(ledgers.source.c.id))), rows=ledgers)


def _audit_ended_intent(connection: Connection, row: Row[Any], result: IntentResult, *, at_us: int) -> None:
    actor, reason = _find_actor_and_reason_of_detach(connection, row)
    detail = {
        "ledger": row.ledger_id,
        "copy": row.copy,
        "generation": row.generation,
        "outcome": result.outcome.value,
        "objects": result.objects,
        "size_bytes": result.size_bytes,
        "error": result.error,
    }
    insert_audit_row(
        connection,
        "delete-ledger",
        AuditCause(actor=actor, reason=reason, workflow_id=row.claim_workflow),
        at_us=at_us,
        topic_id=TopicId(row.topic_id),
        topic=row.topic,
        run_id=row.batch_id or None,
        detail=detail,
    )


def _find_actor_and_reason_of_detach(connection: Connection, row: Row[Any]) -> tuple[str, str]:
    """Return actor and reason of the detach. If the intent names no actor, use the first audit row of the batch."""
    if row.actor:
        return row.actor, row.reason
    of_batch = select(_A.actor, _A.reason).where(_A.run_id == row.batch_id).order_by(_A.audit_id).limit(1)
    decision = connection.execute(of_batch).first()
    return (decision.actor, decision.reason) if decision else ("sexton", "")


def _audit_closed_batch(
    connection: Connection, batch_id: str, topic_id: TopicId, cause: AuditCause, tally: IntentTally, *, at_us: int
) -> None:
    names = select(func.min(_P.topic), func.max(_P.topic)).where(_P.batch_id == batch_id)
    topic, other = connection.execute(names).one()
    insert_audit_row(
        connection,
        "delete-ledgers",
        cause,
        at_us=at_us,
        topic_id=topic_id,
        topic=topic if topic == other else None,  # a batch may be of several topics
        run_id=batch_id,
        detail={"outcomes": dict(tally.outcomes), "objects": tally.objects, "size_bytes": tally.size_bytes},
        span=AuditedLedgers.from_query(connection, _P.ledger_id, _P.batch_id == batch_id),
    )
