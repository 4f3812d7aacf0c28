"""Scenes of seals, merges and builds; see `record`."""

from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex
from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import Claim
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from tests.fakes.object_store import StoreOperation
from tests.logstore.delayed.stored import Stored, stored_in
from tests.replay.courses import Handle, ended, first_run
from tests.workflows.builds import build, topic_to_build
from tests.workflows.delayed.verbs import merge, seal
from tests.workflows.workflow_harness import Gate, WorkflowHarness
from workflows.delayed.job_definitions import BUILD_DELAYED_INDEX


def _due(house: WorkflowHarness, *, buckets: int) -> Stored:
    """A topic with so many buckets, two of which are allowed, and with enough behind them for another one."""
    topic = stored_in(house.world)
    topic.sealed(*([1 + at] for at in range(buckets)))
    topic.append(1, 2, 3, 4)
    return topic


async def seal_complete(house: WorkflowHarness) -> Handle:
    """One topic is due, and its merge is started."""
    _due(house, buckets=2)
    return await ended(house, seal(house))


async def seal_of_one_topic(house: WorkflowHarness) -> Handle:
    """However little it is."""
    topic = stored_in(house.world)
    topic.append(1)
    return await ended(house, seal(house, topic_id=topic.topic_id, topic=topic.world.topic.name))


async def seal_of_a_held_topic(house: WorkflowHarness) -> Handle:
    """Another job works on it, and takes longer than the seal waits."""
    topic = stored_in(house.world)
    topic.append(1)
    topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=10**6))
    return await ended(house, seal(house, topic_id=topic.topic_id))


async def seal_failed(house: WorkflowHarness) -> Handle:
    """There is no such topic."""
    return await ended(house, seal(house, topic_id=99))


async def seal_running(house: WorkflowHarness) -> Handle:
    """It writes a bucket."""
    _due(house, buckets=1)
    gate = house.gate(StoreOperation.PUT)
    return await house.stop_worker_at_gate(gate, seal(house))


async def merge_complete(house: WorkflowHarness) -> Handle:
    """Four buckets become two."""
    _due(house, buckets=4)
    return await ended(house, merge(house))


async def merge_damaged(house: WorkflowHarness) -> Handle:
    """A bucket cannot be read; the others are merged."""
    topic = _due(house, buckets=5)
    house.world.objects.delete([segment_key(topic.buckets[1].bucket_id, 0)])
    topic.snapshots._footers._values.clear()
    return await ended(house, merge(house))


async def merge_held(house: WorkflowHarness) -> Handle:
    """Another job works on the topic for a long time."""
    topic = _due(house, buckets=3)
    topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=10**6))
    return await ended(house, merge(house))


async def merge_failed(house: WorkflowHarness) -> Handle:
    """The topic of that id bears another name."""
    return await ended(house, merge(house, topic="persistent://tenant/namespace/other"))


async def merge_running(house: WorkflowHarness) -> Handle:
    """It writes a bucket."""
    _due(house, buckets=3)
    gate = house.gate(StoreOperation.PUT)
    return await house.stop_worker_at_gate(gate, merge(house))


async def merge_continued(house: WorkflowHarness) -> Handle:
    """More merges than one history is to have."""
    topic = stored_in(house.world, SealAndMergeLimits(messages=4, ledgers=3, idle_s=60, buckets=1))
    topic.sealed(*([1 + at] for at in range(25)))
    handle = await ended(house, merge(house))
    return first_run(house, handle)


async def build_complete(house: WorkflowHarness) -> Handle:
    """One topic."""
    topic_to_build(house)
    return await ended(house, build(house, BUILD_DELAYED_INDEX))


async def build_superseded(house: WorkflowHarness) -> Handle:
    """Its topic is sealed meanwhile."""
    topic = topic_to_build(house)
    one = house.world.bulk.indexes

    def meanwhile(files: BuiltIndexFiles) -> list[BuiltTopicIndex]:
        found = one(files)
        topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
        return found

    house.world.bulk.indexes = meanwhile
    return await ended(house, build(house, BUILD_DELAYED_INDEX))


async def build_failed(house: WorkflowHarness) -> Handle:
    """What the bulk job reads is damaged."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("a checksum differs")

    house.world.bulk.meanwhile = fail
    return await ended(house, build(house, BUILD_DELAYED_INDEX))


async def build_running(house: WorkflowHarness) -> Handle:
    """Its bulk job is at work."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda _job, _beat: gate.wait()
    return await house.stop_worker_at_gate(gate, build(house, BUILD_DELAYED_INDEX))
