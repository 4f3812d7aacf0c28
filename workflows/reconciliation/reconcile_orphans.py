"""`reconcile-orphans`: what storage holds is compared with what the catalog says, and the findings are written down.

Destroys nothing; only output and rows of runs older than `finished_retention` are forgotten. Invariant: a plan has a
summary only if all of its steps ended, in buckets that were the catalog's before and after; whatever a guard refuses
ends it as completed, with the sentence in its result. To stop it, cancel it: its bulk jobs end with it.

1. Begin: one cut-off for all steps, by the store's clock.
2. List storage, then read the catalog: rows precede objects.
3. Compare; refuse sides that cannot both be right.
4. Verify each candidate on both sides once more.
5. Conclude: the summary last.

Source: orphan removals of iceberg and lakeFS, and their failures (iceberg#4195, lakeFS#4658, ClickHouse#114194).
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.reconciliation.planning import Planning
    from activities.reconciliation.values import (
        BeginPlanInput,
        BulkInput,
        BulkResult,
        PlanBegun,
        PlanInput,
    )
    from logstore.reconciliation.findings import PlanResult
    from logstore.reconciliation.jobs import CompareSides, ListStorage, ReadReferences, VerifyFindings
    from workflows import options, refusals, search_attributes
    from workflows.reconciliation.progress import findings_shown, plan_shown, refused
    from workflows.reconciliation.values import (
        ReconcileOrphansInput,
        ReconcileOrphansProgress,
        ReconcileOrphansResult,
    )

_CONCLUDE: workflow.ActivityConfig = {
    **options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # two columns of many million findings are read
}


@workflow.defn(name="reconcile-orphans", versioning_behavior=VersioningBehavior.PINNED)
class ReconcileOrphans:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: ReconcileOrphansInput) -> None:
        """Take a run id, if none was given."""
        self._request = request
        self._run_id = request.run_id or f"plan-{workflow.uuid4().hex[:12]}"
        self._progress = ReconcileOrphansProgress(run_id=self._run_id, step="beginning")

    @workflow.run
    async def run(self, request: ReconcileOrphansInput) -> ReconcileOrphansResult:  # noqa: ARG002 - taken by `__init__`
        """Do the numbered steps."""
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(self._run_id)])
        try:
            found = await self._plan()
        except ActivityError as error:
            refusal = refused(error)
            if refusal is None:
                raise
            self._at("ended", refusals.format_refusal(refusal))
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            return ReconcileOrphansResult(run_id=self._run_id, refused=refusal)
        self._at("ended", findings_shown(found))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["PLANNED"])])
        return ReconcileOrphansResult(run_id=self._run_id, found=found)

    @workflow.query
    def progress(self) -> ReconcileOrphansProgress:
        """Which step it is at."""
        return self._progress

    async def _plan(self) -> PlanResult:
        self._at("beginning")
        begun = await self._begin()
        if begun.done:
            return begun.done
        for job in (ListStorage.name, ReadReferences.name, CompareSides.name):
            await self._run(job)
        self._at("checking")
        plan = PlanInput(run_id=self._run_id)
        await workflow.execute_activity_method(Planning.check_sides, plan, **options.CATALOG)
        await self._run(VerifyFindings.name)
        self._at("concluding")
        return await workflow.execute_activity_method(Planning.conclude_plan, plan, **_CONCLUDE)

    async def _begin(self) -> PlanBegun:
        request = self._request
        begin = BeginPlanInput(
            run_id=self._run_id,
            actor=request.actor,
            reason=request.reason,
            older_than_s=request.older_than_s,
            unsafe_age=request.unsafe_age,
            inventories=request.inventories,
        )
        return await workflow.execute_activity_method(Planning.begin_plan, begin, **options.CATALOG)

    async def _run(self, job: str) -> None:
        self._at(job)
        bulk = BulkInput(run_id=self._run_id, job=job, master=self._request.master)
        config = options.bulk_job(self._request.queue)
        done: BulkResult = await workflow.execute_activity_method(Planning.run_bulk, bulk, **config)
        counts = {**self._progress.counts, job: done.counts}
        self._progress = ReconcileOrphansProgress(run_id=self._run_id, step=job, counts=counts)

    def _at(self, step: str, told: str = "") -> None:
        self._progress = ReconcileOrphansProgress(run_id=self._run_id, step=step, counts=self._progress.counts)
        workflow.set_current_details(plan_shown(self._progress, told))
