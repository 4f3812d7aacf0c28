"""Steps shared by all plans. Each plan's module says what the plan compares and destroys."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.reconciliation.inputs_and_results import BulkJobInput, BulkJobResult
from logstore.deletion.intents import RequestRefusal
from logstore.reconciliation.findings import PlanOrScrubResult
from workflows import activity_options, guard_refusal_results, search_attributes
from workflows.reconciliation.job_definitions import PlanProgress
from workflows.reconciliation.progress_text import find_guard_refusal, format_findings, format_plan


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
