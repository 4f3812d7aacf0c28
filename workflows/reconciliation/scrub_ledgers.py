"""`scrub-ledgers`: every stored segment and tiered copy is read at a bounded rate and compared with its digest.

Destroys nothing. Invariant: a finding was read twice, and the catalog still names its object; a scrub has a summary
only once every page was read. To stop it, cancel it: started again for the same topics, it goes on where it was. Pause
acts between pages.

1. Begin: go on with an unfinished scrub of the same topics, or open a run.
2. Cut the ledgers into pages.
3. Read page after page; a page that was read is not read again.
4. Conclude: the summary last.

Source: the scrubs of ZFS and Ceph, which find a flipped bit before a reader does.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.reconciliation.scrubbing import Scrubbing
    from activities.reconciliation.values import (
        BeginScrubInput,
        ConcludeScrubInput,
        ScrubBegun,
        ScrubPageInput,
        ScrubRead,
        ScrubRunInput,
    )
    from logstore.reconciliation.findings import PlanResult
    from workflows import options, refusals, search_attributes
    from workflows.reconciliation.progress import findings_shown, refused, scrub_shown
    from workflows.reconciliation.values import ScrubLedgersInput, ScrubLedgersProgress, ScrubLedgersResult

_CONCLUDE: workflow.ActivityConfig = {
    **options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # the findings of many thousand pages are copied
}


@workflow.defn(name="scrub-ledgers", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ScrubLedgers:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: ScrubLedgersInput) -> None:
        """Start from what an earlier run of this scrub carried over."""
        self._request, self._progress = request, request.carried
        self._doing = "beginning"

    @workflow.run
    async def run(self, request: ScrubLedgersInput) -> ScrubLedgersResult:  # noqa: ARG002 - taken by `__init__`
        """Do the numbered steps."""
        try:
            found = await self._scrub()
        except ActivityError as error:
            refusal = refused(error)
            if refusal is None:
                raise
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            workflow.set_current_details(refusals.format_refusal(refusal))
            return ScrubLedgersResult(run_id=self._progress.run_id, progress=self._progress, refused=refusal)
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._doing = "ended"
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["SCRUBBED"])])
        workflow.set_current_details(scrub_shown(self._progress, self._doing, findings_shown(found)))
        return ScrubLedgersResult(run_id=self._progress.run_id, found=found, progress=self._progress)

    @workflow.query
    def progress(self) -> ScrubLedgersProgress:
        """How far the scrub is."""
        return self._progress

    @workflow.update
    def pause(self) -> ScrubLedgersProgress:
        """Begin no page from now on; the one that is being read ends."""
        return self._changed(replace(self._progress, paused=True))

    @workflow.update
    def resume(self) -> ScrubLedgersProgress:
        """Go on."""
        return self._changed(replace(self._progress, paused=False))

    def _changed(self, progress: ScrubLedgersProgress) -> ScrubLedgersProgress:
        self._progress = progress
        workflow.set_current_details(scrub_shown(progress, self._doing))
        return progress

    def _at(self, doing: str) -> None:
        self._doing = doing
        workflow.set_current_details(scrub_shown(self._progress, doing))

    async def _scrub(self) -> PlanResult:
        request = self._request
        if not self._progress.run_id:
            await self._begin()
        run_id, bulk = self._progress.run_id, options.bulk_job(request.queue)
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(run_id)])
        while self._progress.pages_done < self._progress.pages:
            if self._progress.paused:
                self._at("waiting for `resume`")
                await workflow.wait_condition(lambda: not self._progress.paused)
            number = self._progress.pages_done
            self._at(f"reading page {number}")
            page = ScrubPageInput(run_id=run_id, page=number, bytes_per_s=request.bytes_per_s, master=request.master)
            read: ScrubRead = await workflow.execute_activity_method(Scrubbing.scrub_page, page, **bulk)
            self._progress = replace(
                self._progress,
                pages_done=number + 1,
                objects=self._progress.objects + read.objects,
                size_bytes=self._progress.size_bytes + read.size_bytes,
                findings=self._progress.findings + read.findings,
            )
            await self._go_on()
        self._at("concluding")
        conclude = ConcludeScrubInput(run_id=run_id)
        return await workflow.execute_activity_method(Scrubbing.conclude_scrub, conclude, **_CONCLUDE)

    async def _begin(self) -> None:
        request = self._request
        self._at("beginning")
        begin = BeginScrubInput(
            run_id=f"scrub-{workflow.uuid4().hex[:12]}",
            actor=request.actor,
            reason=request.reason,
            topic_ids=request.topic_ids,
        )
        begun: ScrubBegun = await workflow.execute_activity_method(Scrubbing.begin_scrub, begin, **options.CATALOG)
        self._progress = replace(self._progress, run_id=begun.run_id)
        self._at("cutting ledgers into pages")
        cut = ScrubRunInput(run_id=begun.run_id, master=request.master, bytes_per_s=request.bytes_per_s)
        config = options.bulk_job(request.queue)
        found: ScrubRead = await workflow.execute_activity_method(Scrubbing.cut_scrub, cut, **config)
        self._progress = replace(
            self._progress, pages=found.pages, all_objects=found.objects, all_bytes=found.size_bytes
        )

    async def _go_on(self) -> None:
        """In a new run, once the history of this one is long enough."""
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(replace(self._request, carried=self._progress))
