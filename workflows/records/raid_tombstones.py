"""`raid-tombstones`: remove tombstones whose older record versions are in no block any more.

Destroys tombstones. Invariant: a tombstone stays while the deletion is unfinished, while a block has an older record
version of the record, while storage has objects of the ledger, or while a replica that is not STALE lacks the
tombstone. To stop it, cancel or terminate it, and pause the schedule `sexton-raid`. A raid that ends early has removed
only tombstones that the next raid would also remove. The next raid marks all tombstones anew.

The steps are those of `RecordUpkeepWorkflow`. The pass marks tombstones, scans every block, and removes tombstones
that stay marked. It is paced.

Source: Aerospike's tomb raider, which marks cenotaphs, scans all blocks, and removes the cenotaphs that remain.
"""

from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.records.record_upkeep import RaidInput, RaidTombstonesActivities
    from workflows import search_attributes
    from workflows.records.job_definitions import RAID_TOMBSTONES, RaidTombstonesInput, RaidTombstonesResult
    from workflows.records.record_upkeep import RecordUpkeepWorkflow, pass_options


@workflow.defn(name="raid-tombstones", versioning_behavior=VersioningBehavior.PINNED)
class RaidTombstones(RecordUpkeepWorkflow[RaidTombstonesInput, RaidTombstonesResult]):
    job = RAID_TOMBSTONES
    noun = "raid"

    @workflow.run
    async def run(self, request: RaidTombstonesInput) -> RaidTombstonesResult:
        return await self.run_upkeep(request)

    def _begin(self, request: RaidTombstonesInput) -> RaidTombstonesResult:
        del request
        run_id = f"raid-{workflow.uuid4().hex[:12]}"
        workflow.set_current_details(f"Raid **{run_id}** scans the blocks of topics and ledgers.")
        return RaidTombstonesResult(run_id=run_id)

    async def _run_pass(self, request: RaidTombstonesInput, before: RaidTombstonesResult) -> RaidTombstonesResult:
        raid = RaidInput(
            run_id=before.run_id, eligible_age_s=request.eligible_age_s, actor=request.actor, reason=request.reason
        )
        raided = await workflow.execute_activity_method(
            RaidTombstonesActivities.mark_and_remove_tombstones, raid, **pass_options(request.queue)
        )
        return replace(before, done=raided)

    def _describe_pass(self, result: RaidTombstonesResult) -> str:
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

    def _list_outcomes(self, result: RaidTombstonesResult) -> list[str]:
        return ["REMOVED"] if result.done.removed else []

    def _list_attribute_updates(self, result: RaidTombstonesResult) -> list[SearchAttributeUpdate[Any]]:
        return [*super()._list_attribute_updates(result), search_attributes.RUN_ID.value_set(result.run_id)]
