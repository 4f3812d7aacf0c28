"""Who polls a task queue now, by what a server remembers."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerInfo, WorkerListInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse, DescribeWorkerResponse, ListWorkersResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workers.client.pollers import live_pollers


def _seconds_ago(seconds: float) -> Timestamp:
    found = Timestamp()
    found.FromNanoseconds(int((time.time() - seconds) * 1e9))
    return found


def _client(polled: dict[str, float], ended: dict[str, float], forgotten: set[str]) -> Client:
    """Of a server that remembers polls and ends, so many seconds ago, and has forgotten some since they were listed."""

    async def queue(*_: object, **__: object) -> DescribeTaskQueueResponse:
        pollers = [PollerInfo(identity=name, last_access_time=_seconds_ago(ago)) for name, ago in polled.items()]
        return DescribeTaskQueueResponse(pollers=pollers)

    async def listed(*_: object, **__: object) -> ListWorkersResponse:
        status = WorkerStatus.WORKER_STATUS_SHUTDOWN
        rows = [WorkerListInfo(worker_identity=name, worker_instance_key=name, status=status) for name in ended]
        return ListWorkersResponse(workers=rows)

    async def described(request: Any, **__: object) -> DescribeWorkerResponse:
        if request.worker_instance_key in forgotten:
            raise RPCError("no such worker", RPCStatusCode.NOT_FOUND, b"")
        beat = WorkerHeartbeat(heartbeat_time=_seconds_ago(ended[request.worker_instance_key]))
        return DescribeWorkerResponse(worker_info=WorkerInfo(worker_heartbeat=beat))

    service = SimpleNamespace(describe_task_queue=queue, list_workers=listed, describe_worker=described)
    return cast("Client", SimpleNamespace(namespace="default", workflow_service=service))


def _live(polled: dict[str, float], ended: dict[str, float], forgotten: set[str] | None = None) -> set[str]:
    client = _client(polled, ended, forgotten or set())
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    return {one.identity for one in asyncio.run(live_pollers(client, "sexton", kind, dead={"killed"}))}


def test_worker_polls_that_did_so_lately_and_has_not_ended_since() -> None:
    """The server names a poller for minutes; one that was started again under its name polls."""
    polled = {"gone": 300.0, "drained": 20.0, "again": 5.0, "alive": 60.0, "killed": 1.0}
    ended = {"gone": 290.0, "drained": 10.0, "again": 30.0}
    assert _live(polled, ended) == {"again", "alive"}


def test_worker_that_the_server_forgot_as_it_was_asked_hides_no_other() -> None:
    """Of what was forgotten nothing is known; the next one's end still counts."""
    assert _live({"first": 20.0, "second": 20.0}, {"first": 10.0, "second": 10.0}, {"first"}) == {"first"}
