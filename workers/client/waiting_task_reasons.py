"""Reasons why a task waits in a task queue: no worker, or no worker of the task's build, polls the queue.

Source: Temporal, "Worker Versioning"; `DescribeTaskQueue` of its API.
"""

from collections.abc import Iterable
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, VersioningBehavior, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.client import Client

from workers.client.task_queue_pollers import describe_task_queue, list_live_pollers

_START_WORKER_ADVICE: Final = "start one with `sexton worker run`, or `sexton up`"
_Build = tuple[str, str]  # deployment and build id


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
