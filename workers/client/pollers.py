"""Which workers poll a task queue now.

Temporal names a poller for five minutes after its last poll. A worker polls at least once a minute, and reports when it
begins to shut down: one that did not poll since, or for longer than that, is gone. One whose slots are all taken does
not poll, for hours where its only slot has a bulk job: it reports that each minute, and counts.

Source: Temporal, `DescribeTaskQueue`, `ListWorkers` and `DescribeWorker` of its API.
"""

import time
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerListInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerRequest,
    ListWorkersRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

_FRESH_S: Final = 90.0  # polls are answered and made anew each minute, and reports as well; a busy machine takes longer
_ANSWER_WITHIN: Final = timedelta(seconds=5)
_ENDED: Final = {WorkerStatus.WORKER_STATUS_SHUTTING_DOWN, WorkerStatus.WORKER_STATUS_SHUTDOWN}
_NOT_TOLD: Final = {RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED}

_Key = tuple[str, str]  # the worker's identity and its build


async def described(client: Client, queue: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
    """Temporal's description of one task queue; its pollers are those of the last five minutes."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    return await client.workflow_service.describe_task_queue(request, timeout=_ANSWER_WITHIN)


async def live_pollers(
    client: Client, queue: str, kind: TaskQueueType.ValueType, *, dead: Collection[str] = ()
) -> Sequence[PollerInfo]:
    """Those that poll the queue now, or have all hands full; identities in `dead` are of processes known to be gone."""
    oldest = time.time() - _FRESH_S
    found = [one for one in (await described(client, queue, kind)).pollers if _polled_at(one) >= oldest]
    polled, ended = {_key(one) for one in found}, dict[_Key, float]()
    async for listed, key in _listed(client, queue):
        has_ended = listed.status in _ENDED
        if has_ended is not (key in polled) or listed.worker_identity in dead:
            continue
        if (report := await _last_report(client, listed)) is None:
            continue
        if has_ended:
            ended[key] = max(_reported_at(report), ended.get(key, 0.0))
        elif _is_busy(report, kind) and _reported_at(report) >= oldest:
            found.append(_busy(listed, report))
    return [one for one in found if one.identity not in dead and _polled_at(one) > ended.get(_key(one), 0.0)]


async def _listed(client: Client, queue: str) -> AsyncIterator[tuple[WorkerListInfo, _Key]]:
    """Workers of the queue that the server remembers, whatever became of them; none where it does not tell them."""
    request = ListWorkersRequest(namespace=client.namespace, query=f"TaskQueue='{queue}'")
    try:
        while True:
            page = await client.workflow_service.list_workers(request, timeout=_ANSWER_WITHIN)
            for one in page.workers:
                yield one, (one.worker_identity, one.deployment_version.build_id)
            if not page.next_page_token:
                return
            request.next_page_token = page.next_page_token
    except RPCError as error:
        if error.status not in _NOT_TOLD:
            raise


async def _last_report(client: Client, one: WorkerListInfo) -> WorkerHeartbeat | None:
    """None where the server has forgotten it since it was listed, or does not tell it."""
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=one.worker_instance_key)
    try:
        found = await client.workflow_service.describe_worker(request, timeout=_ANSWER_WITHIN)
    except RPCError as error:
        if error.status in _NOT_TOLD:
            return None
        raise
    return found.worker_info.worker_heartbeat


def _is_busy(report: WorkerHeartbeat, kind: TaskQueueType.ValueType) -> bool:
    """Whether each of its slots for such tasks is taken: it polls again once one is free."""
    of_activities = kind == TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    slots = report.activity_task_slots_info if of_activities else report.workflow_task_slots_info
    return slots.current_used_slots > 0 and slots.current_available_slots == 0


def _busy(listed: WorkerListInfo, report: WorkerHeartbeat) -> PollerInfo:
    """A worker that has no hand free to poll, as one that polled when it reported."""
    version = listed.deployment_version
    options = WorkerDeploymentOptions(deployment_name=version.deployment_name, build_id=version.build_id)
    return PollerInfo(
        identity=listed.worker_identity, last_access_time=report.heartbeat_time, deployment_options=options
    )


def _reported_at(report: WorkerHeartbeat) -> float:
    return report.heartbeat_time.ToNanoseconds() / 1e9


def _polled_at(one: PollerInfo) -> float:
    return one.last_access_time.ToNanoseconds() / 1e9


def _key(one: PollerInfo) -> _Key:
    return one.identity, one.deployment_options.build_id
