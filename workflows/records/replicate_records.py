"""`replicate-records`: copy the newest manifest of the record log and its blocks to every replica bucket.

Destroys nothing. Invariant: a replica bucket gets every block before a manifest that names the block. Only blocks that
were read back are acknowledged. To stop it, cancel or terminate it, and pause the schedule `sexton-replicate`. Raids
wait for a replica that lags behind until its state is STALE.

The steps are those of `RecordUpkeepWorkflow`. The pass ships to each replica bucket in turn. A failed shipment does not
stop the other shipments.

Source: Aerospike's cross-datacenter replication (XDR).
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.records.record_upkeep import RecordPassInput, ReplicateRecordsActivities
    from workflows.records.job_definitions import REPLICATE_RECORDS, ReplicateRecordsInput, ReplicateRecordsResult
    from workflows.records.record_upkeep import RecordUpkeepWorkflow, pass_options


@workflow.defn(name="replicate-records", versioning_behavior=VersioningBehavior.PINNED)
class ReplicateRecords(RecordUpkeepWorkflow[ReplicateRecordsInput, ReplicateRecordsResult]):
    job = REPLICATE_RECORDS

    @workflow.run
    async def run(self, request: ReplicateRecordsInput) -> ReplicateRecordsResult:
        return await self.run_upkeep(request)

    async def _run_pass(self, request: ReplicateRecordsInput, before: ReplicateRecordsResult) -> ReplicateRecordsResult:
        del before
        shipped = await workflow.execute_activity_method(
            ReplicateRecordsActivities.ship_to_all_replicas,
            RecordPassInput(actor=request.actor, reason=request.reason),
            **pass_options(request.queue),
        )
        return ReplicateRecordsResult(shipped=shipped)

    def _describe_pass(self, result: ReplicateRecordsResult) -> str:
        lines = [
            f"- **{shipped.replica}**: "
            + (shipped.error or f"manifest {shipped.manifest}, {shipped.blocks:,} blocks, {shipped.bytes:,} bytes")
            for shipped in result.shipped
        ]
        return "".join(f"{line}\n" for line in lines) or "The setting `replica_buckets` names no replica."

    def _list_outcomes(self, result: ReplicateRecordsResult) -> list[str]:
        return sorted({"FAILED" if shipped.error else "SHIPPED" for shipped in result.shipped})
