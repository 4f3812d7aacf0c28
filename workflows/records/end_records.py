"""`end-records`: delete the ledgers that a record function selects.

Destroys closed message ledgers for which the function returns `None`. Invariant: a ledger stays if a subscription, a
transaction or an offload needs it, or if the ledger has changed since the call of the function. To stop it, cancel or
terminate it. Ledgers of finished pages stay detached, and the next sweep or trim deletes them.

1. Check the function and the topic. After a refusal the job ends, and nothing has changed.
2. For each page of ledgers, call the function for each closed ledger, then detach the selected ledgers into one batch
   (phase one). If the function fails, name the record and go to step 3. A dry run detaches nothing.
3. Run `delete-ledgers` on the batch (phase two), and wait for its end.

Source: Aerospike's scans and queries with record functions; ADR 15.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.inputs_and_results import DetachResult
    from activities.deletion.trim_by_retention import CountBatchInput, TrimAllTopicsActivities
    from activities.records.end_records import (
        CheckEndRecordsInput,
        EndRecordsActivities,
        EndRecordsPageInput,
        EndRecordsPageResult,
        EndRecordsStart,
    )
    from logstore.records.job_results import SelectionPageStart
    from workflows import activity_options, guard_refusal_results, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import DELETE_LEDGERS
    from workflows.records.job_definitions import END_RECORDS, EndRecordsInput, EndRecordsResult

_MAX_NAMED_LEDGERS = 20  # bound of ids and of reasons in the result

_PAGE = workflow.ActivityConfig(
    # 10 minutes of function calls, of which the last may be long, and 500 detaches
    start_to_close_timeout=timedelta(hours=1),
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)


@workflow.defn(name="end-records", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class EndRecords:
    @workflow.init
    def __init__(self, request: EndRecordsInput) -> None:
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: EndRecordsInput) -> EndRecordsResult:
        search_attributes.ensure_topic(request.topic)
        if not await self._begin_unless_refused():
            return self._publish_result()
        place: SelectionPageStart | None = self._request.after
        while place is not None and (page := await self._end_page_unless_stopped(place)):
            self._add_page(page)
            place = page.after
            if place is not None and workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(self._request, after=place, carried=self._result))
        if not request.dry_run:
            await self._delete_batch_of_all_pages()
        return self._publish_result()

    @workflow.query
    def progress(self) -> EndRecordsResult:
        """Return the numbers of ledgers examined, detached and kept so far."""
        return self._result

    async def _begin_unless_refused(self) -> bool:
        request = self._request
        if request.now_us:
            return True
        begin_input = CheckEndRecordsInput(
            function=request.function,
            topic_id=request.topic_id,
            topic=request.topic,
            durable_delete=request.durable_delete,
            catalog_epoch=request.catalog_epoch,
        )
        try:
            begun: EndRecordsStart = await workflow.execute_activity_method(
                EndRecordsActivities.check_ending_request, begin_input, **activity_options.CATALOG
            )
        except ActivityError as error:
            self._result = replace(
                self._result, refused=guard_refusal_results.refusal_from_error_or_raise(error, END_RECORDS.guards)
            )
            return False
        self._request = replace(request, now_us=begun.now_us, catalog_epoch=begun.catalog_epoch)
        return True

    async def _end_page_unless_stopped(self, place: SelectionPageStart) -> EndRecordsPageResult | None:
        request = self._request
        page_input = EndRecordsPageInput(
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
            page: EndRecordsPageResult = await workflow.execute_activity_method(
                EndRecordsActivities.end_page, page_input, **_PAGE
            )
        except ActivityError as error:
            self._result = replace(
                self._result, stopped=guard_refusal_results.refusal_from_error_or_raise(error, END_RECORDS.guards)
            )
            return None
        return page

    async def _delete_batch_of_all_pages(self) -> None:
        """Run phase two. Count detached ledgers from the batch's rows, because an activity's result may be lost."""
        request = self._request
        count_input = CountBatchInput(batch_id=request.batch_id)
        detached: DetachResult = await workflow.execute_activity_method(
            TrimAllTopicsActivities.count_batch, count_input, **activity_options.CATALOG
        )
        self._result = replace(self._result, ended=max(self._result.ended, detached.ledgers))
        if not detached.intents:
            return
        summary = f"{detached.intents} copies by {request.function}"
        certificate = await batches.run_phase_two(request, request.batch_id, detached, summary=summary)
        self._result = replace(self._result, certificate=certificate)

    def _add_page(self, page: EndRecordsPageResult) -> None:
        self._result = self._result.plus(page, max_sample=_MAX_NAMED_LEDGERS)
        workflow.set_current_details(describe_result(self._request, self._result))

    def _publish_result(self) -> EndRecordsResult:
        result = self._result
        workflow.set_current_details(describe_result(self._request, result))
        outcomes = [*(["STOPPED"] if result.stopped else []), *sorted(result.outcomes)]
        outcomes = ["REFUSED"] if result.refused else outcomes or ["NOTHING"]
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes)])
        return result


def describe_result(request: EndRecordsInput, result: EndRecordsResult) -> str:
    if result.refused:
        return guard_refusal_results.format_refusal(result.refused)
    verb = "would end" if request.dry_run else "ended"
    counts = f"**{request.function}**: {result.records:,} records, {result.ended:,} {verb}, {result.kept:,} kept"
    stopped = f"\n\n**Stopped**: {result.stopped.message} ({result.stopped.type})" if result.stopped else ""
    outcomes = "".join(f"\n- **{name}** — {count:,} copies" for name, count in sorted(result.outcomes.items()))
    return f"{counts}{stopped}\n{outcomes}" + "".join(f"\n- kept: {reason}" for reason in result.because)
