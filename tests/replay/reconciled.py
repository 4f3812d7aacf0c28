"""Scenes of plans and applies; see `record`."""

from contextlib import suppress

from temporalio.client import WorkflowFailureError

from logstore.errors import CatalogMismatch, CorruptData
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, ScrubPageJob
from tests.fakes.object_store import StoreOperation
from tests.replay.courses import Handle, ended, first_run
from tests.workflows.reconciliation.orphaned import (
    apply,
    corrupt,
    orphan_ledgers,
    orphan_segments,
    plan,
    planned,
    scrub,
)
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows.deletion.job_definitions import SetRateInput
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.scrub_ledgers import ScrubLedgers


async def plan_complete(house: WorkflowHarness) -> Handle:
    """Three findings."""
    orphan_segments(house, 3)
    house.world.bulk.compared["ledgers"] = 1_000
    return await ended(house, plan(house))


async def plan_refused(house: WorkflowHarness) -> Handle:
    """Nothing in common."""
    house.world.bulk.compared["matched"] = 0
    house.world.bulk.compared["ledgers"] = 1_000
    return await ended(house, plan(house))


async def plan_failed(house: WorkflowHarness) -> Handle:
    """An inventory that is damaged."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("inventory: a checksum differs")

    house.world.bulk.meanwhile = fail
    return await ended(house, plan(house))


async def plan_running(house: WorkflowHarness) -> Handle:
    """Its first bulk job is at work."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda _job, _beat: gate.wait()
    return await house.stop_worker_at_gate(gate, plan(house))


async def apply_complete(house: WorkflowHarness) -> Handle:
    """A page of ledgers, and one of single objects at another rate."""
    orphan_ledgers(house, 2)
    orphan_segments(house, 2)
    await planned(house)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, apply(house)) as handle:
        await handle.execute_update(ApplyOrphans.set_rate, SetRateInput(objects_per_s=1_000))
        gate.open()
        await handle.result()
    return handle


async def apply_paused(house: WorkflowHarness) -> Handle:
    """Paused between its pages."""
    orphan_segments(house, 4)
    await planned(house)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, apply(house)) as handle:
        await handle.execute_update(ApplyOrphans.pause)
        gate.open()
        await assert_eventually(lambda: len(house.attempts("reconciliation.record_page")) == 1)
        await handle.execute_update(ApplyOrphans.resume)
        await handle.result()
    return handle


async def apply_refused(house: WorkflowHarness) -> Handle:
    """There is no such plan."""
    return await ended(house, apply(house))


async def apply_failed(house: WorkflowHarness) -> Handle:
    """Its findings are gone by its second page."""
    orphan_segments(house, 4)
    await planned(house)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, apply(house)) as handle:
        for run_id in house.world.bulk.list_run_ids():
            house.world.bulk.remove_run(run_id)
        gate.open()
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def apply_running(house: WorkflowHarness) -> Handle:
    """It deletes single objects."""
    orphan_segments(house, 2)
    await planned(house)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, apply(house))


async def apply_continued(house: WorkflowHarness) -> Handle:
    """More pages than one history should hold."""
    orphan_segments(house, 20, page=1)
    await planned(house)
    async with house.worker():
        handle = await apply(house)
        await handle.result()
    return first_run(house, handle)


async def scrub_complete(house: WorkflowHarness) -> Handle:
    """Two pages, a finding on one of them."""
    house.world.bulk.damaged = {1: [corrupt(1)]}
    return await ended(house, scrub(house))


async def scrub_paused(house: WorkflowHarness) -> Handle:
    """Paused between its pages."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda job, _beat: gate.wait() if isinstance(job, ScrubPageJob) else None
    async with house.run_until_gate(gate, scrub(house)) as handle:
        await handle.execute_update(ScrubLedgers.pause)
        gate.open()
        await assert_eventually(lambda: len(house.attempts("reconciliation.scrub_page")) == 1)
        await handle.execute_update(ScrubLedgers.resume)
        await handle.result()
    return handle


async def scrub_refused(house: WorkflowHarness) -> Handle:
    """A bucket of another catalog."""
    house.world.tiered.refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
    return await ended(house, scrub(house))


async def scrub_failed(house: WorkflowHarness) -> Handle:
    """What an earlier job published was lost."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("pages.json: expected 20 bytes, which were lost")

    house.world.bulk.meanwhile = fail
    return await ended(house, scrub(house))


async def scrub_running(house: WorkflowHarness) -> Handle:
    """Its first page is being read."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda job, _beat: gate.wait() if isinstance(job, ScrubPageJob) else None
    return await house.stop_worker_at_gate(gate, scrub(house))


async def scrub_continued(house: WorkflowHarness) -> Handle:
    """More pages than one history should hold."""
    house.world.bulk.pages = 60
    async with house.worker():
        handle = await scrub(house)
        await handle.result()
    return first_run(house, handle)
