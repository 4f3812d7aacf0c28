"""`defragment-records`: rewrite blocks of which a rebuild needs only a small part, and merge small blocks.

Destroys record versions that no rebuild needs, and blocks that no manifest names. Invariant: a rebuild from the newest
manifest gives the same catalog before and after a pass. To stop it, cancel or terminate it, and pause the schedule
`sexton-defragment`. A pass that ends early has published either all of its new blocks or none.

The steps are those of `RecordUpkeepWorkflow`. The pass goes over all blocks.

Source: Aerospike's defragmentation of blocks below `defrag-lwm-pct`.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.records.record_upkeep import DefragmentRecordsActivities, RecordPassInput
    from workflows.records.job_definitions import (
        DEFRAGMENT_RECORDS,
        DefragmentRecordsInput,
        DefragmentRecordsResult,
    )
    from workflows.records.record_upkeep import RecordUpkeepWorkflow, pass_options


@workflow.defn(name="defragment-records", versioning_behavior=VersioningBehavior.PINNED)
class DefragmentRecords(RecordUpkeepWorkflow[DefragmentRecordsInput, DefragmentRecordsResult]):
    job = DEFRAGMENT_RECORDS

    @workflow.run
    async def run(self, request: DefragmentRecordsInput) -> DefragmentRecordsResult:
        return await self.run_upkeep(request)

    async def _run_pass(
        self, request: DefragmentRecordsInput, before: DefragmentRecordsResult
    ) -> DefragmentRecordsResult:
        del before
        defragmented = await workflow.execute_activity_method(
            DefragmentRecordsActivities.defragment_and_remove_old_objects,
            RecordPassInput(actor=request.actor, reason=request.reason),
            **pass_options(request.queue),
        )
        return DefragmentRecordsResult(done=defragmented)

    def _describe_pass(self, result: DefragmentRecordsResult) -> str:
        blocks = result.done
        return (
            f"{blocks.rewritten:,} blocks became {blocks.written:,},"
            f" {blocks.bytes_before:,} bytes became {blocks.bytes_after:,};"
            f" {blocks.dropped:,} versions dropped; {blocks.manifests:,} manifests and {blocks.unlinked:,} blocks of"
            f" {blocks.unlinked_bytes:,} bytes deleted; the newest manifest is **{blocks.manifest}**"
        )

    def _list_outcomes(self, result: DefragmentRecordsResult) -> list[str]:
        return ["DEFRAGMENTED"] if result.done.rewritten or result.done.unlinked else []
