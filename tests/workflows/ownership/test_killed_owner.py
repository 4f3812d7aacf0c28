"""An owner that is killed in the midst of a task of its own queue: the task does not stay there."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from temporalio.api.enums.v1 import EventType, TimeoutType

from tests.workflows.ownership.neighbours import Neighbours
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.deletion.job_definitions import DeletionPolicy

_PATIENCE_S = 4


@asynccontextmanager
async def mortal_owner(street: Neighbours, letter: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that polls the owner queue of `letter`; dead at the end."""
    address = street.house.client.service_client.config.target_host
    command = ["-m", "tests.workflows.ownership.mortal_owner", address, street.queue(letter)]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    try:
        await _said(process, "polling")
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _said(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stdout
    assert (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip() == word


@pytest.mark.external_service
async def test_chunk_of_a_killed_owner_is_done_by_the_next(house: WorkflowHarness, street: Neighbours) -> None:
    """Its heartbeat ends, and the owner is looked up: a retry would wait on a queue that nobody polls.

    Or one that a stopped process polls: its open requests take attempt after attempt, and each costs a heartbeat.
    """
    house.world.fill(2)
    house.world.detach(batch_id=house.queue)
    street.moves_in("a")
    policy = DeletionPolicy(owner_patience_s=_PATIENCE_S)
    async with mortal_owner(street, "a") as owner, street.shared(), street.owner("b"):
        handle = await house.delete(batch_id=house.queue, owner=street.name("a"), policy=policy)
        await _said(owner, "begun")
        owner.kill()
        street.moves_in("b")
        certificate = await handle.result()
    assert certificate.outcomes == {"DELETED": 2}
    assert street.visits("deletion.delete_chunk") == ["shared", "b"]
    events = [one async for one in handle.fetch_history_events()]
    (ended,) = [one for one in events if one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT]
    failure = ended.activity_task_timed_out_event_attributes.failure
    assert failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
