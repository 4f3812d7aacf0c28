"""Ledger deletion, one side effect an activity: detach, delete a chunk, delete one, hand over, certify.

Every activity may run twice, also at the same time (two attempts may overlap), and may have happened although
it was reported as failed. What makes that harmless stands in each docstring.

Source: PIP-186.
"""

import math
from dataclasses import replace

from activities.deletion import metrics
from activities.deletion.claims import BATCH_CLAIM_S, CLAIM_S, detach_arguments, own_cause, own_claim, report_detached
from activities.deletion.phase_two import (
    chunk_result,
    examine,
    finish,
    hand_over,
    later,
    raise_if_nothing_answered,
    remove,
    result_of,
    sentence,
    unfinished,
)
from activities.deletion.rate import DeletionPace
from activities.deletion.values import (
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DeleteIntentInput,
    DeleteIntentResult,
    DetachInput,
    DetachResult,
    RangesInput,
    RangesPage,
)
from activities.dispatch import Answer, Redirect, check_topic_name, find_lease, is_topic_name, to_work_result
from activities.heartbeats import Heartbeats, beating, defined
from logstore.deletion.intents import (
    STUCK_AFTER_ATTEMPTS,
    BatchCertificate,
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
from logstore.ports.catalog import Claim, Deletions, IntentResult, Ledgers, PhaseOne, Topics
from logstore.ports.objects import Storages
from logstore.ports.owners import Owners
from logstore.positions import LedgerId, TopicId
from logstore.records.services.flush_requests import FlushRequests
from logstore.records.tombstones import asked_for


class LedgerDeletion:
    """The activities of two-phase deletion, over ports."""

    def __init__(
        self,
        *,
        phase_one: PhaseOne,
        deletions: Deletions,
        ledgers: Ledgers,
        topics: Topics,
        storages: Storages,
        flushes: FlushRequests,
        owners: Owners,
    ) -> None:
        """Take the ports; `storages` by `CopyKind` value."""
        self._flushes = flushes
        self._deletions = deletions
        self._storages = storages
        self._phase_one = phase_one
        self._owners = owners
        self._ledgers = ledgers
        self._topics = topics

    @defined(name="deletion.detach")
    @beating()
    def detach(self, request: DetachInput) -> Answer[DetachResult]:
        """Take ledgers out of their list and file an intent per copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Heartbeat: while the transaction runs.
        Raises: InvalidInput, UnknownObject, PreconditionFailed (the batch id is another request's), Unsupported,
            LedgerStillNeeded, StaleCatalog, NotOwner, LookupRefused (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        check_topic_name(self._topics, request.topic_id, request.topic)
        epoch = self._ledgers.epoch()
        if request.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"detach: expected catalog epoch {epoch}, found {request.catalog_epoch}")
        topic_id, durable = TopicId(request.topic_id), asked_for(request.durable_delete)
        batch = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)
        phase_one = self._phase_one.under(lease)
        if request.remove:
            detached = phase_one.operate(topic_id, request.operation(), durable=durable, **batch)
        else:
            ids = None if request.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in request.ledger_ids]
            detached = phase_one.detach(topic_id, ids, force=request.force, durable=durable, **batch)
        return to_work_result(lease, report_detached(detached, epoch))

    @defined(name="deletion.next_ranges")
    @beating()
    def next_ranges(self, request: RangesInput) -> RangesPage:
        """Read which unfinished rows of the batch come next.

        Idempotency: reads only; rows that ended since are met as finished, and a batch that is done has no more.
        Raises: StoreUnavailable (retry); ClaimHeld (terminal).
        """
        if self._ledgers.epoch() != request.catalog_epoch:
            return RangesPage(ranges=[], stale=True)
        found = self._deletions.ranges(request.batch_id, after=request.after, rows=request.rows, limit=request.limit)
        if found:
            self._deletions.renew(request.batch_id, own_claim(BATCH_CLAIM_S))
        return RangesPage(ranges=found)

    @defined(name="deletion.delete_chunk")
    def delete_chunk(self, request: ChunkInput) -> Answer[ChunkResult]:
        """Phase two for a range of rows: many ledgers share listings, pages and transactions.

        Idempotency: keyed by row; a row that ended keeps its outcome, an absent key counts as deleted, a row
        handed over before is reported again. A row that fails is handed to a workflow of its own. At a limited
        rate it deals with the first rows of the range and names the next one.
        Heartbeat: (rows examined, objects confirmed), per ledger and per page; a hint only.
        Raises: StoreUnavailable when no row at all got an answer (retry); ClaimHeld, NotOwner, LookupRefused
            (terminal).
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        if self._ledgers.epoch() != request.catalog_epoch:
            return to_work_result(lease, ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows}))
        queue, batch = self._deletions.under(lease), request.batch_id
        with Heartbeats(lambda: queue.renew(batch, own_claim(BATCH_CLAIM_S))) as heartbeats:
            found, pace = queue.intents(batch, request.chunk), DeletionPace(request.objects_per_s)
            intents = pace.slice(found)
            open_ones = unfinished(intents)
            examined = examine(open_ones, self._storages, self._flushes, heartbeats)
            ended, errors = remove(examined, self._storages, heartbeats, pace)
            changed = finish(queue, open_ones, ended, holder=batch)
            metrics.received(one for one in open_ones if one.row_id in changed)
            raise_if_nothing_answered(ended, errors)
            hand_over(queue, batch, open_ones, {row: sentence(error) for row, error in errors.items()})
        result = chunk_result(intents, ended, many_topics=request.many_topics)
        left = found[len(intents) :]
        return to_work_result(lease, replace(result, next_row=left[0].row_id if left else 0))

    @defined(name="deletion.hand_over_chunk")
    @beating()
    def hand_over_chunk(self, request: ChunkInput) -> Answer[ChunkResult]:
        """Hand every unfinished row of the range to a workflow of its own, once the chunk as a whole gave up.

        A damaged row gets none, because no workflow could do more than report the damage: it ends here.

        Idempotency: a row handed over before keeps its claim and is reported again.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        if self._ledgers.epoch() != request.catalog_epoch:
            return to_work_result(lease, ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows}))
        queue = self._deletions.under(lease)
        intents = queue.intents(request.batch_id, request.chunk)
        open_ones = unfinished(intents)
        refused = [(one.row_id, why) for one in open_ones if one.damage and (why := find_refusal(one))]
        ended = [IntentResult(row_id=row_id, outcome=why[0], error=why[1]) for row_id, why in refused]
        finish(queue, open_ones, ended, holder=request.batch_id)
        errors = {one.row_id: "the chunk as a whole got no answer" for one in open_ones if not one.damage}
        hand_over(queue, request.batch_id, open_ones, errors)
        return to_work_result(lease, chunk_result(intents, ended, many_topics=request.many_topics))

    @defined(name="deletion.delete_one")
    def delete_one(self, request: DeleteIntentInput) -> Answer[DeleteIntentResult]:
        """Phase two for one intent.

        Idempotency: keyed by (ledger, copy, generation); a finished row answers with its outcome.
        Heartbeat: per page; a hint only.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused (terminal); NoProgress (terminal) when storage keeps
            the same number of keys again and again; anything else is retried after `retry_interval_s`, or once an
            upload of the copy is over, and kept on the row.
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        try:
            return to_work_result(lease, self._take_and_delete(self._deletions.under(lease), request))
        except UnknownObject as error:
            return to_work_result(lease, DeleteIntentResult(outcome=Outcome.UNKNOWN, detail=str(error)))
        except StaleCatalog as error:
            return to_work_result(lease, DeleteIntentResult(outcome=Outcome.STALE_CATALOG, detail=str(error)))
        except (RetryableError, OutcomeUnknown) as error:  # the catalog did not answer
            raise later(error, request.retry_interval_s) from error

    def _take_and_delete(self, queue: Deletions, request: DeleteIntentInput) -> DeleteIntentResult:
        with beating():  # another writer may make this one wait longer than a heartbeat timeout
            intent = _take(queue, request)
        if intent.state is not DeletionState.PENDING:
            return result_of(intent)
        metrics.received([intent])
        with Heartbeats(lambda: queue.hold(intent.row_id, own_claim()), just_claimed=True) as heartbeats:
            examined = examine([intent], self._storages, self._flushes, heartbeats)
            ended, errors = remove(examined, self._storages, heartbeats, DeletionPace())
            changed = finish(queue, [intent], ended, holder=own_claim().workflow_id)
            if errors:
                raise _kept(queue, intent, errors[intent.row_id], request.retry_interval_s)
        if not changed:
            return self._take_and_delete(queue, request)  # taken from us: it ended, or another workflow has it, or none
        one = ended[0]
        return DeleteIntentResult(
            outcome=one.outcome, objects=one.objects, size_bytes=one.size_bytes, detail=one.error or ""
        )

    @defined(name="deletion.dead_letter")
    @beating()
    def dead_letter(self, request: DeadLetterInput) -> Answer[DeleteIntentResult]:
        """Keep an exhausted intent as a dead letter with its error: listed, never dropped.

        Idempotency: a row that ended meanwhile keeps its outcome, which is returned.
        Raises: InvalidInput, ClaimHeld, NotOwner, LookupRefused, UnknownObject (terminal); StoreUnavailable (retry).
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        queue = self._deletions.under(lease)
        try:
            intent = _take(queue, request, attempt=False)
        except StaleCatalog as error:
            return to_work_result(lease, DeleteIntentResult(outcome=Outcome.STALE_CATALOG, detail=str(error)))
        if intent.state is not DeletionState.PENDING:
            return to_work_result(lease, result_of(intent))
        why = request.error or intent.last_error or "no attempt is left"
        letter = IntentResult(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error=why)
        finish(queue, [intent], [letter], holder=own_claim().workflow_id)
        return to_work_result(
            lease, DeleteIntentResult(outcome=Outcome.DEAD_LETTERED, detail=why, stuck=intent.is_stuck)
        )

    @defined(name="deletion.certify")
    @beating()
    def certify(self, request: CertifyInput) -> Answer[BatchCertificate]:
        """Count the batch from its rows, close its run and write the audit row.

        Idempotency: counts are read from rows, so repeated work counts once; the run is closed once.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        lease = find_lease(request, self._owners)
        if isinstance(lease, Redirect):
            return lease
        batch = request.batch_id
        tally = self._deletions.under(lease).close(batch, own_cause(request.actor, request.reason))
        metrics.certified(tally)
        counted, objects = dict(tally.outcomes), tally.objects
        whole = BatchCertificate(batch_id=batch, outcomes=counted, objects=objects, size_bytes=tally.size_bytes)
        return to_work_result(lease, whole)


def _take(queue: Deletions, request: DeleteIntentInput | DeadLetterInput, *, attempt: bool = True) -> DeletionIntent:
    key = request.key
    if key.copy not in set(CopyKind):
        raise InvalidInput("copy", expected=f"one of {', '.join(CopyKind)}", found=key.copy)
    return queue.take(
        LedgerId(key.ledger_id),
        CopyKind(key.copy),
        key.generation,
        own_claim(),
        epoch=request.catalog_epoch,
        attempt=attempt,
        topic=request.topic if is_topic_name(request.topic) else None,
    )


def _kept(queue: Deletions, intent: DeletionIntent, error: SextonError, retry_interval_s: int) -> Exception:
    """Hold the row until the next attempt and a minute more, with the error; what ends this attempt."""
    after_s = retry_interval_s  # while an upload may go on, nothing can be deleted: it is not worth trying again
    if isinstance(error, UploadOpen):
        after_s = max(after_s, math.ceil(error.after_s))
    wait = Claim(workflow_id=own_claim().workflow_id, run_id="", ttl_s=after_s + CLAIM_S)
    left = error.keys_left if isinstance(error, DeletionIncomplete) else None
    attempts = queue.hold(intent.row_id, wait, error=sentence(error), keys_left=left)
    metrics.failed([intent])
    if attempts < STUCK_AFTER_ATTEMPTS:
        return later(error, after_s)
    return NoProgress(f"ledger {intent.ledger_id}: {left} keys left after each of {attempts} attempts; {error}")
