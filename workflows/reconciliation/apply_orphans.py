"""`apply-orphans`: remove the orphans of a finished plan, page by page, after a new check of each finding.

Destroys ledgers, tiered copies, segments and unfinished uploads that nothing refers to. Invariant: each finding is
checked again in storage and catalog before anything is removed. Two-phase deletion, which removes ledgers and copies,
checks once more. To stop it for a while, pause it. To stop it for good, terminate it. A `delete-ledgers` that has
started continues. If you apply the same plan again, the new apply continues where the old apply ended.

1. Begin: check that the plan is finished, is of this catalog, and has no more orphans than allowed. If a guard refuses,
   the apply completes with the refusal as its result, and nothing has changed.
2. For each page, check the findings again. File a batch of intents for findings that are still true (phase one). Run
   `delete-ledgers` on this batch, and wait for the batch certificate. Delete single objects, and store the fate of each
   finding. A pause or a new rate takes effect before the next page.
3. Conclude: store the sum of the results of all pages.

Source: PIP-186 for the two phases; trinodb/trino#13692 for pages.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from activities.reconciliation.apply_orphans import ApplyOrphansActivities
    from activities.reconciliation.inputs_and_results import (
        ApplyPageInput,
        ApplyScope,
        BeginApplyInput,
        FiledPage,
        PlanStepInput,
    )
    from logstore.deletion.intents import RequestRefusal
    from logstore.reconciliation.findings import ApplyCounts, apply_batch_id
    from workflows import activity_options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import (
        DELETE_LEDGERS,
        DeleteLedgersInput,
        DeleteLedgersProgress,
    )
    from workflows.reconciliation.job_definitions import ApplyOrphansInput, ApplyOrphansResult
    from workflows.reconciliation.plan_and_apply_workflows import ApplyWorkflow

_PAGE_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 1,000 findings, each checked in storage, or 1,000 deletes at 1/s
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for storage to come back
)
_RETRY_INTERVAL = timedelta(seconds=10)  # while an earlier apply's batch of the same page runs


@workflow.defn(name="apply-orphans", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ApplyOrphans(ApplyWorkflow):
    @workflow.init
    def __init__(self, request: ApplyOrphansInput) -> None:
        super().__init__(request.run_id, request.carried)
        self._request = request

    @workflow.run
    async def run(self, request: ApplyOrphansInput) -> ApplyOrphansResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(request.run_id)])
        begun = await self._begin_apply()
        if isinstance(begun, RequestRefusal):
            return ApplyOrphansResult(run_id=request.run_id, refused=await self._publish_refusal(begun))
        counts = begun.done
        if counts is None:
            await self._apply_pages(begun.pages, begun.findings, lambda page: self._apply_page(begun, page))
            self._set_step("concluding")
            plan = PlanStepInput(run_id=request.run_id)
            counts = await workflow.execute_activity_method(
                ApplyOrphansActivities.conclude_apply, plan, **_PAGE_OPTIONS
            )
        await self._publish_counts(counts, "FAILED_IN_PART" if counts.failed else "APPLIED")
        return ApplyOrphansResult(run_id=request.run_id, done=counts)

    async def _begin_apply(self) -> ApplyScope | RequestRefusal:
        request = self._request
        begin = BeginApplyInput(
            run_id=request.run_id,
            actor=request.actor,
            reason=request.reason,
            max_orphan_share=request.max_orphan_share,
        )
        try:
            return await workflow.execute_activity_method(ApplyOrphansActivities.begin_apply, begin, **_PAGE_OPTIONS)
        except ActivityError as error:
            return self._get_refusal_or_raise(error)

    def _make_continued_input(self) -> ApplyOrphansInput:
        return replace(self._request, carried=self._progress)

    async def _apply_page(self, begun: ApplyScope, number: int) -> ApplyCounts:
        request = self._request
        batch_id = apply_batch_id(request.run_id, number)
        page = ApplyPageInput(
            run_id=request.run_id,
            page=number,
            before_us=begun.before_us,
            epoch=begun.epoch,
            batch_id=batch_id,
            batch_workflow_id=DELETE_LEDGERS.id(batch_id),
            actor=request.actor,
            reason=request.reason,
        )
        self._set_step(f"looking at page {number}")
        filed: FiledPage = await workflow.execute_activity_method(
            ApplyOrphansActivities.recheck_and_file_page, page, **_PAGE_OPTIONS
        )
        if filed.intents:
            self._set_step(f"deleting {filed.intents:,} copies of page {number}")
            await self._run_phase_two(batch_id, filed, begun.epoch)
        if filed.objects:
            self._set_step(f"deleting {filed.objects:,} single objects of page {number}")
            paced = replace(page, objects_per_s=float(self._progress.rate))
            await workflow.execute_activity_method(
                ApplyOrphansActivities.recheck_and_delete_objects, paced, **_PAGE_OPTIONS
            )
        filed_page = replace(page, intents=filed.intents)
        return await workflow.execute_activity_method(
            ApplyOrphansActivities.record_page_fates, filed_page, **activity_options.CATALOG
        )

    async def _run_phase_two(self, batch_id: str, filed: FiledPage, epoch: int) -> None:
        """Run `delete-ledgers` on the page's batch, and wait for its end. Retries of failed rows are not awaited."""
        request = DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=0,
            topic="",
            catalog_epoch=epoch,
            actor=self._request.actor,
            reason=self._request.reason,
            policy=self._request.policy,
            carried=DeleteLedgersProgress(intents=filed.intents, detached=filed.detached, rate=self._progress.rate),
        )
        while True:
            with suppress(WorkflowAlreadyStartedError):  # a batch of a terminated apply continues
                started = await batches.start_batch(request, summary=f"{filed.intents} orphaned copies")
                break
            await asyncio.sleep(_RETRY_INTERVAL.total_seconds())
            await self._continue_as_new_if_long()  # that batch may be paused; filing the page again changes nothing
        await batches.try_await_batch_certificate(started, None)
