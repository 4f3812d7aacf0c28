"""Who polls a task queue now, by what a server remembers."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerInfo, WorkerListInfo, WorkerSlotsInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse, DescribeWorkerResponse, ListWorkersResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workers.client.task_queue_pollers import list_live_pollers

_ACTIVITIES: Final = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
_WORKFLOWS: Final = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last one of a worker."""

    ago_s: float
    ended: bool = False
    taken: int = 0  # slots for activities
    free: int = 0
    build_id: str = ""


def _seconds_ago(seconds: float) -> Timestamp:
    found = Timestamp()
    found.FromNanoseconds(int((time.time() - seconds) * 1e9))
    return found


def _listed(name: str, report: Report) -> WorkerListInfo:
    runs, over = WorkerStatus.WORKER_STATUS_RUNNING, WorkerStatus.WORKER_STATUS_SHUTDOWN
    return WorkerListInfo(
        worker_identity=name,
        worker_instance_key=name,
        status=over if report.ended else runs,
        deployment_version=WorkerDeploymentVersion(deployment_name="store", build_id=report.build_id),
    )


def _client(polled: dict[str, float], reports: dict[str, Report], forgotten: Collection[str]) -> Client:
    """Of a server that remembers polls and reports by identity, and has forgotten some since they were listed."""

    async def queue(*_: object, **__: object) -> DescribeTaskQueueResponse:
        pollers = [PollerInfo(identity=name, last_access_time=_seconds_ago(ago)) for name, ago in polled.items()]
        return DescribeTaskQueueResponse(pollers=pollers)

    async def listed(*_: object, **__: object) -> ListWorkersResponse:
        return ListWorkersResponse(workers=[_listed(name, report) for name, report in reports.items()])

    async def described(request: Any, **__: object) -> DescribeWorkerResponse:
        if request.worker_instance_key in forgotten:
            raise RPCError("no such worker", RPCStatusCode.NOT_FOUND, b"")
        report = reports[request.worker_instance_key]
        slots = WorkerSlotsInfo(current_used_slots=report.taken, current_available_slots=report.free)
        beat = WorkerHeartbeat(heartbeat_time=_seconds_ago(report.ago_s), activity_task_slots_info=slots)
        return DescribeWorkerResponse(worker_info=WorkerInfo(worker_heartbeat=beat))

    service = SimpleNamespace(describe_task_queue=queue, list_workers=listed, describe_worker=described)
    return cast("Client", SimpleNamespace(namespace="default", workflow_service=service))


def _live(
    polled: dict[str, float],
    reports: dict[str, Report],
    *,
    forgotten: Collection[str] = (),
    kind: TaskQueueType.ValueType = _ACTIVITIES,
) -> dict[str, str]:
    """Builds of those that poll, by identity."""
    client = _client(polled, reports, forgotten)
    found = asyncio.run(list_live_pollers(client, "sexton", kind, dead_identities={"killed"}))
    return {one.identity: one.deployment_options.build_id for one in found}


def test_worker_polls_that_did_so_lately_and_has_not_ended_since() -> None:
    """The server names a poller for minutes; one that was started again under its name polls."""
    polled = {"gone": 300.0, "drained": 20.0, "again": 5.0, "alive": 60.0, "killed": 1.0}
    ended = {"gone": 290.0, "drained": 10.0, "again": 30.0}
    reports = {name: Report(ago_s=ago, ended=True) for name, ago in ended.items()}
    assert set(_live(polled, reports)) == {"again", "alive"}


def test_worker_that_the_server_forgot_as_it_was_asked_hides_no_other() -> None:
    """Of what was forgotten nothing is known; the next one's end still counts."""
    reports = {name: Report(ago_s=10.0, ended=True) for name in ("first", "second")}
    assert set(_live({"first": 20.0, "second": 20.0}, reports, forgotten={"first"})) == {"first"}


def test_worker_whose_slots_are_all_taken_counts_though_it_does_not_poll() -> None:
    """Its one slot has a bulk job, for hours: nothing is wrong, and its build is served."""
    busy = {"bulk": Report(ago_s=50.0, taken=1, build_id="b2")}
    assert _live({"bulk": 200.0}, busy) == _live({}, busy) == {"bulk": "b2"}


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("silent", Report(ago_s=100.0, taken=1)),
        ("stuck", Report(ago_s=5.0, taken=1, free=1)),
        ("idle", Report(ago_s=5.0)),
        ("over", Report(ago_s=5.0, taken=1, ended=True)),
        ("killed", Report(ago_s=5.0, taken=1)),
    ],
)
def test_worker_that_neither_polls_nor_says_that_its_slots_are_taken_does_not_count(name: str, report: Report) -> None:
    """One that was killed in a job says nothing any more; one with a free slot would poll."""
    assert _live({name: 200.0}, {name: report}) == {}


def test_slots_for_activities_say_nothing_of_workflows() -> None:
    """Each kind of task has its own."""
    assert _live({}, {"bulk": Report(ago_s=5.0, taken=1)}, kind=_WORKFLOWS) == {}
