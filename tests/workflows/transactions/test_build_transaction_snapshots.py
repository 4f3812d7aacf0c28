"""`build-transaction-snapshots`: what its bulk job is told, and a newer snapshot stays."""

import pytest

from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.buffer_serialization import BuildTransactionBuffersJob
from logstore.transactions.transaction_buffer import TransactionBuffer
from tests.workflows.builds import BUFFER, buffer_of_topic, build, run_id
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.transactions.job_definitions import BUILD_TRANSACTION_SNAPSHOTS


@pytest.fixture(autouse=True)
def _buffers(house: WorkflowHarness) -> None:
    buffer_of_topic(house)


async def test_topics_that_are_asked_for_reach_the_bulk_job(house: WorkflowHarness) -> None:
    """By the run's row."""
    topic_id = house.world.topic.topic_id
    async with house.worker():
        result = await (await build(house, BUILD_TRANSACTION_SNAPSHOTS, topic_ids=[int(topic_id)])).result()
    named = run_id(house, BUILD_TRANSACTION_SNAPSHOTS)
    assert house.world.bulk.ran == [BuildTransactionBuffersJob(run_id=named, topics=(topic_id,))]
    assert result.counts["switched"] == 1


async def test_newer_snapshot_stays_and_a_topic_that_has_gone_is_counted(house: WorkflowHarness) -> None:
    """Neither is a failure."""
    newer = TransactionBuffer(read_to=Position(LedgerId(2), 0))
    assert house.world.log.buffer_snapshots.replace_snapshot(house.world.topic.topic_id, newer)
    house.world.bulk.buffers[TopicId(10**6)] = BUFFER
    async with house.worker():
        result = await (await build(house, BUILD_TRANSACTION_SNAPSHOTS)).result()
    counts = {name: result.counts[name] for name in ("switched", "superseded", "gone")}
    assert counts == {"switched": 0, "superseded": 1, "gone": 1}
    assert house.world.log.buffer_snapshots.load_readable_snapshot(house.world.topic.topic_id) == newer
