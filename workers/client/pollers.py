"""Which workers poll a task queue now.

Temporal names a poller for five minutes after its last poll. A worker polls at least once a minute, and reports when it
begins to shut down: one that did not poll since, or for longer than that, is gone.

Source: Temporal, `DescribeTaskQueue`, `ListWorkers` and `DescribeWorker` of its API.
"""

import time
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerListInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerRequest,
    ListWorkersRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

_FRESH_S: Final = 90.0  # an idle poll is answered and made anew each minute; a busy machine takes longer
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
    """Those that poll the queue now; identities in `dead` are of processes that are known to be gone."""
    oldest = time.time() - _FRESH_S
    polled = (await described(client, queue, kind)).pollers
    fresh = [one for one in polled if _polled_at(one) >= oldest and one.identity not in dead]
    keys = {_key(one) for one in fresh}
    ended: dict[_Key, float] = {}
    async for key, at in _ended(client, queue, keys):
        ended[key] = max(at, ended.get(key, at))
    return [one for one in fresh if _polled_at(one) > ended.get(_key(one), 0.0)]


async def _ended(client: Client, queue: str, keys: Collection[_Key]) -> AsyncIterator[tuple[_Key, float]]:
    """When workers of the queue began to shut down, in seconds since 1970; none where the server does not tell it."""
    request = ListWorkersRequest(namespace=client.namespace, query=f"TaskQueue='{queue}'")
    try:
        while keys:
            page = await client.workflow_service.list_workers(request, timeout=_ANSWER_WITHIN)
            for one in page.workers:
                key = one.worker_identity, one.deployment_version.build_id
                if one.status in _ENDED and key in keys and (at := await _last_reported_at(client, one)):
                    yield key, at
            if not page.next_page_token:
                return
            request.next_page_token = page.next_page_token
    except RPCError as error:
        if error.status not in _NOT_TOLD:
            raise


async def _last_reported_at(client: Client, one: WorkerListInfo) -> float | None:
    """None where the server has forgotten it since it was listed; of the others it still knows."""
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=one.worker_instance_key)
    try:
        found = await client.workflow_service.describe_worker(request, timeout=_ANSWER_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return found.worker_info.worker_heartbeat.heartbeat_time.ToNanoseconds() / 1e9


def _polled_at(one: PollerInfo) -> float:
    return one.last_access_time.ToNanoseconds() / 1e9


def _key(one: PollerInfo) -> _Key:
    return one.identity, one.deployment_options.build_id
