"""`replicate-records`: every replica's bucket has the newest manifest of the record log, and the blocks that it names.

Destroys nothing. Invariant: a replica has every block before it has a manifest that names it, and it acknowledges what
it has read back. To stop it, cancel or terminate it, and pause the schedule `sexton-replicate`: a replica that lags
behind holds raids up until it is STALE.

1. A run of a schedule: run the job under its one id, and tell what that came to.
2. Each replica in turn, in one activity; one that cannot be reached keeps no other from its blocks.

Source: Aerospike's cross-datacenter replication (XDR).
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.upkeep import RecordReplication
    from activities.records.values import ReplicateInput
    from workflows import refusals, search_attributes
    from workflows.records import passes
    from workflows.records.values import REPLICATE_RECORDS, ReplicateRecordsInput, ReplicateRecordsResult


@workflow.defn(name="replicate-records", versioning_behavior=VersioningBehavior.PINNED)
class ReplicateRecords:
    """See the module's text."""

    @workflow.run
    async def run(self, request: ReplicateRecordsInput) -> ReplicateRecordsResult:
        """Do the numbered steps."""
        if request.scheduled:
            told = await passes.run_single(
                REPLICATE_RECORDS, replace(request, scheduled=False), summary="replicate the record log"
            )
            result = told or ReplicateRecordsResult(joined=True)
        else:
            result = await self._replicate(request)
        workflow.set_current_details(shown(result))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(_outcomes(result))])
        return result

    async def _replicate(self, request: ReplicateRecordsInput) -> ReplicateRecordsResult:
        asked = ReplicateInput(actor=request.actor, reason=request.reason)
        options = passes.of_pass(request.queue)
        try:
            shipped = await workflow.execute_activity_method(RecordReplication.ship, asked, **options)
        except ActivityError as error:
            return ReplicateRecordsResult(refused=refusals.require_refusal(error, passes.GUARDS))
        return ReplicateRecordsResult(shipped=shipped)


def shown(result: ReplicateRecordsResult) -> str:
    """What was done, as the Web UI shows it."""
    if result.refused:
        return refusals.format_refusal(result.refused)
    if result.joined:
        return "Another run was at work, and nothing was done here."
    if not result.shipped:
        return "The setting `replica_buckets` names no replica."
    return "".join(
        f"- **{one.replica}**: {one.error or f'manifest {one.manifest}, {one.blocks:,} blocks, {one.bytes:,} bytes'}\n"
        for one in result.shipped
    )


def _outcomes(result: ReplicateRecordsResult) -> list[str]:
    if result.refused:
        return ["REFUSED"]
    if result.joined:
        return ["HELD"]
    return sorted({"FAILED" if one.error else "SHIPPED" for one in result.shipped}) or ["NOTHING"]
