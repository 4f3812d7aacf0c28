"""Ledger deletion, one side effect an activity: detach, delete a chunk, delete one, hand over, certify.

Every activity may run twice, also at the same time (two attempts may overlap), and may have happened although
it was reported as failed. What makes that harmless stands in each docstring.

Source: PIP-186.
"""

from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.deletion.phase_two import Examination, examine, remove
from activities.deletion.pulse import Pulse
from activities.deletion.values import (
    Certificate,
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DetachInput,
    DetachResult,
    IntentKey,
    OneInput,
    OneResult,
    Range,
    RangesInput,
    RangesPage,
)
from logstore.deletion import DeletionIntent, DeletionState, Outcome
from logstore.errors import SextonError, StaleCatalog, UnknownObject
from logstore.ledgers import CopyKind
from logstore.ports.catalog import Cause, Claim, Deletions, Ended, Ledgers, RowRange
from logstore.ports.storage import Storages
from logstore.positions import LedgerId, TopicId

_CLAIM_S = 60.0  # while work runs; renewed with heartbeats


class LedgerDeletion:
    """The activities of two-phase deletion, over ports."""

    def __init__(self, *, deletions: Deletions, ledgers: Ledgers, storages: Storages) -> None:
        """Take the ports; `storages` by `CopyKind` value."""
        self._deletions = deletions
        self._ledgers = ledgers
        self._storages = storages

    @activity.defn(name="deletion.detach")
    def detach(self, request: DetachInput) -> DetachResult:
        """Take ledgers out of their list and file an intent per copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Heartbeat: none; one transaction.
        Raises: UnknownObject, LedgerStillNeeded, StaleCatalog (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        epoch, run_id = self._ledgers.epoch(), activity.info().workflow_run_id or ""
        if request.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"detach: expected catalog epoch {epoch}, found {request.catalog_epoch}")
        detached = self._deletions.detach(
            TopicId(request.topic_id),
            None if request.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in request.ledger_ids],
            force=request.force,
            batch_id=request.batch_id,
            claim=Claim(workflow_id=request.batch_workflow_id, run_id=run_id, ttl_s=_CLAIM_S),
            cause=Cause(actor=request.actor, reason=request.reason, workflow_id=request.batch_workflow_id),
        )
        return DetachResult(
            ledgers=detached.ledgers,
            intents=detached.intents,
            catalog_epoch=epoch,
            finished=dict(detached.finished),
        )

    @activity.defn(name="deletion.next_ranges")
    def next_ranges(self, request: RangesInput) -> RangesPage:
        """Read which unfinished rows of the batch come next.

        Idempotency: reads only; rows that ended since are met as finished.
        Raises: StoreUnavailable (retry); ClaimHeld (terminal).
        """
        if self._stale(request.catalog_epoch):
            return RangesPage(ranges=[], stale=True)
        self._deletions.renew(request.batch_id, _own_claim())
        found = self._deletions.ranges(request.batch_id, after=request.after, rows=request.rows, limit=request.limit)
        return RangesPage(ranges=[Range(first=part.first, last=part.last, rows=part.rows) for part in found])

    @activity.defn(name="deletion.delete_chunk")
    def delete_chunk(self, request: ChunkInput) -> ChunkResult:
        """Phase two for a range of rows: many ledgers share listings, pages and transactions.

        Idempotency: keyed by row; a row that ended keeps its outcome, an absent key counts as deleted, a row
        handed over before is reported again. A row that fails is handed to a workflow of its own.
        Heartbeat: (rows examined, objects confirmed), per ledger and per page; a hint only.
        Raises: StoreUnavailable when no row at all got an answer (retry); ClaimHeld (terminal).
        """
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        pulse = Pulse(lambda: self._deletions.renew(request.batch_id, _own_claim()))
        intents = self._deletions.intents(request.batch_id, _rows(request.chunk))
        open_ones = [one for one in intents if one.state is DeletionState.PENDING and one.handed_to is None]
        found = examine(open_ones, self._deletions.referenced(open_ones), self._storages, pulse)
        ended, errors = remove(found, self._storages, pulse)
        _raise_if_nothing_answered(found, ended)
        self._deletions.finish(ended)
        self._hand_over(open_ones, errors)
        return _chunk_result(intents, ended, errors)

    @activity.defn(name="deletion.hand_over_chunk")
    def hand_over_chunk(self, request: ChunkInput) -> ChunkResult:
        """Hand every unfinished row of the range to a workflow of its own, once the chunk as a whole gave up.

        Idempotency: a row handed over before keeps its claim and is reported again.
        Raises: StoreUnavailable (retry).
        """
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        intents = self._deletions.intents(request.batch_id, _rows(request.chunk))
        open_ones = [one for one in intents if one.state is DeletionState.PENDING and one.handed_to is None]
        errors = {one.row_id: "the chunk as a whole got no answer from storage" for one in open_ones}
        self._hand_over(open_ones, errors)
        return _chunk_result(intents, [], errors)

    def _hand_over(self, intents: list[DeletionIntent], errors: dict[int, str]) -> None:
        names = {one.row_id: delete_ledger_id(_key(one)) for one in intents if one.row_id in errors}
        self._deletions.hand_over(names, errors=errors, ttl_s=_CLAIM_S)

    @activity.defn(name="deletion.delete_one")
    def delete_one(self, request: OneInput) -> OneResult:
        """Phase two for one intent.

        Idempotency: keyed by (ledger, copy, generation); a finished row answers with its outcome.
        Heartbeat: per page; a hint only.
        Raises: ClaimHeld (terminal); anything else is kept on the row, and retried after `retry_interval_s`.
        """
        if self._stale(request.catalog_epoch):
            return OneResult(outcome=Outcome.STALE_CATALOG, detail=f"expected epoch {request.catalog_epoch}")
        try:
            intent = self._take(request.key)
        except UnknownObject as error:
            return OneResult(outcome=Outcome.UNKNOWN, detail=str(error))
        if intent.state is not DeletionState.PENDING:
            return OneResult(outcome=intent.outcome or Outcome.UNKNOWN, detail=intent.last_error or "")
        return self._delete_one(intent, request.retry_interval_s)

    def _take(self, key: IntentKey) -> DeletionIntent:
        return self._deletions.take(LedgerId(key.ledger_id), CopyKind(key.copy), key.generation, _own_claim())

    def _delete_one(self, intent: DeletionIntent, retry_interval_s: int) -> OneResult:
        pulse = Pulse(lambda: self._deletions.hold(intent.row_id, _own_claim()))
        found = examine([intent], self._deletions.referenced([intent]), self._storages, pulse)
        ended, errors = remove(found, self._storages, pulse)
        if not ended:
            wait = Claim(workflow_id=_own_claim().workflow_id, run_id="", ttl_s=retry_interval_s + _CLAIM_S)
            self._deletions.hold(intent.row_id, wait, error=errors[intent.row_id])
            raise _later(errors[intent.row_id], found.errors.get(intent.row_id), retry_interval_s)
        self._deletions.finish(ended)
        one = ended[0]
        return OneResult(outcome=one.outcome, objects=one.objects, size_bytes=one.size_bytes, detail=one.error or "")

    @activity.defn(name="deletion.dead_letter")
    def dead_letter(self, request: DeadLetterInput) -> OneResult:
        """Keep an exhausted intent as a dead letter with its error: listed, never dropped.

        Idempotency: a row that ended meanwhile keeps its outcome, which is returned.
        Raises: StoreUnavailable (retry).
        """
        intent = self._take(request.key)
        if intent.state is DeletionState.PENDING:
            self._deletions.finish([Ended(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error=request.error)])
            return OneResult(outcome=Outcome.DEAD_LETTERED, detail=request.error)
        return OneResult(outcome=intent.outcome or Outcome.UNKNOWN, detail=intent.last_error or "")

    @activity.defn(name="deletion.certify")
    def certify(self, request: CertifyInput) -> Certificate:
        """Count the batch from its rows, close its run and write the audit row.

        Idempotency: counts are read from rows, so repeated work counts once; the run is closed once.
        Raises: StoreUnavailable (retry).
        """
        workflow_id = activity.info().workflow_id or ""
        cause = Cause(actor=request.actor, reason=request.reason, workflow_id=workflow_id)
        self._deletions.close(request.batch_id, cause)
        tally = self._deletions.tally(request.batch_id)
        return Certificate(
            batch_id=request.batch_id,
            outcomes=dict(tally.outcomes),
            objects=tally.objects,
            size_bytes=tally.size_bytes,
        )

    def _stale(self, catalog_epoch: int) -> bool:
        return self._ledgers.epoch() != catalog_epoch


def delete_ledger_id(key: IntentKey) -> str:
    """Id of the workflow that deletes one copy; the generation keeps it from swallowing a later detach."""
    return f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"


def _own_claim() -> Claim:
    info = activity.info()
    return Claim(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "", ttl_s=_CLAIM_S)


def _rows(chunk: Range) -> RowRange:
    return RowRange(first=chunk.first, last=chunk.last, rows=chunk.rows)


def _key(intent: DeletionIntent) -> IntentKey:
    return IntentKey(ledger_id=intent.ledger_id, copy=intent.copy.value, generation=intent.generation)


def _later(message: str, error: SextonError | None, after_s: int) -> ApplicationError:
    kind = type(error).__name__ if error else "DeletionIncomplete"
    return ApplicationError(message, type=kind, next_retry_delay=timedelta(seconds=after_s))


def _raise_if_nothing_answered(found: Examination, ended: list[Ended]) -> None:
    """A store that is down fails the chunk, not each ledger of it."""
    if found.errors and not ended and not found.copies:
        raise next(iter(found.errors.values()))


def _chunk_result(intents: list[DeletionIntent], ended: list[Ended], errors: dict[int, str]) -> ChunkResult:
    now = {one.row_id: one.outcome for one in ended} | dict.fromkeys(errors, Outcome.RETRYING)
    final = [now.get(one.row_id) or one.outcome or Outcome.RETRYING for one in intents]
    alone = [_key(one) for one, outcome in zip(intents, final, strict=True) if not outcome.success]
    return ChunkResult(
        outcomes={outcome.value: final.count(outcome) for outcome in sorted(set(final))},
        objects=sum(one.objects for one in ended),
        size_bytes=sum(one.size_bytes for one in ended),
        alone=alone,
    )
