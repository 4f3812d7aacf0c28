"""How a program starts a build of something of many topics."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair

from logstore.errors import InvalidInput
from logstore.ports.catalog import Topic
from workers.client.connections import OwnJobs, of_topic
from workflows import limits, search_attributes
from workflows.jobs import BuildResult, BuildTopicsInput, Job

Q = TypeVar("Q", bound=BuildTopicsInput)


class TopicBuilds(OwnJobs):
    """Builds, each by a run id of its own."""

    async def build_topics(
        self, job: Job[Q, BuildResult], topics: Sequence[Topic] | None, request: Q
    ) -> WorkflowHandle[Any, BuildResult]:
        """Start a build.

        Args:
            job: Which.
            topics: At least one, at most 10,000; None: every topic that has something to build.
            request: The rest of its input.

        Raises:
            InvalidInput: No topics, too many, or what can be no cluster.
        """
        if topics is not None and not topics:
            raise InvalidInput("topics", expected="at least one, or None for every topic", found=topics)
        run_id = f"{request.runs}-{uuid.uuid4().hex[:12]}"
        request = replace(
            request,
            run_id=run_id,
            topic_ids=sorted({int(one.topic_id) for one in topics or ()}),
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        about: list[SearchAttributePair[Any]] = [SearchAttributePair(search_attributes.RUN_ID, run_id)]
        if topics is not None and len(request.topic_ids) == 1:
            about.append(of_topic(topics[0]))
        summary = f"{request.builds} of {len(request.topic_ids) or 'all'} topics"
        return await self.start(job, request, run_id, summary=summary, about=about)
