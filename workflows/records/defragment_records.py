"""`defragment-records`: rewrite blocks of which a rebuild needs only a small part, and merge small blocks.

Destroys record versions that no rebuild needs, and blocks that no manifest names. Invariant: a rebuild from the newest
manifest gives the same catalog before and after a pass. To stop it, cancel or terminate it, and pause the schedule
`sexton-defragment`. A pass that ends early has published either all of its new blocks or none.

1. If a schedule started this run, run the job as a child with the id `defragment-records`, and return its result.
2. Otherwise pass over all blocks, in one activity.

Source: Aerospike's defragmentation of blocks below `defrag-lwm-pct`.
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.defragment_raid_ship import DefragmentRecordsActivities
    from activities.records.inputs_and_results import DefragmentInput
    from workflows import guard_refusal_results, search_attributes
    from workflows.records import record_job_options
    from workflows.records.job_definitions import (
        DEFRAGMENT_RECORDS,
        DefragmentRecordsInput,
        DefragmentRecordsResult,
    )


@workflow.defn(name="defragment-records", versioning_behavior=VersioningBehavior.PINNED)
class DefragmentRecords:
    @workflow.run
    async def run(self, request: DefragmentRecordsInput) -> DefragmentRecordsResult:
        if request.scheduled:
            child_result = await record_job_options.run_as_only_child(
                DEFRAGMENT_RECORDS, replace(request, scheduled=False), summary="defragment the record log"
            )
            result = child_result or DefragmentRecordsResult(joined=True)
        else:
            result = await self._defragment_blocks(request)
        workflow.set_current_details(describe_result(result))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([_outcome(result)])])
        return result

    async def _defragment_blocks(self, request: DefragmentRecordsInput) -> DefragmentRecordsResult:
        pass_input = DefragmentInput(actor=request.actor, reason=request.reason)
        options = record_job_options.block_pass_options(request.queue)
        try:
            defragmented = await workflow.execute_activity_method(
                DefragmentRecordsActivities.defragment_and_remove_old_objects, pass_input, **options
            )
        except ActivityError as error:
            return DefragmentRecordsResult(
                refused=guard_refusal_results.refusal_from_error_or_raise(error, record_job_options.GUARDS)
            )
        return DefragmentRecordsResult(done=defragmented)


def describe_result(result: DefragmentRecordsResult) -> str:
    if result.refused:
        return guard_refusal_results.format_refusal(result.refused)
    if result.joined:
        return "Another run was at work, and nothing was done here."
    blocks = result.done
    return (
        f"{blocks.rewritten:,} blocks became {blocks.written:,},"
        f" {blocks.bytes_before:,} bytes became {blocks.bytes_after:,};"
        f" {blocks.dropped:,} versions dropped; {blocks.manifests:,} manifests and {blocks.unlinked:,} blocks of"
        f" {blocks.unlinked_bytes:,} bytes deleted; the newest manifest is **{blocks.manifest}**"
    )


def _outcome(result: DefragmentRecordsResult) -> str:
    if result.refused:
        return "REFUSED"
    if result.joined:
        return "HELD"
    return "DEFRAGMENTED" if result.done.rewritten or result.done.unlinked else "NOTHING"
