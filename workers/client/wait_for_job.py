"""Waiting for a job, with messages that explain within seconds why the job does not move and what to do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    EventType,
    PendingActivityState,
    TaskQueueType,
    TimeoutType,
)
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo, WorkflowExecutionVersioningInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, TerminatedError
from temporalio.service import RPCError

from logstore.deletion.intents import RequestRefusal
from logstore.errors import SextonError
from workers.client.task_queue_pollers import explain_waiting_task
from workflows.jobs import JOB_BY_NAME

Say = Callable[[str], None]

PATIENCE_S: Final = 10.0
"""Time without progress after which a message explains why the job does not move."""

_CHECK_INTERVAL_S: Final = 2.0
_MAX_EVENTS: Final = 20  # newest events that are read, because the server writes only a few idle events in a row
_IDLE_EVENT_TYPES: Final = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
}
_MAX_DEPTH: Final = 3  # levels of child workflows, as a trim, its batch, and the `delete-ledger` workflows of the batch
_MAX_CHILDREN_PER_JOB: Final = 10
_QUERY_TIMEOUT_S: Final = 2.0
_EMPTY_REASONS: Final = {
    f"{subject}{verb}" for subject in ("", "workflow ") for verb in ("terminated", "cancelled", "canceled")
}
_STARTS_SPARK: Final = ", a worker's first one starts Spark"
_NOTE_BY_ACTIVITY: Final = dict.fromkeys(
    ("reconciliation.run_bulk", "reconciliation.cut_scrub", "pulsar.run_bulk"), _STARTS_SPARK
)


class JobStopped(SextonError):
    """Termination or cancellation of the job, or of a job that it waited for."""


@dataclass(frozen=True, slots=True)
class _JobSnapshot:
    id: str
    workflow_type: str
    queue: str
    description: DescribeWorkflowExecutionResponse
    last_moving_event_id: int  # newest event that shows that the job moves

    def progress_fingerprint(self) -> tuple[object, ...]:
        """Return a value that changes when the job moves. The start or timeout of a task does not change the value."""
        heartbeats = [
            (activity.activity_id, str(activity.heartbeat_details)) for activity in self.description.pending_activities
        ]
        run_id = self.description.workflow_execution_info.execution.run_id
        return self.id, run_id, self.last_moving_event_id, *heartbeats

    def versioning(self) -> WorkflowExecutionVersioningInfo:
        return self.description.workflow_execution_info.versioning_info


async def wait_for_result(
    client: Client,
    handle: WorkflowHandle[Any, Any],
    say: Say,
    *,
    patience_s: float = PATIENCE_S,
    check_interval_s: float = _CHECK_INTERVAL_S,
) -> Any:  # noqa: ANN401 - the workflow's own result type
    """Wait for the job and return its result. `say` receives progress messages.

    The cause of a `WorkflowFailureError` has the name of Sexton's error as its `type`.
    """
    report = asyncio.create_task(_report_start_and_standstill(client, handle.id, say, patience_s, check_interval_s))
    try:
        return _raise_if_refused(await handle.result())
    except WorkflowFailureError as error:
        explanation = _explain_termination(handle.id, error)
        if explanation is None:
            raise
        raise JobStopped(explanation) from error
    finally:
        report.cancel()
        await asyncio.gather(report, return_exceptions=True)


def _raise_if_refused(result: Any) -> Any:  # noqa: ANN401 - the workflow's own result type
    refusal = getattr(result, "refused", None)
    if isinstance(refusal, RequestRefusal):
        cause = ApplicationError(refusal.message, *refusal.details, type=refusal.type, non_retryable=True)
        raise WorkflowFailureError(cause=cause)
    return result


def _explain_termination(workflow_id: str, error: WorkflowFailureError) -> str | None:
    cause: BaseException | None = error.cause
    stopped_id = workflow_id
    # A job fails with the failure of its child workflow.
    while isinstance(cause, ChildWorkflowError | ApplicationError):
        stopped_id = cause.workflow_id if isinstance(cause, ChildWorkflowError) else stopped_id
        cause = cause.cause
    if not isinstance(cause, TerminatedError | CancelledError):
        return None
    verb = "terminated" if isinstance(cause, TerminatedError) else "cancelled"
    reason = f" ({cause.message})" if cause.message and cause.message.lower() not in _EMPTY_REASONS else ""
    parent = "" if stopped_id == workflow_id else f", for which {workflow_id} waited,"
    return f"{stopped_id}{parent} was {verb}{reason}; {JOB_BY_NAME[workflow_id.partition('/')[0]].advice_after_stop}"


async def _report_start_and_standstill(
    client: Client, workflow_id: str, say: Say, patience_s: float, check_interval_s: float
) -> None:
    clock = asyncio.get_running_loop().time
    last_progress: object = None
    last_moved_at, last_text, has_reported_start = clock(), "", False
    while True:
        try:
            if not has_reported_start:
                say(await _describe_start_or_join(client, workflow_id))
                has_reported_start = True
            jobs = [job async for job in _iterate_snapshots(client, workflow_id, _MAX_DEPTH)]
            progress = tuple(job.progress_fingerprint() for job in jobs)
            if progress != last_progress:
                last_progress, last_moved_at, last_text = progress, clock(), ""
            elif clock() - last_moved_at >= patience_s:
                reasons = [reason for job in jobs if (reason := await _find_standstill_reason(client, job))]
                text = f"nothing has moved for {patience_s:.0f} s: " + ("; ".join(reasons) or "no reason is known")
                if text != last_text:
                    say(text)
                    last_text = text
        except RPCError:
            pass  # if Temporal does not recover, the wait for the result raises this error, too
        await asyncio.sleep(check_interval_s)


async def _describe_start_or_join(client: Client, workflow_id: str) -> str:
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id), maximum_page_size=1
    )
    (first, *_) = (await client.workflow_service.get_workflow_execution_history(request, retry=True)).history.events
    started = first.workflow_execution_started_event_attributes
    if started.identity == client.identity:
        return f"started {workflow_id}"
    since = f"{first.event_time.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return f"joined {workflow_id}, which has been running since {since}"


async def _iterate_snapshots(client: Client, workflow_id: str, max_depth: int) -> AsyncIterator[_JobSnapshot]:
    description = (await client.get_workflow_handle(workflow_id).describe()).raw_description
    info = description.workflow_execution_info
    events = await _fetch_newest_events(client, info.execution)
    moving_event_ids = (event.event_id for event in events if event.event_type not in _IDLE_EVENT_TYPES)
    yield _JobSnapshot(workflow_id, info.type.name, info.task_queue, description, next(moving_event_ids, 0))
    for child in list(description.pending_children)[: _MAX_CHILDREN_PER_JOB if max_depth > 1 else 0]:
        async for job in _iterate_snapshots(client, child.workflow_id, max_depth - 1):
            yield job


async def _find_standstill_reason(client: Client, job: _JobSnapshot) -> str | None:
    if job.description.HasField("pending_workflow_task"):
        return await _explain_workflow_task(client, job)
    for activity in job.description.pending_activities:
        return await _explain_activity(client, job, activity)
    definition = JOB_BY_NAME.get(job.workflow_type)
    progress = await _query_progress(client, job.id) if definition and definition.explains_waits else {}
    if progress.get("paused"):
        return f"{job.id} is paused; `sexton deletion resume {job.id}` lets it go on"
    step = str(progress.get("step", ""))
    return f"{job.id} is {step}" if step.startswith("waiting") else None


async def _explain_workflow_task(client: Client, job: _JobSnapshot) -> str:
    task = job.description.pending_workflow_task
    failure = await find_workflow_task_failure(client, job.description.workflow_execution_info.execution)
    if task.attempt > 1 and failure:
        problem = f"the workflow task of {job.id} fails again and again (attempt {task.attempt}): {failure}"
        stop = f"`temporal workflow terminate --workflow-id {job.id}`"
        return f"{problem}; the worker's log says where; it goes on once a worker can do it, or stop it with {stop}"
    return f"the workflow task of {job.id} waits: " + await explain_waiting_task(
        client, job.id, job.versioning(), job.queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    )


async def find_workflow_task_failure(client: Client, run: WorkflowExecution) -> str:
    """Return the newest failure of a workflow task among a run's newest events, or ""."""
    failures = [event.workflow_task_failed_event_attributes for event in await _fetch_newest_events(client, run)]
    return next((format_innermost_failure(event.failure) for event in failures if event.HasField("failure")), "")


async def _explain_activity(client: Client, job: _JobSnapshot, activity: PendingActivityInfo) -> str:
    name = f"activity {activity.activity_type.name} of {job.id}"
    if activity.paused:
        ids = f"--workflow-id {job.id} --activity-id {activity.activity_id}"
        return f"{name} is paused; `temporal activity unpause {ids}`"
    has_lost_worker = activity.last_failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    if activity.HasField("last_failure") and not has_lost_worker:
        failure = format_innermost_failure(activity.last_failure)
        return (
            f"{name} is tried again and again (attempt {activity.attempt}): {failure}; it goes on once that is mended"
        )
    lost_attempt = f", after attempt {activity.attempt - 1} lost its worker" if has_lost_worker else ""
    if activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
        attempt, takeover = _describe_attempt(activity), _describe_takeover(activity)
        return f"{name} is being done{attempt}{lost_attempt}; wait for it{takeover}"
    queue = activity.activity_options.task_queue.name or job.queue
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    return f"{name} waits{lost_attempt}: " + await explain_waiting_task(client, job.id, job.versioning(), queue, kind)


def _describe_attempt(activity: PendingActivityInfo) -> str:
    worker = f" by {activity.last_worker_identity}" if activity.last_worker_identity else ""
    if not activity.HasField("last_started_time"):
        return worker
    return f"{worker}, since {activity.last_started_time.ToDatetime():%H:%M:%S} UTC"


def _describe_takeover(activity: PendingActivityInfo) -> str:
    note = _NOTE_BY_ACTIVITY.get(activity.activity_type.name, "")
    timeout_s = activity.activity_options.heartbeat_timeout.ToSeconds()
    takeover = f"; if that worker is lost, another one takes it up after {timeout_s} s of silence" if timeout_s else ""
    return f"{note}{takeover}"


async def _fetch_newest_events(client: Client, run: WorkflowExecution) -> Sequence[HistoryEvent]:
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=run, maximum_page_size=_MAX_EVENTS
    )
    return (await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)).history.events


def format_innermost_failure(failure: Failure) -> str:
    while failure.HasField("cause"):
        failure = failure.cause
    failure_type = failure.application_failure_info.type
    return f"{failure_type}: {failure.message}" if failure_type else failure.message


async def _query_progress(client: Client, workflow_id: str) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT_S):
            progress: Mapping[str, Any] = await client.get_workflow_handle(workflow_id).query("progress")
            return progress
    except (RPCError, TimeoutError):
        return {}
