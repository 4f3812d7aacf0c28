"""`sweep-deletions`: continue the stalled deletions of all topics, and remove old finished rows.

Destroys the objects of detached ledgers and of abandoned newborn ledgers, and old finished rows except dead letters.
Invariant: each row is in one batch, and each batch has one workflow. To stop it, cancel or terminate it. A
`delete-ledgers` that has started continues. If rows were taken over and no `delete-ledgers` was started for these
rows, the next sweep takes over the rows again.

1. Move a page of stalled intents and abandoned newborn ledgers into a new batch. If there are none, go to step 3.
2. Run `delete-ledgers` on the batch. Wait a limited time, because the batch may be paused. Repeat from step 1.
3. Remove finished rows older than `finished_retention`, page by page.

Source: PIP-186, which delivers unacknowledged deletions again; apache/pulsar#350 for newborn ledgers.
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.deletion.deletion_queue import DeletionQueueActivities
    from activities.deletion.inputs_and_results import RemovedIntentCounts, RemoveOldIntentsInput, TakeOverStalledInput
    from logstore.deletion.intents import BatchCertificate
    from workflows import activity_options
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import (
        DELETE_LEDGERS,
        SweepDeletionsInput,
        SweepDeletionsResult,
    )

_MAX_TAKEN_OVER_ROWS = 10_000  # per batch; the transaction takes a quarter of a second
_MAX_FORGOTTEN_ROWS = 5_000  # per page; writers wait a tenth of a second for it


@workflow.defn(name="sweep-deletions", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SweepDeletions:
    @workflow.init
    def __init__(self, request: SweepDeletionsInput) -> None:
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: SweepDeletionsInput) -> SweepDeletionsResult:  # noqa: ARG002 - taken by `__init__`
        while await self._take_over_and_delete_page():
            self._continue_if_long()
        while await self._forget_page():
            self._continue_if_long()
        return self._result

    @workflow.query
    def progress(self) -> SweepDeletionsResult:
        """Return the numbers of intents taken over, copies deleted and rows removed so far."""
        return self._result

    def _continue_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(replace(self._request, carried=self._result))

    async def _take_over_and_delete_page(self) -> bool:
        batch_id = f"sweep-{workflow.uuid4().hex[:12]}"
        taken_over = await workflow.execute_activity_method(
            DeletionQueueActivities.take_over_stalled,
            TakeOverStalledInput(
                batch_id=batch_id, batch_workflow_id=DELETE_LEDGERS.id(batch_id), limit=_MAX_TAKEN_OVER_ROWS
            ),
            **activity_options.CATALOG,
        )
        if taken_over.intents:
            before = self._result
            self._result = replace(
                before,
                batches=before.batches + 1,
                intents=before.intents + taken_over.intents,
                newborn=before.newborn + taken_over.ledgers,
            )
            summary = f"{taken_over.intents} copies that no workflow worked on"
            patience_s = self._request.patience_s
            self._add_batch_certificate(
                await batches.run_phase_two(self._request, batch_id, taken_over, summary=summary, patience_s=patience_s)
            )
        return taken_over.intents > 0

    async def _forget_page(self) -> bool:
        request = self._request
        forget_input = RemoveOldIntentsInput(limit=_MAX_FORGOTTEN_ROWS, actor=request.actor, reason=request.reason)
        removed: RemovedIntentCounts = await workflow.execute_activity_method(
            DeletionQueueActivities.remove_old_intents, forget_input, **activity_options.CATALOG
        )
        forgotten, runs = self._result.forgotten + removed.rows, self._result.forgotten_runs + removed.runs
        self._result = replace(self._result, forgotten=forgotten, forgotten_runs=runs)
        return _MAX_FORGOTTEN_ROWS in {removed.rows, removed.runs}

    def _add_batch_certificate(self, certificate: BatchCertificate | None) -> None:
        before = self._result
        if certificate is None:
            self._result = replace(before, uncertified=before.uncertified + 1)
            return
        self._result = batches.add_batch_certificate(before, certificate)
        workflow.set_current_details(f"{self._result.intents:,} copies taken up, {self._result.deleted:,} deleted")
