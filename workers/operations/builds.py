"""Worker Versioning for operators: which builds there are, and which of them gets new work.

All new runs begin on the current build, or on the ramping one with its share of them. A pinned run ends on the build
that it began on; one that is auto-upgraded moves at its next step. To roll out is to ramp a build and to make it
current; to roll back is to make the earlier one current, which ends a ramp as well.

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
from workers.client.pollers import live_pollers
from workers.settings import Settings

_PREFIX: Final = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_IN_PROGRESS: Final = RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_IN_PROGRESS
_KNOWN_WITHIN_S: Final = 30.0
_WHOLE: Final = 100  # per cent
_REFUSED: Final = {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.INVALID_ARGUMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRow:
    """One build of the deployment, as Temporal knows it."""

    build_id: str
    status: str  # CURRENT, RAMPING, INACTIVE, DRAINING (runs are pinned to it), DRAINED, CREATED
    ramp_percent: float  # of new runs that begin on it as the ramping build, 0 to 100
    created_us: int  # since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The builds of one deployment, newest first, and where new runs begin."""

    name: str
    current: str | None = None  # None: only workers without a version get new runs
    ramping: str | None = None  # None with a share of more than 0: workers without a version get it
    ramp_percent: float = 0.0
    builds: tuple[BuildRow, ...] = ()
    settled: bool = True  # every task queue routes by this
    read_at: bytes = b""  # Temporal's mark of this state: what is asked under it is refused once that has changed

    @property
    def ramps(self) -> bool:
        """Whether there is a ramp, be it to workers without a version."""
        return self.ramping is not None or self.ramp_percent > 0

    def __str__(self) -> str:
        """The state in a few words."""
        ramping = self.ramping or "what has no version"
        ramp = f", {ramping} ramps at {self.ramp_percent:g} %" if self.ramps else ""
        return f"{self.name}: {self.current or 'no build'} is current{ramp}"


def named(settings: Settings) -> str:
    """The deployment of the settings.

    Raises:
        InvalidInput: They name none.
    """
    if not settings.deployment_name:
        expected = "a name: without it workers take no part in Worker Versioning"
        raise InvalidInput("deployment_name", expected=expected, found="")
    return settings.deployment_name


async def read_deployment(client: Client, name: str) -> Deployment:
    """What Temporal knows of the deployment; one of which it knows nothing has no builds."""
    wanted = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        answer = await client.workflow_service.describe_worker_deployment(wanted)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
            return Deployment(name=name)
        raise
    return replace(_deployment(answer.worker_deployment_info), read_at=answer.conflict_token)


async def unserved_queues(client: Client, name: str, build_id: str, *, dead: Collection[str] = ()) -> Sequence[str]:
    """Of the task queues that the build has served, those that no worker of it polls now, ascending.

    Args:
        client: Of the namespace.
        name: The deployment's.
        build_id: The build's, which Temporal knows.
        dead: Identities of workers whose processes are known to be gone.
    """
    unserved: set[str] = set()
    for queue, kind in await queues_of(client, name, build_id):
        pollers = await live_pollers(client, queue, kind, dead_identities=dead)
        told = {(one.deployment_options.deployment_name, one.deployment_options.build_id) for one in pollers}
        if (name, build_id) not in told:
            unserved.add(queue)
    return sorted(unserved)


async def queues_of(client: Client, name: str, build_id: str) -> set[tuple[str, TaskQueueType.ValueType]]:
    """The task queues that the build has served."""
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build_id)
    wanted = DescribeWorkerDeploymentVersionRequest(namespace=client.namespace, deployment_version=version)
    found = await client.workflow_service.describe_worker_deployment_version(wanted)
    return {(queue.name, queue.type) for queue in found.version_task_queues}


async def deploy(
    client: Client,
    name: str,
    build_id: str,
    *,
    ramp: float | None = None,
    without_workers: bool = False,
    dead: Collection[str] = (),
) -> Deployment:
    """Make a build current, or let a share of new runs begin on it; repeating it is harmless.

    Two effects may stand between the start and the end: the current build is set, and then a ramp of another build
    ends. A caller that dies between them repeats the call. Both name what shall be, and not a step towards it.

    Args:
        client: Of the namespace.
        name: The deployment's.
        build_id: The build's.
        ramp: None: it becomes current, and nothing ramps. Else the share of new runs in per cent, 0 to 100; 0 ends the
            ramp of this build.
        without_workers: Whether it may get new runs though no worker of it polls: they wait until one does.
        dead: As of `unserved_queues`.

    Raises:
        InvalidInput: No share.
        PreconditionFailed: Temporal knows no such build, or no worker of it polls one of its queues, or it serves fewer
            queues than the current one, or it is current already and cannot ramp, or another build ramps whose ramp was
            to be ended, or began to meanwhile.
    """
    if ramp is not None and not 0 <= ramp <= _WHOLE:  # what is no number is neither less nor more
        raise InvalidInput("ramp", expected=f"a share of new runs, 0 to {_WHOLE} per cent", found=ramp)
    before = await read_deployment(client, name)
    _require_known(before, build_id)
    try:
        if ramp != 0 and not without_workers:
            await _require_workers(client, name, build_id, dead)
        if ramp is None:
            await _make_current(client, name, build_id)
            if (await read_deployment(client, name)).ramps:  # asked again: another call may have begun it meanwhile
                await _ramp(client, name, "", 0)
        elif ramp:
            await _ramp(client, name, build_id, ramp)
        else:
            await _end_ramp(client, before, build_id)
    except RPCError as error:
        if error.status in _REFUSED:
            raise PreconditionFailed(f"build {build_id} of {name}: {error.message}") from error
        raise
    return await _known_to_queues(client, name)


def _require_known(deployment: Deployment, build_id: str) -> None:
    if build_id not in {row.build_id for row in deployment.builds}:
        known = ", ".join(row.build_id for row in deployment.builds) or "none"
        found = f"build {build_id} of {deployment.name}: expected one that a worker has served with, found {known}"
        raise PreconditionFailed(found)


async def _require_workers(client: Client, name: str, build_id: str, dead: Collection[str]) -> None:
    unserved = await unserved_queues(client, name, build_id, dead=dead)
    if unserved:
        expected = "expected workers that poll each of its task queues now"
        found = f"found none at {', '.join(unserved)}; start one of that build first"
        raise PreconditionFailed(f"build {build_id} of {name}: {expected}, {found}")


async def _known_to_queues(client: Client, name: str) -> Deployment:
    """The deployment, once its task queues route by what was set last, or after a while in which they did not."""
    give_up = time.monotonic() + _KNOWN_WITHIN_S
    while True:
        found = await read_deployment(client, name)
        if found.settled or time.monotonic() > give_up:
            return found
        await asyncio.sleep(0.1)


async def _make_current(client: Client, name: str, build_id: str) -> None:
    await client.workflow_service.set_worker_deployment_current_version(
        SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace, deployment_name=name, build_id=build_id, identity=client.identity
        )
    )


async def _end_ramp(client: Client, before: Deployment, build_id: str) -> None:
    if before.ramping not in {None, build_id}:
        found = f"build {build_id} of {before.name}: expected that it ramps, found that {before.ramping} does"
        raise PreconditionFailed(found)
    await _ramp(client, before.name, "", 0, read_at=before.read_at)


async def _ramp(client: Client, name: str, build_id: str, percent: float, *, read_at: bytes = b"") -> None:
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


def _deployment(info: WorkerDeploymentInfo) -> Deployment:
    routing = info.routing_config
    ramping = routing.ramping_deployment_version.build_id or None
    rows = [
        BuildRow(
            build_id=one.deployment_version.build_id,
            status=WorkerDeploymentVersionStatus.Name(one.status).removeprefix(_PREFIX),
            ramp_percent=routing.ramping_version_percentage if one.deployment_version.build_id == ramping else 0.0,
            created_us=one.create_time.ToMicroseconds(),
        )
        for one in info.version_summaries
    ]
    return Deployment(
        name=info.name,
        current=routing.current_deployment_version.build_id or None,
        ramping=ramping,
        ramp_percent=routing.ramping_version_percentage,
        builds=tuple(sorted(rows, key=lambda row: (-row.created_us, row.build_id))),
        settled=info.routing_config_update_state != _IN_PROGRESS,
    )
