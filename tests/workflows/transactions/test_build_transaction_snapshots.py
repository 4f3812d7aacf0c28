"""`build-transaction-snapshots`: built once, switched part by part, and a newer snapshot stays."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from logstore.errors import ServiceFailed, StoreUnavailable
from logstore.ports.catalog import Claim, RunKind
from logstore.positions import LedgerId, Position, TopicId
from logstore.reconciliation.jobs import BulkJob
from logstore.transactions.buffer import Buffer
from logstore.transactions.jobs import BuildBuffers
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.workflows.house import Gate, House, assert_eventually, details_of, failure
from tests.workflows.transactions.builds import BUFFER, buffer_of_topic, build, run_id
from workflows.transactions.build_transaction_snapshots import BuildTransactionSnapshots

_STEPS = ["begin_build", "build_buffers", "switch_snapshots", "conclude_build"]


@pytest.fixture(autouse=True)
def _buffers(house: House) -> None:
    buffer_of_topic(house)


def _standing(house: House) -> Buffer | None:
    return house.world.log.buffer_snapshots.load(house.world.topic.topic_id)


@pytest.mark.external_service
async def test_snapshots_are_built_and_switched_to_and_counted(house: House) -> None:
    """The output goes at the end, and the run says what it came to."""
    async with house.worker():
        handle = await build(house)
        result = await handle.result()
        details = await details_of(handle)
        progress = await handle.query(BuildTransactionSnapshots.progress)
    assert [one.type for one in house.attempts()] == [f"transactions.{step}" for step in _STEPS]
    counts = {"topics": 1, "switched": 1, "superseded": 0, "empty": 0, "gone": 0, "unreadable": 0}
    assert (result.counts, progress.counts, progress.step) == (counts, counts, "ended")
    assert "- switched: 1" in details
    assert _standing(house) == BUFFER
    run = house.world.catalog.reconciliation.run(run_id(house))
    assert (run.kind, run.finished_us is None, run.summary["counts"]) == (RunKind.SNAPSHOTS, False, counts)
    assert house.world.bulk.published(run_id(house), BuildBuffers.name) is None
    described = await handle.describe()
    assert described.search_attributes["SextonOutcome"] == ["BUILT"]


async def test_topics_that_are_asked_for_reach_the_bulk_job(house: House) -> None:
    """By the run's row."""
    async with house.worker():
        result = await (await build(house, topic_ids=[int(house.world.topic.topic_id)])).result()
    assert house.world.bulk.ran == [BuildBuffers(run_id=run_id(house), topics=(house.world.topic.topic_id,))]
    assert result.counts["switched"] == 1


async def test_newer_snapshot_stays_and_a_topic_that_has_gone_is_counted(house: House) -> None:
    """Neither is a failure."""
    newer = Buffer(read_to=Position(LedgerId(2), 0))
    assert house.world.log.buffer_snapshots.replace(house.world.topic.topic_id, newer)
    house.world.bulk.buffers[TopicId(10**6)] = BUFFER
    async with house.worker():
        result = await (await build(house)).result()
    assert {name: result.counts[name] for name in ("switched", "superseded", "gone")} == {
        "switched": 0,
        "superseded": 1,
        "gone": 1,
    }
    assert _standing(house) == newer


async def test_topics_that_cannot_be_read_are_named(house: House) -> None:
    """The others have their snapshots."""
    house.world.bulk.facts = {"left out: topic 7": "an object is absent"}
    async with house.worker():
        result = await (await build(house)).result()
    assert (result.left_out, result.counts["unreadable"]) == (["topic 7: an object is absent"], 1)
    assert _standing(house) == BUFFER


async def test_storage_that_is_away_for_a_while_is_waited_for(house: House) -> None:
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
    assert len(house.attempts("transactions.build_buffers")) == 3
    assert len(house.attempts("transactions.switch_snapshots")) == 2
    assert _standing(house) == BUFFER


async def test_build_that_concluded_answers_the_same_again(house: House) -> None:
    """And builds nothing anew."""
    async with house.worker():
        first = await (await build(house)).result()
        again = await (await build(house)).result()
    assert first == again
    assert len(house.world.bulk.ran) == 1


async def test_run_id_of_another_job_is_refused(house: House) -> None:
    """The workflow completes, with the sentence."""
    house.world.catalog.reconciliation.open_run(
        run_id(house), RunKind.PLAN, claim=Claim(workflow_id="w", run_id="r", ttl_s=-1), summary={}
    )
    async with house.worker():
        result = await (await build(house)).result()
    assert result.refused
    assert result.refused.type == "PreconditionFailed"
    assert _standing(house) is None


@pytest.mark.external_service
async def test_cancelled_build_ends_its_bulk_job(house: House) -> None:
    """Nothing is switched to."""
    gate = Gate()

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
    assert _standing(house) is None


async def test_bulk_job_that_stays_away_fails_the_build(house: House) -> None:
    """After a few attempts: a person must look."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise ServiceFailed("java", "none is installed", advice="install Java 17")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await build(house)).result()
    assert failure(caught.value)[0] == "ServiceFailed"
