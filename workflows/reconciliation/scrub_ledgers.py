"""`scrub-ledgers`: read every stored segment and tiered copy at a bounded rate, and compare digests.

Destroys nothing. Invariant: an object becomes a finding only after two reads, and only if the catalog still names the
object. A scrub has a result only after every page was read. To stop it, cancel it. If you start a scrub of the same
topics again, the scrub continues. A pause takes effect between pages.

1. Begin: continue an unfinished scrub of the same topics, or open a run.
2. Cut the ledgers into pages.
3. Read each page once, one after the other.
4. Conclude: store the result last.

Source: the scrubs of ZFS and Ceph, which find a flipped bit before a reader does.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.reconciliation.inputs_and_results import (
        BeginScrubInput,
        CutScrubInput,
        ScrubCounts,
        ScrubPageInput,
        ScrubRunId,
    )
    from activities.reconciliation.scrub_ledgers import ScrubLedgersActivities
    from logstore.reconciliation.findings import PlanOrScrubResult
    from workflows import activity_options, guard_refusal_results, search_attributes
    from workflows.reconciliation.job_definitions import ScrubLedgersInput, ScrubLedgersProgress, ScrubLedgersResult
    from workflows.reconciliation.progress_text import find_guard_refusal, format_findings, format_scrub

_CONCLUDE_OPTIONS: workflow.ActivityConfig = {
    **activity_options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # the findings of many thousand pages are copied
}


@workflow.defn(name="scrub-ledgers", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ScrubLedgers:
    @workflow.init
    def __init__(self, request: ScrubLedgersInput) -> None:
        self._request, self._progress = request, request.carried
        self._step = "beginning"

    @workflow.run
    async def run(self, request: ScrubLedgersInput) -> ScrubLedgersResult:  # noqa: ARG002 - taken by `__init__`
        try:
            result = await self._run_scrub_steps()
        except ActivityError as error:
            refusal = find_guard_refusal(error)
            if refusal is None:
                raise
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            workflow.set_current_details(guard_refusal_results.format_refusal(refusal))
            return ScrubLedgersResult(run_id=self._progress.run_id, progress=self._progress, refused=refusal)
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._step = "ended"
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["SCRUBBED"])])
        workflow.set_current_details(format_scrub(self._progress, self._step, format_findings(result)))
        return ScrubLedgersResult(run_id=self._progress.run_id, found=result, progress=self._progress)

    @workflow.query
    def progress(self) -> ScrubLedgersProgress:
        """Return the progress of the scrub."""
        return self._progress

    @workflow.update
    def pause(self) -> ScrubLedgersProgress:
        """Pause before the next page. The current page is completed."""
        return self._set_progress(replace(self._progress, paused=True))

    @workflow.update
    def resume(self) -> ScrubLedgersProgress:
        """Continue with the next page."""
        return self._set_progress(replace(self._progress, paused=False))

    def _set_progress(self, progress: ScrubLedgersProgress) -> ScrubLedgersProgress:
        self._progress = progress
        workflow.set_current_details(format_scrub(progress, self._step))
        return progress

    def _set_step(self, step: str) -> None:
        self._step = step
        workflow.set_current_details(format_scrub(self._progress, step))

    async def _run_scrub_steps(self) -> PlanOrScrubResult:
        request = self._request
        if not self._progress.run_id:
            await self._begin_scrub_and_cut_pages()
        run_id, bulk = self._progress.run_id, activity_options.bulk_job_options(request.queue)
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(run_id)])
        while self._progress.pages_done < self._progress.pages:
            if self._progress.paused:
                self._set_step("waiting for `resume`")
                await workflow.wait_condition(lambda: not self._progress.paused)
            number = self._progress.pages_done
            self._set_step(f"reading page {number}")
            page = ScrubPageInput(run_id=run_id, page=number, bytes_per_s=request.bytes_per_s, master=request.master)
            read: ScrubCounts = await workflow.execute_activity_method(ScrubLedgersActivities.scrub_page, page, **bulk)
            self._progress = replace(
                self._progress,
                pages_done=number + 1,
                objects=self._progress.objects + read.objects,
                size_bytes=self._progress.size_bytes + read.size_bytes,
                findings=self._progress.findings + read.findings,
            )
            await self._continue_as_new_if_long()
        self._set_step("concluding")
        conclude = ScrubRunId(run_id=run_id)
        return await workflow.execute_activity_method(
            ScrubLedgersActivities.conclude_scrub, conclude, **_CONCLUDE_OPTIONS
        )

    async def _begin_scrub_and_cut_pages(self) -> None:
        request = self._request
        self._set_step("beginning")
        begin = BeginScrubInput(
            run_id=f"scrub-{workflow.uuid4().hex[:12]}",
            actor=request.actor,
            reason=request.reason,
            topic_ids=request.topic_ids,
        )
        begun: ScrubRunId = await workflow.execute_activity_method(
            ScrubLedgersActivities.begin_or_continue_scrub, begin, **activity_options.CATALOG
        )
        self._progress = replace(self._progress, run_id=begun.run_id)
        self._set_step("cutting ledgers into pages")
        cut = CutScrubInput(run_id=begun.run_id, master=request.master, bytes_per_s=request.bytes_per_s)
        config = activity_options.bulk_job_options(request.queue)
        totals: ScrubCounts = await workflow.execute_activity_method(
            ScrubLedgersActivities.cut_scrub_into_pages, cut, **config
        )
        self._progress = replace(
            self._progress, pages=totals.pages, all_objects=totals.objects, all_bytes=totals.size_bytes
        )

    async def _continue_as_new_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(replace(self._request, carried=self._progress))
