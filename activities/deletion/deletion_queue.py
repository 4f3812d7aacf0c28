"""Activities for the upkeep of the deletion queue."""

from activities.deletion.claims_and_causes import (
    batch_workflow_claim,
    count_and_summarize_detach,
    own_workflow_cause,
    own_workflow_claim,
)
from activities.deletion.inputs_and_results import (
    ClaimPausedBatchInput,
    DetachResult,
    PauseOrResumeBatchInput,
    RemovedIntentCounts,
    RemoveOldIntentsInput,
    TakeOverStalledInput,
)
from activities.heartbeats import define_activity, send_heartbeats
from logstore.catalog.sql_catalog import Catalog

_PAUSED_CLAIM_S = 900.0  # renewed every ten minutes: a renewal may come five minutes late


class DeletionQueueActivities:
    def __init__(self, *, catalog: Catalog, finished_retention_s: float) -> None:
        self._upkeep, self._deletions, self._ledgers = catalog.upkeep, catalog.deletions, catalog.ledgers
        self._finished_retention_s = finished_retention_s

    @define_activity(name="deletion.adopt")
    @send_heartbeats()
    def take_over_stalled(self, request: TakeOverStalledInput) -> DetachResult:
        """Move a page of stalled intents and of newborn ledgers into a new batch.

        Idempotency: keyed by `batch_id`; a second call returns the first result.
        Raises: CatalogBusy, StoreUnavailable (retry).
        """
        claim = batch_workflow_claim(request.batch_workflow_id)
        adopted = self._upkeep.move_abandoned_work_to_batch(batch_id=request.batch_id, claim=claim, limit=request.limit)
        return count_and_summarize_detach(adopted, self._ledgers.catalog_epoch() if adopted.intents else 0)

    @define_activity(name="deletion.forget")
    @send_heartbeats()
    def remove_old_intents(self, request: RemoveOldIntentsInput) -> RemovedIntentCounts:
        """Remove a page of old DELETED intents, and a page of batch runs without intents.

        Idempotency: a repeated attempt continues with the next page.
        Raises: CatalogBusy, StoreUnavailable (retry).
        """
        cause = own_workflow_cause(request.actor, request.reason)
        forgotten = self._upkeep.remove_finished_rows(
            older_than_s=self._finished_retention_s, limit=request.limit, cause=cause
        )
        return RemovedIntentCounts(rows=forgotten.rows, runs=forgotten.runs)

    @define_activity(name="deletion.hold_batch")
    @send_heartbeats()
    def claim_paused_batch(self, request: ClaimPausedBatchInput) -> None:
        """Claim a paused batch, so that no sweep takes over the rows of the batch.

        Idempotency: the claim ends 15 minutes after the last call. A running chunk never shortens the claim.
        Raises: ClaimHeld (terminal): the batch was released, is finished, or has another workflow's claim;
            CatalogBusy, StoreUnavailable (retry).
        """
        self._deletions.renew_batch_claim(request.batch_id, own_workflow_claim(_PAUSED_CLAIM_S))

    @define_activity(name="deletion.pause_batch")
    @send_heartbeats()
    def pause_or_resume_batch(self, request: PauseOrResumeBatchInput) -> None:
        """Store whether the batch is paused. No sweep takes over rows of a paused batch.

        Idempotency: a repeated call changes nothing.
        Raises: UnknownObject, PreconditionFailed (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        if request.paused:
            self._deletions.pause_batch(request.batch_id)
        else:
            self._deletions.resume_batch(request.batch_id)
