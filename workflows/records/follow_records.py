"""`follow-records`: the database of a replica has what the record log says, and serves reads.

Destroys rows of that database alone: those that tombstones end, and with `seed` all. Invariant: a record that ended
durably never comes back there, and an older version never takes the place of a newer one. To stop it, end the command
that hosts it, or cancel it; run again, the command goes on. A replica that stays away holds raids up until it is STALE.

1. Steps, in one activity: each applies what is new in one transaction, and acknowledges it then.

Source: Aerospike's cross-datacenter replication (XDR), at the side that receives.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.following import FollowInput, RecordFollowing
    from workflows import options, refusals
    from workflows.records.values import FollowRecordsInput, FollowRecordsResult

_STEPS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=24),  # a seed of a billion rows, some 10,000 a second
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for database and storage
)
GUARDS = frozenset(
    {
        "CatalogMismatch",
        "CatalogVersionMismatch",
        "CorruptData",
        "InvalidInput",
        "MissingData",
        "PreconditionFailed",
        "Unsupported",
    }
)


@workflow.defn(name="follow-records", versioning_behavior=VersioningBehavior.PINNED)
class FollowRecords:
    """See the module's text."""

    @workflow.run
    async def run(self, request: FollowRecordsInput) -> FollowRecordsResult:
        """Do the numbered step."""
        steps = FollowInput(seed=request.seed, watch_s=request.watch_s)
        workflow.set_current_details(f"Replica **{request.replica}** looks for manifests that it lacks.")
        try:
            done = await workflow.execute_activity_method(RecordFollowing.follow, steps, **_STEPS)
            result = FollowRecordsResult(done=done)
        except ActivityError as error:
            result = FollowRecordsResult(refused=refusals.require_refusal(error, GUARDS))
        workflow.set_current_details(shown(result))
        return result


def shown(result: FollowRecordsResult) -> str:
    """What was applied, as the Web UI shows it."""
    if result.refused:
        return refusals.format_refusal(result.refused)
    done = result.done
    return (
        f"Replica **{done.replica}** has manifest **{done.manifest}**: {done.records:,} records and"
        f" {done.tombstones:,} tombstones applied in {done.steps:,} steps, {done.removed:,} topics and ledgers removed"
    )
