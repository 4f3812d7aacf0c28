"""`raid-tombstones`: remove tombstones whose older record versions are in no block any more.

Destroys tombstones. Invariant: a tombstone stays while the deletion is unfinished, while a block has an older record
version of the record, while storage has objects of the ledger, or while a replica that is not STALE lacks the
tombstone. To stop it, cancel or terminate it, and pause the schedule `sexton-raid`. A raid that ends early has removed
only tombstones that the next raid would also remove. The next raid marks all tombstones anew.

1. If a schedule started this run, run the job as a child with the id `raid-tombstones`, and return its result.
2. Otherwise mark tombstones, scan every block, and remove tombstones that stay marked, in one paced activity.

Source: Aerospike's tomb raider, which marks cenotaphs, scans all blocks, and removes the cenotaphs that remain.
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.defragment_raid_ship import RaidTombstonesActivities
    from activities.records.inputs_and_results import RaidInput
    from workflows import guard_refusal_results, search_attributes
    from workflows.records import record_job_options
    from workflows.records.job_definitions import RAID_TOMBSTONES, RaidTombstonesInput, RaidTombstonesResult


@workflow.defn(name="raid-tombstones", versioning_behavior=VersioningBehavior.PINNED)
class RaidTombstones:
    @workflow.run
    async def run(self, request: RaidTombstonesInput) -> RaidTombstonesResult:
        if request.scheduled:
            child_result = await record_job_options.run_as_only_child(
                RAID_TOMBSTONES, replace(request, scheduled=False), summary="raid tombstones that cover nothing"
            )
            result = child_result or RaidTombstonesResult(joined=True)
        else:
            result = await self._run_raid(request)
        workflow.set_current_details(describe_result(result))
        outcome = search_attributes.OUTCOME.value_set([_outcome(result)])
        workflow.upsert_search_attributes([outcome, search_attributes.RUN_ID.value_set(result.run_id)])
        return result

    async def _run_raid(self, request: RaidTombstonesInput) -> RaidTombstonesResult:
        run_id = f"raid-{workflow.uuid4().hex[:12]}"
        workflow.set_current_details(f"Raid **{run_id}** scans the blocks of topics and ledgers.")
        raid = RaidInput(
            run_id=run_id, eligible_age_s=request.eligible_age_s, actor=request.actor, reason=request.reason
        )
        options = record_job_options.block_pass_options(request.queue)
        try:
            raided = await workflow.execute_activity_method(
                RaidTombstonesActivities.mark_and_remove_tombstones, raid, **options
            )
        except ActivityError as error:
            return RaidTombstonesResult(
                run_id=run_id,
                refused=guard_refusal_results.refusal_from_error_or_raise(error, record_job_options.GUARDS),
            )
        return RaidTombstonesResult(run_id=run_id, done=raided)


def describe_result(result: RaidTombstonesResult) -> str:
    if result.refused:
        return guard_refusal_results.format_refusal(result.refused)
    if result.joined:
        return "Another raid was at work, and nothing was done here."
    raided = result.done
    held_by = [
        f"replica **{lag.replica}** lacks {lag.tombstones:,} of them: it has applied manifest {lag.manifest}"
        for lag in raided.held_by
    ]
    counts = (
        f"{raided.candidates:,} tombstones were old enough; {raided.removed:,} removed, {raided.kept:,} kept;"
        f" {raided.blocks:,} blocks with {raided.versions:,} versions read in {raided.seconds:,.1f} s"
    )
    return "\n\n".join([counts, *held_by])


def _outcome(result: RaidTombstonesResult) -> str:
    if result.refused:
        return "REFUSED"
    if result.joined:
        return "HELD"
    return "REMOVED" if result.done.removed else "NOTHING"
