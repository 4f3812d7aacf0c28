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
    from workflows import activity_options, guard_refusal_results, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.batches import require_rate_within_bounds
    from workflows.deletion.job_definitions import (
        DELETE_LEDGERS,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        SetRateInput,
    )
    from workflows.reconciliation.job_definitions import (
        ApplyOrphansInput,
        ApplyOrphansProgress,
        ApplyOrphansResult,
    )
    from workflows.reconciliation.progress_text import add_page_counts, find_guard_refusal, format_apply

_PAGE_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 1,000 findings, each checked in storage, or 1,000 deletes at 1/s
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for storage to come back
)
_RETRY_INTERVAL = timedelta(seconds=10)  # while an earlier apply's batch of the same page runs


@workflow.defn(name="apply-orphans", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ApplyOrphans:
    @workflow.init
    def __init__(self, request: ApplyOrphansInput) -> None:
        self._request = request
        self._progress = request.carried
        self._step = "beginning"

    @workflow.run
    async def run(self, request: ApplyOrphansInput) -> ApplyOrphansResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(request.run_id)])
        begun = await self._begin_apply()
        if isinstance(begun, RequestRefusal):
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            workflow.set_current_details(guard_refusal_results.format_refusal(begun))
            return ApplyOrphansResult(run_id=request.run_id, refused=begun)
        if begun.done is None:
            self._progress = replace(self._progress, pages=begun.pages, intents=begun.findings)
            while self._progress.pages_done < begun.pages:
                if self._progress.paused:
                    self._set_step("waiting for `resume`")
                    await workflow.wait_condition(lambda: not self._progress.paused)
                await self._apply_page(begun)
                await self._continue_as_new_if_long()
        counts = begun.done
        if counts is None:
            self._set_step("concluding")
            plan = PlanStepInput(run_id=request.run_id)
            counts = await workflow.execute_activity_method(
                ApplyOrphansActivities.conclude_apply, plan, **_PAGE_OPTIONS
            )
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._publish_result(counts)

    @workflow.query
    def progress(self) -> ApplyOrphansProgress:
        """Return the progress of the apply."""
        return self._progress

    @workflow.update
    def pause(self) -> ApplyOrphansProgress:
        """Pause before the next page. The current page is completed."""
        return self._set_progress(replace(self._progress, paused=True))

    @workflow.update
    def resume(self) -> ApplyOrphansProgress:
        """Continue with the next page."""
        return self._set_progress(replace(self._progress, paused=False))

    @workflow.update
    def set_rate(self, request: SetRateInput) -> ApplyOrphansProgress:
        """Limit the rate of deletions from the next page on."""
        return self._set_progress(replace(self._progress, rate=request.objects_per_s))

    @set_rate.validator
    def check_rate(self, request: SetRateInput) -> None:
        require_rate_within_bounds(request)

    def _set_progress(self, progress: ApplyOrphansProgress) -> ApplyOrphansProgress:
        self._progress = progress
        workflow.set_current_details(format_apply(progress, self._step))
        return progress

    def _set_step(self, step: str) -> None:
        self._step = step
        workflow.set_current_details(format_apply(self._progress, step))

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
            refusal = None if request.carried.pages_done else find_guard_refusal(error)  # pages have changed data
            if refusal is None:
                raise
            return refusal

    async def _continue_as_new_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(replace(self._request, carried=self._progress))

    async def _apply_page(self, begun: ApplyScope) -> None:
        request, number = self._request, self._progress.pages_done
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
        counts: ApplyCounts = await workflow.execute_activity_method(
            ApplyOrphansActivities.record_page_fates, filed_page, **activity_options.CATALOG
        )
        self._progress = add_page_counts(self._progress, counts)

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

    def _publish_result(self, counts: ApplyCounts) -> ApplyOrphansResult:
        outcome = "FAILED_IN_PART" if counts.failed else "APPLIED"
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome])])
        self._progress = replace(self._progress, counts=counts)
        self._set_step("ended")
        return ApplyOrphansResult(run_id=self._request.run_id, done=counts)
