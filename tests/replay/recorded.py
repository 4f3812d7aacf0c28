"""Scenes of jobs on the record log; see `record`."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowFailureError

from activities.records.defragment_raid_ship import RaidTombstonesActivities, ReplicateRecordsActivities
from activities.records.end_records import EndRecordsActivities
from activities.records.flush_records import FlushRecordsActivities
from activities.records.inputs_and_results import ShipToReplicasInput
from logstore.errors import CorruptData
from logstore.records.job_results import ShippedBlocks
from tests.fakes.objects import Operation
from tests.replay.courses import Handle, completed, ended
from tests.workflows.house import Gate, House, assert_eventually
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


async def _flushed(house: House) -> None:
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


async def _failed(house: House, instead: Callable[..., Any], started: Awaitable[Handle]) -> Handle:
    handle = await started
    async with house.worker(instead=[instead]):
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def flush_complete(house: House) -> Handle:
    """Once."""
    house.world.fill(1)
    return await completed(house, flush_now(house))


async def flush_refused(house: House) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    house.world.fill(1)
    return await completed(house, flush_for_ever(house))


async def flush_failed(house: House) -> Handle:
    """The newest manifest cannot be read."""
    return await _failed(house, _broken(FlushRecordsActivities.flush_record_log), flush_now(house))


async def flush_running(house: House) -> Handle:
    """For ever; it puts a block."""
    house.world.fill(1)
    return await house.left_at(gate_at(house, Operation.PUT), flush_for_ever(house))


async def sweep_complete(house: House) -> Handle:
    """The flush did not run."""
    return await completed(house, sweep(house))


async def sweep_failed(house: House) -> Handle:
    """Its queue is one that nobody serves."""
    return await ended(house, sweep(house, queue="nobody"))


async def sweep_running(house: House) -> Handle:
    """No worker took it yet."""
    return await sweep(house)


async def defragment_complete(house: House) -> Handle:
    """Small blocks are joined."""
    await _flushed(house)
    return await completed(house, defragment(house))


async def defragment_of_a_schedule(house: House) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, defragment(house, scheduled=True))


async def defragment_refused(house: House) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    return await completed(house, defragment(house))


async def defragment_failed(house: House) -> Handle:
    """A block cannot be read."""
    await _flushed(house)
    damage(house)
    return await ended(house, defragment(house))


async def defragment_running(house: House) -> Handle:
    """It reads a block."""
    await _flushed(house)
    return await house.left_at(gate_at(house, Operation.GET), defragment(house))


async def raid_complete(house: House) -> Handle:
    """Nothing is old enough."""
    await _flushed(house)
    return await completed(house, raid(house))


async def raid_of_a_schedule(house: House) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, raid(house, scheduled=True))


async def raid_refused(house: House) -> Handle:
    """The catalog is older than its record log."""
    await _flushed(house)
    older_than_its_record_log(house)
    return await completed(house, raid(house))


async def raid_failed(house: House) -> Handle:
    """The newest manifest cannot be read."""
    return await _failed(house, _broken(RaidTombstonesActivities.mark_and_remove_tombstones), raid(house))


async def raid_running(house: House) -> Handle:
    """It pins the newest manifest."""
    await _flushed(house)
    return await house.left_at(gate_at(house, Operation.PUT), raid(house))


async def end_complete(house: House) -> Handle:
    """Two pages, and phase two."""
    house.world.fill(3)
    return await completed(house, end(house, "every"))


async def end_dry(house: House) -> Handle:
    """Nothing is detached."""
    house.world.fill(1)
    return await completed(house, end(house, "every", dry_run=True))


async def end_refused(house: House) -> Handle:
    """There is no such function."""
    return await completed(house, end(house, "odd"))


async def end_stopped(house: House) -> Handle:
    """The function fails."""
    house.world.fill(1)
    return await completed(house, end(house, "changing"))


async def end_failed(house: House) -> Handle:
    """A cursor cannot be read."""
    return await _failed(house, _broken(EndRecordsActivities.end_page), end(house, "every"))


async def end_running(house: House) -> Handle:
    """Its batch is at work."""
    house.world.fill(1)
    return await house.left_at(house.gate(Operation.DELETE), end(house, "every"))


async def replicate_complete(house: House) -> Handle:
    """There is no replica."""
    return await completed(house, replicate(house))


async def replicate_of_a_schedule(house: House) -> Handle:
    """Under the one id, as a child."""
    return await completed(house, replicate(house, scheduled=True))


async def replicate_failed(house: House) -> Handle:
    """A fault that no code expects of it."""
    return await _failed(house, _broken(ReplicateRecordsActivities.ship_to_all_replicas), replicate(house))


async def replicate_running(house: House) -> Handle:
    """It ships."""
    gate = Gate()

    @activity.defn(name="records.ship")
    def ship(request: ShipToReplicasInput) -> list[ShippedBlocks]:
        gate.wait()
        return []

    async with house.worker(instead=[ship]):
        handle = await replicate(house)
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle
