"""Activities of two-phase deletion. Source: PIP-186.

An activity may run twice, attempts may overlap, and an attempt that was reported as failed may have succeeded.
"""

import math
from dataclasses import replace

from activities.deletion import metrics
from activities.deletion.claims_and_causes import (
    BATCH_CLAIM_S,
    CLAIM_S,
    count_and_summarize_detach,
    detach_arguments,
    own_workflow_cause,
    own_workflow_claim,
)
from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.inputs_and_results import (
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DeleteIntentInput,
    DetachInput,
    DetachResult,
    RowRangesInput,
    RowRangesPage,
)
from activities.deletion.phase_two_steps import (
    build_chunk_result,
    flush_and_examine_intents,
    format_error,
    hand_over_rows,
    raise_if_nothing_answered,
    remove_examined_copies,
    result_of_ended_intent,
    select_unfinished_intents,
    store_results,
    to_retryable_error,
)
from activities.heartbeats import ClaimRenewingHeartbeats, define_activity, send_heartbeats
from activities.owner_routing import is_valid_topic_name, require_topic_name_if_known, work_at_owner
from logstore.catalog.deletion.phase_one import PhaseOne
from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.log.topics import Topics
from logstore.deletion.intents import (
    STUCK_AFTER_ATTEMPTS,
    BatchCertificate,
    DeleteIntentResult,
    DeletionIntent,
    DeletionState,
    Outcome,
    find_refusal,
)
from logstore.errors import (
    DeletionIncomplete,
    InvalidInput,
    NoProgress,
    OutcomeUnknown,
    RetryableError,
    SextonError,
    StaleCatalog,
    UnknownObject,
    UploadOpen,
)
from logstore.log.ledgers import CopyKind
from logstore.ownership import Lease
from logstore.ports.bundle_owners import TopicOwners
from logstore.ports.catalog.deletion import Claim, IntentResult
from logstore.ports.object_storage import StorageByCopyKind
from logstore.positions import LedgerId, TopicId
from logstore.records.services.flusher import SharedFlushes
from logstore.records.tombstone_rules import parse_delete_durability


class LedgerDeletionActivities:
    def __init__(
        self,
        *,
        phase_one: PhaseOne,
        deletions: PhaseTwoQueue,
        ledgers: MessageLedgers,
        topics: Topics,
        storages: StorageByCopyKind,
        flushes: SharedFlushes,
        owners: TopicOwners,
    ) -> None:
        self._flushes = flushes
        self._deletions = deletions
        self._storages = storages
        self._phase_one = phase_one
        self._owners = owners
        self._ledgers = ledgers
        self._topics = topics

    @define_activity(name="deletion.detach")
    @send_heartbeats()
    @work_at_owner
    def detach(self, request: DetachInput, lease: Lease | None) -> DetachResult:
        """Take ledgers out of their list and file an intent for each copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns the first result.
        Heartbeat: while the transaction runs.
        Raises: InvalidInput, UnknownObject, PreconditionFailed (the batch id belongs to another request), Unsupported,
            LedgerStillNeeded, StaleCatalog, NotOwner, LookupRefused (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        require_topic_name_if_known(self._topics, request.topic_id, request.topic)
        epoch = self._ledgers.catalog_epoch()
        if request.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"detach: expected catalog epoch {epoch}, found {request.catalog_epoch}")
        topic_id, durable = TopicId(request.topic_id), parse_delete_durability(request.durable_delete)
        arguments = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)
        phase_one = self._phase_one.with_lease(lease)
        if request.remove:
            batch = phase_one.apply_compound_operation(
                topic_id, request.to_compound_operation(), durable=durable, **arguments
            )
        else:
            ids = None if request.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in request.ledger_ids]
            batch = phase_one.detach_ledgers(topic_id, ids, force=request.force, durable=durable, **arguments)
        return count_and_summarize_detach(batch, epoch)

    @define_activity(name="deletion.next_ranges")
    @send_heartbeats()
    def list_ranges_and_renew_claim(self, request: RowRangesInput) -> RowRangesPage:
        """Return the next ranges of unfinished rows of the batch, and renew the batch's claim.

        Idempotency: a repeated call reads the rows again.
        Raises: StoreUnavailable (retry); ClaimHeld (terminal).
        """
        if self._ledgers.catalog_epoch() != request.catalog_epoch:
            return RowRangesPage(ranges=[], stale=True)
        ranges = self._deletions.list_unfinished_ranges(
            request.batch_id, after=request.after, rows=request.rows, limit=request.limit
        )
        if ranges:
            self._deletions.renew_batch_claim(request.batch_id, own_workflow_claim(BATCH_CLAIM_S))
        return RowRangesPage(ranges=ranges)

    @define_activity(name="deletion.delete_chunk")
    @work_at_owner
    def delete_chunk(self, request: ChunkInput, lease: Lease | None) -> ChunkResult:
        """Run phase two for a range of rows. One listing, one page of deletes and one transaction may serve many rows.

        A row that fails is handed over to a workflow of its own. At a limited rate, the call processes only the first
        rows and returns the id of the first remaining row.

        Idempotency: keyed by row. A row that ended keeps its outcome, an absent key counts as deleted, and a row that
            was handed over is reported again.
        Heartbeat: numbers of examined ledgers and of deleted objects, after each ledger and each page of deletes.
        Raises: StoreUnavailable (retry), if storage answered for no row; ClaimHeld, NotOwner, LookupRefused (terminal).
        """
        if self._ledgers.catalog_epoch() != request.catalog_epoch:
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        queue, batch_id = self._deletions.with_lease(lease), request.batch_id
        with ClaimRenewingHeartbeats(
            lambda: queue.renew_batch_claim(batch_id, own_workflow_claim(BATCH_CLAIM_S))
        ) as heartbeats:
            all_intents, pace = (
                queue.list_intents_in_range(batch_id, request.chunk),
                DeletionPace(request.objects_per_s),
            )
            intents = pace.limit_intents(all_intents)
            unfinished = select_unfinished_intents(intents)
            examination = flush_and_examine_intents(unfinished, self._storages, self._flushes, heartbeats)
            results, errors = remove_examined_copies(examination, self._storages, heartbeats, pace)
            changed_rows = store_results(queue, unfinished, results, holder=batch_id)
            metrics.count_taken_intents(intent for intent in unfinished if intent.row_id in changed_rows)
            raise_if_nothing_answered(results, errors)
            hand_over_rows(queue, batch_id, unfinished, {row: format_error(error) for row, error in errors.items()})
        result = build_chunk_result(intents, results, with_topic_names=request.many_topics)
        remaining = all_intents[len(intents) :]
        return replace(result, next_row=remaining[0].row_id if remaining else 0)

    @define_activity(name="deletion.hand_over_chunk")
    @send_heartbeats()
    @work_at_owner
    def hand_over_chunk(self, request: ChunkInput, lease: Lease | None) -> ChunkResult:
        """Hand over every unfinished row of the range to a workflow of its own, after the chunk's last attempt failed.

        A damaged row becomes a dead letter, because another attempt would find the same damage.

        Idempotency: a row that was handed over keeps its claim and is reported again.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        if self._ledgers.catalog_epoch() != request.catalog_epoch:
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        queue = self._deletions.with_lease(lease)
        intents = queue.list_intents_in_range(request.batch_id, request.chunk)
        unfinished = select_unfinished_intents(intents)
        refusals = [
            (intent.row_id, refusal) for intent in unfinished if intent.damage and (refusal := find_refusal(intent))
        ]
        results = [IntentResult(row_id=row_id, outcome=outcome, error=reason) for row_id, (outcome, reason) in refusals]
        store_results(queue, unfinished, results, holder=request.batch_id)
        errors = {intent.row_id: "the chunk as a whole got no answer" for intent in unfinished if not intent.damage}
        hand_over_rows(queue, request.batch_id, unfinished, errors)
        return build_chunk_result(intents, results, with_topic_names=request.many_topics)

    @define_activity(name="deletion.delete_one")
    @work_at_owner
    def claim_and_delete_copy(self, request: DeleteIntentInput, lease: Lease | None) -> DeleteIntentResult:
        """Run phase two for one intent.

        Idempotency: keyed by ledger, copy and generation. For a finished row, the row's outcome is returned.
        Heartbeat: numbers of examined ledgers and of deleted objects, after each page of deletes.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused (terminal); NoProgress (terminal) when
            `STUCK_AFTER_ATTEMPTS` attempts have left the same number of keys. Other errors are retried after
            `retry_interval_s`, but not before the end of an unfinished upload of the copy.
        """
        try:
            return self._claim_intent_and_delete_copy(self._deletions.with_lease(lease), request)
        except UnknownObject as error:
            return DeleteIntentResult(outcome=Outcome.UNKNOWN, detail=str(error))
        except StaleCatalog as error:
            return DeleteIntentResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
        except (RetryableError, OutcomeUnknown) as error:  # the catalog did not answer
            raise to_retryable_error(error, request.retry_interval_s) from error

    def _claim_intent_and_delete_copy(self, queue: PhaseTwoQueue, request: DeleteIntentInput) -> DeleteIntentResult:
        with send_heartbeats():  # another writer may block this transaction for longer than a heartbeat timeout
            intent = _claim_intent(queue, request)
        if intent.state is not DeletionState.PENDING:
            return result_of_ended_intent(intent)
        metrics.count_taken_intents([intent])
        with ClaimRenewingHeartbeats(
            lambda: queue.record_attempt_and_extend_claim(intent.row_id, own_workflow_claim()), just_claimed=True
        ) as heartbeats:
            examination = flush_and_examine_intents([intent], self._storages, self._flushes, heartbeats)
            results, errors = remove_examined_copies(examination, self._storages, heartbeats, DeletionPace())
            changed_rows = store_results(queue, [intent], results, holder=own_workflow_claim().workflow_id)
            if errors:
                raise _store_failure_and_get_error(queue, intent, errors[intent.row_id], request.retry_interval_s)
        if not changed_rows:  # the row ended, or this workflow lost its claim
            return self._claim_intent_and_delete_copy(queue, request)
        result = results[0]
        return DeleteIntentResult(
            outcome=result.outcome, objects=result.objects, size_bytes=result.size_bytes, detail=result.error or ""
        )

    @define_activity(name="deletion.dead_letter")
    @send_heartbeats()
    @work_at_owner
    def dead_letter_intent(self, request: DeadLetterInput, lease: Lease | None) -> DeleteIntentResult:
        """Turn an intent without remaining attempts into a dead letter with the error of the last attempt.

        Idempotency: a row that ended keeps its outcome, which is returned.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused, UnknownObject (terminal); StoreUnavailable (retry).
        """
        queue = self._deletions.with_lease(lease)
        try:
            intent = _claim_intent(queue, request, counts_attempt=False)
        except StaleCatalog as error:
            return DeleteIntentResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
        if intent.state is not DeletionState.PENDING:
            return result_of_ended_intent(intent)
        detail = request.error or intent.last_error or "no attempt is left"
        result = IntentResult(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error=detail)
        store_results(queue, [intent], [result], holder=own_workflow_claim().workflow_id)
        return DeleteIntentResult(outcome=Outcome.DEAD_LETTERED, detail=detail, stuck=intent.is_stuck)

    @define_activity(name="deletion.certify")
    @send_heartbeats()
    @work_at_owner
    def close_and_certify_batch(self, request: CertifyInput, lease: Lease | None) -> BatchCertificate:
        """Count the rows of the batch, close the batch run, and write the audit row.

        Idempotency: counts come from rows, so work that ran twice is counted once. The batch run is closed once.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        batch_id = request.batch_id
        tally = self._deletions.with_lease(lease).close_batch(
            batch_id, own_workflow_cause(request.actor, request.reason)
        )
        metrics.count_closed_batch(tally)
        return BatchCertificate(
            batch_id=batch_id, outcomes=dict(tally.outcomes), objects=tally.objects, size_bytes=tally.size_bytes
        )


def _claim_intent(
    queue: PhaseTwoQueue, request: DeleteIntentInput | DeadLetterInput, *, counts_attempt: bool = True
) -> DeletionIntent:
    key = request.key
    if key.copy not in set(CopyKind):
        raise InvalidInput("copy", expected=f"one of {', '.join(CopyKind)}", found=key.copy)
    return queue.claim_intent(
        LedgerId(key.ledger_id),
        CopyKind(key.copy),
        key.generation,
        own_workflow_claim(),
        epoch=request.catalog_epoch,
        counts_attempt=counts_attempt,
        topic=request.topic if is_valid_topic_name(request.topic) else None,
    )


def _store_failure_and_get_error(
    queue: PhaseTwoQueue, intent: DeletionIntent, error: SextonError, retry_interval_s: int
) -> Exception:
    """Store the error. Extend the claim to a minute after the next attempt's start. Return the error to raise."""
    after_s = retry_interval_s
    if isinstance(error, UploadOpen):  # nothing can be deleted before the upload ends
        after_s = max(after_s, math.ceil(error.after_s))
    claim = Claim(workflow_id=own_workflow_claim().workflow_id, run_id="", ttl_s=after_s + CLAIM_S)
    keys_left = error.keys_left if isinstance(error, DeletionIncomplete) else None
    attempts = queue.record_attempt_and_extend_claim(
        intent.row_id, claim, error=format_error(error), keys_left=keys_left
    )
    metrics.count_failed_attempts([intent])
    if attempts < STUCK_AFTER_ATTEMPTS:
        return to_retryable_error(error, after_s)
    return NoProgress(f"ledger {intent.ledger_id}: {keys_left} keys left after each of {attempts} attempts; {error}")
