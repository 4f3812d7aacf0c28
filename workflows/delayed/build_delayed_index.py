"""`build-delayed-index`: build the index buckets of delayed messages of many topics from their logs.

Destroys the index buckets that new index buckets replace, by two-phase deletion. Invariant: a topic has either its old
index buckets or its new ones, and the log has all messages that are in no index bucket. To stop it, cancel it. The bulk
job ends, and topics that were already switched keep their new index buckets.

The steps are those of `TopicBuildWorkflow`. The bulk job reads the delivery times in the logs. Each of its tasks builds
one index bucket. A switch is refused if the list version of the topic's list has changed.

Source: PIP-195, where one reader of the whole log rebuilds a lost index.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.delayed.build_indexes import DelayedIndexBuildActivities
    from workflows.delayed.job_definitions import BuildDelayedIndexInput
    from workflows.topic_build_types import BuildResult
    from workflows.topic_build_workflow import TopicBuildActivities, TopicBuildWorkflow

_STEPS = TopicBuildActivities(
    begin=DelayedIndexBuildActivities.begin_build,
    build=DelayedIndexBuildActivities.build_indexes,
    switch=DelayedIndexBuildActivities.store_and_switch_indexes,
    conclude=DelayedIndexBuildActivities.conclude_build,
)


@workflow.defn(name="build-delayed-index", versioning_behavior=VersioningBehavior.PINNED)
class BuildDelayedIndex(TopicBuildWorkflow):
    @workflow.init
    def __init__(self, request: BuildDelayedIndexInput) -> None:
        super().__init__(request, _STEPS)

    @workflow.run
    async def run(self, request: BuildDelayedIndexInput) -> BuildResult:  # noqa: ARG002 - taken by `__init__`
        return await self.run_build()
