"""`replicate-records`: copy the newest manifest of the record log and its blocks to every replica bucket.

Destroys nothing. Invariant: a replica bucket gets every block before a manifest that names the block. Only blocks that
were read back are acknowledged. To stop it, cancel or terminate it, and pause the schedule `sexton-replicate`. Raids
wait for a replica that lags behind until its state is STALE.

1. If a schedule started this run, run the job as a child with the id `replicate-records`, and return its result.
2. Otherwise ship to each replica bucket in turn, in one activity. A failed shipment does not stop the other shipments.

Source: Aerospike's cross-datacenter replication (XDR).
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.defragment_raid_ship import ReplicateRecordsActivities
    from activities.records.inputs_and_results import ShipToReplicasInput
    from logstore.records.job_results import ShippedBlocks
    from workflows import guard_refusal_results, search_attributes
    from workflows.records import record_job_options
    from workflows.records.job_definitions import REPLICATE_RECORDS, ReplicateRecordsInput, ReplicateRecordsResult


@workflow.defn(name="replicate-records", versioning_behavior=VersioningBehavior.PINNED)
class ReplicateRecords:
    @workflow.run
    async def run(self, request: ReplicateRecordsInput) -> ReplicateRecordsResult:
        if request.scheduled:
            child_result = await record_job_options.run_as_only_child(
                REPLICATE_RECORDS, replace(request, scheduled=False), summary="replicate the record log"
            )
            result = child_result or ReplicateRecordsResult(joined=True)
        else:
            result = await self._ship_to_replicas(request)
        workflow.set_current_details(describe_result(result))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(_outcomes(result))])
        return result

    async def _ship_to_replicas(self, request: ReplicateRecordsInput) -> ReplicateRecordsResult:
        ship_input = ShipToReplicasInput(actor=request.actor, reason=request.reason)
        options = record_job_options.block_pass_options(request.queue)
        try:
            shipped = await workflow.execute_activity_method(
                ReplicateRecordsActivities.ship_to_all_replicas, ship_input, **options
            )
        except ActivityError as error:
            return ReplicateRecordsResult(
                refused=guard_refusal_results.refusal_from_error_or_raise(error, record_job_options.GUARDS)
            )
        return ReplicateRecordsResult(shipped=shipped)


def describe_result(result: ReplicateRecordsResult) -> str:
    if result.refused:
        return guard_refusal_results.format_refusal(result.refused)
    if result.joined:
        return "Another run was at work, and nothing was done here."
    if not result.shipped:
        return "The setting `replica_buckets` names no replica."
    return "".join(
        f"- **{shipped.replica}**: {shipped.error or _describe_shipment(shipped)}\n" for shipped in result.shipped
    )


def _describe_shipment(shipped: ShippedBlocks) -> str:
    return f"manifest {shipped.manifest}, {shipped.blocks:,} blocks, {shipped.bytes:,} bytes"


def _outcomes(result: ReplicateRecordsResult) -> list[str]:
    if result.refused:
        return ["REFUSED"]
    if result.joined:
        return ["HELD"]
    return sorted({"FAILED" if shipped.error else "SHIPPED" for shipped in result.shipped}) or ["NOTHING"]
