"""`reconcile-orphans`: its steps in their order, one cut-off, and no summary of what did not end."""

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError

from logstore.deletion.intents import RequestRefusal
from logstore.errors import CatalogMismatch, CorruptData, ServiceFailed, StoreUnavailable
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJob,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.findings import STORE_KINDS
from tests.workflows.reconciliation.orphaned import orphan_ledgers, plan, run_id
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workers.client.wait_for_job import wait_for_result
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans

_STEPS = [
    "reconciliation.begin_plan",
    *["reconciliation.run_bulk"] * 3,
    "reconciliation.check_sides",
    "reconciliation.run_bulk",
    "reconciliation.conclude_plan",
]


def unfinished(house: WorkflowHarness) -> bool:
    """Whether there is a run of the plan that nobody may apply."""
    return house.world.catalog.reconciliation.get_run(run_id(house)).finished_us is None


@pytest.fixture(autouse=True)
def _sides(house: WorkflowHarness) -> None:
    house.world.bulk.compared["ledgers"] = 1_000


@pytest.mark.external_service
async def test_plan_goes_its_steps_and_says_what_it_found(house: WorkflowHarness) -> None:
    """Storage before the catalog, the comparison judged before it is verified, the summary last."""
    orphan_ledgers(house, 3)
    async with house.worker():
        handle = await plan(house)
        result = await handle.result()
        details = await query_current_details(handle)
        progress = await handle.query(ReconcileOrphans.progress)
    assert [one.type for one in house.attempts()] == _STEPS
    assert [type(job) for job in house.world.bulk.ran] == [
        ListStorageJob,
        ReadLedgersAndIntentsJob,
        CompareStorageWithCatalogJob,
        VerifyFindingsJob,
    ]
    assert result.found
    assert (result.found.findings["orphan_ledger"], result.found.size_bytes["orphan_ledger"]) == (3, 900)
    assert set(result.found.findings) == {kind.value for kind in STORE_KINDS}
    assert "- **orphan_ledger** — 3, 900 bytes\n" in details
    assert "- 1,000 ledgers in the catalog\n" in details
    assert not any(word in details for word in ("matched", "tiered_named", "foreign")), "counters, and kinds of zero"
    assert (progress.step, progress.counts["compare-sides"]["matched"]) == ("ended", 3)
    assert not unfinished(house)
    described = await handle.describe()
    assert described.search_attributes["SextonRunId"] == [run_id(house)]
    assert described.search_attributes["SextonOutcome"] == ["PLANNED"]


async def test_plan_without_a_run_id_takes_one(house: WorkflowHarness) -> None:
    """As a scheduled one does: its id in Temporal has a time in the place of a run id."""
    async with house.worker():
        handle = await plan(house, run_id="")
        result = await handle.result()
    assert result.run_id.startswith("plan-")
    assert house.world.catalog.reconciliation.get_run(result.run_id).finished_us is not None


async def test_bulk_job_that_fails_for_a_while_is_repeated(house: WorkflowHarness) -> None:
    """A cluster that goes away comes back."""
    failures = [ServiceFailed("spark", "java ended", advice="look"), StoreUnavailable("no answer")]

    def fail(_job: BulkJob, _beat: object) -> None:
        if failures:
            raise failures.pop()

    house.world.bulk.meanwhile = fail
    async with house.worker():
        assert (await (await plan(house)).result()).found
    assert len(house.attempts("reconciliation.run_bulk")) == 6


async def test_cluster_that_stays_away_fails_the_plan(house: WorkflowHarness) -> None:
    """After a few attempts, with the sentence of the last one: a person must look."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise ServiceFailed("java", "none is installed", advice="install Java 17")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await plan(house)).result()
    assert failure_type_and_message(caught.value) == ("ServiceFailed", "java: none is installed; install Java 17")
    assert unfinished(house)


async def test_input_that_a_job_finds_to_be_damaged_fails_the_plan_at_once(house: WorkflowHarness) -> None:
    """What asking again cannot mend."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("inventory: a checksum differs")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await plan(house)).result()
    assert failure_type_and_message(caught.value)[0] == "CorruptData"
    assert len(house.attempts("reconciliation.run_bulk")) == 1


@pytest.mark.external_service
async def test_refused_comparison_completes_with_its_sentence(house: WorkflowHarness) -> None:
    """No red failure in the Web UI: the command exits 3, and there is no plan to apply (lakeFS#4658)."""
    house.world.bulk.compared["matched"] = 0
    async with house.worker():
        handle = await plan(house)
        result = await handle.result()
        assert "**Refused**" in await query_current_details(handle)
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(house.client, handle, lambda _: None)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "PreconditionFailed"
    assert isinstance(result.refused, RequestRefusal)
    assert result.found is None
    assert "verify-findings" not in [job.name for job in house.world.bulk.ran]
    assert unfinished(house)
    assert (await handle.describe()).search_attributes["SextonOutcome"] == ["REFUSED"]


async def test_refused_age_and_refused_bucket_open_no_run(house: WorkflowHarness) -> None:
    """Nothing is begun."""
    async with house.worker():
        assert (refused := (await (await plan(house, older_than_s=60.0)).result()).refused)
        assert "expected 1h or more, found 1m" in refused.message
        house.world.tiered.refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
        assert (refused := (await (await plan(house)).result()).refused)
    assert refused.type == "CatalogMismatch"
    assert house.world.catalog.reconciliation.list_runs(RunKind.PLAN, limit=9) == []


async def test_cancelled_plan_cancels_its_bulk_job(house: WorkflowHarness) -> None:
    """No job is left on the cluster, and no summary."""
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


async def test_plan_whose_worker_is_lost_goes_on_at_another(house: WorkflowHarness) -> None:
    """What was published is not done again."""
    gate = Gate()
    waits = [lambda: None, lambda: None, gate.wait]

    def wait(_job: BulkJob, _beat: object) -> None:
        if waits:
            waits.pop(0)()

    house.world.bulk.meanwhile = wait
    async with house.worker(max_cached_workflows=0):
        handle = await plan(house)
        await assert_eventually(gate.reached.is_set)
    async with house.worker(max_cached_workflows=0):
        assert (await handle.result()).found
    names = [job.name for job in house.world.bulk.ran]
    assert (names.count("list-storage"), names.count("read-references")) == (1, 1)


async def test_plan_of_the_same_run_is_not_started_twice(house: WorkflowHarness) -> None:
    """And one that is done says so again."""
    handle: WorkflowHandle[ReconcileOrphans, object] = await plan(house)
    with pytest.raises(WorkflowAlreadyStartedError):
        await plan(house)
    async with house.worker():
        first = await handle.result()
        assert await (await plan(house)).result() == first
    assert len(house.world.bulk.ran) == 4


async def test_progress_asked_before_the_first_task_is_answered(house: WorkflowHarness) -> None:
    """By the first worker that comes."""
    handle = await plan(house)
    async with house.worker():
        assert (await handle.query(ReconcileOrphans.progress)).run_id == run_id(house)
        await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
