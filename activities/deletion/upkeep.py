"""Upkeep of the queue of phase two: stalled work is taken up, finished rows forgotten, a paused batch held."""

from activities.deletion.claims import batch_claim, own_cause, own_claim, report_detached
from activities.deletion.values import (
    AdoptInput,
    DetachResult,
    ForgetDeletionsInput,
    ForgetDeletionsResult,
    HoldBatchInput,
    PauseBatchInput,
)
from activities.heartbeats import beating, defined
from logstore.ports.catalog import Deletions, Ledgers, Upkeep

_PAUSED_S = 900.0  # of a paused batch, renewed every ten minutes: one renewal may come five minutes late


class DeletionUpkeep:
    """What a schedule and a paused batch need of the queue, over ports."""

    def __init__(self, *, upkeep: Upkeep, deletions: Deletions, ledgers: Ledgers, finished_retention_s: float) -> None:
        """Take the ports, and how long a finished row is kept."""
        self._upkeep = upkeep
        self._deletions = deletions
        self._ledgers = ledgers
        self._finished_retention_s = finished_retention_s

    @defined(name="deletion.adopt")
    @beating()
    def adopt(self, request: AdoptInput) -> DetachResult:
        """Take a page of stalled intents and of ledgers that were never attached into a batch of its own.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Raises: CatalogBusy, StoreUnavailable (retry).
        """
        claim = batch_claim(request.batch_workflow_id)
        adopted = self._upkeep.adopt(batch_id=request.batch_id, claim=claim, limit=request.limit)
        return report_detached(adopted, self._ledgers.epoch() if adopted.intents else 0)

    @defined(name="deletion.forget")
    @beating()
    def forget(self, request: ForgetDeletionsInput) -> ForgetDeletionsResult:
        """Remove a page of rows that ended long ago, and of batches that have no rows left.

        Idempotency: what is gone is not met again; an attempt that is repeated goes on with the next page.
        Raises: CatalogBusy, StoreUnavailable (retry).
        """
        cause = own_cause(request.actor, request.reason)
        gone = self._upkeep.forget(older_than_s=self._finished_retention_s, limit=request.limit, cause=cause)
        return ForgetDeletionsResult(rows=gone.rows, runs=gone.runs)

    @defined(name="deletion.hold_batch")
    @beating()
    def hold_batch(self, request: HoldBatchInput) -> None:
        """Keep the batch claimed while it is paused, so that no sweep takes its rows for abandoned.

        Idempotency: the claim ends a quarter of an hour after the last call; a chunk in hand never shortens it.
        Raises: ClaimHeld (terminal): it was released, or finished; CatalogBusy, StoreUnavailable (retry).
        """
        self._deletions.renew(request.batch_id, own_claim(_PAUSED_S))

    @defined(name="deletion.pause_batch")
    @beating()
    def pause_batch(self, request: PauseBatchInput) -> None:
        """Write down that the batch is paused, or is not any more: no sweep takes up what an operator holds back.

        Idempotency: to say the same twice changes nothing.
        Raises: UnknownObject, PreconditionFailed (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        tell = self._deletions.pause if request.paused else self._deletions.resume
        tell(request.batch_id)
