"""`build-delayed-index`: what its bulk job is told, and what becomes of lists that changed meanwhile."""

from typing import Any

import pytest

from activities import heartbeats
from logstore.delayed.index_build_job import BuildDelayedIndexJob
from logstore.errors import StoreUnavailable
from logstore.ports.catalog.deletion import Claim
from logstore.positions import TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import Stored
from tests.logstore.eventually import assert_eventually
from tests.workflows.builds import build, built_of, run_id, topic_to_build
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.delayed.job_definitions import BUILD_DELAYED_INDEX


@pytest.fixture
def topic(house: WorkflowHarness) -> Stored:
    return topic_to_build(house)


async def test_topics_and_limits_reach_the_bulk_job(house: WorkflowHarness, topic: Stored) -> None:
    """By the run's row and by the settings; it claims in the name of this workflow."""
    async with house.worker():
        handle = await build(house, BUILD_DELAYED_INDEX, topic_ids=[int(topic.topic_id)])
        await handle.result()
    (job,) = house.world.bulk.ran
    assert isinstance(job, BuildDelayedIndexJob)
    assert job.topics == (topic.topic_id,)
    limits = house.world.activities.indexes._limits
    assert (job.messages, job.buckets, job.workflow_id) == (limits.messages, limits.buckets, handle.id)


async def test_old_buckets_are_retired_and_the_claim_is_let_go(house: WorkflowHarness, topic: Stored) -> None:
    """Another workflow may work on the list at once."""
    (old,) = topic.buckets
    claim = Claim(workflow_id=BUILD_DELAYED_INDEX.id(run_id(house, BUILD_DELAYED_INDEX)), run_id="r", ttl_s=60)
    assert topic.index.claim_bucket_list(topic.topic_id, claim)  # as its bulk job does
    async with house.worker():
        await (await build(house, BUILD_DELAYED_INDEX)).result()
    assert topic.retired() == [old.bucket_id]
    assert topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=1))


async def test_claims_are_renewed_while_the_bulk_job_works_and_while_topics_are_switched(
    house: WorkflowHarness, topic: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With heartbeats: another job finds the list held all the time, and no longer than a minute after a death."""
    monkeypatch.setattr(heartbeats, "_RENEWAL_INTERVAL_S", 0.01)
    workflow_id = BUILD_DELAYED_INDEX.id(run_id(house, BUILD_DELAYED_INDEX))
    renewed: list[str] = []

    def lapse_and_wait() -> None:
        assert topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id=workflow_id, run_id="r", ttl_s=-1))
        assert topic.index.find_claim_holder(topic.topic_id) is None
        assert_eventually(lambda: topic.index.find_claim_holder(topic.topic_id) is not None)
        renewed.append(workflow_id)

    house.world.bulk.meanwhile = lambda _job, _beat: lapse_and_wait()
    house.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lapse_and_wait))
    async with house.worker():
        await (await build(house, BUILD_DELAYED_INDEX)).result()
    assert len(renewed) == 2
    (job,) = house.world.bulk.ran
    assert isinstance(job, BuildDelayedIndexJob)
    assert job.claim_s <= 60


async def test_list_that_changed_stays_and_a_topic_that_has_gone_is_counted(
    house: WorkflowHarness, topic: Stored
) -> None:
    """A seal came first; neither is a failure, and nothing that was stored in vain is left."""
    one = house.world.bulk.indexes

    def meanwhile(files: Any) -> Any:
        found = one(files)
        topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
        return [*found, built_of(topic, files, TopicId(10**6))]

    house.world.bulk.indexes = meanwhile
    async with house.worker():
        result = await (await build(house, BUILD_DELAYED_INDEX)).result()
    counts = {name: result.counts[name] for name in ("switched", "superseded", "gone")}
    assert counts == {"switched": 0, "superseded": 1, "gone": 1}
    assert [bucket.messages for bucket in topic.buckets] == [1, 2]


async def test_switch_that_is_lost_between_two_attempts_counts_as_switched(
    house: WorkflowHarness, topic: Stored
) -> None:
    """Its worker died after the switch: the list is as this build has made it."""
    published = house.world.activities.indexes._publisher.publish_built_index
    failures = [StoreUnavailable("no answer")]

    def publish(*arguments: Any) -> bool:
        done = published(*arguments)
        if failures:
            raise failures.pop()
        return done

    house.world.activities.indexes._publisher.publish_built_index = publish  # type: ignore[assignment, method-assign]
    async with house.worker():
        result = await (await build(house, BUILD_DELAYED_INDEX)).result()
    assert (result.counts["switched"], result.counts["superseded"]) == (1, 0)
    assert len(topic.ledgers()) == 1
    assert len(house.attempts("delayed.switch_indexes")) == 2
