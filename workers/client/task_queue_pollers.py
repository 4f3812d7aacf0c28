"""Workers that poll a task queue now, or that have no free slot and therefore do not poll; why a task waits there.

Temporal lists a poller for five minutes after its last poll. A worker polls and reports at least once a minute, and
reports its shutdown. A worker is gone if it reported a shutdown after its last poll, or if its last poll is too old.

Source: Temporal's API: `DescribeTaskQueue`, `ListWorkers`, `DescribeWorker`; Temporal, "Worker Versioning".
"""

import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, VersioningBehavior, WorkerStatus, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerListInfo
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
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
_START_WORKER_ADVICE: Final = "start one with `sexton worker run`, or `sexton up`"
_Build = tuple[str, str]  # deployment and build id


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


async def explain_waiting_task(
    client: Client,
    workflow_id: str,
    versioning: WorkflowExecutionVersioningInfo,
    queue: str,
    kind: TaskQueueType.ValueType,
) -> str:
    """Return why no worker has taken the waiting task of a job, and what to do."""
    response = await describe_task_queue(client, queue, kind)
    current, pollers = response.versioning_info.current_deployment_version, response.pollers
    if current.build_id:  # without an id, the queue is unversioned, or no build was current yet
        live_builds = {_build_of_poller(poller) for poller in await list_live_pollers(client, queue, kind)}
        is_pinned = versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
        build = versioning.deployment_version if is_pinned else current
        if (build.deployment_name, build.build_id) not in live_builds:
            if is_pinned:
                return (
                    f"{workflow_id} is pinned to build {build.build_id} of {build.deployment_name}, and no worker of"
                    f" it polls the task queue {queue}; start one of that build"
                )
            return _explain_missing_current_build(current, queue, live_builds)
    if not pollers:
        return f"no worker polls the task queue {queue}; {_START_WORKER_ADVICE}"
    builds = _list_versioned_builds(pollers)
    if builds and not current.build_id:
        deployment, build_id = builds[-1]
        return (
            f"no build of {deployment} is current, though workers of {build_id} poll the task queue {queue}: only a"
            f" current build gets new work; `sexton worker deploy --build-id {build_id}`"
        )
    names = ", ".join(sorted({poller.identity for poller in pollers})[:3])
    return (
        f"nobody has picked it up from the task queue {queue}, though {names} polled it a while ago;"
        f" {_START_WORKER_ADVICE}"
    )


def _explain_missing_current_build(current: WorkerDeploymentVersion, queue: str, live_builds: Iterable[_Build]) -> str:
    other_build_ids = sorted(build_id for name, build_id in live_builds if name == current.deployment_name)
    contrast = f", though workers of {', '.join(other_build_ids)} do" if other_build_ids else ""
    deploy = f"`sexton worker deploy --build-id {other_build_ids[-1] if other_build_ids else 'ID'}`"
    return (
        f"build {current.build_id} of {current.deployment_name} is current, and no worker of it polls the task queue"
        f" {queue}{contrast}; start one of that build, or make a build current that has workers: {deploy}"
    )


def _build_of_poller(poller: PollerInfo) -> _Build:
    return poller.deployment_options.deployment_name, poller.deployment_options.build_id


def _list_versioned_builds(pollers: Iterable[PollerInfo]) -> list[_Build]:
    """Return the builds of the pollers. An unversioned poller may take any new task, so the result is then empty."""
    modes = {poller.deployment_options.worker_versioning_mode for poller in pollers}
    if modes != {WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED}:
        return []
    return sorted({_build_of_poller(poller) for poller in pollers})
