"""`end-records`: every record of a selection that a registered function ends is detached, and gone from storage.

Destroys closed ledgers of messages that the function answers None for and that nothing needs. Invariant: what a
subscription, a transaction or an offload needs stays, and so does a record that changed since the function saw it.
To stop it, cancel or terminate it: pages that are through stay detached, and the next sweep or trim takes them up.

1. Look whether there is such a function, and the topic; what a guard refuses ends the job, and nothing changed.
2. Page by page of ledgers: ask the function of each, then detach those that it ends (phase one), all into one batch.
   A function that fails ends nothing more, and is named with its record. In a dry run nothing is detached.
3. Run `delete-ledgers` on the batch (phase two), and wait for it.

Source: Aerospike's scans and queries with record functions; ADR 15.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.trimming import CountBatchInput, Trimming
    from activities.deletion.values import DetachResult
    from activities.records.ending import RecordEnding
    from activities.records.values import BeginEndingInput, EndedPage, EndingBegun, EndPageInput
    from logstore.errors import ClaimHeld, FunctionFailed, InvalidInput, StaleCatalog, UnknownObject, Unsupported
    from logstore.records.jobs import Place
    from workflows import options, refusals, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.values import DELETE_LEDGERS
    from workflows.records import passes
    from workflows.records.values import EndRecordsInput, EndRecordsResult

_STOPS = {one.__name__ for one in (ClaimHeld, FunctionFailed, InvalidInput, StaleCatalog, UnknownObject, Unsupported)}
GUARDS = frozenset({*_STOPS, *passes.GUARDS})
"""Types of refusals by which an end of records ends: nothing changed, or nothing more from some page on."""
_SAMPLE = 20  # ledgers and reasons that the result names

_PAGE = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # ten minutes of calls, the last of which may be long, and 500 detaches
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)


@workflow.defn(name="end-records", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class EndRecords:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: EndRecordsInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: EndRecordsInput) -> EndRecordsResult:
        """Do the numbered steps."""
        search_attributes.ensure_topic(request.topic)
        if not await self._begin():
            return self._ended()
        place: Place | None = self._request.after
        while place is not None and (page := await self._page(place)):
            self._add(page)
            place = page.after
            if place is not None and workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(self._request, after=place, carried=self._result))
        if not request.dry_run:
            await self._delete()
        return self._ended()

    @workflow.query
    def progress(self) -> EndRecordsResult:
        """How far it is."""
        return self._result

    async def _begin(self) -> bool:
        """Whether the selection may be gone through; an earlier run of this job has asked already."""
        request = self._request
        if request.now_us:
            return True
        asked = BeginEndingInput(
            function=request.function,
            topic_id=request.topic_id,
            topic=request.topic,
            durable_delete=request.durable_delete,
            catalog_epoch=request.catalog_epoch,
        )
        try:
            begun: EndingBegun = await workflow.execute_activity_method(
                RecordEnding.begin_ending, asked, **options.CATALOG
            )
        except ActivityError as error:
            self._result = replace(self._result, refused=refusals.require_refusal(error, GUARDS))
            return False
        self._request = replace(request, now_us=begun.now_us, catalog_epoch=begun.catalog_epoch)
        return True

    async def _page(self, place: Place) -> EndedPage | None:
        """What became of the page; None where nothing more ends."""
        request = self._request
        asked = EndPageInput(
            function=request.function,
            topic_id=request.topic_id,
            after=place,
            page=request.page,
            now_us=request.now_us,
            catalog_epoch=request.catalog_epoch or 0,
            batch_id=request.batch_id,
            batch_workflow_id=DELETE_LEDGERS.id(request.batch_id),
            dry_run=request.dry_run,
            durable_delete=request.durable_delete,
            actor=request.actor,
            reason=request.cause,
        )
        try:
            page: EndedPage = await workflow.execute_activity_method(RecordEnding.end_page, asked, **_PAGE)
        except ActivityError as error:
            self._result = replace(self._result, stopped=refusals.require_refusal(error, GUARDS))
            return None
        return page

    async def _delete(self) -> None:
        """Phase two of what was detached, counted from rows: an attempt whose answer was lost has detached, too.

        Of rows that a sweep has taken up, while no worker held the batch, the pages' own answers tell.
        """
        request = self._request
        batch = CountBatchInput(batch_id=request.batch_id)
        detached: DetachResult = await workflow.execute_activity_method(Trimming.count_batch, batch, **options.CATALOG)
        self._result = replace(self._result, ended=max(self._result.ended, detached.ledgers))
        if not detached.intents:
            return
        summary = f"{detached.intents} copies by {request.function}"
        done = await batches.run_phase_two(request, request.batch_id, detached, summary=summary)
        self._result = replace(self._result, certificate=done)

    def _add(self, page: EndedPage) -> None:
        before = self._result
        self._result = replace(
            before,
            records=before.records + page.records,
            ended=before.ended + page.ended,
            kept=before.kept + page.kept,
            ledger_ids=[*before.ledger_ids, *page.ledger_ids][:_SAMPLE],
            because=[*before.because, *page.because][:_SAMPLE],
        )
        workflow.set_current_details(shown(self._request, self._result))

    def _ended(self) -> EndRecordsResult:
        done = self._result
        workflow.set_current_details(shown(self._request, done))
        outcomes = ["REFUSED"] if done.refused else [*(["STOPPED"] if done.stopped else []), *sorted(done.outcomes)]
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes or ["NOTHING"])])
        return done


def shown(request: EndRecordsInput, done: EndRecordsResult) -> str:
    """What was done, as the Web UI shows it."""
    if done.refused:
        return refusals.format_refusal(done.refused)
    would = "would end" if request.dry_run else "ended"
    counts = f"**{request.function}**: {done.records:,} records, {done.ended:,} {would}, {done.kept:,} kept"
    stopped = f"\n\n**Stopped**: {done.stopped.message} ({done.stopped.type})" if done.stopped else ""
    outcomes = "".join(f"\n- **{name}** — {count:,} copies" for name, count in sorted(done.outcomes.items()))
    return f"{counts}{stopped}\n{outcomes}" + "".join(f"\n- kept: {one}" for one in done.because)
