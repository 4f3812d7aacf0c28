"""`plan-pulsar`: its steps in their order, a wait between the scans, and no plan to apply of what was not read."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError

from logstore.errors import CorruptData, InvalidInput, ServiceFailed, StoreUnavailable, UnknownObject
from logstore.ports.catalog.reconciliation import RunKind
from logstore.pulsar.plan_jobs import FIRST_SCAN, IDENTITY, NO_OFFLOAD_BUCKET, PROBLEM, SECOND_SCAN, CompareScansJob
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from logstore.reconciliation.findings import CLUSTER_KINDS
from tests.workflows.pulsar.cluster_plans import orphan_ledger, plan, run_id
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workers.client.wait_for_job import wait_for_result
from workflows.pulsar.plan_pulsar import PlanPulsar

_JOBS = ("scan-cluster-1", "scan-cluster-2", "compare-scans", "verify-cluster")


def unfinished(house: WorkflowHarness) -> bool:
    """Whether the plan has no result."""
    return house.world.catalog.reconciliation.get_run(run_id(house)).finished_us is None


@pytest.mark.external_service
async def test_plan_goes_its_steps_and_says_what_it_found(house: WorkflowHarness) -> None:
    house.world.bulk.cluster_findings = [orphan_ledger(101), orphan_ledger(102)]
    async with house.worker():
        handle = await plan(house)
        result = await handle.result()
        details = await query_current_details(handle)
        progress = await handle.query(PlanPulsar.progress)
    expected = ["pulsar.begin_plan", *["pulsar.run_bulk"] * len(_JOBS), "pulsar.conclude_plan"]
    assert [attempt.type for attempt in house.attempts()] == expected
    assert tuple(job.name for job in house.world.bulk.ran) == _JOBS
    assert result.found
    assert (result.found.findings["orphan_ledger"], result.found.size_bytes["orphan_ledger"]) == (2, 600)
    assert set(result.found.findings) == {kind.value for kind in CLUSTER_KINDS}
    assert (result.found.ledgers, result.found.references, result.found.young) == (18, 11, 2)
    assert (result.found.incomplete, result.found.left_out) == ([], [NO_OFFLOAD_BUCKET])
    assert "- **orphan_ledger** — 2, 600 bytes\n" in details
    assert "- 18 ledgers in the second scan\n" in details
    assert (progress.step, progress.counts[FIRST_SCAN]["references"]) == ("ended", 11)
    assert not unfinished(house)
    described = await handle.describe()
    assert described.search_attributes["SextonRunId"] == [run_id(house)]
    assert described.search_attributes["SextonOutcome"] == ["PLANNED"]


@pytest.mark.parametrize("between_s", [600.0, 4_000.0])
async def test_second_scan_begins_after_the_time_between(between_s: float, house: WorkflowHarness) -> None:
    """The distance counts from the end of the first scan, and the comparison is told to refuse less."""
    async with house.worker():
        await (await plan(house, between_s=between_s)).result()
    first, second = house.attempts("pulsar.run_bulk")[:2]
    assert second.scheduled - first.scheduled >= timedelta(seconds=between_s)
    (compare,) = [job for job in house.world.bulk.ran if isinstance(job, CompareScansJob)]
    assert compare.between_s == between_s


async def test_offloads_are_listed_before_references_are_read(house: WorkflowHarness) -> None:
    """Pulsar writes the uuid of an offload into the znode before it uploads the objects."""
    house.world.cluster.has_bucket = True
    async with house.worker():
        result = await (await plan(house)).result()
    names = [job.name for job in house.world.bulk.ran]
    assert names == ["list-offloads", *_JOBS[:3], "compare-offloads", _JOBS[-1]]
    assert result.found
    assert result.found.left_out == []


async def test_plan_without_a_run_id_takes_one(house: WorkflowHarness) -> None:
    """As a scheduled one does."""
    async with house.worker():
        result = await (await plan(house, run_id="")).result()
    assert result.run_id.startswith("pulsar-")
    assert house.world.catalog.reconciliation.get_run(result.run_id).finished_us is not None


async def test_what_cannot_be_read_makes_the_plan_incomplete(house: WorkflowHarness) -> None:
    """A failed check, and values that a scan could not read. The findings are there."""
    house.world.cluster.fail_check("bookies", "expected bookies, found none")
    house.world.bulk.cluster_findings = [orphan_ledger(101)]
    house.world.bulk.scanned["problems"] = 4
    facts = {f"{PROBLEM}/schemas/t/ns/a": "a field is unknown", f"{PROBLEM}cluster west": "it shares BookKeeper"}
    house.world.bulk.scan_facts = {number: dict(facts) for number in (1, 2)}
    async with house.worker():
        result = await (await plan(house)).result()
    assert result.found
    assert result.found.incomplete == [
        "bookies: expected bookies, found none",
        "/schemas/t/ns/a: a field is unknown",
        "cluster west: it shares BookKeeper",
        "scan-cluster-1: 2 further values cannot be read",
        "scan-cluster-2: 2 further values cannot be read",
    ]
    assert result.found.findings["orphan_ledger"] == 1


async def test_reasons_are_limited(house: WorkflowHarness) -> None:
    """They are part of a workflow payload."""
    house.world.bulk.scanned["problems"] = 100
    facts = {f"{PROBLEM}/schemas/t/ns/{number}": "x" * 5_000 for number in range(100)}
    house.world.bulk.scan_facts = {1: facts, 2: facts}
    async with house.worker():
        result = await (await plan(house)).result()
    assert result.found
    assert len(result.found.incomplete) == 21
    assert result.found.incomplete[-1] == "80 further reasons"
    assert max(map(len, result.found.incomplete)) <= 300


@pytest.mark.parametrize("step", [FIRST_SCAN, SECOND_SCAN, "the end"])
async def test_another_cluster_makes_the_plan_incomplete(step: str, house: WorkflowHarness) -> None:
    """The settings of one worker, or an address, name another cluster than the plan began with."""

    def switch(job: BulkJob, _beat: object) -> None:
        if step == "the end" and job.name == _JOBS[-1]:
            house.world.cluster.replace_cluster()

    if step != "the end":
        house.world.bulk.scan_facts = {1 if step == FIRST_SCAN else 2: {IDENTITY: "77aa/8/9"}}
    house.world.bulk.meanwhile = switch
    async with house.worker():
        result = await (await plan(house)).result()
    assert result.found
    assert result.found.incomplete == [f"{step}: expected the cluster 5f0a/1/2, found 77aa/8/9"]


async def test_bulk_job_that_fails_for_a_while_is_repeated(house: WorkflowHarness) -> None:
    """A ZooKeeper that goes away comes back, also before the plan has begun."""
    failures = [ServiceFailed("spark", "java ended", advice="look"), StoreUnavailable("no answer")]
    house.world.cluster.errors = [StoreUnavailable("no answer")]

    def fail(_job: BulkJob, _beat: object) -> None:
        if failures:
            raise failures.pop()

    house.world.bulk.meanwhile = fail
    async with house.worker():
        assert (await (await plan(house)).result()).found
    assert len(house.attempts("pulsar.run_bulk")) == len(_JOBS) + 2
    assert len(house.attempts("pulsar.begin_plan")) == 2


async def test_cluster_that_stays_away_fails_the_plan(house: WorkflowHarness) -> None:
    house.world.cluster.errors = [ServiceFailed("zookeeper", "no server answers", advice="look")] * 100
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await plan(house)).result()
    assert failure_type_and_message(caught.value)[0] == "ServiceFailed"
    assert len(house.attempts("pulsar.begin_plan")) == 36


async def test_damaged_output_fails_the_plan_at_once(house: WorkflowHarness) -> None:
    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("a file of the scan: a checksum differs")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await plan(house)).result()
    assert failure_type_and_message(caught.value)[0] == "CorruptData"
    assert len(house.attempts("pulsar.run_bulk")) == 1
    assert unfinished(house)


@pytest.mark.external_service
async def test_cluster_that_cannot_be_scanned_is_refused(house: WorkflowHarness) -> None:
    """The workflow completes: the command exits 3, and there is nothing to report."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise UnreadableMetadata("/ledgers", expected="the hierarchical layout", found="another one")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        handle = await plan(house)
        result = await handle.result()
        assert "**Refused**" in await query_current_details(handle)
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(house.client, handle, lambda _: None)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "PreconditionFailed"
    assert result.refused
    assert result.refused.message == (
        "scan-cluster-1: the cluster cannot be scanned. /ledgers: expected the hierarchical layout, found another one"
    )
    assert unfinished(house)
    assert (await handle.describe()).search_attributes["SextonOutcome"] == ["REFUSED"]


async def test_refusals_before_the_begin_open_no_run(house: WorkflowHarness) -> None:
    """Times below the floors, and settings that name no cluster."""
    async with house.worker():
        assert (refused := (await (await plan(house, between_s=599.0)).result()).refused)
        assert "between: expected 10m or more, found " in refused.message
        assert (refused := (await (await plan(house, older_than_s=60.0)).result()).refused)
        assert "older-than: expected 24h or more, found 1m" in refused.message
        house.world.cluster.errors = [InvalidInput("pulsar_zookeeper", expected="host:2181", found="nothing")]
        assert (refused := (await (await plan(house)).result()).refused)
    assert (refused.type, refused.message.partition(":")[0]) == ("InvalidInput", "pulsar_zookeeper")
    assert house.world.catalog.reconciliation.list_runs(RunKind.CLUSTER_PLAN, limit=9) == []


async def test_unsafe_times_are_taken_if_they_are_meant(house: WorkflowHarness) -> None:
    async with house.worker():
        assert (await (await plan(house, between_s=0.0, older_than_s=0.0, unsafe_age=True)).result()).found
    (compare,) = [job for job in house.world.bulk.ran if isinstance(job, CompareScansJob)]
    assert (compare.between_s, compare.older_than_s) == (0.0, 0.0)


async def test_cancelled_plan_cancels_its_bulk_job(house: WorkflowHarness) -> None:
    """No job is left on the cluster, and no result."""
    gate = Gate()

    def wait(_job: BulkJob, beat: object) -> None:
        gate.wait()
        beat()  # type: ignore[operator]  # of no arguments

    house.world.bulk.meanwhile = wait
    async with house.run_until_gate(gate, plan(house)) as handle:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        await assert_eventually(lambda: house.world.bulk.stopped == [run_id(house)])
    assert isinstance(caught.value.cause, CancelledError)
    assert unfinished(house)


async def test_plan_whose_worker_is_lost_between_the_scans_goes_on_at_another(house: WorkflowHarness) -> None:
    """The first scan is not done again, and the second one waits its time."""
    gate = Gate()

    def wait(job: BulkJob, _beat: object) -> None:
        if job.name == SECOND_SCAN and not gate.reached.is_set():
            gate.wait()

    house.world.bulk.meanwhile = wait
    async with house.worker(max_cached_workflows=0):
        handle = await plan(house)
        await assert_eventually(gate.reached.is_set)
    async with house.worker(max_cached_workflows=0):
        assert (await handle.result()).found
    names = [job.name for job in house.world.bulk.ran]
    assert (names.count(FIRST_SCAN), names[-1]) == (1, _JOBS[-1])


async def test_plan_of_the_same_run_is_not_started_twice(house: WorkflowHarness) -> None:
    """A finished plan returns its result again, also if the cluster is away."""
    handle = await plan(house)
    with pytest.raises(WorkflowAlreadyStartedError):
        await plan(house)
    async with house.worker():
        first = await handle.result()
        house.world.cluster.errors = [InvalidInput("pulsar_zookeeper", expected="host:2181", found="nothing")]
        assert await (await plan(house)).result() == first
    assert len(house.world.bulk.ran) == len(_JOBS)


async def test_progress_asked_before_the_first_task_is_answered(house: WorkflowHarness) -> None:
    handle = await plan(house)
    async with house.worker():
        assert (await handle.query(PlanPulsar.progress)).run_id == run_id(house)
        await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_plan_whose_run_was_forgotten_is_refused(house: WorkflowHarness) -> None:
    """Its output is gone, too."""

    def forget(job: BulkJob, _beat: object) -> None:
        if job.name == FIRST_SCAN:
            house.world.sql("DELETE FROM run WHERE run_id = :run", run=run_id(house))

    house.world.bulk.meanwhile = forget
    async with house.worker():
        result = await (await plan(house)).result()
    assert result.refused
    assert result.refused.type == UnknownObject.__name__
