"""`follow-records`: apply the record log to a replica database, which serves reads.

Destroys only rows of the replica database: rows of deleted records, or with `seed` all rows. Invariant: a durably
deleted record never returns to the replica database, and an older record version never replaces a newer one.
To stop it, end the command `sexton records follow`, or cancel the workflow. Run the command again to continue. Raids
wait for the replica until it is STALE.

1. Apply new manifests in one activity. Each transaction applies the newest manifest.

Source: the receiving side of Aerospike's cross-datacenter replication (XDR).
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.follow_records import FollowInput, FollowRecordsActivities
    from workflows import activity_options, guard_refusal_results
    from workflows.records.job_definitions import FOLLOW_RECORDS, FollowRecordsInput, FollowRecordsResult

_STEPS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=24),  # enough for a seed of 800 million rows at 10,000 rows a second
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for database and storage
)


@workflow.defn(name="follow-records", versioning_behavior=VersioningBehavior.PINNED)
class FollowRecords:
    @workflow.run
    async def run(self, request: FollowRecordsInput) -> FollowRecordsResult:
        follow_input = FollowInput(seed=request.seed, watch_s=request.watch_s)
        workflow.set_current_details(f"Replica **{request.replica}** looks for manifests that it lacks.")
        try:
            followed = await workflow.execute_activity_method(
                FollowRecordsActivities.follow_record_log, follow_input, **_STEPS
            )
            result = FollowRecordsResult(done=followed)
        except ActivityError as error:
            result = FollowRecordsResult(
                refused=guard_refusal_results.refusal_from_error_or_raise(error, FOLLOW_RECORDS.guards)
            )
        workflow.set_current_details(describe_result(result))
        return result


def describe_result(result: FollowRecordsResult) -> str:
    if result.refused:
        return guard_refusal_results.format_refusal(result.refused)
    followed = result.done
    return (
        f"Replica **{followed.replica}** has manifest **{followed.manifest}**: {followed.records:,} records and"
        f" {followed.tombstones:,} tombstones applied in {followed.steps:,} steps,"
        f" {followed.removed:,} topics and ledgers removed"
    )
