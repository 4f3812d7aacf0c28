"""Why a task waits in its queue: no worker polls there, or none of the build that gets its work.

Source: Temporal, "Worker Versioning"; `DescribeTaskQueue` of its API.
"""

from collections.abc import Iterable
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, VersioningBehavior, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.client import Client

from workers.client.pollers import described, live_pollers

_SERVE: Final = "start one with `sexton worker run`, or `sexton up`"
_Build = tuple[str, str]  # deployment and build id


async def why_not_taken(
    client: Client,
    workflow_id: str,
    versioning: WorkflowExecutionVersioningInfo,
    queue: str,
    kind: TaskQueueType.ValueType,
) -> str:
    """Why no worker has taken the task that waits there, and what to do.

    Args:
        client: Of the namespace.
        workflow_id: The job's.
        versioning: The build that the job runs on, if any, and whether it is pinned there.
        queue: The task's.
        kind: Of the task.
    """
    answer = await described(client, queue, kind)
    current, pollers = answer.versioning_info.current_deployment_version, answer.pollers
    if current.build_id:  # else the queue takes part in no versioning, or has had no current build yet
        live = {_build(one) for one in await live_pollers(client, queue, kind)}
        pinned = versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
        wanted = versioning.deployment_version if pinned else current
        if (wanted.deployment_name, wanted.build_id) not in live:
            return _pinned(workflow_id, wanted, queue) if pinned else _unserved(current, queue, live)
    if not pollers:
        return f"no worker polls the task queue {queue}; {_SERVE}"
    builds = _builds(pollers)
    if builds and not current.build_id:
        deployment, build_id = builds[-1]
        return (
            f"no build of {deployment} is current, though workers of {build_id} poll the task queue {queue}: only a"
            f" current build gets new work; `sexton worker deploy --build-id {build_id}`"
        )
    names = ", ".join(sorted({one.identity for one in pollers})[:3])
    return f"nobody has picked it up from the task queue {queue}, though {names} polled it a while ago; {_SERVE}"


def _pinned(workflow_id: str, wanted: WorkerDeploymentVersion, queue: str) -> str:
    build = f"build {wanted.build_id} of {wanted.deployment_name}"
    none = f"no worker of it polls the task queue {queue}"
    return f"{workflow_id} is pinned to {build}, and {none}; start one of that build"


def _unserved(current: WorkerDeploymentVersion, queue: str, live: Iterable[_Build]) -> str:
    others = sorted(build_id for name, build_id in live if name == current.deployment_name)
    though = f", though workers of {', '.join(others)} do" if others else ""
    deploy = f"`sexton worker deploy --build-id {others[-1] if others else 'ID'}`"
    return (
        f"build {current.build_id} of {current.deployment_name} is current, and no worker of it polls the task queue"
        f" {queue}{though}; start one of that build, or make a build current that has workers: {deploy}"
    )


def _build(one: PollerInfo) -> _Build:
    return one.deployment_options.deployment_name, one.deployment_options.build_id


def _builds(pollers: Iterable[PollerInfo]) -> list[_Build]:
    """Deployments and builds of the workers; none where one of them takes part in no versioning, and gets new work."""
    modes = {one.deployment_options.worker_versioning_mode for one in pollers}
    if modes != {WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED}:
        return []
    return sorted({_build(one) for one in pollers})
