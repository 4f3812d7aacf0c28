"""The verbs that builds of something of many topics are told in, and what they find."""

from dataclasses import replace
from typing import Any, Final

from pyroaring import BitMap
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex
from logstore.delayed.snapshot_file import IndexSnapshotWriter
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_buffer import TransactionBuffer
from tests.logstore.delayed.stored import HOUR_MS, Stored, stored_in
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.job_definition import JobDefinition
from workflows.topic_build_types import BuildResult, BuildTopicsInput

BUFFER: Final = TransactionBuffer(read_to=Position(LedgerId(1), 9), hidden={LedgerId(1): BitMap([3, 4])})


def run_id(house: WorkflowHarness, job: JobDefinition[Any, BuildResult]) -> str:
    """Of the house's one build."""
    return f"{job.request.runs}-{house.queue}"


async def build(
    house: WorkflowHarness, job: JobDefinition[Any, BuildResult], **changes: Any
) -> WorkflowHandle[Any, BuildResult]:
    """Start it, or join it."""
    request: BuildTopicsInput = replace(job.request(run_id=run_id(house, job), actor="tests"), **changes)
    return await house.client.start_workflow(
        job.name,
        request,
        id=job.id(request.run_id),
        task_queue=house.queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=request.builds,
    )


def topic_to_build(house: WorkflowHarness) -> Stored:
    """A topic with a bucket of one message and two behind it; the bulk job makes one bucket of all three."""
    topic = stored_in(house.world)
    topic.sealed([1])
    topic.append(2, 3)
    house.world.bulk.indexes = lambda files: [built_of(topic, files)]
    return topic


def built_of(topic: Stored, files: BuiltIndexFiles, topic_id: TopicId | None = None) -> BuiltTopicIndex:
    """What a bulk job makes of the three messages; or what it would make of those of another topic."""
    topic_id = topic.topic_id if topic_id is None else topic_id
    name, listed = f"bucket-{topic_id}.parquet", topic.index.get_bucket_list(topic_id)
    first = topic.world.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id
    positions = [Position(first, entry) for entry in range(3)]
    rows = DelayedRows.from_messages(
        [(topic.now_ms + (at + 1) * HOUR_MS, position) for at, position in enumerate(positions)]
    )
    writer = IndexSnapshotWriter(files.snapshot_path(name), topic_id, positions[0], positions[-1])
    writer.add_rows(rows)
    writer.close()
    return BuiltTopicIndex(
        topic_id=topic_id,
        expected_version=listed.version,
        removed=tuple(one.bucket_id for one in listed.buckets),
        sealed_to=positions[-1],
        files=(name,),
    )


def buffer_of_topic(house: WorkflowHarness) -> None:
    """What a build of snapshots finds."""
    house.world.bulk.buffers = {house.world.topic.topic_id: BUFFER}
