"""Builds whose workers have just begun to poll: made current once Temporal has learned of all of them.

Source: Temporal, "Worker Versioning".
"""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import PreconditionFailed
from workers.operations.builds import Deployment, deploy, queues_of, read_deployment, unserved_queues

_REGISTERED_WITHIN_S: Final = 60.0


async def deploy_new(client: Client, name: str, build_id: str, *, ramp: float | None = None) -> Deployment:
    """As `deploy`, for a build whose worker has just begun to poll: Temporal learns of it a moment later.

    It learns of one queue after the other, and refuses a build that lacks a queue of the current one. Only such a
    refusal is waited for; another one would be the same after any wait.

    Raises:
        PreconditionFailed: As `deploy`: at once where Temporal knows all of the build, else where it does not learn of
            all of it in time.
    """
    give_up = time.monotonic() + _REGISTERED_WITHIN_S
    while True:
        known = await _is_known(client, name, build_id)  # before the call: it may learn of the rest meanwhile
        try:
            return await deploy(client, name, build_id, ramp=ramp, without_workers=known)  # they were seen just now
        except PreconditionFailed:
            if known or time.monotonic() > give_up:
                raise
        await asyncio.sleep(0.1)


async def deploy_unless_served(client: Client, name: str, build_id: str, *, dead: Collection[str] = ()) -> Deployment:
    """As `deploy_new`, but what an operator chose stays so: another current build whose workers poll, and a ramp.

    Args:
        client: Of the namespace.
        name: The deployment's.
        build_id: The build's, whose worker has just begun to poll.
        dead: As of `unserved_queues`.

    Returns:
        The deployment, whose current build is this one or that other one.

    Raises:
        PreconditionFailed: As `deploy_new`.
    """
    found = await read_deployment(client, name)
    if found.current == build_id:
        return found
    if found.current and not await unserved_queues(client, name, found.current, dead=dead):
        return found
    return await deploy_new(client, name, build_id)


async def _is_known(client: Client, name: str, build_id: str) -> bool:
    """Whether Temporal knows of the build, of its workers, and that it serves each queue of the current build."""
    found = await read_deployment(client, name)
    if build_id not in {row.build_id for row in found.builds}:
        return False
    try:
        current = await queues_of(client, name, found.current) if found.current else set()
        served = current <= await queues_of(client, name, build_id)
        return served and not await unserved_queues(client, name, build_id)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # listed a moment before it can be described
            return False
        raise
