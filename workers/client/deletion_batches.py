"""Control of running deletion batches: progress, pause, resume and rate."""

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

from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.deletion.intents import Outcome
from logstore.errors import InvalidInput, PreconditionFailed, ServiceFailed, UnknownObject
from workflows.deletion.job_definitions import DELETE_LEDGERS, DeleteLedgersProgress, SetRateInput
from workflows.pulsar.job_definitions import APPLY_PULSAR
from workflows.reconciliation.job_definitions import APPLY_ORPHANS, ApplyOrphansProgress

_DELETE_LEDGERS_TYPE: Final = DELETE_LEDGERS.name
_APPLY_ORPHANS_TYPE: Final = APPLY_ORPHANS.name
_NO_ANSWER_STATUSES: Final = {
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.FAILED_PRECONDITION,  # status of a query without workers: "no poller seen for task queue recently"
}
# Types of failures of an update of an ended batch. `PreconditionFailed`: the catalog has closed the batch.
_BATCH_ENDED_TYPES: Final = {"AcceptedUpdateCompletedWorkflow", "PreconditionFailed"}
_ANSWER_TIMEOUT: Final = timedelta(seconds=30)  # long enough for a worker that is starting or draining

BatchHandle = WorkflowHandle[Any, Any]
BatchProgress = DeleteLedgersProgress | ApplyOrphansProgress
ReleasePausedBatch = Callable[[str], DeleteLedgersProgress | None]
_PROGRESS_CLASS_BY_TYPE: Final[dict[str, type[BatchProgress]]] = {
    _DELETE_LEDGERS_TYPE: DeleteLedgersProgress,
    _APPLY_ORPHANS_TYPE: ApplyOrphansProgress,
    APPLY_PULSAR.name: ApplyOrphansProgress,
}


class DeletionBatchControl:
    """Control of running batches by workflow id. A workflow that applies a plan counts as a batch.

    `release` takes the id of a paused batch without a workflow, ends the pause, and returns the batch's progress. For
    any other batch, it changes nothing and returns `None`.

    Every method may raise:
        UnknownObject: The workflow does not exist.
        InvalidInput: The workflow is not a batch of deletions.
        PreconditionFailed: The batch is not running.
        ServiceFailed: No worker answered in 30 s.
    """

    def __init__(self, client: Client, release: ReleasePausedBatch = lambda _: None) -> None:
        self._client = client
        self._release = release

    async def progress(self, workflow_id: str) -> BatchProgress:
        batch, progress_class = await self._require_running(workflow_id)
        query = batch.query("progress", result_type=progress_class, rpc_timeout=_ANSWER_TIMEOUT)
        return await _await_worker_answer(workflow_id, query)

    async def pause(self, workflow_id: str) -> BatchProgress:
        """Start no further chunk of the batch, or no further page of an apply, until `resume`."""
        return await self._update(workflow_id, "pause")

    async def resume(self, workflow_id: str) -> BatchProgress:
        """Continue the batch. If a paused batch has no workflow, the next sweep continues the batch."""
        try:
            await self._require_running(workflow_id)
        except (PreconditionFailed, UnknownObject):
            progress = await asyncio.to_thread(self._release, workflow_id.removeprefix(f"{_DELETE_LEDGERS_TYPE}/"))
            if progress is None:
                raise
            return progress
        return await self._update(workflow_id, "resume")

    async def set_rate(self, workflow_id: str, objects_per_s: int) -> BatchProgress:
        """Limit the deletion rate; 0 is unlimited. A batch obeys in half a minute, an apply from its next page on."""
        return await self._update(workflow_id, "set_rate", SetRateInput(objects_per_s=objects_per_s))

    async def _update(self, workflow_id: str, name: str, *args: object) -> BatchProgress:
        batch, progress_class = await self._require_running(workflow_id)
        update = batch.execute_update(name, args=args, result_type=progress_class, rpc_timeout=_ANSWER_TIMEOUT)
        return await _await_worker_answer(workflow_id, update)

    async def _require_running(self, workflow_id: str) -> tuple[BatchHandle, type[BatchProgress]]:
        handle: BatchHandle = self._client.get_workflow_handle(workflow_id)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                listing = f"`sexton workflow list --type {_DELETE_LEDGERS_TYPE}`"
                expected = f"the id of a batch, {_DELETE_LEDGERS_TYPE}/…, as {listing} shows it"
                raise UnknownObject("workflow", expected=expected, found=workflow_id) from error
            raise
        progress_class = _PROGRESS_CLASS_BY_TYPE.get(description.workflow_type)
        if progress_class is None:
            expected = f"a workflow of type {', '.join(_PROGRESS_CLASS_BY_TYPE)}"
            found = f"{workflow_id}, a {description.workflow_type}"
            raise InvalidInput("workflow", expected=expected, found=found)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            raise _batch_not_running(workflow_id, description.status.name if description.status else "that it is gone")
        return handle, progress_class


def release_paused_batch(deletions: PhaseTwoQueue, batch_id: str) -> DeleteLedgersProgress | None:
    if not deletions.release_paused_batch(batch_id):
        return None
    tally = deletions.tally_batch(batch_id)
    rows, remaining_rows = sum(tally.outcomes.values()), tally.outcomes.get(Outcome.RETRYING.value, 0)
    return DeleteLedgersProgress(
        intents=rows,
        done=rows - remaining_rows,
        left=remaining_rows,
        outcomes=dict(tally.outcomes),
        objects=tally.objects,
        size_bytes=tally.size_bytes,
    )


async def _await_worker_answer(workflow_id: str, request: Awaitable[BatchProgress]) -> BatchProgress:
    """Return the answer of a worker. After `ServiceFailed`, a worker may still carry out the request."""
    requests_before = _count_cancellation_requests()
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT.total_seconds()):
            return await request  # while no worker takes the request, the SDK repeats it forever
    except WorkflowUpdateFailedError as error:
        if _failure_type(error.cause) in _BATCH_ENDED_TYPES:
            raise _batch_not_running(workflow_id, "that it ended") from error
        raise
    except (WorkflowUpdateRPCTimeoutOrCancelledError, RPCError, TimeoutError) as error:
        # The SDK raises the same error for a cancellation and for a server that does not answer.
        if _count_cancellation_requests() > requests_before:
            raise asyncio.CancelledError from error
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            raise _batch_not_running(workflow_id, "that it ended") from error
        if isinstance(error, RPCError) and error.status not in _NO_ANSWER_STATUSES:
            raise
        advice = "run `sexton worker run`; a request that was sent may still be carried out later"
        raise ServiceFailed("worker", f"none answered for {workflow_id}", advice=advice) from error


def _failure_type(cause: BaseException | None) -> str | None:
    inner = cause.cause if isinstance(cause, ActivityError) else cause
    return inner.type if isinstance(inner, ApplicationError) else None


def _count_cancellation_requests() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _batch_not_running(workflow_id: str, status: str) -> PreconditionFailed:
    return PreconditionFailed(f"{workflow_id}: expected a batch that is running, found {status}")
