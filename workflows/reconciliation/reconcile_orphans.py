"""`reconcile-orphans`: compare storage with the catalog, and report the differences as findings.

Destroys only rows and output of plans, applies and scrubs that ended more than `finished_retention` ago. Invariant: a
plan has a result only if all its steps are completed, and if the buckets belonged to the catalog before and after these
steps. If a guard refuses, the workflow completes with the refusal as its result. To stop it and its bulk jobs, cancel
it.

1. Begin: store the cut-off times. All steps leave out objects and rows that are younger than the cut-off times.
2. List storage, then read the catalog, because the row of a ledger exists before the ledger's objects.
3. Compare storage with the catalog. Refuse the plan if storage and catalog cannot belong together.
4. Check each difference again in storage and catalog.
5. Conclude: store the result last.

Source: orphan removals of iceberg and lakeFS, and their failures (apache/iceberg#4195, treeverse/lakeFS#4658,
ClickHouse/ClickHouse#114194).
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior

from activities.reconciliation.inputs_and_results import PlanStepInput

with workflow.unsafe.imports_passed_through():
    from activities.reconciliation.inputs_and_results import (
        BeginPlanInput,
        EarlierPlanResult,
    )
    from activities.reconciliation.plan_orphans import PlanOrphansActivities
    from logstore.deletion.intents import RequestRefusal
    from logstore.reconciliation.bulk_job_inputs_and_results import (
        CompareStorageWithCatalogJob,
        ListStorageJob,
        ReadLedgersAndIntentsJob,
        VerifyFindingsJob,
    )
    from logstore.reconciliation.findings import PlanOrScrubResult
    from workflows import activity_options
    from workflows.reconciliation.job_definitions import (
        ReconcileOrphansInput,
        ReconcileOrphansResult,
    )
    from workflows.reconciliation.plan_and_apply_workflows import PlanWorkflow

_CONCLUDE_OPTIONS: workflow.ActivityConfig = {
    **activity_options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # two columns of many million findings are read
}


@workflow.defn(name="reconcile-orphans", versioning_behavior=VersioningBehavior.PINNED)
class ReconcileOrphans(PlanWorkflow):
    @workflow.init
    def __init__(self, request: ReconcileOrphansInput) -> None:
        self._request = request
        super().__init__(
            request.run_id,
            run_id_prefix="plan",
            master=request.master,
            queue=request.queue,
            bulk_activity=PlanOrphansActivities.run_plan_bulk_job,
        )

    @workflow.run
    async def run(self, request: ReconcileOrphansInput) -> ReconcileOrphansResult:  # noqa: ARG002 - taken by `__init__`
        result = await self.run_plan()
        if isinstance(result, RequestRefusal):
            return ReconcileOrphansResult(run_id=self._run_id, refused=result)
        return ReconcileOrphansResult(run_id=self._run_id, found=result)

    async def _run_steps(self) -> PlanOrScrubResult:
        self._set_step("beginning")
        begun = await self._begin_plan()
        if begun.done:
            return begun.done
        for job in (ListStorageJob.name, ReadLedgersAndIntentsJob.name, CompareStorageWithCatalogJob.name):
            await self._run_bulk_job(job)
        self._set_step("checking")
        plan = PlanStepInput(run_id=self._run_id)
        await workflow.execute_activity_method(
            PlanOrphansActivities.require_plausible_comparison, plan, **activity_options.CATALOG
        )
        await self._run_bulk_job(VerifyFindingsJob.name)
        self._set_step("concluding")
        return await workflow.execute_activity_method(PlanOrphansActivities.conclude_plan, plan, **_CONCLUDE_OPTIONS)

    async def _begin_plan(self) -> EarlierPlanResult:
        request = self._request
        begin = BeginPlanInput(
            run_id=self._run_id,
            actor=request.actor,
            reason=request.reason,
            older_than_s=request.older_than_s,
            unsafe_age=request.unsafe_age,
            inventories=request.inventories,
        )
        return await workflow.execute_activity_method(
            PlanOrphansActivities.begin_plan_and_remove_old_runs, begin, **activity_options.CATALOG
        )
