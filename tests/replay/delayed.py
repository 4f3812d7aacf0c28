"""Scenes of seals, merges and builds; see `record`."""

from contextlib import suppress
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle

from logstore.delayed.buckets import BucketLimits
from logstore.delayed.jobs import BuiltIndex, IndexFiles
from logstore.errors import CorruptData
from logstore.log.ledgers import segment_key
from logstore.ports.catalog import Claim
from logstore.reconciliation.jobs import BulkJob
from tests.fakes.objects import Operation
from tests.logstore.delayed.stored import Stored, stored_in
from tests.workflows.builds import build
from tests.workflows.delayed.builds import topic_to_build
from tests.workflows.delayed.verbs import merge, seal
from tests.workflows.house import Gate, House, assert_eventually
from workflows.delayed.values import BUILD_DELAYED_INDEX

Handle = WorkflowHandle[Any, Any]


async def _ended(house: House, handle: Handle) -> Handle:
    with suppress(WorkflowFailureError):
        await handle.result()
    return handle


def _due(house: House, *, buckets: int) -> Stored:
    """A topic with so many buckets, two of which are allowed, and with enough behind them for another one."""
    topic = stored_in(house.world)
    topic.sealed(*([1 + at] for at in range(buckets)))
    topic.append(1, 2, 3, 4)
    return topic


async def seal_complete(house: House) -> Handle:
    """One topic is due, and its merge is started."""
    _due(house, buckets=2)
    async with house.worker():
        return await _ended(house, await seal(house))


async def seal_of_one_topic(house: House) -> Handle:
    """However little it is."""
    topic = stored_in(house.world)
    topic.append(1)
    async with house.worker():
        return await _ended(house, await seal(house, topic_id=topic.topic_id, topic=topic.world.topic.name))


async def seal_of_a_held_topic(house: House) -> Handle:
    """Another job works on it, and takes longer than the seal waits."""
    topic = stored_in(house.world)
    topic.append(1)
    topic.index.claim(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=10**6))
    async with house.worker():
        return await _ended(house, await seal(house, topic_id=topic.topic_id))


async def seal_failed(house: House) -> Handle:
    """There is no such topic."""
    async with house.worker():
        return await _ended(house, await seal(house, topic_id=99))


async def seal_running(house: House) -> Handle:
    """It writes a bucket."""
    _due(house, buckets=1)
    gate = house.gate(Operation.PUT)
    async with house.worker():
        handle = await seal(house)
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle


async def merge_complete(house: House) -> Handle:
    """Four buckets become two."""
    _due(house, buckets=4)
    async with house.worker():
        return await _ended(house, await merge(house))


async def merge_damaged(house: House) -> Handle:
    """A bucket cannot be read; the others are merged."""
    topic = _due(house, buckets=5)
    house.world.objects.delete([segment_key(topic.buckets[1].bucket_id, 0)])
    topic.snapshots._opened.clear()
    async with house.worker():
        return await _ended(house, await merge(house))


async def merge_held(house: House) -> Handle:
    """Another job works on the topic for a long time."""
    topic = _due(house, buckets=3)
    topic.index.claim(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=10**6))
    async with house.worker():
        return await _ended(house, await merge(house))


async def merge_failed(house: House) -> Handle:
    """The topic of that id bears another name."""
    async with house.worker():
        return await _ended(house, await merge(house, topic="persistent://tenant/namespace/other"))


async def merge_running(house: House) -> Handle:
    """It writes a bucket."""
    _due(house, buckets=3)
    gate = house.gate(Operation.PUT)
    async with house.worker():
        handle = await merge(house)
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle


async def merge_continued(house: House) -> Handle:
    """More merges than one history is to have."""
    topic = stored_in(house.world, BucketLimits(messages=4, ledgers=3, idle_s=60, buckets=1))
    topic.sealed(*([1 + at] for at in range(25)))
    async with house.worker():
        handle = await _ended(house, await merge(house))
    return house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def build_complete(house: House) -> Handle:
    """One topic."""
    topic_to_build(house)
    async with house.worker():
        return await _ended(house, await build(house, BUILD_DELAYED_INDEX))


async def build_superseded(house: House) -> Handle:
    """Its topic is sealed meanwhile."""
    topic = topic_to_build(house)
    one = house.world.bulk.indexes

    def meanwhile(files: IndexFiles) -> list[BuiltIndex]:
        found = one(files)
        topic.sealer.seal(topic.topic_id, force=True)
        return found

    house.world.bulk.indexes = meanwhile
    async with house.worker():
        return await _ended(house, await build(house, BUILD_DELAYED_INDEX))


async def build_failed(house: House) -> Handle:
    """What the bulk job reads is damaged."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("a checksum differs")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        return await _ended(house, await build(house, BUILD_DELAYED_INDEX))


async def build_running(house: House) -> Handle:
    """Its bulk job is at work."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda _job, _beat: gate.wait()
    async with house.worker():
        handle = await build(house, BUILD_DELAYED_INDEX)
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle
