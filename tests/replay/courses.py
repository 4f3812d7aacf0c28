"""How a recorded run goes: to its end, or until its worker is lost."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle

from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows.job_definition import JobDefinition

Handle = WorkflowHandle[Any, Any]


async def completed(house: WorkflowHarness, started: Awaitable[Handle]) -> Handle:
    """To its result."""
    handle = await started
    async with house.worker():
        await handle.result()
    return handle


async def ended(house: WorkflowHarness, started: Awaitable[Handle]) -> Handle:
    """Completed or failed."""
    handle = await started
    async with house.worker():
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A workflow whose activities only answer, for one that no worker of a house runs."""

    workflow: type
    job: JobDefinition[Any, Any]
    key: str
    answers: Callable[..., Sequence[Callable[..., Any]]]  # its activities; takes a fault's name, and a gate

    async def ended(self, house: WorkflowHarness, request: Any, *, fault: str = "") -> Handle:
        """Completed or failed."""
        handle = await self._start(house, request)
        async with self._worker(house, fault=fault):
            with suppress(WorkflowFailureError):
                await handle.result()
        return handle

    async def cancelled(self, house: WorkflowHarness, request: Any) -> Handle:
        """At the gate; what it does at its end is done."""
        gate = Gate()
        async with self._worker(house, gate=gate):
            handle = await self._start(house, request)
            await assert_eventually(gate.reached.is_set)
            await handle.cancel()
            with suppress(WorkflowFailureError):
                await handle.result()
            gate.open()
        return handle

    async def left_at_work(self, house: WorkflowHarness, request: Any) -> Handle:
        """At the gate, where its worker ends."""
        gate = Gate()
        async with self._worker(house, gate=gate):
            handle = await self._start(house, request)
            await assert_eventually(gate.reached.is_set)
            gate.open()
        return handle

    async def _start(self, house: WorkflowHarness, request: Any) -> Handle:
        handle: Handle = await house.client.start_workflow(
            self.job.name,
            request,
            id=f"{self.job.id(self.key)}-{house.queue}",
            task_queue=house.queue,
            result_type=self.job.result,
        )
        return handle

    def _worker(self, house: WorkflowHarness, **how: Any) -> AbstractAsyncContextManager[Any]:
        return house.serve(house.queue, self.answers(**how), workflows=[self.workflow])


def first_run(house: WorkflowHarness, handle: Handle) -> Handle:
    """The run that continued as new."""
    return house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
