"""Worker Versioning for operators: the builds of a deployment, and the build that gets new work.

Source: Temporal, "Worker Versioning"; `workflows/deployment.proto` of its API.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentInfo, WorkerDeploymentVersion
from temporalio.api.enums.v1 import RoutingConfigUpdateState, TaskQueueType, WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentVersionRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import InvalidInput, PreconditionFailed
from workers.client.task_queue_pollers import list_live_pollers
from workers.settings import Settings

_STATUS_PREFIX: Final = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_IN_PROGRESS: Final = RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_IN_PROGRESS
_APPLY_TIMEOUT_S: Final = 30.0
_REGISTRATION_TIMEOUT_S: Final = 60.0
_MAX_PERCENT: Final = 100
_REFUSAL_STATUSES: Final = {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.INVALID_ARGUMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBuild:
    build_id: str
    status: str  # CURRENT, RAMPING, INACTIVE, DRAINING (runs are still pinned to the build), DRAINED, CREATED
    ramp_percent: float  # per cent of new runs that start on this build while it ramps, 0 to 100
    created_us: int  # microseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeployment:
    """Builds of a deployment, newest first, and its routing of new runs."""

    name: str
    current: str | None = None  # None: only unversioned workers get new runs
    ramping: str | None = None  # if None and `ramp_percent` is above 0, unversioned workers get this share
    ramp_percent: float = 0.0
    builds: tuple[WorkerBuild, ...] = ()
    is_applied: bool = True  # whether every task queue uses this routing
    conflict_token: bytes = b""  # Temporal refuses a change with this token if the routing has changed since

    @property
    def has_ramp(self) -> bool:
        return self.ramping is not None or self.ramp_percent > 0

    def __str__(self) -> str:
        ramping = self.ramping or "what has no version"
        ramp = f", {ramping} ramps at {self.ramp_percent:g} %" if self.has_ramp else ""
        return f"{self.name}: {self.current or 'no build'} is current{ramp}"


def require_deployment_name(settings: Settings) -> str:
    """Return the name of the deployment, or raise `InvalidInput` if the settings have none."""
    if not settings.deployment_name:
        expected = "a name: without it workers take no part in Worker Versioning"
        raise InvalidInput("deployment_name", expected=expected, found="")
    return settings.deployment_name


async def read_worker_deployment(client: Client, name: str) -> WorkerDeployment:
    """Return the builds and the routing of a deployment. An unknown deployment has no builds."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        response = await client.workflow_service.describe_worker_deployment(request, retry=True)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
            return WorkerDeployment(name=name)
        raise
    return replace(
        _worker_deployment_from_info(response.worker_deployment_info), conflict_token=response.conflict_token
    )


async def find_unserved_queues(
    client: Client, name: str, build_id: str, *, dead_identities: Collection[str] = ()
) -> Sequence[str]:
    """Return the task queues that no live worker of the build polls now, ascending. Temporal must know the build."""
    unserved: set[str] = set()
    for queue, kind in await list_queues_of_build(client, name, build_id):
        pollers = await list_live_pollers(client, queue, kind, dead_identities=dead_identities)
        options = [poller.deployment_options for poller in pollers]
        if (name, build_id) not in {(option.deployment_name, option.build_id) for option in options}:
            unserved.add(queue)
    return sorted(unserved)


async def list_queues_of_build(client: Client, name: str, build_id: str) -> set[tuple[str, TaskQueueType.ValueType]]:
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build_id)
    request = DescribeWorkerDeploymentVersionRequest(namespace=client.namespace, deployment_version=version)
    response = await client.workflow_service.describe_worker_deployment_version(request, retry=True)
    return {(queue.name, queue.type) for queue in response.version_task_queues}


async def deploy_build(
    client: Client,
    name: str,
    build_id: str,
    *,
    ramp: float | None = None,
    without_workers: bool = False,
    dead_identities: Collection[str] = (),
) -> WorkerDeployment:
    """Make a build current, or start a share of new runs on the build. Idempotent.

    `ramp` is a share of new runs in per cent, 0 to 100. 0 ends the build's ramp. `None` makes the build current.
    `without_workers` accepts a build without polling workers. New runs then wait until a worker of the build polls.

    Raises:
        InvalidInput: The share is out of bounds.
        PreconditionFailed: Temporal does not know the build. Or the build serves fewer queues than the current build,
            or no worker polls one of its queues. Or the ramp is refused: the build is current, another build ramps, or
            the ramp has just changed.
    """
    if ramp is not None and not 0 <= ramp <= _MAX_PERCENT:  # this form also refuses NaN
        raise InvalidInput("ramp", expected=f"a share of new runs, 0 to {_MAX_PERCENT} per cent", found=ramp)
    before = await read_worker_deployment(client, name)
    _require_known_build(before, build_id)
    try:
        if ramp != 0 and not without_workers:
            await _require_workers(client, name, build_id, dead_identities)
        if ramp is None:
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace, deployment_name=name, build_id=build_id, identity=client.identity
                )
            )
            if (
                await read_worker_deployment(client, name)
            ).has_ramp:  # the deployment is read again, because another call may have started a ramp
                await _set_ramp_percent(client, name, "", 0)
        elif ramp:
            await _set_ramp_percent(client, name, build_id, ramp)
        else:
            await _end_ramp(client, before, build_id)
    except RPCError as error:
        if error.status in _REFUSAL_STATUSES:
            raise PreconditionFailed(f"build {build_id} of {name}: {error.message}") from error
        raise
    return await _wait_until_routing_is_applied(client, name)


def _require_known_build(deployment: WorkerDeployment, build_id: str) -> None:
    if build_id not in {row.build_id for row in deployment.builds}:
        ids = ", ".join(row.build_id for row in deployment.builds) or "none"
        message = f"build {build_id} of {deployment.name}: expected one that a worker has served with, found {ids}"
        raise PreconditionFailed(message)


async def _require_workers(client: Client, name: str, build_id: str, dead_identities: Collection[str]) -> None:
    unserved = await find_unserved_queues(client, name, build_id, dead_identities=dead_identities)
    if unserved:
        problem = f"expected workers that poll each of its task queues now, found none at {', '.join(unserved)}"
        raise PreconditionFailed(f"build {build_id} of {name}: {problem}; start one of that build first")


async def _wait_until_routing_is_applied(client: Client, name: str) -> WorkerDeployment:
    deadline_s = time.monotonic() + _APPLY_TIMEOUT_S
    while True:
        deployment = await read_worker_deployment(client, name)
        if deployment.is_applied or time.monotonic() > deadline_s:
            return deployment
        await asyncio.sleep(0.1)


async def _end_ramp(client: Client, before: WorkerDeployment, build_id: str) -> None:
    if before.ramping not in {None, build_id}:
        message = f"build {build_id} of {before.name}: expected that it ramps, found that {before.ramping} does"
        raise PreconditionFailed(message)
    await _set_ramp_percent(client, before.name, "", 0, read_at=before.conflict_token)


async def _set_ramp_percent(client: Client, name: str, build_id: str, percent: float, *, read_at: bytes = b"") -> None:
    await client.workflow_service.set_worker_deployment_ramping_version(
        SetWorkerDeploymentRampingVersionRequest(
            namespace=client.namespace,
            deployment_name=name,
            build_id=build_id,
            percentage=percent,
            conflict_token=read_at,
            identity=client.identity,
        )
    )


def _worker_deployment_from_info(info: WorkerDeploymentInfo) -> WorkerDeployment:
    routing = info.routing_config
    ramping = routing.ramping_deployment_version.build_id or None
    rows = [
        WorkerBuild(
            build_id=summary.deployment_version.build_id,
            status=WorkerDeploymentVersionStatus.Name(summary.status).removeprefix(_STATUS_PREFIX),
            ramp_percent=routing.ramping_version_percentage if summary.deployment_version.build_id == ramping else 0.0,
            created_us=summary.create_time.ToMicroseconds(),
        )
        for summary in info.version_summaries
    ]
    return WorkerDeployment(
        name=info.name,
        current=routing.current_deployment_version.build_id or None,
        ramping=ramping,
        ramp_percent=routing.ramping_version_percentage,
        builds=tuple(sorted(rows, key=lambda row: (-row.created_us, row.build_id))),
        is_applied=info.routing_config_update_state != _IN_PROGRESS,
    )


async def deploy_just_started_build(
    client: Client, name: str, build_id: str, *, ramp: float | None = None
) -> WorkerDeployment:
    """Deploy a build whose worker has just started to poll. Retry until Temporal knows all queues of the build.

    Raises:
        PreconditionFailed: `deploy_build` refuses the build when Temporal knows all its queues, or for a minute.
    """
    deadline_s = time.monotonic() + _REGISTRATION_TIMEOUT_S
    while True:
        is_complete = await _serves_all_current_queues(
            client, name, build_id
        )  # read before `deploy_build`, because Temporal may learn of more queues in the meantime
        try:
            # If `is_complete`, the workers of the build have just been seen polling.
            return await deploy_build(client, name, build_id, ramp=ramp, without_workers=is_complete)
        except PreconditionFailed:
            if is_complete or time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(0.1)


async def deploy_unless_current_build_is_served(
    client: Client, name: str, build_id: str, *, dead_identities: Collection[str] = ()
) -> WorkerDeployment:
    """Deploy a build whose worker has just started to poll. Change nothing while workers of the current build poll."""
    deployment = await read_worker_deployment(client, name)
    if deployment.current == build_id:
        return deployment
    if deployment.current and not await find_unserved_queues(
        client, name, deployment.current, dead_identities=dead_identities
    ):
        return deployment
    return await deploy_just_started_build(client, name, build_id)


async def _serves_all_current_queues(client: Client, name: str, build_id: str) -> bool:
    """Return whether Temporal knows workers of the build that poll every queue of the current build."""
    deployment = await read_worker_deployment(client, name)
    if build_id not in {row.build_id for row in deployment.builds}:
        return False
    try:
        current_queues = await list_queues_of_build(client, name, deployment.current) if deployment.current else set()
        has_current_queues = current_queues <= await list_queues_of_build(client, name, build_id)
        return has_current_queues and not await find_unserved_queues(client, name, build_id)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # Temporal lists a build shortly before it can describe the build
            return False
        raise
