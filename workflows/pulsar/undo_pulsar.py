"""`undo-pulsar`: put back the metadata of ledgers that applies of a plan of a Pulsar cluster have deleted.

Destroys nothing. Invariant: a znode gets the value that the journal has, and a znode that exists is never changed. An
apply of the plan that still runs loses the lease of the cluster to the undo. To stop it, terminate it. An undo that
runs again changes nothing about ledgers that are back.

1. Begin: find the journal in the catalog. If the catalog is lost, or the run has left it, read the journal from the
   records bucket. A ledger that the journal does not have is refused.
2. For each page of the journal, create the znodes that are absent. Then ask bookies whether they have the entries.
3. Free the lease of the cluster.

Source: BookKeeper's garbage collection, which keeps the entries of a ledger until it sees that the metadata are gone.
"""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.pulsar.inputs_and_results import BeginUndoInput, UndonePage, UndoPageInput
    from activities.pulsar.undo_cluster import UndoClusterActivities
    from workflows import activity_options, guard_refusal_results, search_attributes
    from workflows.pulsar.job_definitions import UndoPulsarInput, UndoPulsarProgress, UndoPulsarResult
    from workflows.reconciliation.progress_text import find_guard_refusal

_PAGE_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 1,000 ledgers, each looked for on bookies that may be away
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for the cluster to come back
)


@workflow.defn(name="undo-pulsar", versioning_behavior=VersioningBehavior.PINNED)
class UndoPulsar:
    @workflow.init
    def __init__(self, request: UndoPulsarInput) -> None:
        self._request, self._progress = request, request.carried

    @workflow.query
    def progress(self) -> UndoPulsarProgress:
        """Return the progress of the undo."""
        return self._progress

    @workflow.run
    async def run(self, request: UndoPulsarInput) -> UndoPulsarResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(request.run_id)])
        try:
            await self._restore_pages()
        except ActivityError as error:
            refusal = find_guard_refusal(error) if self._progress.last < 0 else None
            if refusal is None:
                raise
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            workflow.set_current_details(guard_refusal_results.format_refusal(refusal))
            return UndoPulsarResult(run_id=request.run_id, refused=refusal)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["UNDONE"])])
        return UndoPulsarResult(run_id=request.run_id, counts=self._progress.counts)

    async def _restore_pages(self) -> None:
        request = self._request
        if self._progress.last < 0:
            begin = BeginUndoInput(
                run_id=request.run_id, actor=request.actor, reason=request.reason, ledger_ids=request.ledger_ids
            )
            await workflow.execute_activity_method(UndoClusterActivities.begin_undo, begin, **_PAGE_OPTIONS)
        while True:
            page = UndoPageInput(
                run_id=request.run_id,
                actor=request.actor,
                reason=request.reason,
                after=self._progress.last,
                ledger_ids=request.ledger_ids,
            )
            undone: UndonePage = await workflow.execute_activity_method(
                UndoClusterActivities.undo_page, page, **_PAGE_OPTIONS
            )
            if undone.last is None:
                return
            counts = dict(Counter(self._progress.counts) + Counter(undone.counts))
            self._progress = UndoPulsarProgress(counts=counts, last=undone.last)
            lines = "".join(f"- {name}: {count:,}\n" for name, count in sorted(counts.items()))
            workflow.set_current_details(f"looked at ledgers up to {undone.last}\n\n{lines}")
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._progress))
