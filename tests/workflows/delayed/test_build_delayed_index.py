"""`build-delayed-index`: built once, switched part by part, and a list that changed meanwhile stays."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from logstore.delayed.jobs import BuildIndexes
from logstore.errors import ServiceFailed, StoreUnavailable
from logstore.ports.catalog import Claim, RunKind
from logstore.positions import TopicId
from logstore.reconciliation.jobs import BulkJob
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.logstore.delayed.stored import Stored
from tests.workflows.delayed.builds import build, built_of, run_id, topic_to_build
from tests.workflows.house import Gate, House, assert_eventually, details_of, failure
from workflows.delayed.build_delayed_index import BuildDelayedIndex

_STEPS = ["begin_build", "build_indexes", "switch_indexes", "conclude_build"]


@pytest.fixture
def topic(house: House) -> Stored:
    return topic_to_build(house)


@pytest.mark.external_service
async def test_indexes_are_built_and_switched_to_and_counted(house: House, topic: Stored) -> None:
    """The old bucket is retired, the claim is let go, the output goes, and the run says what it came to."""
    (old,) = topic.buckets
    async with house.worker():
        handle = await build(house)
        result = await handle.result()
        details = await details_of(handle)
        progress = await handle.query(BuildDelayedIndex.progress)
    assert [one.type for one in house.attempts()] == [f"delayed.{step}" for step in _STEPS]
    counts = {"topics": 1, "switched": 1, "superseded": 0, "empty": 0, "gone": 0, "unreadable": 0}
    counts |= {"buckets": 1, "messages": 2}
    assert (result.counts, progress.counts, progress.step) == (counts, counts, "ended")
    assert "- switched: 1" in details
    (new,) = topic.buckets
    assert (new.messages, len(topic.held()), topic.retired()) == (3, 3, [old.bucket_id])
    run = house.world.catalog.reconciliation.run(run_id(house))
    assert (run.kind, run.finished_us is None, run.summary["counts"]) == (RunKind.INDEXES, False, counts)
    assert house.world.bulk.published(run_id(house), BuildIndexes.name) is None
    assert topic.index.claim(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=1))
    described = await handle.describe()
    assert described.search_attributes["SextonOutcome"] == ["BUILT"]


async def test_topics_and_limits_reach_the_bulk_job(house: House, topic: Stored) -> None:
    """By the run's row and by the settings; it claims in the name of this workflow."""
    async with house.worker():
        handle = await build(house, topic_ids=[int(topic.topic_id)])
        await handle.result()
    (job,) = house.world.bulk.ran
    assert isinstance(job, BuildIndexes)
    assert job.topics == (topic.topic_id,)
    limits = house.world.activities.indexes._limits
    assert (job.messages, job.buckets, job.workflow_id) == (limits.messages, limits.buckets, handle.id)


async def test_list_that_changed_stays_and_a_topic_that_has_gone_is_counted(house: House, topic: Stored) -> None:
    """A seal came first; neither is a failure, and nothing that was stored in vain is left."""
    one = house.world.bulk.indexes

    def meanwhile(files: Any) -> Any:
        found = one(files)
        topic.sealer.seal(topic.topic_id, force=True)
        return [*found, built_of(topic, files, TopicId(10**6))]

    house.world.bulk.indexes = meanwhile
    async with house.worker():
        result = await (await build(house)).result()
    assert {name: result.counts[name] for name in ("switched", "superseded", "gone")} == {
        "switched": 0,
        "superseded": 1,
        "gone": 1,
    }
    assert [bucket.messages for bucket in topic.buckets] == [1, 2]


async def test_switch_that_is_lost_between_two_attempts_counts_as_switched(house: House, topic: Stored) -> None:
    """Its worker died after the switch: the list is as this build has made it."""
    house.world.bulk.indexes = lambda files: [built_of(topic, files)]
    published = house.world.activities.indexes._publisher.publish
    failures = [StoreUnavailable("no answer")]

    def publish(*arguments: Any) -> bool:
        done = published(*arguments)
        if failures:
            raise failures.pop()
        return done

    house.world.activities.indexes._publisher.publish = publish  # type: ignore[assignment, method-assign]
    async with house.worker():
        result = await (await build(house)).result()
    assert (result.counts["switched"], result.counts["superseded"]) == (1, 0)
    assert len(topic.ledgers()) == 1
    assert len(house.attempts("delayed.switch_indexes")) == 2


async def test_topics_that_cannot_be_read_are_named(house: House, topic: Stored) -> None:
    """The others have their indexes."""
    house.world.bulk.facts = {"left out: topic 7": "an object is absent"}
    async with house.worker():
        result = await (await build(house)).result()
    assert (result.left_out, result.counts["unreadable"]) == (["topic 7: an object is absent"], 1)
    assert len(topic.buckets) == 1


async def test_storage_that_is_away_for_a_while_is_waited_for(house: House, topic: Stored) -> None:
    """A part is switched again from its beginning, which does no harm."""
    failures = [ServiceFailed("spark", "java ended", advice="look"), StoreUnavailable("no answer")]

    def fail(_job: BulkJob, _beat: object) -> None:
        if failures:
            raise failures.pop()

    house.world.bulk.meanwhile = fail
    house.world.objects.plan(Fault(operation=Operation.PUT, kind=FaultKind.BEFORE, times=6))
    async with house.worker():
        result = await (await build(house)).result()
    assert result.counts["switched"] == 1
    assert len(house.attempts("delayed.build_indexes")) == 3
    assert len(house.attempts("delayed.switch_indexes")) == 2
    assert len(topic.held()) == 3


async def test_build_that_concluded_answers_the_same_again(house: House, topic: Stored) -> None:
    """And builds nothing anew."""
    async with house.worker():
        first = await (await build(house)).result()
        again = await (await build(house)).result()
    assert first == again
    assert len(house.world.bulk.ran) == 1


async def test_run_id_of_another_job_is_refused(house: House, topic: Stored) -> None:
    """The workflow completes, with the sentence."""
    before = topic.buckets
    house.world.catalog.reconciliation.open_run(
        run_id(house), RunKind.PLAN, claim=Claim(workflow_id="w", run_id="r", ttl_s=-1), summary={}
    )
    async with house.worker():
        result = await (await build(house)).result()
    assert result.refused
    assert result.refused.type == "PreconditionFailed"
    assert topic.buckets == before


@pytest.mark.external_service
async def test_cancelled_build_ends_its_bulk_job(house: House, topic: Stored) -> None:
    """Nothing is switched to."""
    gate, before = Gate(), topic.buckets

    def hold(_job: BulkJob, beat: Any) -> None:
        gate.wait()
        beat()

    house.world.bulk.meanwhile = hold
    async with house.worker():
        handle = await build(house)
        await assert_eventually(gate.reached.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        await assert_eventually(lambda: house.world.bulk.stopped == [run_id(house)])
    assert isinstance(caught.value.cause, CancelledError)
    assert topic.buckets == before


async def test_bulk_job_that_stays_away_fails_the_build(house: House) -> None:
    """After a few attempts: a person must look."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise ServiceFailed("java", "none is installed", advice="install Java 17")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await build(house)).result()
    assert failure(caught.value)[0] == "ServiceFailed"
