"""`scrub-ledgers`: page after page, never the same page twice, and it goes on where an earlier one was."""

from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError, WorkflowAlreadyStartedError

from logstore.errors import CatalogMismatch, CorruptData, ServiceFailed, StoreUnavailable
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import (
    MIN_SCRUB_RATE,
    BulkJob,
    CutScrubIntoPagesJob,
    ScrubPageJob,
)
from tests.workflows.reconciliation.orphaned import corrupt, scrub
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.reconciliation.job_definitions import (
    ScrubLedgersInput,
)
from workflows.reconciliation.scrub_ledgers import ScrubLedgers

_STEPS = [
    "reconciliation.begin_scrub",
    "reconciliation.cut_scrub",
    *["reconciliation.scrub_page"] * 2,
    "reconciliation.conclude_scrub",
]


def pages_read(house: WorkflowHarness) -> list[int]:
    """Pages whose job ran, in order; one that was published is not read again."""
    return [job.page for job in house.world.bulk.ran if isinstance(job, ScrubPageJob)]


@pytest.mark.external_service
async def test_scrub_goes_its_steps_and_says_what_it_found(house: WorkflowHarness) -> None:
    """Findings of all pages, in one folder."""
    house.world.bulk.damaged = {0: [corrupt(1)], 1: [corrupt(2), corrupt(3)]}
    async with house.worker():
        handle = await scrub(house, bytes_per_s=MIN_SCRUB_RATE)
        result = await handle.result()
        details = await query_current_details(handle)
    assert [one.type for one in house.attempts()] == _STEPS
    assert result.found is not None
    assert (result.found.findings["corrupt_data"], result.found.size_bytes["corrupt_data"]) == (3, 300)
    progress = result.progress
    assert (progress.pages_done, progress.objects, progress.all_objects, progress.findings) == (2, 20, 20, 3)
    rates = [job.bytes_per_s for job in house.world.bulk.ran if isinstance(job, CutScrubIntoPagesJob | ScrubPageJob)]
    assert rates == [MIN_SCRUB_RATE] * 3
    assert "- **corrupt_data** — 3, 300 bytes\n" in details
    (run,) = house.world.catalog.reconciliation.list_runs(RunKind.SCRUB, limit=9)
    assert (run.run_id, run.finished_us is not None) == (result.run_id, True)
    described = await handle.describe()
    assert described.search_attributes["SextonRunId"] == [result.run_id]
    assert described.search_attributes["SextonOutcome"] == ["SCRUBBED"]


async def test_storage_and_cluster_that_are_away_for_a_while_are_waited_for(house: WorkflowHarness) -> None:
    failures = [ServiceFailed("spark", "java ended", advice="look"), StoreUnavailable("no answer")]

    def fail(_job: BulkJob, _beat: object) -> None:
        if failures:
            raise failures.pop()

    house.world.bulk.meanwhile = fail
    async with house.worker():
        result = await (await scrub(house)).result()
    assert result.found is not None
    assert result.found.findings["corrupt_data"] == 0
    assert len(house.attempts()) == len(_STEPS) + 2


async def test_terminal_fault_fails_the_scrub_at_once(house: WorkflowHarness) -> None:
    def fail(job: BulkJob, _beat: object) -> None:
        if isinstance(job, ScrubPageJob):
            raise CorruptData("pages.json: expected pages")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await scrub(house)).result()
    assert failure_type_and_message(caught.value)[0] == "CorruptData"
    assert len(house.attempts("reconciliation.scrub_page")) == 1
    (run,) = house.world.catalog.reconciliation.list_runs(RunKind.SCRUB, limit=9)
    assert run.finished_us is None


async def test_bucket_of_another_catalog_is_refused_before_a_run_is_opened(house: WorkflowHarness) -> None:
    """What another store lacks says nothing of this catalog's data."""
    house.world.tiered.refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
    async with house.worker():
        result = await (await scrub(house)).result()
    assert result.refused is not None
    assert result.refused.type == "CatalogMismatch"
    assert house.world.catalog.reconciliation.list_runs(RunKind.SCRUB, limit=9) == []


@pytest.mark.external_service
async def test_cancelled_scrub_ends_its_job_and_the_next_goes_on_where_it_was(house: WorkflowHarness) -> None:
    """With the findings of pages that the first one read."""
    house.world.bulk.damaged = {0: [corrupt(1)], 1: [corrupt(2)]}
    gate = Gate()

    def hold(job: BulkJob, beat: Any) -> None:
        if isinstance(job, ScrubPageJob) and job.page == 1:
            gate.wait()
            beat()

    house.world.bulk.meanwhile = hold
    async with house.run_until_gate(gate, scrub(house)) as handle:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        await assert_eventually(lambda: len(house.world.bulk.stopped) == 1)
    assert isinstance(caught.value.cause, CancelledError)
    house.world.bulk.meanwhile = lambda _job, _beat: None
    async with house.worker():
        result = await (await scrub(house)).result()
    assert [result.run_id] == house.world.bulk.stopped
    assert pages_read(house) == [0, 1, 1]
    assert result.found is not None
    assert result.found.findings["corrupt_data"] == 2


async def test_scrub_of_other_topics_begins_its_own_run(house: WorkflowHarness) -> None:
    """An unfinished one of every topic is left alone."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("broken")

    house.world.bulk.meanwhile = fail
    async with house.worker():
        with pytest.raises(WorkflowFailureError):
            await (await scrub(house)).result()
        house.world.bulk.meanwhile = lambda _job, _beat: None
        result = await (await scrub(house, topic_ids=[1])).result()
    ended = {
        run.run_id: run.finished_us is not None
        for run in house.world.catalog.reconciliation.list_runs(RunKind.SCRUB, limit=9)
    }
    assert ended[result.run_id]
    assert sorted(ended.values()) == [False, True]


async def test_finished_scrub_is_not_gone_on_with(house: WorkflowHarness) -> None:
    """The next one reads all anew: bits flip later, too."""
    async with house.worker():
        first = await (await scrub(house)).result()
        second = await (await scrub(house)).result()
    assert first.run_id != second.run_id
    assert pages_read(house) == [0, 1, 0, 1]


@pytest.mark.external_service
async def test_worker_lost_with_an_empty_cache_reads_no_page_twice(house: WorkflowHarness) -> None:
    gate = Gate()

    def hold(job: BulkJob, _beat: object) -> None:
        if isinstance(job, ScrubPageJob) and job.page == 1:
            gate.wait()

    house.world.bulk.meanwhile = hold
    handle = await house.stop_worker_at_gate(gate, scrub(house))
    house.world.bulk.meanwhile = lambda _job, _beat: None
    async with house.worker():
        result = await handle.result()
    assert result.found is not None
    assert pages_read(house).count(0) == 1


async def test_second_start_joins_the_scrub_at_work(house: WorkflowHarness) -> None:
    gate = Gate()
    house.world.bulk.meanwhile = lambda _job, _beat: gate.wait()
    async with house.run_until_gate(gate, scrub(house)) as handle:
        again = await scrub(house)
        assert again.first_execution_run_id in {None, handle.first_execution_run_id}
        with pytest.raises(WorkflowAlreadyStartedError):
            await house.client.start_workflow(
                ScrubLedgers.run, ScrubLedgersInput(), id=handle.id, task_queue=house.queue
            )
        gate.open()
        assert (await again.result()).run_id == (await handle.result()).run_id
    assert pages_read(house) == [0, 1]


@pytest.mark.external_service
async def test_scrub_paused_before_its_first_task_reads_nothing_until_it_is_resumed(house: WorkflowHarness) -> None:
    """An update waits in the server for a worker."""
    handle = await scrub(house)
    async with house.worker():
        await handle.execute_update(ScrubLedgers.pause)
        await assert_eventually(lambda: len(house.attempts("reconciliation.cut_scrub")) == 1)
        assert (await handle.query(ScrubLedgers.progress)).paused
        await handle.execute_update(ScrubLedgers.resume)
        assert (await handle.result()).progress.pages_done == 2


async def test_long_scrub_goes_on_in_a_new_run(house: WorkflowHarness) -> None:
    """With what it has counted, and no page twice."""
    house.world.bulk.pages = 150
    house.world.bulk.damaged = {3: [corrupt(1)], 149: [corrupt(2)]}
    async with house.worker():
        handle = await scrub(house)
        result = await handle.result()
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert pages_read(house) == list(range(150))
    assert (result.progress.objects, result.progress.findings) == (1_500, 2)
    assert result.found is not None
    assert result.found.findings["corrupt_data"] == 2
