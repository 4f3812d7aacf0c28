"""How a recorded run goes: to its end, or until its worker is lost."""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle

from tests.workflows.house import Gate, House, assert_eventually

Handle = WorkflowHandle[Any, Any]


async def completed(house: House, started: Awaitable[Handle]) -> Handle:
    """To its result."""
    handle = await started
    async with house.worker():
        await handle.result()
    return handle


async def ended(house: House, started: Awaitable[Handle]) -> Handle:
    """Completed or failed."""
    handle = await started
    async with house.worker():
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def left_at_work(house: House, gate: Gate, started: Awaitable[Handle]) -> Handle:
    """At the gate, where its worker ended: it goes on with none."""
    async with house.worker():
        handle = await started
        await assert_eventually(gate.reached.is_set)
    gate.open()
    return handle


def first_run(house: House, handle: Handle) -> Handle:
    """The run that continued as new."""
    return house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
