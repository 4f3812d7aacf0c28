"""Scenes of jobs on the record log; see `record`."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowFailureError

from activities.records.end_records import EndRecordsActivities
from activities.records.record_upkeep import (
    FlushRecordsActivities,
    RaidTombstonesActivities,
    RecordPassInput,
    ReplicateRecordsActivities,
)
from logstore.errors import CorruptData
from logstore.records.job_results import ShippedBlocks
from tests.fakes.object_store import StoreOperation
from tests.replay.courses import Handle, completed, ended
from tests.workflows.records.verbs import (
    damage,
    defragment,
    end,
    flush_for_ever,
    flush_now,
    gate_at,
    older_than_its_record_log,
    raid,
    replicate,
    sweep,
)
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually


async def _flushed(house: WorkflowHarness) -> None:
    """Two manifests, whose blocks are small."""
    for _ in range(2):
        house.world.fill(1)
        await completed(house, flush_now(house))


def _broken(method: Callable[..., Any]) -> Callable[..., Any]:
    """An activity of that name that finds something that cannot be read."""
    found = activity._Definition.must_from_callable(method)

    @activity.defn(name=found.name)
    def broken(request: Any) -> None:
        raise CorruptData("planned: an object of the record log cannot be read")

    return broken


async def _failed(house: WorkflowHarness, instead: Callable[..., Any], started: Awaitable[Handle]) -> Handle:
    handle = await started
    async with house.worker(replacements=[instead]):
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def flush_complete(house: WorkflowHarness) -> Handle:
    """Once."""
    house.world.fill(1)
    return await completed(house, flush_now(house))


async def flush_refused(house: WorkflowHarness) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    house.world.fill(1)
    return await completed(house, flush_for_ever(house))


async def flush_failed(house: WorkflowHarness) -> Handle:
    """The newest manifest cannot be read."""
    return await _failed(house, _broken(FlushRecordsActivities.flush_record_log), flush_now(house))


async def flush_running(house: WorkflowHarness) -> Handle:
    """For ever; it puts a block."""
    house.world.fill(1)
    return await house.stop_worker_at_gate(gate_at(house, StoreOperation.PUT), flush_for_ever(house))


async def sweep_complete(house: WorkflowHarness) -> Handle:
    """The flush did not run."""
    return await completed(house, sweep(house))


async def sweep_failed(house: WorkflowHarness) -> Handle:
    """Its queue is one that nobody serves."""
    return await ended(house, sweep(house, queue="nobody"))


async def sweep_running(house: WorkflowHarness) -> Handle:
    """No worker took it yet."""
    return await sweep(house)


async def defragment_complete(house: WorkflowHarness) -> Handle:
    """Small blocks are joined."""
    await _flushed(house)
    return await completed(house, defragment(house))


async def defragment_of_a_schedule(house: WorkflowHarness) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, defragment(house, scheduled=True))


async def defragment_refused(house: WorkflowHarness) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    return await completed(house, defragment(house))


async def defragment_failed(house: WorkflowHarness) -> Handle:
    """A block cannot be read."""
    await _flushed(house)
    damage(house)
    return await ended(house, defragment(house))


async def defragment_running(house: WorkflowHarness) -> Handle:
    """It reads a block."""
    await _flushed(house)
    return await house.stop_worker_at_gate(gate_at(house, StoreOperation.GET), defragment(house))


async def raid_complete(house: WorkflowHarness) -> Handle:
    """Nothing is old enough."""
    await _flushed(house)
    return await completed(house, raid(house))


async def raid_of_a_schedule(house: WorkflowHarness) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, raid(house, scheduled=True))


async def raid_refused(house: WorkflowHarness) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    return await completed(house, raid(house))


async def raid_failed(house: WorkflowHarness) -> Handle:
    """The newest manifest cannot be read."""
    return await _failed(house, _broken(RaidTombstonesActivities.mark_and_remove_tombstones), raid(house))


async def raid_running(house: WorkflowHarness) -> Handle:
    """It pins the newest manifest."""
    await _flushed(house)
    return await house.stop_worker_at_gate(gate_at(house, StoreOperation.PUT), raid(house))


async def end_complete(house: WorkflowHarness) -> Handle:
    """Two pages, and phase two."""
    house.world.fill(3)
    return await completed(house, end(house, "every"))


async def end_dry(house: WorkflowHarness) -> Handle:
    """Nothing is detached."""
    house.world.fill(1)
    return await completed(house, end(house, "every", dry_run=True))


async def end_refused(house: WorkflowHarness) -> Handle:
    """There is no such function."""
    return await completed(house, end(house, "odd"))


async def end_stopped(house: WorkflowHarness) -> Handle:
    """The function fails."""
    house.world.fill(1)
    return await completed(house, end(house, "changing"))


async def end_failed(house: WorkflowHarness) -> Handle:
    """A cursor cannot be read."""
    return await _failed(house, _broken(EndRecordsActivities.end_page), end(house, "every"))


async def end_running(house: WorkflowHarness) -> Handle:
    """Its batch is at work."""
    house.world.fill(1)
    return await house.stop_worker_at_gate(house.gate(StoreOperation.DELETE), end(house, "every"))


async def replicate_complete(house: WorkflowHarness) -> Handle:
    """There is no replica."""
    return await completed(house, replicate(house))


async def replicate_of_a_schedule(house: WorkflowHarness) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, replicate(house, scheduled=True))


async def replicate_failed(house: WorkflowHarness) -> Handle:
    """A fault that no code expects of it."""
    return await _failed(house, _broken(ReplicateRecordsActivities.ship_to_all_replicas), replicate(house))


async def replicate_running(house: WorkflowHarness) -> Handle:
    """It ships."""
    gate = Gate()

    @activity.defn(name="records.ship")
    def ship(request: RecordPassInput) -> list[ShippedBlocks]:
        gate.wait()
        return []

    async with house.worker(replacements=[ship]):
        handle = await replicate(house)
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle
