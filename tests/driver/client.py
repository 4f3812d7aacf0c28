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

from tests.driver.executions import Execution, Status
from tests.driver.run import DEFINITIONS
from tests.driver.served import LOOK_S, Served, aside

_STATUS = {
    Status.RUNNING: WorkflowExecutionStatus.RUNNING,
    Status.COMPLETED: WorkflowExecutionStatus.COMPLETED,
    Status.FAILED: WorkflowExecutionStatus.FAILED,
    Status.CANCELED: WorkflowExecutionStatus.CANCELED,
    Status.TERMINATED: WorkflowExecutionStatus.TERMINATED,
    Status.CONTINUED: WorkflowExecutionStatus.CONTINUED_AS_NEW,
}


@dataclass(frozen=True)
class Description:
    """What a server says of a run."""

    run_id: str
    status: WorkflowExecutionStatus
    workflow_type: str


class ServedClient:
    """See `temporalio.client.Client`."""

    def __init__(self, server: Served) -> None:
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
        definition = DEFINITIONS[run] if isinstance(run, str) else workflow._Definition.must_from_run_fn(run)
        found = self.server.executions.get(id)
        joins = start_signal or id_conflict_policy is WorkflowIDConflictPolicy.USE_EXISTING
        if found and found.is_open and not joins:
            raise WorkflowAlreadyStartedError(id, found.run.start.type)
        with aside():
            begun = self.server.start(definition.cls, request, id=id, signal=start_signal or "", told=start_signal_args)
        return ServedHandle(self.server, id, first=begun.run.start.run_id, returns=definition.ret_type)

    def get_workflow_handle(
        self,
        id: str,  # noqa: A002 - its name
        *,
        run_id: str = "",
        result_type: type | None = None,
    ) -> "ServedHandle":
        """Of the newest run, or of that one alone; without a type a result is as JSON has it."""
        return ServedHandle(self.server, id, run_id=run_id, returns=result_type)

    def get_workflow_handle_for(self, run: Callable[..., Any], id: str) -> "ServedHandle":  # noqa: A002 - its name
        """Of the newest run."""
        return ServedHandle(self.server, id, returns=workflow._Definition.must_from_run_fn(run).ret_type)


class ServedHandle:
    """See `temporalio.client.WorkflowHandle`."""

    def __init__(
        self,
        server: Served,
        id: str,  # noqa: A002 - its name
        *,
        run_id: str = "",
        first: str = "",
        returns: type | None = None,
    ) -> None:
        """Of the newest run, or of that one alone; the result is that of the first one and of what goes on from it."""
        self._server = server
        self._run_id = run_id
        self._returns = returns
        self.id = id
        self.first_execution_run_id = self.result_run_id = first

    @property
    def _run(self) -> Execution:
        newest = self._server.executions.get(self.id)
        if newest is None:
            raise RPCError(f"workflow not found: {self.id}", RPCStatusCode.NOT_FOUND, b"")
        return self._server.runs[self._run_id] if self._run_id else newest

    @property
    def _last(self) -> Execution:
        first = self._server.runs.get(self.first_execution_run_id) or self._run
        return first if first.status is not Status.CONTINUED else self._server.executions[self.id]

    async def result(self) -> Any:
        """What the workflow answers.

        Raises:
            WorkflowFailureError: It ended without an answer.
        """
        await self._until(lambda: self._last.status not in {Status.RUNNING, Status.CONTINUED})
        last = self._last
        if last.status is Status.COMPLETED:
            converter = _converter()
            return converter.from_payloads([last.result], [self._returns or object])[0] if last.result else None
        ends: dict[Status, BaseException] = {
            Status.CANCELED: CancelledError("Workflow cancelled"),
            Status.TERMINATED: TerminatedError("Workflow terminated"),
        }
        raise WorkflowFailureError(cause=ends.get(last.status) or _error(last.failure))

    async def describe(self) -> Description:
        """How it is."""
        start = self._run.run.start
        return Description(start.run_id, _STATUS[self._run.status], start.type)

    async def query(self, query: Any, *, result_type: type | None = None, **_limits: Any) -> Any:
        """Its answer, after its end as well."""
        definition = workflow._QueryDefinition.from_fn(query) if callable(query) else None
        with aside():
            answer = self._run.run.ask(definition.name or "" if definition else query)
            if not self._run.is_open:
                self._run.run.forget()
        return _converter().from_payloads(
            [answer], [definition.ret_type or object if definition else result_type or object]
        )[0]

    async def execute_update(
        self, update: Any, *told: object, args: Sequence[object] = (), result_type: type | None = None, **_limits: Any
    ) -> Any:
        """Its answer.

        Raises:
            WorkflowUpdateFailedError: It was refused, or the workflow ended before.
        """
        definition = update._defn if callable(update) else None
        update_id, execution = str(uuid.uuid4()), self._run
        if not execution.is_open:
            raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
        with aside():
            name = definition.name or "" if definition else update
            self._server.update(self.id, name, *told, *args, update_id=update_id)
        await self._until(lambda: execution.updates[update_id] is not None or not execution.is_open)
        answer = execution.updates[update_id]
        if answer is None:
            raise WorkflowUpdateFailedError(ApplicationError("it ended", type="AcceptedUpdateCompletedWorkflow"))
        if isinstance(answer, Failure):
            raise WorkflowUpdateFailedError(_error(answer))
        answered = definition.ret_type if definition else result_type
        return _converter().from_payloads([answer], [answered or object])[0]

    async def signal(self, signal: Any, *told: object) -> None:
        """Tell it something."""
        with aside():
            self._server.signal(self.id, workflow._SignalDefinition.must_name_from_fn_or_str(signal), *told)

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():  # noqa: ASYNC110 - a driver that was told something has nobody to tell
            await asyncio.sleep(LOOK_S)

    async def cancel(self) -> None:
        """Ask it to end."""
        with aside():
            self._server.cancel(self.id)

    async def terminate(self) -> None:
        """End it."""
        with aside():
            self._server.terminate(self.id)


def _converter() -> PayloadConverter:
    return pydantic_data_converter.payload_converter


def _error(failure: Failure | None) -> BaseException:
    assert failure
    return pydantic_data_converter.failure_converter.from_failure(failure, _converter())
