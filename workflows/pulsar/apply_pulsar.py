"""`apply-pulsar`: remove orphan ledgers and, if asked, other orphans of a Pulsar cluster, each after a last look.

Destroys znodes of ledgers. Bookies then free the space of these ledgers by themselves, within a garbage collection.
Until then an undo puts the znodes back. Invariant: the catalog and the records bucket have path, value and version of a
znode before it is deleted, and the deletion names the version of the znode and of its owner. Of all jobs that know the
cluster, only the one with the cluster's lease deletes anything. With `include_irreversible` the apply also destroys
objects and uploads of offloads, and managed ledgers through the admin API, which no undo puts back. The journal says
what was there. To stop the apply for a while, pause it. To stop it for good, terminate it. If you apply the same plan
again, the new apply continues where the old one ended.

1. Begin: check that the plan is complete and of this catalog, that the cluster is the same one, and that no more
   ledgers than allowed would go. If a guard refuses, the apply completes with the refusal as its result.
2. For each page, read the ledgers, and store the journal. Then read the ledgers, their owners, and everything of the
   same topics that could refer to a ledger, and delete, up to 500 ledgers at a time. What the plan did not expect
   stops the apply for good. What cannot be read, and another job that has taken the lease, stop it, too, but a later
   apply of the plan goes on. A pause or a new rate takes effect before the next page.
3. Conclude: store the sum of the results of all pages. Store a certificate in the records bucket, which lists each
   ledger that the applies of the plan have deleted, and free the lease.

Source: apache/pulsar#12445 and #20320 (ledgers that nothing refers to).
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.pulsar.apply_cluster import ApplyClusterActivities
    from activities.pulsar.inputs_and_results import (
        AppliedClusterPage,
        ApplyClusterPageInput,
        BeginClusterApplyInput,
        ClusterApplyScope,
        ConcludeClusterApplyInput,
        ConcludedClusterApply,
    )
    from logstore.deletion.intents import RequestRefusal
    from logstore.reconciliation.findings import ApplyCounts
    from workflows import activity_options, search_attributes
    from workflows.pulsar.job_definitions import ApplyPulsarInput, ApplyPulsarResult
    from workflows.reconciliation.plan_and_apply_workflows import ApplyWorkflow
    from workflows.reconciliation.progress_text import find_guard_refusal

_PAGE_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 1,000 ledgers at 1/s
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for the cluster to come back
)


@workflow.defn(name="apply-pulsar", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ApplyPulsar(ApplyWorkflow):
    @workflow.init
    def __init__(self, request: ApplyPulsarInput) -> None:
        super().__init__(request.run_id, request.carried)
        self._request, self._last, self._can_go_on = request, request.carried_last, False

    @workflow.run
    async def run(self, request: ApplyPulsarInput) -> ApplyPulsarResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(request.run_id)])
        begun = await self._begin_apply()
        if isinstance(begun, RequestRefusal):
            return ApplyPulsarResult(run_id=request.run_id, refused=await self._publish_refusal(begun))
        self._stopped, self._last = begun.stopped, begun.last
        concluded = (
            ConcludedClusterApply(counts=begun.done, certificate=begun.certificate)
            if begun.done
            else await self._apply_and_conclude(begun)
        )
        await self._publish_counts(concluded.counts, "STOPPED" if self._stopped else "APPLIED")
        return ApplyPulsarResult(
            run_id=request.run_id, done=concluded.counts, stopped=self._stopped, certificate=concluded.certificate
        )

    async def _apply_and_conclude(self, begun: ClusterApplyScope) -> ConcludedClusterApply:
        request = self._request
        await self._apply_pages(begun.pages, begun.findings, lambda page: self._apply_page(begun, page))
        self._set_step("concluding")
        conclude = ConcludeClusterApplyInput(
            run_id=request.run_id,
            actor=request.actor,
            reason=request.reason,
            include_unconfirmed=request.include_unconfirmed,
            include_irreversible=request.include_irreversible,
            stopped=self._stopped,
            can_go_on=self._can_go_on,
        )
        return await workflow.execute_activity_method(
            ApplyClusterActivities.conclude_cluster_apply, conclude, **_PAGE_OPTIONS
        )

    async def _begin_apply(self) -> ClusterApplyScope | RequestRefusal:
        request = self._request
        begin = BeginClusterApplyInput(
            run_id=request.run_id,
            actor=request.actor,
            reason=request.reason,
            max_orphan_share=request.max_orphan_share,
            limit=request.limit,
            include_unconfirmed=request.include_unconfirmed,
            include_irreversible=request.include_irreversible,
            last=request.carried_last,
            is_continued=request.carried.pages_done > 0,
        )
        try:
            return await workflow.execute_activity_method(
                ApplyClusterActivities.begin_cluster_apply, begin, **_PAGE_OPTIONS
            )
        except ActivityError as error:
            return self._get_refusal_or_raise(error)

    def _make_continued_input(self) -> ApplyPulsarInput:
        return replace(self._request, carried=self._progress, carried_last=self._last)

    async def _apply_page(self, begun: ClusterApplyScope, number: int) -> ApplyCounts:
        request = self._request
        self._set_step(f"removing orphans of page {number}")
        page = ApplyClusterPageInput(
            run_id=request.run_id,
            page=number,
            shadow_topics=begun.shadow_topics,
            last=begun.last,
            include_unconfirmed=request.include_unconfirmed,
            include_irreversible=request.include_irreversible,
            removals_per_s=float(self._progress.rate),
        )
        try:
            applied: AppliedClusterPage = await workflow.execute_activity_method(
                ApplyClusterActivities.apply_cluster_page, page, **_PAGE_OPTIONS
            )
        except ActivityError as error:  # another cluster, or a lease that another job has taken
            refusal = find_guard_refusal(error)
            if refusal is None:
                raise
            self._stopped, self._can_go_on = refusal.message, True
            return ApplyCounts()
        self._stopped, self._can_go_on = applied.stopped, applied.can_go_on
        return applied.counts
