"""What programs have of the driver's server: the part of Temporal's client, and of its handles, that the tests use."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from tests.driver.concurrent_server import POLL_INTERVAL_S, ConcurrentServer, suspend_running_loop
from tests.driver.workflow_executions import Execution, SimulatedRunStatus
from tests.driver.workflow_run import DEFINITION_BY_WORKFLOW

_TEMPORAL_STATUS = {
    SimulatedRunStatus.RUNNING: WorkflowExecutionStatus.RUNNING,
    SimulatedRunStatus.COMPLETED: WorkflowExecutionStatus.COMPLETED,
    SimulatedRunStatus.FAILED: WorkflowExecutionStatus.FAILED,
    SimulatedRunStatus.CANCELED: WorkflowExecutionStatus.CANCELED,
    SimulatedRunStatus.TERMINATED: WorkflowExecutionStatus.TERMINATED,
    SimulatedRunStatus.CONTINUED: WorkflowExecutionStatus.CONTINUED_AS_NEW,
}


@dataclass(frozen=True)
class RunDescription:
    """What a server says of a run."""

    run_id: str
    status: WorkflowExecutionStatus
    workflow_type: str


class SimulatedClient:
    """See `temporalio.client.Client`."""

    def __init__(self, server: ConcurrentServer) -> None:
        """Ask this server."""
        self.server = server

    async def start_workflow(
        self,
        run: Callable[..., Any] | str,
        request: object,
        *,
        id: str,  # noqa: A002 - its name
        start_signal: str | None = None,
        start_signal_args: Sequence[object] = (),
        id_conflict_policy: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.FAIL,
        **_shown: Any,
    ) -> "ServedHandle":
        """Start it, or join what runs under its id where the signal or the policy says so."""
        definition = DEFINITION_BY_WORKFLOW[run] if isinstance(run, str) else workflow._Definition.must_from_run_fn(run)
        existing = self.server.executions.get(id)
        joins = start_signal or id_conflict_policy is WorkflowIDConflictPolicy.USE_EXISTING
        if existing and existing.is_open and not joins:
            raise WorkflowAlreadyStartedError(id, existing.run.start.type)
        with suspend_running_loop():
            execution = self.server.start(
                definition.cls, request, id=id, signal=start_signal or "", signal_args=start_signal_args
            )
        return ServedHandle(self.server, id, first_run_id=execution.run.start.run_id, result_type=definition.ret_type)

    def get_workflow_handle(
        self,
        id: str,  # noqa: A002 - its name
        *,
        run_id: str = "",
        result_type: type | None = None,
    ) -> "ServedHandle":
        """Of the newest run, or of that one alone; without a type a result is as JSON has it."""
        return ServedHandle(self.server, id, run_id=run_id, result_type=result_type)

    def get_workflow_handle_for(self, run: Callable[..., Any], id: str) -> "ServedHandle":  # noqa: A002 - its name
        """Of the newest run."""
        return ServedHandle(self.server, id, result_type=workflow._Definition.must_from_run_fn(run).ret_type)


class ServedHandle:
    """See `temporalio.client.WorkflowHandle`."""

    def __init__(
        self,
        server: ConcurrentServer,
        id: str,  # noqa: A002 - its name
        *,
        run_id: str = "",
        first_run_id: str = "",
        result_type: type | None = None,
    ) -> None:
        """Of the newest run, or of that one alone; the result is that of the first one and of what goes on from it."""
        self._server = server
        self._run_id = run_id
        self._returns = result_type
        self.id = id
        self.first_execution_run_id = self.result_run_id = first_run_id

    @property
    def _current_execution(self) -> Execution:
        newest = self._server.executions.get(self.id)
        if newest is None:
            raise RPCError(f"workflow not found: {self.id}", RPCStatusCode.NOT_FOUND, b"")
        return self._server.runs[self._run_id] if self._run_id else newest

    @property
    def _last_execution(self) -> Execution:
        first = self._server.runs.get(self.first_execution_run_id) or self._current_execution
        return first if first.status is not SimulatedRunStatus.CONTINUED else self._server.executions[self.id]

    async def result(self) -> Any:
        """What the workflow answers.

        Raises:
            WorkflowFailureError: It ended without an answer.
        """
        await self._wait_until(
            lambda: self._last_execution.status not in {SimulatedRunStatus.RUNNING, SimulatedRunStatus.CONTINUED}
        )
        last = self._last_execution
        if last.status is SimulatedRunStatus.COMPLETED:
            converter = _payload_converter()
            return converter.from_payloads([last.result], [self._returns or object])[0] if last.result else None
        ends: dict[SimulatedRunStatus, BaseException] = {
            SimulatedRunStatus.CANCELED: CancelledError("Workflow cancelled"),
            SimulatedRunStatus.TERMINATED: TerminatedError("Workflow terminated"),
        }
        raise WorkflowFailureError(cause=ends.get(last.status) or _failure_to_exception(last.failure))

    async def describe(self) -> RunDescription:
        """How it is."""
        start = self._current_execution.run.start
        return RunDescription(start.run_id, _TEMPORAL_STATUS[self._current_execution.status], start.type)

    async def query(self, query: Any, *, result_type: type | None = None, **_limits: Any) -> Any:
        """Its answer, after its end as well."""
        definition = workflow._QueryDefinition.from_fn(query) if callable(query) else None
        with suspend_running_loop():
            answer = self._current_execution.run.ask(definition.name or "" if definition else query)
            if not self._current_execution.is_open:
                self._current_execution.run.forget()
        return _payload_converter().from_payloads(
            [answer], [definition.ret_type or object if definition else result_type or object]
        )[0]

    async def execute_update(
        self,
        update: Any,
        *update_args: object,
        args: Sequence[object] = (),
        result_type: type | None = None,
        **_limits: Any,
    ) -> Any:
        """Its answer.

        Raises:
            WorkflowUpdateFailedError: It was refused, or the workflow ended before.
        """
        definition = update._defn if callable(update) else None
        update_id, execution = str(uuid.uuid4()), self._current_execution
        if not execution.is_open:
            raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
        with suspend_running_loop():
            name = definition.name or "" if definition else update
            self._server.update(self.id, name, *update_args, *args, update_id=update_id)
        await self._wait_until(lambda: execution.updates[update_id] is not None or not execution.is_open)
        answer = execution.updates[update_id]
        if answer is None:
            raise WorkflowUpdateFailedError(ApplicationError("it ended", type="AcceptedUpdateCompletedWorkflow"))
        if isinstance(answer, Failure):
            raise WorkflowUpdateFailedError(_failure_to_exception(answer))
        answer_type = definition.ret_type if definition else result_type
        return _payload_converter().from_payloads([answer], [answer_type or object])[0]

    async def signal(self, signal: Any, *signal_args: object) -> None:
        """Tell it something."""
        with suspend_running_loop():
            self._server.signal(self.id, workflow._SignalDefinition.must_name_from_fn_or_str(signal), *signal_args)

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():  # noqa: ASYNC110 - a driver that was told something has nobody to tell
            await asyncio.sleep(POLL_INTERVAL_S)

    async def cancel(self) -> None:
        """Ask it to end."""
        with suspend_running_loop():
            self._server.cancel(self.id)

    async def terminate(self) -> None:
        """End it."""
        with suspend_running_loop():
            self._server.terminate(self.id)


def _payload_converter() -> PayloadConverter:
    return pydantic_data_converter.payload_converter


def _failure_to_exception(failure: Failure | None) -> BaseException:
    assert failure
    return pydantic_data_converter.failure_converter.from_failure(failure, _payload_converter())
