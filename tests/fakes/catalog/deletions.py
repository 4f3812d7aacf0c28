"""The queue of phase two in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from logstore.deletion.intent_queue_rules import require_unclaimed, split_batch_into_ranges
from logstore.deletion.intents import DeletionIntent, DeletionState, require_topic
from logstore.errors import ClaimHeld, StaleCatalog, UnknownObject
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
from logstore.positions import LedgerId
from tests.fakes.catalog.batch_runs import FakeBatchRuns


class FakeDeletions(FakeBatchRuns):
    """The `PhaseTwoQueue` port."""

    def list_unfinished_ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[IntentRowRange]:
        following_rows = [row for row in self._list_batch_rows(batch_id) if row.row_id > after]
        row_facts = (
            (
                following_row.row_id,
                following_row.segments,
                following_row.state is DeletionState.PENDING and following_row.handed_to is None,
            )
            for following_row in following_rows
        )
        return [
            IntentRowRange(first=ids[0], last=ids[-1], rows=len(ids))
            for ids in islice(split_batch_into_ranges(row_facts, rows), limit)
        ]

    def list_intents_in_range(self, batch_id: str, row_range: IntentRowRange) -> list[DeletionIntent]:
        with self._catalog.lock:
            rows_in_range = [
                row for row in self._list_batch_rows(batch_id) if row_range.first <= row.row_id <= row_range.last
            ]
            return [self._with_reference(row) for row in rows_in_range]

    def renew_batch_claim(self, batch_id: str, claim: Claim) -> None:
        with effect("catalog.renew"), self._catalog.lock:
            run = self._catalog.runs.get(batch_id)
            if run is None:
                raise UnknownObject("batch", expected="a batch that was detached", found=batch_id)
            if run.finished_us is not None:
                raise ClaimHeld(f"batch {batch_id}: expected it unfinished, found that it is finished")
            if run.holder != claim.workflow_id and run.is_held(self._catalog.now_us):
                raise ClaimHeld(f"batch {batch_id}: expected {claim.workflow_id}, found {run.holder}")
            until_us = self._catalog.until_us(claim.ttl_s)
            run.until_us = max(until_us, run.until_us) if run.holder_run == claim.run_id else until_us
            run.holder, run.holder_run = claim.workflow_id, claim.run_id

    def record_outcomes(self, results: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        if not results:
            return frozenset()
        recorded_row_ids = set()
        with effect("catalog.finish"), self._catalog.lock:
            for result in results:
                row = self._catalog.intent_rows[result.row_id]
                if row.state is not DeletionState.PENDING or holder not in {row.handed_to, row.batch_id}:
                    continue
                attempts = row.attempts or 1  # a batch's only try
                self._catalog.ended_us[result.row_id] = self._catalog.now_us
                self._catalog.confirmed[result.row_id] = (result.objects, result.size_bytes)
                if row.handed_to == holder:
                    self._audit_own_workflow_end(row, result)
                self._store(
                    row, state=result.outcome.state, outcome=result.outcome, attempts=attempts, last_error=result.error
                )
                recorded_row_ids.add(result.row_id)
        return frozenset(recorded_row_ids)

    def _audit_own_workflow_end(self, row: DeletionIntent, result: IntentResult) -> None:
        """One copy that a workflow of its own ended, with who and why of its batch."""
        batch_cause = next(
            (audit_row.cause for audit_row in self._catalog.audited if audit_row.run_id == row.batch_id), None
        )
        of_batch = (batch_cause.actor, batch_cause.reason) if batch_cause else ("sexton", "")
        actor, reason = (row.actor, row.reason) if row.actor else of_batch
        cause = AuditCause(actor=actor, reason=reason, workflow_id=row.handed_to or "")
        detail = {"ledger": row.ledger_id, "outcome": result.outcome.value, "error": result.error}
        self._catalog.audit("delete-ledger", cause, detail, run_id=row.batch_id)

    def move_to_own_workflows(
        self, workflow_id_by_row: Mapping[int, str], *, batch_id: str, error_by_row: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        if not workflow_id_by_row:
            return frozenset()
        moved = set()
        with effect("catalog.hand_over"), self._catalog.lock:
            for row_id, workflow_id in workflow_id_by_row.items():
                row = self._catalog.intent_rows[row_id]
                if (row.state, row.batch_id, row.handed_to) == (DeletionState.PENDING, batch_id, None):
                    claim = Claim(workflow_id=workflow_id, run_id="", ttl_s=ttl_s)
                    self._store(row, claim, attempts=row.attempts + 1, last_error=error_by_row.get(row_id))
                    moved.add(row_id)
        return frozenset(moved)

    def claim_intent(
        self,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        counts_attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        with effect("catalog.take"), self._catalog.lock:
            current = self._catalog.current_epoch
            if epoch not in {None, current}:
                raise StaleCatalog(f"catalog epoch: expected {current}, found {epoch} in the request")
            key = (ledger_id, copy, generation)
            rows = self._catalog.intent_rows.values()
            row = next(
                (candidate for candidate in rows if (candidate.ledger_id, candidate.copy, candidate.generation) == key),
                None,
            )
            if row is None:
                raise UnknownObject("deletion", expected="an intent that was filed", found=claim.workflow_id)
            require_topic(row, topic)
            if row.state is not DeletionState.PENDING:
                return row
            run = self._catalog.runs.get(row.batch_id)
            now_us = self._catalog.now_us
            require_unclaimed(
                row.ledger_id,
                claim.workflow_id,
                claim=(row.handed_to, self._catalog.claim_until_us_by_row.get(row.row_id)),
                batch=run.holder if run and run.is_held(now_us) else None,
                now_us=now_us,
            )
            return self._with_reference(self._store(row, claim, attempts=row.attempts + counts_attempt))

    def record_attempt_and_extend_claim(
        self, row_id: int, claim: Claim, *, error: str | None = None, keys_left: int | None = None
    ) -> int:
        with effect("catalog.hold"), self._catalog.lock:
            row = self._catalog.intent_rows.get(row_id)
            if row is None or row.state is not DeletionState.PENDING:
                return 0
            if row.handed_to != claim.workflow_id:
                present_holder = row.handed_to or f"batch {row.batch_id!r}"
                raise ClaimHeld(f"deletion {row_id}: expected to hold it, found {present_holder}")
            row = self._store(row, claim, last_error=row.last_error if error is None else error)
            if keys_left is None:
                return 0
            attempts = row.keys_left_attempts + 1 if self._catalog.keys_left.get(row_id) == keys_left else 1
            self._catalog.keys_left[row_id] = keys_left
            return self._store(row, claim, keys_left_attempts=attempts).keys_left_attempts

    def tally_batch(self, batch_id: str) -> IntentTally:
        return self.counted(self._list_batch_rows(batch_id))

    def close_batch(self, batch_id: str, cause: AuditCause) -> IntentTally:
        with effect("catalog.close"), self._catalog.lock:
            run = self._catalog.runs.get(batch_id)
            closes_now = run is not None and run.finished_us is None
            if run and closes_now:
                run.finished_us = self._catalog.now_us
                detail = {"outcomes": dict(self.tally_batch(batch_id).outcomes)}
                self._catalog.audit("delete-ledgers", cause, detail, run_id=batch_id)
            return replace(self.tally_batch(batch_id), closed=closes_now)

    def count_undeleted_copies(self) -> UndeletedCopyCounts:
        pending = self.list_intents(DeletionState.PENDING, limit=10**9)
        return UndeletedCopyCounts(
            estimated_inflight=len(pending),
            oldest_us=self._catalog.now_us if pending else None,  # intents here do not know when they were filed
            dead_lettered=len(self.list_intents(DeletionState.DEAD_LETTERED, limit=10**9)),
        )

    def list_intents(
        self,
        state: DeletionState | None,
        *,
        topic: str | None = None,
        ledger_id: LedgerId | None = None,
        limit: int,
    ) -> list[DeletionIntent]:
        with self._catalog.lock:
            rows = sorted(self._catalog.intent_rows.items(), reverse=True)
            matching = [row for _, row in rows if state in {None, row.state} and topic in {None, row.topic}]
            return [row for row in matching if ledger_id in {None, row.ledger_id}][:limit]

    def _list_batch_rows(self, batch_id: str) -> Sequence[DeletionIntent]:
        with self._catalog.lock:
            rows = sorted(self._catalog.intent_rows.items())
        return [row for _, row in rows if row.batch_id == batch_id]

    def _with_reference(self, row: DeletionIntent) -> DeletionIntent:
        """Say whether the catalog has this very copy; one made anew has another uuid."""
        copy = self._catalog.copies.get(row.ledger_id, {}).get(row.copy)
        named = copy is not None and copy.context.get("uuid") == row.context.get("uuid")
        return replace(row, referenced=named)

    def _store(self, row: DeletionIntent, claim: Claim | None = None, **changes: object) -> DeletionIntent:
        """Change the row; it is held by `claim` from now on, or by nobody."""
        changed = replace(row, handed_to=claim and claim.workflow_id, **changes)  # type: ignore[arg-type]
        self._catalog.intent_rows[row.row_id] = changed
        if claim:
            self._catalog.claim_until_us_by_row[row.row_id] = self._catalog.until_us(claim.ttl_s)
        return self._catalog.intent_rows[row.row_id]
