"""More than a hundred owners at once: each has a queue of its own, and each gets its work."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import pytest
from temporalio import activity, workflow
from temporalio.worker import Worker

from activities.owner_routing import owner_task_queue
from tests.workflows.workflow_harness import WorkflowHarness

_OWNERS: Final = 120  # past 100 queues, versioned workers stop getting tasks


@activity.defn(name="tests.where")
async def _where() -> str:
    return activity.info().task_queue


@workflow.defn(name="tests.everywhere", sandboxed=False)
class Everywhere:
    """Asks every owner at once."""

    @workflow.run
    async def run(self, names: list[str]) -> list[str]:
        """Which queue each was served from."""
        return list(await asyncio.gather(*(self._at(name) for name in names)))

    async def _at(self, name: str) -> str:
        return await workflow.execute_activity(
            _where,
            task_queue=owner_task_queue(name),
            schedule_to_start_timeout=timedelta(seconds=30),
            start_to_close_timeout=timedelta(seconds=30),
        )


@pytest.mark.external_service
async def test_more_than_a_hundred_owner_queues_are_all_served(house: WorkflowHarness) -> None:
    """Activity-only and unversioned, as every worker of ours polls its own."""
    names = [f"many-{number}-{house.queue}" for number in range(_OWNERS)]
    workers = [Worker(house.client, task_queue=house.queue, workflows=[Everywhere])]
    workers += [Worker(house.client, task_queue=owner_task_queue(name), activities=[_where]) for name in names]
    async with _serving(workers):
        workflow_id = f"everywhere-{house.queue}"
        served = await house.client.execute_workflow(Everywhere.run, names, id=workflow_id, task_queue=house.queue)
    assert served == [owner_task_queue(name) for name in names]


@asynccontextmanager
async def _serving(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """All begin and end together: one after the other, their ends alone would take ten seconds."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        await asyncio.gather(*running)
