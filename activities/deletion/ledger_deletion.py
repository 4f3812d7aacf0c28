"""Ledger deletion, one side effect an activity: detach, delete a chunk, delete one, hand over, certify.

Every activity may run twice, also at the same time (two attempts may overlap), and may have happened although
it was reported as failed. What makes that harmless stands in each docstring.

Source: PIP-186.
"""

from collections.abc import Sequence
from dataclasses import replace

from activities.deletion import metrics
from activities.deletion.claims import BATCH_CLAIM_S, CLAIM_S, batch_claim, own_cause, own_claim
from activities.deletion.one_copy import CopyDeletion, finish
from activities.deletion.phase_two import (
    chunk_result,
    delete_ledger_id,
    key_of,
    raise_if_nothing_answered,
    sentence,
    unfinished,
)
from activities.deletion.rate import DeletionPace
from activities.deletion.values import (
    Certificate,
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DetachInput,
    DetachResult,
    Range,
    RangesInput,
    RangesPage,
)
from activities.dispatch import Answer, Dispatch, check_topic_name
from activities.heartbeats import Heartbeats, beating, defined
from logstore.deletion.intents import DeletionIntent, Outcome, refusal
from logstore.errors import StaleCatalog
from logstore.ports.catalog import Cause, Deletions, Ended, Ledgers, PhaseOne, RowRange, Topics
from logstore.ports.owners import Owners
from logstore.ports.storage import Storages
from logstore.positions import LedgerId, TopicId


class LedgerDeletion(CopyDeletion):
    """The activities of two-phase deletion, over ports; those of a single intent are inherited."""

    def __init__(
        self,
        *,
        phase_one: PhaseOne,
        deletions: Deletions,
        ledgers: Ledgers,
        topics: Topics,
        storages: Storages,
        owners: Owners,
    ) -> None:
        """Take the ports; `storages` by `CopyKind` value."""
        super().__init__(deletions=deletions, storages=storages, owners=owners)
        self._detaching = Dispatch(phase_one, owners)
        self._ledgers = ledgers
        self._topics = topics

    @defined(name="deletion.detach")
    @beating()
    def detach(self, request: DetachInput) -> Answer[DetachResult]:
        """Take ledgers out of their list and file an intent per copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Heartbeat: while the transaction runs.
        Raises: InvalidInput, LedgerStillNeeded, StaleCatalog, NotOwner, LookupRefused (terminal); CatalogBusy,
            StoreUnavailable (retry).
        """
        return self._detaching.run(request, self._detach)

    def _detach(self, phase_one: PhaseOne, request: DetachInput) -> DetachResult:
        check_topic_name(self._topics, request.topic_id, request.topic)
        epoch = self._ledgers.epoch()
        if request.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"detach: expected catalog epoch {epoch}, found {request.catalog_epoch}")
        detached = phase_one.detach(
            TopicId(request.topic_id),
            None if request.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in request.ledger_ids],
            force=request.force,
            batch_id=request.batch_id,
            claim=batch_claim(request.batch_workflow_id),
            cause=Cause(actor=request.actor, reason=request.reason, workflow_id=request.batch_workflow_id),
        )
        metrics.sent(detached.filed)
        return DetachResult(
            ledgers=detached.ledgers,
            intents=detached.intents,
            catalog_epoch=epoch,
            finished=dict(detached.finished),
        )

    @defined(name="deletion.next_ranges")
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
            self._deletions.renew(request.batch_id, own_claim(BATCH_CLAIM_S))
        return RangesPage(ranges=[Range(first=part.first, last=part.last, rows=part.rows) for part in found])

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
        return self._dispatch.run(request, self._delete_chunk)

    def _delete_chunk(self, queue: Deletions, request: ChunkInput) -> ChunkResult:
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        batch = request.batch_id
        with Heartbeats(lambda: queue.renew(batch, own_claim(BATCH_CLAIM_S))) as heartbeats:
            found, pace = queue.intents(batch, _rows(request.chunk)), DeletionPace(request.objects_per_s)
            intents = pace.slice(found)
            open_ones = unfinished(intents)
            ended, errors = self._act(open_ones, heartbeats, pace)
            changed = finish(queue, open_ones, ended, holder=batch)
            metrics.received(one for one in open_ones if one.row_id in changed)
            raise_if_nothing_answered(ended, errors)
            _hand_over(queue, batch, open_ones, {row: sentence(error) for row, error in errors.items()})
        result = chunk_result(intents, ended, many_topics=request.many_topics)
        return replace(result, next_row=found[len(intents)].row_id if len(intents) < len(found) else 0)

    @defined(name="deletion.hand_over_chunk")
    @beating()
    def hand_over_chunk(self, request: ChunkInput) -> Answer[ChunkResult]:
        """Hand every unfinished row of the range to a workflow of its own, once the chunk as a whole gave up.

        A damaged row has none, for no workflow could do more than say so: it ends here.

        Idempotency: a row handed over before keeps its claim and is reported again.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        return self._dispatch.run(request, self._hand_over_chunk)

    def _hand_over_chunk(self, queue: Deletions, request: ChunkInput) -> ChunkResult:
        if self._stale(request.catalog_epoch):
            return ChunkResult(outcomes={Outcome.STALE_CATALOG.value: request.chunk.rows})
        intents = queue.intents(request.batch_id, _rows(request.chunk))
        open_ones = unfinished(intents)
        damaged = [(one, refusal(one)) for one in open_ones if one.damage]
        ended = [Ended(row_id=one.row_id, outcome=why[0], error=why[1]) for one, why in damaged if why]
        finish(queue, open_ones, ended, holder=request.batch_id)
        errors = {one.row_id: "the chunk as a whole got no answer" for one in open_ones if not one.damage}
        _hand_over(queue, request.batch_id, open_ones, errors)
        return chunk_result(intents, ended, many_topics=request.many_topics)

    @defined(name="deletion.certify")
    @beating()
    def certify(self, request: CertifyInput) -> Answer[Certificate]:
        """Count the batch from its rows, close its run and write the audit row.

        Idempotency: counts are read from rows, so repeated work counts once; the run is closed once.
        Raises: StoreUnavailable (retry); NotOwner, LookupRefused (terminal).
        """
        return self._dispatch.run(request, _certify)

    def _stale(self, catalog_epoch: int) -> bool:
        return self._ledgers.epoch() != catalog_epoch


def _hand_over(queue: Deletions, batch_id: str, intents: Sequence[DeletionIntent], errors: dict[int, str]) -> None:
    names = {one.row_id: delete_ledger_id(key_of(one)) for one in intents if one.row_id in errors}
    moved = queue.hand_over(names, batch_id=batch_id, errors=errors, ttl_s=CLAIM_S)
    tried = [one for one in intents if one.row_id in moved]
    metrics.received(tried)
    metrics.failed(tried)


def _certify(queue: Deletions, request: CertifyInput) -> Certificate:
    tally = queue.close(request.batch_id, own_cause(request.actor, request.reason))
    metrics.certified(tally)
    return Certificate(
        batch_id=request.batch_id,
        outcomes=dict(tally.outcomes),
        objects=tally.objects,
        size_bytes=tally.size_bytes,
    )


def _rows(chunk: Range) -> RowRange:
    return RowRange(first=chunk.first, last=chunk.last, rows=chunk.rows)
