"""What `build-delayed-index` and `build-transaction-snapshots` have in common: build once, switch part by part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from logstore.errors import ServiceFailed, StoreUnavailable
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.builds import buffer_of_topic, build, run_id, topic_to_build
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.delayed.job_definitions import BUILD_DELAYED_INDEX
from workflows.job_definition import JobDefinition
from workflows.topic_build_types import BuildResult
from workflows.transactions.job_definitions import BUILD_TRANSACTION_SNAPSHOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """One of the two, of one topic that it has something to build of."""

    job: JobDefinition[Any, BuildResult]
    kind: RunKind
    activities: tuple[str, ...]
    counted: dict[str, int]  # beside topics
    is_switched: Callable[[], bool]
    is_untouched: Callable[[], bool]


def _indexes(house: WorkflowHarness) -> _Build:
    topic = topic_to_build(house)
    before = topic.buckets
    return _Build(
        job=BUILD_DELAYED_INDEX,
        kind=RunKind.INDEXES,
        activities=tuple(f"delayed.{step}_{what}" for step, what in _steps("indexes", "indexes")),
        counted={"buckets": 1, "messages": 2},
        is_switched=lambda: len(topic.buckets) == 1 and len(topic.held()) == 3 and topic.buckets != before,
        is_untouched=lambda: topic.buckets == before,
    )


def _snapshots(house: WorkflowHarness) -> _Build:
    buffer_of_topic(house)
    (expected,) = house.world.bulk.buffers.values()

    def standing() -> object:
        return house.world.log.buffer_snapshots.load_readable_snapshot(house.world.topic.topic_id)

    return _Build(
        job=BUILD_TRANSACTION_SNAPSHOTS,
        kind=RunKind.SNAPSHOTS,
        activities=tuple(f"transactions.{step}_{what}" for step, what in _steps("buffers", "snapshots")),
        counted={},
        is_switched=lambda: standing() == expected,
        is_untouched=lambda: standing() is None,
    )


def _steps(built: str, switched: str) -> tuple[tuple[str, str], ...]:
    return (("begin", "build"), ("build", built), ("switch", switched), ("conclude", "build"))


@pytest.fixture(params=[_indexes, _snapshots])
def one(request: pytest.FixtureRequest, house: WorkflowHarness) -> _Build:
    made: _Build = request.param(house)
    return made


@pytest.mark.external_service
async def test_topics_are_built_and_switched_to_and_counted(house: WorkflowHarness, one: _Build) -> None:
    """The output goes at the end, and the run says what it came to."""
    async with house.worker():
        handle = await build(house, one.job)
        result = await handle.result()
        details = await query_current_details(handle)
        progress = await handle.query("progress")
    assert tuple(attempt.type for attempt in house.attempts()) == one.activities
    counts = {"topics": 1, "switched": 1, "superseded": 0, "empty": 0, "gone": 0, "unreadable": 0, **one.counted}
    assert (result.counts, progress["counts"], progress["step"]) == (counts, counts, "ended")
    assert "- switched: 1" in details
    assert one.is_switched()
    run = house.world.catalog.reconciliation.get_run(run_id(house, one.job))
    assert (run.kind, run.finished_us is None, run.summary["counts"]) == (one.kind, False, counts)
    assert house.world.bulk.find_published_summary(run_id(house, one.job), house.world.bulk.ran[0].name) is None
    described = await handle.describe()
    assert described.search_attributes["SextonOutcome"] == ["BUILT"]


async def test_topics_that_cannot_be_read_are_named(house: WorkflowHarness, one: _Build) -> None:
    """The others have what was built."""
    house.world.bulk.facts = {"left out: topic 7": "an object is absent"}
    async with house.worker():
        result = await (await build(house, one.job)).result()
    assert (result.left_out, result.counts["unreadable"]) == (["topic 7: an object is absent"], 1)
    assert one.is_switched()


async def test_storage_that_is_away_for_a_while_is_waited_for(house: WorkflowHarness, one: _Build) -> None:
    """A part is switched again from its beginning, which does no harm."""
    failures = [ServiceFailed("spark", "java ended", advice="look"), StoreUnavailable("no answer")]

    def fail(_job: BulkJob, _beat: object) -> None:
        if failures:
            raise failures.pop()

    house.world.bulk.meanwhile = fail
    house.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=6))
    async with house.worker():
        result = await (await build(house, one.job)).result()
    assert result.counts["switched"] == 1
    _, built, switched, _ = one.activities
    assert len(house.attempts(built)) == 3
    assert len(house.attempts(switched)) == 2
    assert one.is_switched()


async def test_build_that_concluded_answers_the_same_again(house: WorkflowHarness, one: _Build) -> None:
    """And builds nothing anew."""
    async with house.worker():
        first = await (await build(house, one.job)).result()
        again = await (await build(house, one.job)).result()
    assert first == again
    assert len(house.world.bulk.ran) == 1


async def test_run_id_of_another_job_is_refused(house: WorkflowHarness, one: _Build) -> None:
    """The workflow completes, with the sentence."""
    house.world.catalog.reconciliation.open_run(
        run_id(house, one.job), RunKind.PLAN, claim=Claim(workflow_id="w", run_id="r", ttl_s=-1), summary={}
    )
    async with house.worker():
        result = await (await build(house, one.job)).result()
    assert result.refused
    assert result.refused.type == "PreconditionFailed"
    assert one.is_untouched()


@pytest.mark.external_service
async def test_cancelled_build_ends_its_bulk_job(house: WorkflowHarness, one: _Build) -> None:
    """Nothing is switched to."""
    gate = Gate()

    def hold(_job: BulkJob, beat: Any) -> None:
        gate.wait()
        beat()

    house.world.bulk.meanwhile = hold
    async with house.run_until_gate(gate, build(house, one.job)) as handle:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        await assert_eventually(lambda: house.world.bulk.stopped == [run_id(house, one.job)])
    assert isinstance(caught.value.cause, CancelledError)
    assert one.is_untouched()


async def test_bulk_job_that_stays_away_fails_the_build(house: WorkflowHarness, one: _Build) -> None:
    """After a few attempts: a person must look."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise ServiceFailed("java", "none is installed", advice="install Java 17")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await build(house, one.job)).result()
    assert failure_type_and_message(caught.value)[0] == "ServiceFailed"
    assert one.is_untouched()
