"""`plan-pulsar`: scan the metadata of a Pulsar cluster twice, and report ledgers and objects that nothing refers to.

Destroys only rows and output of plans, applies and scrubs that ended more than `finished_retention` ago. Nothing is
written to the cluster. Invariant: a plan has a result only if all its steps are completed. If something could not be
read, or if the cluster became another one, the result names it, and no orphan is confirmed. If a guard refuses,
or if the cluster cannot be scanned at all, the workflow completes with the refusal as its result. To stop it and its
bulk jobs, cancel it.

1. Begin: check the cluster, and store its identity.
2. Scan all ledgers, then all references.
3. Wait, so that each reference that was on its way is stored.
4. Scan again. Compare the scans. The comparison refuses scans that are too close to each other.
5. Look up the owner of each ledger without references.
6. Conclude: store the result last.

Source: apache/pulsar#12445, #20320 and #15332 (ledgers that nothing refers to).
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

from activities.reconciliation.inputs_and_results import PlanStepInput

with workflow.unsafe.imports_passed_through():
    from activities.pulsar.inputs_and_results import BeginClusterPlanInput, BegunClusterPlan
    from activities.pulsar.plan_cluster import PlanClusterActivities
    from logstore.deletion.intents import RequestRefusal
    from logstore.pulsar.plan_jobs import SECOND_SCAN
    from logstore.reconciliation.findings import PlanOrScrubResult
    from workflows import activity_options
    from workflows.pulsar.job_definitions import PlanPulsarInput, PlanPulsarResult
    from workflows.reconciliation.plan_and_apply_workflows import PlanWorkflow

_CLUSTER_OPTIONS: workflow.ActivityConfig = {
    **activity_options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # two columns of many million findings are read
    # Half an hour for the catalog or ZooKeeper to come back. Then a person looks: a plan changes nothing.
    "retry_policy": RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=36),
}


@workflow.defn(name="plan-pulsar", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class PlanPulsar(PlanWorkflow):
    @workflow.init
    def __init__(self, request: PlanPulsarInput) -> None:
        self._request = request
        super().__init__(
            request.run_id,
            run_id_prefix="pulsar",
            master=request.master,
            queue=request.queue,
            bulk_activity=PlanClusterActivities.run_cluster_plan_bulk_job,
        )

    @workflow.run
    async def run(self, request: PlanPulsarInput) -> PlanPulsarResult:  # noqa: ARG002 - taken by `__init__`
        result = await self.run_plan()
        if isinstance(result, RequestRefusal):
            return PlanPulsarResult(run_id=self._run_id, refused=result)
        return PlanPulsarResult(run_id=self._run_id, found=result)

    async def _run_steps(self) -> PlanOrScrubResult:
        self._set_step("beginning")
        begun = await self._begin_plan()
        if begun.done:
            return begun.done
        for job in begun.jobs:
            if job == SECOND_SCAN:
                await self._wait_between_scans()
            await self._run_bulk_job(job)
        self._set_step("concluding")
        return await workflow.execute_activity_method(
            PlanClusterActivities.conclude_cluster_plan, PlanStepInput(run_id=self._run_id), **_CLUSTER_OPTIONS
        )

    async def _begin_plan(self) -> BegunClusterPlan:
        request = self._request
        begin = BeginClusterPlanInput(
            run_id=self._run_id,
            actor=request.actor,
            reason=request.reason,
            older_than_s=request.older_than_s,
            between_s=request.between_s,
            unsafe_age=request.unsafe_age,
        )
        return await workflow.execute_activity_method(
            PlanClusterActivities.check_cluster_and_begin_plan, begin, **_CLUSTER_OPTIONS
        )

    async def _wait_between_scans(self) -> None:
        """Wait from now on, because the first scan ended before now."""
        until = workflow.now() + timedelta(seconds=self._request.between_s)
        self._set_step(f"waiting until {until:%Y-%m-%dT%H:%M:%SZ} for the second scan")
        await workflow.sleep(timedelta(seconds=self._request.between_s), summary="between the scans")
