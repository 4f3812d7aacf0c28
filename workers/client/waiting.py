"""Waiting for a job: what is waited for, why nothing moves, and what to do.

A job that no worker serves, whose task fails again and again, or that was paused, waits for ever and says nothing. A
command that waits for it here says within seconds why.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
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

from logstore.deletion.intents import Refusal
from logstore.errors import SextonError
from workers.client.serving import why_not_taken
from workflows.delayed.values import BUILD_DELAYED_INDEX
from workflows.deletion.values import DELETE_LEDGERS
from workflows.offload.values import OFFLOAD_TOPIC
from workflows.reconciliation.values import APPLY_ORPHANS, RECONCILE_ORPHANS, SCRUB_LEDGERS
from workflows.records.values import DEFRAGMENT_RECORDS, FLUSH_RECORDS, RAID_TOMBSTONES, REPLICATE_RECORDS
from workflows.transactions.values import BUILD_TRANSACTION_SNAPSHOTS

Say = Callable[[str], None]

PATIENCE_S: Final = 10.0
"""For so long nothing has to move before it is said why."""

_LOOK_EVERY_S: Final = 2.0
_NEWEST: Final = 20  # events; of those that move nothing, the server writes a handful before it writes none
_UNMOVED: Final = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
}
_DEEPEST: Final = 3  # a trim, its batch, and what the batch hands over
_MOST_CHILDREN: Final = 10  # looked at of one job
_ANSWERED_WITHIN_S: Final = 2.0  # by a worker, to a query
_SAYS_NOTHING: Final = {f"{what}{how}" for what in ("", "workflow ") for how in ("terminated", "cancelled", "canceled")}
_LEFT: Final = {
    OFFLOAD_TOPIC.name: "what was copied stays copied; ask for the rest again",
    RECONCILE_ORPHANS.name: "it has changed nothing; plan again",
    BUILD_TRANSACTION_SNAPSHOTS.name: "snapshots that it has switched to stay; ask for the rest again",
    BUILD_DELAYED_INDEX.name: "buckets that it has switched to stay; ask for the rest again",
    FLUSH_RECORDS.name: "what it had flushed stays flushed; ask for the rest again",
    DEFRAGMENT_RECORDS.name: "what it had published stays; ask for the rest again",
    RAID_TOMBSTONES.name: "tombstones that it had removed are gone; ask for the rest again",
    REPLICATE_RECORDS.name: "blocks that it had copied stay copied; ask for the rest again",
    SCRUB_LEDGERS.name: "it has changed nothing; scrub the same topics again, and it goes on where it was",
    APPLY_ORPHANS.name: "what it had filed goes on by itself; apply the same plan again for the rest",
}
_PAUSABLE: Final = {DELETE_LEDGERS.name, APPLY_ORPHANS.name, SCRUB_LEDGERS.name}
_STARTS_SPARK: Final = ", a worker's first one starts Spark"
_SLOW: Final = dict.fromkeys(("reconciliation.run_bulk", "reconciliation.cut_scrub"), _STARTS_SPARK)
_SWEPT: Final = "what it had detached stays listed, and the next sweep takes it up (`sexton deletion sweep`)"


class JobStopped(SextonError):
    """The job that was waited for was terminated or cancelled."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One job, a moment ago."""

    id: str
    kind: str
    queue: str
    found: DescribeWorkflowExecutionResponse
    moved: int  # the newest event of which a worker that is stopped could not be the cause

    def progress(self) -> tuple[object, ...]:
        """Differs once anything has moved; that a task is handed out, and its time is over, moves nothing."""
        beats = [(one.activity_id, str(one.heartbeat_details)) for one in self.found.pending_activities]
        return self.id, self.found.workflow_execution_info.execution.run_id, self.moved, *beats

    def versioning(self) -> WorkflowExecutionVersioningInfo:
        """The build that it runs on, and whether it is pinned there."""
        return self.found.workflow_execution_info.versioning_info


async def result_of(
    client: Client,
    handle: WorkflowHandle[Any, Any],
    say: Say,
    *,
    patience_s: float = PATIENCE_S,
    look_every_s: float = _LOOK_EVERY_S,
) -> Any:  # noqa: ANN401 - the workflow's own result type
    """The job's result; meanwhile `say` is told what is waited for and, once nothing moves, why and what to do.

    Raises:
        JobStopped: It was terminated or cancelled, or a job that it waited for was.
        WorkflowFailureError: It failed, or a guard refused; its cause has the error's name as its type.
    """
    watch = asyncio.create_task(_watch(client, handle.id, say, patience_s, look_every_s))
    try:
        return _unless_refused(await handle.result())
    except WorkflowFailureError as error:
        stopped = _stopped(handle.id, error)
        if stopped is None:
            raise
        raise JobStopped(stopped) from error
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def _unless_refused(result: Any) -> Any:  # noqa: ANN401 - the workflow's own result type
    """Raise what a guard refused as the failure that it is to the caller; the workflow itself completed."""
    refusal = getattr(result, "refused", None)
    if isinstance(refusal, Refusal):
        told = ApplicationError(refusal.message, *refusal.details, type=refusal.type, non_retryable=True)
        raise WorkflowFailureError(cause=told)
    return result


def _stopped(workflow_id: str, error: WorkflowFailureError) -> str | None:
    """The sentence of one that was stopped by hand."""
    cause: BaseException | None = error.cause
    stopped, at = workflow_id, cause
    while isinstance(at, ChildWorkflowError | ApplicationError):  # a run says its child's failure as its own
        stopped = at.workflow_id if isinstance(at, ChildWorkflowError) else stopped
        at = at.cause
    if not isinstance(at, TerminatedError | CancelledError):
        return None
    done = "terminated" if isinstance(at, TerminatedError) else "cancelled"
    why = f" ({at.message})" if at.message and at.message.lower() not in _SAYS_NOTHING else ""
    through = "" if stopped == workflow_id else f", for which {workflow_id} waited,"
    return f"{stopped}{through} was {done}{why}; {_LEFT.get(workflow_id.partition('/')[0], _SWEPT)}"


async def _watch(client: Client, workflow_id: str, say: Say, patience_s: float, look_every_s: float) -> None:
    clock = asyncio.get_running_loop().time
    seen: object = None
    since, told, begun = clock(), "", False
    while True:
        try:
            if not begun:
                say(await _joined(client, workflow_id))
                begun = True
            looks = [look async for look in _tree(client, workflow_id, _DEEPEST)]
            now = tuple(look.progress() for look in looks)
            if now != seen:
                seen, since, told = now, clock(), ""
            elif clock() - since >= patience_s:
                reasons = [reason for look in looks if (reason := await _reason(client, look))]
                text = f"nothing has moved for {patience_s:.0f} s: " + ("; ".join(reasons) or "no reason is known")
                if text != told:
                    say(text)
                    told = text
        except RPCError:  # awaiting the result raises it too
            begun = True
        await asyncio.sleep(look_every_s)


async def _joined(client: Client, workflow_id: str) -> str:
    """Whether this client started the run, or another one did, and when."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id), maximum_page_size=1
    )
    (first, *_) = (await client.workflow_service.get_workflow_execution_history(request)).history.events
    started = first.workflow_execution_started_event_attributes
    if started.identity == client.identity:
        return f"started {workflow_id}"
    since = f"{first.event_time.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return f"joined {workflow_id}, which has been running since {since}"


async def _tree(client: Client, workflow_id: str, deep: int) -> AsyncIterator[_Look]:
    """The job, and jobs that it waits for."""
    found = (await client.get_workflow_handle(workflow_id).describe()).raw_description
    info = found.workflow_execution_info
    moved = next((one.event_id for one in await _newest(client, info.execution) if one.event_type not in _UNMOVED), 0)
    yield _Look(workflow_id, info.type.name, info.task_queue, found, moved)
    for child in list(found.pending_children)[: _MOST_CHILDREN if deep > 1 else 0]:
        async for look in _tree(client, child.workflow_id, deep - 1):
            yield look


async def _reason(client: Client, look: _Look) -> str | None:
    """Why this job does not move, and what to do; None where it waits for others alone."""
    if look.found.HasField("pending_workflow_task"):
        return await _of_task(client, look)
    for one in look.found.pending_activities:
        return await _of_activity(client, look, one)
    if look.kind in _PAUSABLE and await _paused(client, look.id):
        return f"{look.id} is paused; `sexton deletion resume {look.id}` lets it go on"
    return None


async def _of_task(client: Client, look: _Look) -> str:
    task = look.found.pending_workflow_task
    why = await failure_of_task(client, look.found.workflow_execution_info.execution)
    if task.attempt > 1 and why:
        told = f"the workflow task of {look.id} fails again and again (attempt {task.attempt}): {why}"
        stop = f"`temporal workflow terminate --workflow-id {look.id}`"
        return f"{told}; the worker's log says where; it goes on once a worker can do it, or stop it with {stop}"
    return f"the workflow task of {look.id} waits: " + await why_not_taken(
        client, look.id, look.versioning(), look.queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    )


async def failure_of_task(client: Client, run: WorkflowExecution) -> str:
    """Return the newest failure of a workflow task among the newest events of a run; "" if there is none."""
    failed = [event.workflow_task_failed_event_attributes for event in await _newest(client, run)]
    return next((innermost(task.failure) for task in failed if task.HasField("failure")), "")


async def _of_activity(client: Client, look: _Look, one: PendingActivityInfo) -> str:
    name = f"activity {one.activity_type.name} of {look.id}"
    if one.paused:
        return f"{name} is paused; `temporal activity unpause --workflow-id {look.id} --activity-id {one.activity_id}`"
    lost = one.last_failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    if one.HasField("last_failure") and not lost:
        sentence = innermost(one.last_failure)
        return f"{name} is tried again and again (attempt {one.attempt}): {sentence}; it goes on once that is mended"
    before = f", after attempt {one.attempt - 1} lost its worker" if lost else ""
    if one.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
        return f"{name} is being done{_by_worker(one)}{before}; wait for it{_until_noticed(one)}"
    queue = one.activity_options.task_queue.name or look.queue
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    return f"{name} waits{before}: " + await why_not_taken(client, look.id, look.versioning(), queue, kind)


def _by_worker(one: PendingActivityInfo) -> str:
    worker = f" by {one.last_worker_identity}" if one.last_worker_identity else ""
    since = f", since {one.last_started_time.ToDatetime():%H:%M:%S} UTC" if one.HasField("last_started_time") else ""
    return f"{worker}{since}"


def _until_noticed(one: PendingActivityInfo) -> str:
    """What may take long, and when it would be found out that the worker is gone."""
    slow = _SLOW.get(one.activity_type.name, "")
    silent_s = one.activity_options.heartbeat_timeout.ToSeconds()
    taken = f"; if that worker is lost, another one takes it up after {silent_s} s of silence" if silent_s else ""
    return f"{slow}{taken}"


async def _newest(client: Client, run: WorkflowExecution) -> Sequence[HistoryEvent]:
    """Events of the run, the last one first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=run, maximum_page_size=_NEWEST
    )
    return (await client.workflow_service.get_workflow_execution_history_reverse(request)).history.events


def innermost(failure: Failure) -> str:
    """The failure that was the cause of all, with its type."""
    while failure.HasField("cause"):
        failure = failure.cause
    kind = failure.application_failure_info.type
    return f"{kind}: {failure.message}" if kind else failure.message


async def _paused(client: Client, workflow_id: str) -> bool:
    """Whether the job is; one that does not answer is not known to be."""
    try:
        async with asyncio.timeout(_ANSWERED_WITHIN_S):
            found = await client.get_workflow_handle(workflow_id).query("progress")
            return bool(found["paused"])
    except (RPCError, TimeoutError):
        return False
