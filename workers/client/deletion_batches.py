"""Batches of deletions at work, under an operator's hand: looked at, paused, resumed, slowed down."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from logstore.deletion.intents import Outcome
from logstore.errors import InvalidInput, PreconditionFailed, ServiceFailed, UnknownObject
from logstore.ports.catalog import Deletions
from workflows.deletion.values import DELETE_LEDGERS, DeleteLedgersProgress, SetRate
from workflows.reconciliation.values import APPLY_ORPHANS, ApplyOrphansProgress

_TYPE: Final = DELETE_LEDGERS.name
_APPLY: Final = APPLY_ORPHANS.name
_NOBODY_ANSWERED: Final = {
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.FAILED_PRECONDITION,  # "no poller seen for task queue recently": what a query is told
}
_ENDED: Final = {"AcceptedUpdateCompletedWorkflow", "PreconditionFailed"}  # the second: the catalog calls it finished
_ANSWERED_WITHIN: Final = timedelta(seconds=30)  # by a worker, which may be draining or starting

Batch = WorkflowHandle[Any, Any]
Progress = DeleteLedgersProgress | ApplyOrphansProgress
Release = Callable[[str], DeleteLedgersProgress | None]
_ANSWER: Final[dict[str, type[Progress]]] = {_TYPE: DeleteLedgersProgress, _APPLY: ApplyOrphansProgress}


class Batches:
    """Batches in one namespace, by the ids of their workflows; the apply of a plan is one, of batches in turn.

    Every method may raise:
        UnknownObject: There is no such workflow.
        InvalidInput: It is no batch of deletions.
        PreconditionFailed: It is not running any more.
        ServiceFailed: No worker answered.
    """

    def __init__(self, client: Client, release: Release = lambda _: None) -> None:
        """Ask with this client.

        Args:
            client: Of the namespace.
            release: Lets go of a paused batch whose workflow is gone, by its id, and says what is left of it; None of
                any other.
        """
        self._client = client
        self._release = release

    async def progress(self, workflow_id: str) -> Progress:
        """How far it is."""
        batch, answer = await self._running(workflow_id)
        asked = batch.query("progress", result_type=answer, rpc_timeout=_ANSWERED_WITHIN)
        return await _answered(workflow_id, asked)

    async def pause(self, workflow_id: str) -> Progress:
        """Start no chunk of it any more; no page of an apply."""
        return await self._update(workflow_id, "pause")

    async def resume(self, workflow_id: str) -> Progress:
        """Go on with it; the rows of a paused batch whose workflow is gone are left to the next sweep."""
        try:
            await self._running(workflow_id)
        except (PreconditionFailed, UnknownObject):
            left = await asyncio.to_thread(self._release, workflow_id.removeprefix(f"{_TYPE}/"))
            if left is None:
                raise
            return left
        return await self._update(workflow_id, "resume")

    async def set_rate(self, workflow_id: str, objects_per_s: int) -> Progress:
        """Delete no faster than that from its next slice or page on; 0: unlimited."""
        return await self._update(workflow_id, "set_rate", SetRate(objects_per_s=objects_per_s))

    async def _update(self, workflow_id: str, name: str, *args: object) -> Progress:
        batch, answer = await self._running(workflow_id)
        update = batch.execute_update(name, args=args, result_type=answer, rpc_timeout=_ANSWERED_WITHIN)
        return await _answered(workflow_id, update)

    async def _running(self, workflow_id: str) -> tuple[Batch, type[Progress]]:
        handle: Batch = self._client.get_workflow_handle(workflow_id)
        try:
            found = await handle.describe()
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                expected = f"the id of a batch, {_TYPE}/…, as `sexton workflow list --type {_TYPE}` shows it"
                raise UnknownObject("workflow", expected=expected, found=workflow_id) from error
            raise
        answer = _ANSWER.get(found.workflow_type)
        if answer is None:
            what = f"{workflow_id}, a {found.workflow_type}"
            raise InvalidInput("workflow", expected=f"a {_TYPE} or {_APPLY} workflow", found=what)
        if found.status is not WorkflowExecutionStatus.RUNNING:
            raise _over(workflow_id, found.status.name if found.status else "that it is gone")
        return handle, answer


def released(deletions: Deletions, batch_id: str) -> DeleteLedgersProgress | None:
    """Leave the rows of a paused batch without a workflow to the next sweep; its progress, or None for another one."""
    if not deletions.release(batch_id):
        return None
    found = deletions.tally(batch_id)
    rows, left = sum(found.outcomes.values()), found.outcomes.get(Outcome.RETRYING.value, 0)
    return DeleteLedgersProgress(
        intents=rows,
        done=rows - left,
        left=left,
        outcomes=dict(found.outcomes),
        objects=found.objects,
        size_bytes=found.size_bytes,
    )


async def _answered(workflow_id: str, asked: Awaitable[Progress]) -> Progress:
    """The answer.

    Raises:
        PreconditionFailed: The batch ended meanwhile.
        ServiceFailed: No worker answered in time; the server keeps what was asked and may still hand it to one.
        ApplicationError: A worker refused, of type `InvalidInput`.
    """
    before = _cancellations()
    try:
        async with asyncio.timeout(_ANSWERED_WITHIN.total_seconds()):
            return await asked  # the SDK asks again, without end, when the server answers that no worker took it
    except WorkflowUpdateFailedError as error:
        if _type(error.cause) in _ENDED:
            raise _over(workflow_id, "that it ended") from error
        raise
    except (WorkflowUpdateRPCTimeoutOrCancelledError, RPCError, TimeoutError) as error:
        if _cancellations() > before:  # the SDK has one error for this and for a server's silence
            raise asyncio.CancelledError from error
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            raise _over(workflow_id, "that it ended") from error
        silent = not isinstance(error, RPCError) or error.status in _NOBODY_ANSWERED
        if not silent:
            raise
        advice = "run `sexton worker run`; what was asked may yet be done when one answers"
        raise ServiceFailed("worker", f"none answered for {workflow_id}", advice=advice) from error


def _type(cause: BaseException | None) -> str | None:
    """Of what an update failed with, whether the workflow raised it or an activity of it."""
    inner = cause.cause if isinstance(cause, ActivityError) else cause
    return inner.type if isinstance(inner, ApplicationError) else None


def _cancellations() -> int:
    """How many have asked the present task to stop, and did not take it back."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _over(workflow_id: str, found: str) -> PreconditionFailed:
    return PreconditionFailed(f"{workflow_id}: expected a batch that is running, found {found}")
