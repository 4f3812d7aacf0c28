"""Bases of the workflows of plans and applies. The module of each workflow says what it compares and destroys."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.reconciliation.inputs_and_results import BulkJobInput, BulkJobResult
from logstore.deletion.intents import RequestRefusal
from logstore.reconciliation.findings import ApplyCounts, PlanOrScrubResult
from workflows import activity_options, guard_refusal_results, search_attributes
from workflows.deletion.batches import require_rate_within_bounds
from workflows.deletion.job_definitions import SetRateInput
from workflows.reconciliation.job_definitions import ApplyOrphansProgress, PlanProgress
from workflows.reconciliation.progress_text import (
    add_page_counts,
    find_guard_refusal,
    format_apply,
    format_findings,
    format_plan,
)


class PlanWorkflow(ABC):
    """Base class of plans. It creates a run id from the prefix if `run_id` is empty."""

    def __init__(
        self,
        run_id: str,
        *,
        run_id_prefix: str,
        master: str,
        queue: str,
        bulk_activity: Callable[[Any, BulkJobInput], BulkJobResult],
    ) -> None:
        self._run_id = run_id or f"{run_id_prefix}-{workflow.uuid4().hex[:12]}"
        self._master, self._queue, self._bulk_activity = master, queue, bulk_activity
        self._progress = PlanProgress(run_id=self._run_id, step="beginning")

    @workflow.query
    def progress(self) -> PlanProgress:
        """Return the present step, and the counts of each completed bulk job."""
        return self._progress

    async def run_plan(self) -> PlanOrScrubResult | RequestRefusal:
        """Run all steps, and show the progress. Return the refusal if a guard refuses."""
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(self._run_id)])
        try:
            result = await self._run_steps()
        except ActivityError as error:
            refusal = find_guard_refusal(error)
            if refusal is None:
                raise
            self._end("REFUSED", guard_refusal_results.format_refusal(refusal))
            return refusal
        self._end("INCOMPLETE" if result.incomplete else "PLANNED", format_findings(result))
        return result

    @abstractmethod
    async def _run_steps(self) -> PlanOrScrubResult: ...

    async def _run_bulk_job(self, job: str) -> None:
        self._set_step(job)
        job_input = BulkJobInput(run_id=self._run_id, job=job, master=self._master)
        config = activity_options.bulk_job_options(self._queue)
        result = await workflow.execute_activity_method(self._bulk_activity, job_input, **config)
        counts = {**self._progress.counts, job: result.counts}
        self._progress = PlanProgress(run_id=self._run_id, step=job, counts=counts)

    def _set_step(self, step: str, details: str = "") -> None:
        self._progress = PlanProgress(run_id=self._run_id, step=step, counts=self._progress.counts)
        workflow.set_current_details(format_plan(self._progress, details))

    def _end(self, outcome: str, details: str) -> None:
        self._set_step("ended", details)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome])])


class ApplyWorkflow:
    """Base of applies, page by page, with pauses and a rate. Only `carried` progress survives a continue-as-new."""

    def __init__(self, run_id: str, carried: ApplyOrphansProgress) -> None:
        self._run_id, self._progress = run_id, carried
        self._step, self._stopped = "beginning", ""

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

    def _make_continued_input(self) -> Any:  # noqa: ANN401 - the input of the subclass
        raise NotImplementedError

    def _set_progress(self, progress: ApplyOrphansProgress) -> ApplyOrphansProgress:
        self._progress = progress
        workflow.set_current_details(format_apply(progress, self._step))
        return progress

    def _set_step(self, step: str) -> None:
        self._step = step
        workflow.set_current_details(format_apply(self._progress, step))

    def _get_refusal_or_raise(self, error: ActivityError) -> RequestRefusal:
        """Return the refusal of a guard. Raise `error` if it is none, or if pages have changed data."""
        refusal = None if self._progress.pages_done else find_guard_refusal(error)
        if refusal is None:
            raise error
        return refusal

    async def _publish_refusal(self, refusal: RequestRefusal) -> RequestRefusal:
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
        workflow.set_current_details(guard_refusal_results.format_refusal(refusal))
        return refusal

    async def _apply_pages(
        self, pages: int, findings: int, apply_page: Callable[[int], Awaitable[ApplyCounts]]
    ) -> None:
        """Apply the pages that are left, until `apply_page` sets `_stopped`."""
        self._progress = replace(self._progress, pages=pages, intents=findings)
        while self._progress.pages_done < pages and not self._stopped:
            if self._progress.paused:
                self._set_step("waiting for `resume`")
                await workflow.wait_condition(lambda: not self._progress.paused)
            counts = await apply_page(self._progress.pages_done)
            self._progress = add_page_counts(self._progress, counts)
            if not self._stopped:
                await self._continue_as_new_if_long()

    async def _continue_as_new_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(self._make_continued_input())

    async def _publish_counts(self, counts: ApplyCounts, outcome: str) -> ApplyCounts:
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome])])
        self._progress = replace(self._progress, counts=counts)
        self._set_step("ended")
        return counts
