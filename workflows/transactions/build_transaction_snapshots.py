"""`build-transaction-snapshots`: transaction buffers of many topics are rebuilt from their logs, and kept as snapshots.

Destroys snapshots that newer or equal ones take the place of, by two-phase deletion. Invariant: a topic has its old
snapshot or its new one, whole, and never one that knows of fewer entries than that before. To stop it, cancel it: its
bulk job ends with it, and what was switched to stays.

The steps are those of `TopicBuild`. The bulk job reads three columns of the logs, whole topics a task.

Source: Pulsar's TransactionBuffer recovery, one topic at a time there, which a broker restart makes a storm of.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.transactions.building import BufferBuilding
    from workflows.building import BuildSteps, TopicBuild
    from workflows.jobs import BuildResult
    from workflows.transactions.values import BuildTransactionSnapshotsInput

_STEPS = BuildSteps(
    begin=BufferBuilding.begin_build,
    build=BufferBuilding.build_buffers,
    switch=BufferBuilding.switch_snapshots,
    conclude=BufferBuilding.conclude_build,
)


@workflow.defn(name="build-transaction-snapshots", versioning_behavior=VersioningBehavior.PINNED)
class BuildTransactionSnapshots(TopicBuild):
    """See the module's text."""

    @workflow.init
    def __init__(self, request: BuildTransactionSnapshotsInput) -> None:
        """Take a run id, if none was given."""
        super().__init__(request, _STEPS)

    @workflow.run
    async def run(self, request: BuildTransactionSnapshotsInput) -> BuildResult:  # noqa: ARG002 - taken by `__init__`
        """Do the steps."""
        return await self.to_end()
