"""`Sexton`'s jobs on delayed messages."""

import uuid
from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair

from logstore.errors import InvalidInput
from logstore.ports.catalog import Topic
from workers.client.connections import OwnJobs
from workflows import limits, search_attributes
from workflows.delayed.values import (
    BUILD_DELAYED_INDEX,
    MERGE_BUCKETS,
    SEAL_BUCKETS,
    BuildDelayedIndexInput,
    BuildDelayedIndexResult,
    MergeBucketsInput,
    MergeBucketsResult,
    SealBucketsInput,
    SealBucketsResult,
)


class DelayedJobs(OwnJobs):
    """Sealing a topic's delayed messages, merging its buckets, and building them anew."""

    async def seal_buckets(
        self, topic: Topic, reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, SealBucketsResult]:
        """Seal all delayed messages of a topic that consumers may see, however few; joins a seal of it that runs.

        Where it then has more buckets than it may have, a merge of them is started.
        """
        request = SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason)
        summary = f"seal delayed messages of {topic.name}"
        return await self.start(SEAL_BUCKETS, request, topic.topic_id, summary=summary, about=_of_topic(topic))

    async def seal_all_buckets(self, reason: str = "", actor: str = "") -> WorkflowHandle[Any, SealBucketsResult]:
        """Seal delayed messages of every topic for which it is time, as the schedule does."""
        request = SealBucketsInput(actor=actor, reason=reason)
        return await self.start(SEAL_BUCKETS, request, summary="seal delayed messages of all topics")

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
        return await self.start(MERGE_BUCKETS, request, topic.topic_id, summary=summary, about=_of_topic(topic))

    async def build_delayed_index(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, BuildDelayedIndexResult]:
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
        if topics is not None and not topics:
            raise InvalidInput("topics", expected="at least one, or None for every topic", found=topics)
        run_id = f"indexes-{uuid.uuid4().hex[:12]}"
        request = BuildDelayedIndexInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            topic_ids=sorted({int(one.topic_id) for one in topics or ()}),
            master=master,
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        about: list[SearchAttributePair[Any]] = [SearchAttributePair(search_attributes.RUN_ID, run_id)]
        if topics is not None and len(request.topic_ids) == 1:
            about += _of_topic(topics[0])
        summary = f"indexes of delayed messages of {len(request.topic_ids) or 'all'} topics"
        return await self.start(BUILD_DELAYED_INDEX, request, run_id, summary=summary, about=about)


def _of_topic(topic: Topic) -> list[SearchAttributePair[str]]:
    return [SearchAttributePair(search_attributes.TOPIC, topic.name)]
