"""The verbs that seals and merges are told in."""

import uuid
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from tests.workflows.workflow_harness import WorkflowHarness
from workflows.delayed.job_definitions import (
    MERGE_BUCKETS,
    SEAL_BUCKETS,
    MergeBucketsInput,
    MergeBucketsResult,
    SealBucketsInput,
    SealBucketsResult,
)
from workflows.delayed.merge_buckets import MergeBuckets
from workflows.delayed.seal_buckets import SealBuckets


async def seal(house: WorkflowHarness, **changes: Any) -> WorkflowHandle[Any, SealBucketsResult]:
    """Start it, as a schedule would; on the shared server under an id of the house's own."""
    request = SealBucketsInput(actor="tests", reason="a test", **changes)
    key = request.topic_id if request.topic_id is not None else uuid.uuid4().hex
    return await house.client.start_workflow(
        SealBuckets.run, request, id=f"{SEAL_BUCKETS.id(key)}/{house.queue}", task_queue=house.queue
    )


async def merge(house: WorkflowHarness, **changes: Any) -> WorkflowHandle[Any, MergeBucketsResult]:
    """Start or join it; worlds number their topics alike, ids on the shared server tell them apart."""
    topic = house.world.topic
    named = {"topic": topic.name} | changes
    request = MergeBucketsInput(topic_id=topic.topic_id, actor="tests", **named)
    return await house.client.start_workflow(
        MergeBuckets.run,
        request,
        id=f"{MERGE_BUCKETS.id(topic.topic_id)}/{house.queue}",
        task_queue=house.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
