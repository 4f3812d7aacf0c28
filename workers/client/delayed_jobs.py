"""`Sexton`'s jobs on delayed messages."""

from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHandle

from logstore.ports.catalog import Topic
from workers.client.connections import of_topic
from workers.client.topic_builds import TopicBuilds
from workflows.delayed.values import (
    BUILD_DELAYED_INDEX,
    MERGE_BUCKETS,
    SEAL_BUCKETS,
    BuildDelayedIndexInput,
    MergeBucketsInput,
    MergeBucketsResult,
    SealBucketsInput,
    SealBucketsResult,
)
from workflows.jobs import BuildResult


class DelayedJobs(TopicBuilds):
    """Sealing a topic's delayed messages, merging its buckets, and building them anew."""

    async def seal_buckets(
        self, topic: Topic, reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, SealBucketsResult]:
        """Seal all delayed messages of a topic that consumers may see, however few; joins a seal of it that runs.

        Where it then has more buckets than it may have, a merge of them is started.
        """
        request = SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason)
        summary = f"seal delayed messages of {topic.name}"
        return await self.start(SEAL_BUCKETS, request, topic.topic_id, summary=summary, about=[of_topic(topic)])

    async def merge_buckets(
        self, topic: Topic, max_buckets: int | None = None, reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, MergeBucketsResult]:
        """Merge buckets of a topic until it has no more than it may have; joins a merge of it that runs.

        Args:
            topic: Which.
            max_buckets: How many it may have then, 1 or more; None: as many as the workers' settings say.
            reason: For people.
            actor: Likewise.

        Raises:
            InvalidInput: A limit below 1, an actor or a reason that cannot be kept.
        """
        request = MergeBucketsInput(
            topic_id=topic.topic_id, topic=topic.name, max_buckets=max_buckets, actor=actor, reason=reason
        )
        summary = f"merge buckets of {topic.name}"
        return await self.start(MERGE_BUCKETS, request, topic.topic_id, summary=summary, about=[of_topic(topic)])

    async def build_delayed_index(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, BuildResult]:
        """Build the buckets of topics from their logs, in the place of those that they have.

        What a guard refuses is in the result's `refused`; `result_of` raises it.

        Args:
            topics: At least one, at most 10,000; None: every topic with delayed messages.
            master: A Spark cluster; empty: that of the workers' settings.
            reason: Kept in the run.
            actor: Who asks.

        Raises:
            InvalidInput: No topics, too many, or what can be no cluster.
        """
        request = BuildDelayedIndexInput(actor=actor, reason=reason, master=master)
        return await self.build_topics(BUILD_DELAYED_INDEX, topics, request)
