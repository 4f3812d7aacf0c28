"""`build-delayed-index`: buckets of delayed messages of many topics are built from their logs, in the place of others.

Destroys the buckets that the new ones take the place of, by two-phase deletion. Invariant: a topic has its old buckets
or its new ones, and what no bucket holds is read in the log. To stop it, cancel it: its bulk job ends with it, and what
was switched to stays.

The steps are those of `TopicBuild`. The bulk job reads the delivery times of the logs, a bucket a task; a topic is
switched by the version of its list.

Source: PIP-195, where an index that is lost is rebuilt by one reader of the whole log.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.delayed.building import IndexBuilding
    from workflows.building import BuildSteps, TopicBuild
    from workflows.delayed.values import BuildDelayedIndexInput
    from workflows.jobs import BuildResult

_STEPS = BuildSteps(
    begin=IndexBuilding.begin_build,
    build=IndexBuilding.build_indexes,
    switch=IndexBuilding.switch_indexes,
    conclude=IndexBuilding.conclude_build,
)


@workflow.defn(name="build-delayed-index", versioning_behavior=VersioningBehavior.PINNED)
class BuildDelayedIndex(TopicBuild):
    """See the module's text."""

    @workflow.init
    def __init__(self, request: BuildDelayedIndexInput) -> None:
        """Take a run id, if none was given."""
        super().__init__(request, _STEPS)

    @workflow.run
    async def run(self, request: BuildDelayedIndexInput) -> BuildResult:  # noqa: ARG002 - taken by `__init__`
        """Do the steps."""
        return await self.to_end()
