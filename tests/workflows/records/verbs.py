"""The verbs that jobs on the record log are told in."""

from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import Gate, WorkflowHarness
from workflows.job_definition import JobDefinition
from workflows.records.job_definitions import (
    DEFRAGMENT_RECORDS,
    END_RECORDS,
    FLUSH_RECORDS,
    NOW,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    SWEEP_RECORDS,
    DefragmentRecordsInput,
    EndRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)

Handle = WorkflowHandle[Any, Any]
_BY: dict[str, Any] = {"actor": "tests", "reason": "a test"}


async def _start(
    house: WorkflowHarness, job: JobDefinition[Any, Any], request: Any, workflow_id: str, **more: Any
) -> Handle:
    handle: Handle = await house.client.start_workflow(
        job.name,
        request,
        id=workflow_id,
        task_queue=house.queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        **more,
    )
    return handle


async def flush_now(house: WorkflowHarness) -> Handle:
    """As the command does: start it, or join it and let it flush once more."""
    request = FlushRecordsInput(once=True, **_BY)
    return await _start(house, FLUSH_RECORDS, request, FLUSH_RECORDS.id(NOW, house.queue), start_signal="wake")


async def flush_for_ever(house: WorkflowHarness, **more: Any) -> Handle:
    """Start it, or wake it; it flushes once each time that it is woken."""
    request = FlushRecordsInput(watch_s=0, **_BY, **more)
    return await _start(house, FLUSH_RECORDS, request, FLUSH_RECORDS.id(house.queue), start_signal="wake")


async def sweep(house: WorkflowHarness, **more: Any) -> Handle:
    """As a schedule does."""
    request = SweepRecordsInput(**({"watch_s": 0} | _BY | more))
    return await _start(house, SWEEP_RECORDS, request, SWEEP_RECORDS.id(house.queue))


async def defragment(house: WorkflowHarness, *, scheduled: bool = False) -> Handle:
    """As a person does, or a schedule."""
    name = f"{DEFRAGMENT_RECORDS.id()}-{house.queue}" if scheduled else DEFRAGMENT_RECORDS.id()
    return await _start(house, DEFRAGMENT_RECORDS, DefragmentRecordsInput(scheduled=scheduled, **_BY), name)


async def raid(house: WorkflowHarness, *, scheduled: bool = False, **more: Any) -> Handle:
    """As a person does, or a schedule."""
    name = f"{RAID_TOMBSTONES.id()}-{house.queue}" if scheduled else RAID_TOMBSTONES.id()
    return await _start(house, RAID_TOMBSTONES, RaidTombstonesInput(scheduled=scheduled, **_BY, **more), name)


async def end(house: WorkflowHarness, function: str, **more: Any) -> Handle:
    """As the command does, of the house's topic unless `topic_id` is 0; a page holds two ledgers."""
    topic = house.world.topic
    whose = {} if more.pop("of_all", False) else {"topic_id": topic.topic_id, "topic": topic.name}
    batch_id = more.pop("batch_id", f"{function}-{house.queue}")
    rest: dict[str, Any] = {"page": 2, "policy": house.policy} | whose | _BY | more
    request = EndRecordsInput(function=function, batch_id=batch_id, **rest)
    return await _start(house, END_RECORDS, request, END_RECORDS.id(batch_id))


async def replicate(house: WorkflowHarness, *, scheduled: bool = False) -> Handle:
    """As a person does, or a schedule."""
    name = f"{REPLICATE_RECORDS.id()}-{house.queue}" if scheduled else REPLICATE_RECORDS.id()
    return await _start(house, REPLICATE_RECORDS, ReplicateRecordsInput(scheduled=scheduled, **_BY), name)


def gate_at(house: WorkflowHarness, operation: StoreOperation) -> Gate:
    """Holds the next such request to the bucket of the record log."""
    gate = Gate()
    house.world.record_objects.plan(Fault(operation=operation, kind=FaultKind.CALL, action=gate.wait))
    return gate


def older_than_its_record_log(house: WorkflowHarness) -> None:
    """The catalog is a restored copy, which its record log refuses."""
    house.world.sql("UPDATE record_log SET stamp = 'older', pending = '{}'")


def damage(house: WorkflowHarness) -> None:
    """A block that the newest manifest names cannot be read."""
    key = next(key for key in house.world.record_objects.keys if "/blocks/ledger-" in key)
    house.world.record_objects.delete([key])
    house.world.record_objects.put_if_absent(key, b"damaged", metadata={})
