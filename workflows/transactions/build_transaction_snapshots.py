"""`build-transaction-snapshots`: rebuild the transaction buffers of many topics from their logs, and store snapshots.

Destroys snapshots that new snapshots replace, by two-phase deletion. Invariant: a topic has either its old snapshot or
its complete new one. A new snapshot never covers fewer entries than the old one. To stop it, cancel it. The bulk job
ends, and topics that were already switched keep their new snapshots.

The steps are those of `TopicBuildWorkflow`. The bulk job reads three columns of the logs. Each task reads the whole log
of one topic.

Source: Pulsar's TransactionBuffer recovery, which a restarted broker runs for each of its topics.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.transactions.build_snapshots import TransactionSnapshotBuildActivities
    from workflows.topic_build_types import BuildResult
    from workflows.topic_build_workflow import TopicBuildActivities, TopicBuildWorkflow
    from workflows.transactions.job_definitions import BuildTransactionSnapshotsInput

_STEPS = TopicBuildActivities(
    begin=TransactionSnapshotBuildActivities.begin_build,
    build=TransactionSnapshotBuildActivities.build_buffers,
    switch=TransactionSnapshotBuildActivities.write_and_switch_snapshots,
    conclude=TransactionSnapshotBuildActivities.conclude_build,
)


@workflow.defn(name="build-transaction-snapshots", versioning_behavior=VersioningBehavior.PINNED)
class BuildTransactionSnapshots(TopicBuildWorkflow):
    @workflow.init
    def __init__(self, request: BuildTransactionSnapshotsInput) -> None:
        super().__init__(request, _STEPS)

    @workflow.run
    async def run(self, request: BuildTransactionSnapshotsInput) -> BuildResult:  # noqa: ARG002 - taken by `__init__`
        return await self.run_build()
