"""Workers that poll a task queue now, or that have no free slot and therefore do not poll.

Temporal lists a poller for five minutes after its last poll. A worker polls and reports at least once a minute, and
reports its shutdown. A worker is gone if it reported a shutdown after its last poll, or if its last poll is too old.

Source: Temporal's API: `DescribeTaskQueue`, `ListWorkers`, `DescribeWorker`.
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

_MAX_POLL_AGE_S: Final = 90.0  # workers poll and report each minute, but on a busy machine later
_RPC_TIMEOUT: Final = timedelta(seconds=5)
_ENDED_STATUSES: Final = {WorkerStatus.WORKER_STATUS_SHUTTING_DOWN, WorkerStatus.WORKER_STATUS_SHUTDOWN}
_NO_REPORT_STATUSES: Final = {RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED}

_WorkerKey = tuple[str, str]  # identity and build id


async def describe_task_queue(client: Client, queue: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
    """Return Temporal's description of a task queue. It lists the pollers of the last five minutes."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    return await client.workflow_service.describe_task_queue(request, timeout=_RPC_TIMEOUT)


async def list_live_pollers(
    client: Client, queue: str, kind: TaskQueueType.ValueType, *, dead_identities: Collection[str] = ()
) -> Sequence[PollerInfo]:
    """Return the workers that poll the queue now or have no free slot, without those of `dead_identities`."""
    oldest_s = time.time() - _MAX_POLL_AGE_S
    described_pollers = (await describe_task_queue(client, queue, kind)).pollers
    pollers = [poller for poller in described_pollers if _polled_at_s(poller) >= oldest_s]
    polling_keys, ended_at_by_key = {_worker_key(poller) for poller in pollers}, dict[_WorkerKey, float]()
    async for worker, key in _iterate_reporting_workers(client, queue):
        has_ended = worker.status in _ENDED_STATUSES
        if has_ended is not (key in polling_keys) or worker.worker_identity in dead_identities:
            continue
        if (report := await _fetch_last_report(client, worker)) is None:
            continue
        if has_ended:
            ended_at_by_key[key] = max(_reported_at_s(report), ended_at_by_key.get(key, 0.0))
        elif _is_busy(report, kind) and _reported_at_s(report) >= oldest_s:
            pollers.append(_poller_from_report(worker, report))
    return [
        poller
        for poller in pollers
        if poller.identity not in dead_identities
        and _polled_at_s(poller) > ended_at_by_key.get(_worker_key(poller), 0.0)
    ]


async def _iterate_reporting_workers(client: Client, queue: str) -> AsyncIterator[tuple[WorkerListInfo, _WorkerKey]]:
    request = ListWorkersRequest(namespace=client.namespace, query=f"TaskQueue='{queue}'")
    try:
        while True:
            page = await client.workflow_service.list_workers(request, timeout=_RPC_TIMEOUT)
            for worker in page.workers:
                yield worker, (worker.worker_identity, worker.deployment_version.build_id)
            if not page.next_page_token:
                return
            request.next_page_token = page.next_page_token
    except RPCError as error:
        if error.status not in _NO_REPORT_STATUSES:
            raise


async def _fetch_last_report(client: Client, worker: WorkerListInfo) -> WorkerHeartbeat | None:
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=worker.worker_instance_key)
    try:
        response = await client.workflow_service.describe_worker(request, timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status in _NO_REPORT_STATUSES:
            return None
        raise
    return response.worker_info.worker_heartbeat


def _is_busy(report: WorkerHeartbeat, kind: TaskQueueType.ValueType) -> bool:
    is_activity = kind == TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    slots = report.activity_task_slots_info if is_activity else report.workflow_task_slots_info
    return slots.current_used_slots > 0 and slots.current_available_slots == 0


def _poller_from_report(worker: WorkerListInfo, report: WorkerHeartbeat) -> PollerInfo:
    version = worker.deployment_version
    options = WorkerDeploymentOptions(deployment_name=version.deployment_name, build_id=version.build_id)
    return PollerInfo(
        identity=worker.worker_identity, last_access_time=report.heartbeat_time, deployment_options=options
    )


def _reported_at_s(report: WorkerHeartbeat) -> float:
    return report.heartbeat_time.ToNanoseconds() / 1e9


def _polled_at_s(poller: PollerInfo) -> float:
    return poller.last_access_time.ToNanoseconds() / 1e9


def _worker_key(poller: PollerInfo) -> _WorkerKey:
    return poller.identity, poller.deployment_options.build_id
