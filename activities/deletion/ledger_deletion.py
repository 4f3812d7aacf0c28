"""Ledger deletion, one side effect an activity: detach, delete a chunk, delete one, hand over, certify.

Every activity may run twice, also at the same time (two attempts may overlap), and may have happened although
it was reported as failed. What makes that harmless stands in each docstring.

Source: PIP-186.
"""

from dataclasses import replace

from temporalio import activity

from activities.beating import beating
from activities.deletion import metrics
from activities.deletion.answers import (
    chunk_result,
    delete_ledger_id,
    key_of,
    later,
    raise_if_nothing_answered,
    result_of,
    sentence,
    unfinished,
    wait_s,
)
from activities.deletion.pace import Pace
from activities.deletion.phase_two import examine, remove
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
from logstore.errors import (
    DeletionIncomplete,
    InvalidInput,
    NoProgress,
    OutcomeUnknown,
    RetryableError,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.ledgers import CopyKind
from logstore.ports.catalog import Cause, Claim, Deletions, Ended, Ledgers, RowRange
from logstore.ports.storage import Storages
from logstore.positions import LedgerId, TopicId

_CLAIM_S = 60.0  # of a row, while work runs; renewed with heartbeats
_STUCK_AFTER = 5
"""Attempts in a row after which storage has kept as many keys as before: a person must look, and sooner than the end.

Five, 600 s apart, are forty minutes: longer than a store takes to restart or to fail over, so that no outage of one of
its volumes, which refuses keys one by one, fills the dead letters; and half of the ten attempts are spared. The third
would be within such an outage, the eighth, as in Temporal's own deletions, would spare but two attempts.
"""
_BATCH_CLAIM_S = 120.0  # of a batch: the longest wait of a chunk before its next attempt, and 60 s more


class LedgerDeletion:
    """The activities of two-phase deletion, over ports."""

    def __init__(self, *, deletions: Deletions, ledgers: Ledgers, storages: Storages) -> None:
        """Take the ports; `storages` by `CopyKind` value."""
        self._deletions = deletions
        self._ledgers = ledgers
        self._storages = storages

    @activity.defn(name="deletion.detach")
    @beating()
    def detach(self, request: DetachInput) -> DetachResult:
        """Take ledgers out of their list and file an intent per copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Heartbeat: while the transaction runs.
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
            claim=Claim(workflow_id=request.batch_workflow_id, run_id=run_id, ttl_s=_BATCH_CLAIM_S),
            cause=Cause(actor=request.actor, reason=request.reason, workflow_id=request.batch_workflow_id),
        )
        metrics.sent(detached.filed)
        return DetachResult(
            ledgers=detached.ledgers,
            intents=detached.intents,
            catalog_epoch=epoch,
            finished=dict(detached.finished),
        )

    @activity.defn(name="deletion.next_ranges")
    @beating()
    def next_ranges(self, request: RangesInput) -> RangesPage:
        """Read which unfinished rows of the batch come next.

        Idempotency: reads only; rows that ended since are met as finished, and a batch that is done has no more.
        Raises: StoreUnavailable (retry); ClaimHeld (terminal).
        """
        if self._stale(request.catalog_epoch):
            return RangesPage(ranges=[], stale=True)
        found = self._deletions.ranges(request.batch_id, after=request.after, rows=request.rows, limit=request.limit)
        if found:
            self._deletions.renew(request.batch_id, _own_claim(_BATCH_CLAIM_S))
        return RangesPage(ranges=[Range(first=part.first, last=part.last, rows=part.rows) for part in found])

    @activity.defn(name="deletion.delete_chunk")
    def delete_chunk(self, request: ChunkInput) -> ChunkResult:
        """Phase two for a range of rows: many ledgers share listings, pages and transactions.

        Idempotency: keyed by row; a row that ended keeps its outcome, an absent key counts as deleted, a row
        handed over before is reported again. A row that fails is handed to a workflow of its own. At a limited
        rate it deals with the first rows of the range and names the next one.
        Heartbeat: (rows examined, objects confirmed), per ledger and per page; a hint only.
        Raises: StoreUnavailable when no row at all got an answer (retry); ClaimHeld (terminal).
        """
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        with Pulse(lambda: self._deletions.renew(request.batch_id, _own_claim(_BATCH_CLAIM_S))) as pulse:
            found, pace = self._deletions.intents(request.batch_id, _rows(request.chunk)), Pace(request.objects_per_s)
            intents = pace.slice(found)
            open_ones = unfinished(intents)
            ended, errors = self._act(open_ones, pulse, pace)
            changed = self._finish(open_ones, ended, holder=request.batch_id)
            metrics.received(one for one in open_ones if one.row_id in changed)
            raise_if_nothing_answered(ended, errors)
            self._hand_over(request.batch_id, open_ones, {row: sentence(error) for row, error in errors.items()})
        result = chunk_result(intents, ended, many_topics=request.many_topics)
        return replace(result, next_row=found[len(intents)].row_id if len(intents) < len(found) else 0)

    def _finish(self, intents: list[DeletionIntent], ended: list[Ended], *, holder: str) -> frozenset[int]:
        changed = self._deletions.finish(ended, holder=holder)
        metrics.ended(intents, ended, changed)
        return changed

    def _act(
        self, intents: list[DeletionIntent], pulse: Pulse, pace: Pace
    ) -> tuple[list[Ended], dict[int, SextonError]]:
        found = examine(intents, self._storages, pulse)
        return remove(found, self._storages, pulse, pace)

    @activity.defn(name="deletion.hand_over_chunk")
    @beating()
    def hand_over_chunk(self, request: ChunkInput) -> ChunkResult:
        """Hand every unfinished row of the range to a workflow of its own, once the chunk as a whole gave up.

        Idempotency: a row handed over before keeps its claim and is reported again.
        Raises: StoreUnavailable (retry).
        """
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        intents = self._deletions.intents(request.batch_id, _rows(request.chunk))
        open_ones = unfinished(intents)
        errors = {one.row_id: "the chunk as a whole got no answer" for one in open_ones}
        self._hand_over(request.batch_id, open_ones, errors)
        return chunk_result(intents, [], many_topics=request.many_topics)

    def _hand_over(self, batch_id: str, intents: list[DeletionIntent], errors: dict[int, str]) -> None:
        names = {one.row_id: delete_ledger_id(key_of(one)) for one in intents if one.row_id in errors}
        moved = self._deletions.hand_over(names, batch_id=batch_id, errors=errors, ttl_s=_CLAIM_S)
        tried = [one for one in intents if one.row_id in moved]
        metrics.received(tried)
        metrics.failed(tried)

    @activity.defn(name="deletion.delete_one")
    def delete_one(self, request: OneInput) -> OneResult:
        """Phase two for one intent.

        Idempotency: keyed by (ledger, copy, generation); a finished row answers with its outcome.
        Heartbeat: per page; a hint only.
        Raises: ClaimHeld (terminal); NoProgress (terminal) when storage keeps the same number of keys again and
            again; anything else is retried after `retry_interval_s`, or once an upload of the copy is over, and kept
            on the row.
        """
        try:
            return self._delete_one(request)
        except UnknownObject as error:
            return OneResult(outcome=Outcome.UNKNOWN, detail=str(error))
        except StaleCatalog as error:
            return OneResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
        except (RetryableError, OutcomeUnknown) as error:  # the catalog did not answer
            raise later(error, request.retry_interval_s) from error

    def _delete_one(self, request: OneInput) -> OneResult:
        with beating():  # another writer may make this one wait longer than a heartbeat timeout
            intent = self._take(request.key, request.catalog_epoch)
        if intent.state is not DeletionState.PENDING:
            return result_of(intent)
        metrics.received([intent])
        with Pulse(lambda: self._deletions.hold(intent.row_id, _own_claim()), just_claimed=True) as pulse:
            ended, errors = self._act([intent], pulse, Pace())
            self._finish([intent], ended, holder=_own_claim().workflow_id)
            if errors:
                raise self._kept(intent, errors[intent.row_id], request.retry_interval_s)
        one = ended[0]
        return OneResult(outcome=one.outcome, objects=one.objects, size_bytes=one.size_bytes, detail=one.error or "")

    def _take(self, key: IntentKey, catalog_epoch: int, *, attempt: bool = True) -> DeletionIntent:
        if key.copy not in set(CopyKind):
            raise InvalidInput("copy", expected=f"one of {', '.join(CopyKind)}", found=key.copy)
        ledger_id, copy = LedgerId(key.ledger_id), CopyKind(key.copy)
        return self._deletions.take(ledger_id, copy, key.generation, _own_claim(), epoch=catalog_epoch, attempt=attempt)

    def _kept(self, intent: DeletionIntent, error: SextonError, retry_interval_s: int) -> Exception:
        """Hold the row until the next attempt and a minute more, with the error; what ends this attempt."""
        after_s = wait_s(error, retry_interval_s)
        wait = Claim(workflow_id=_own_claim().workflow_id, run_id="", ttl_s=after_s + _CLAIM_S)
        left = error.keys_left if isinstance(error, DeletionIncomplete) else None
        attempts = self._deletions.hold(intent.row_id, wait, error=sentence(error), keys_left=left)
        metrics.failed([intent])
        if attempts < _STUCK_AFTER:
            return later(error, after_s)
        return NoProgress(f"ledger {intent.ledger_id}: {left} keys left after each of {attempts} attempts; {error}")

    @activity.defn(name="deletion.dead_letter")
    @beating()
    def dead_letter(self, request: DeadLetterInput) -> OneResult:
        """Keep an exhausted intent as a dead letter with its error: listed, never dropped.

        Idempotency: a row that ended meanwhile keeps its outcome, which is returned.
        Raises: ClaimHeld, UnknownObject (terminal); StoreUnavailable (retry).
        """
        try:
            intent = self._take(request.key, request.catalog_epoch, attempt=False)
        except StaleCatalog as error:
            return OneResult(outcome=Outcome.STALE_CATALOG, detail=str(error))
        if intent.state is DeletionState.PENDING:
            letter = Ended(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error=request.error)
            self._finish([intent], [letter], holder=_own_claim().workflow_id)
            return OneResult(outcome=Outcome.DEAD_LETTERED, detail=request.error)
        return result_of(intent)

    @activity.defn(name="deletion.certify")
    @beating()
    def certify(self, request: CertifyInput) -> Certificate:
        """Count the batch from its rows, close its run and write the audit row.

        Idempotency: counts are read from rows, so repeated work counts once; the run is closed once.
        Raises: StoreUnavailable (retry).
        """
        workflow_id = activity.info().workflow_id or ""
        cause = Cause(actor=request.actor, reason=request.reason, workflow_id=workflow_id)
        tally = self._deletions.close(request.batch_id, cause)
        metrics.certified(tally)
        return Certificate(
            batch_id=request.batch_id,
            outcomes=dict(tally.outcomes),
            objects=tally.objects,
            size_bytes=tally.size_bytes,
        )

    def _stale(self, catalog_epoch: int) -> bool:
        return self._ledgers.epoch() != catalog_epoch


def _own_claim(ttl_s: float = _CLAIM_S) -> Claim:
    info = activity.info()
    return Claim(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "", ttl_s=ttl_s)


def _rows(chunk: Range) -> RowRange:
    return RowRange(first=chunk.first, last=chunk.last, rows=chunk.rows)
