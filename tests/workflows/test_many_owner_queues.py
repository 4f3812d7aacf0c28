"""More than a hundred owners at once: each has a queue of its own, and each gets its work."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from temporalio import activity, workflow
from temporalio.worker import Worker

from activities.ownership import owner_queue
from tests.workflows.house import House

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
            task_queue=owner_queue(name),
            schedule_to_start_timeout=timedelta(seconds=30),
            start_to_close_timeout=timedelta(seconds=30),
        )


async def test_more_than_a_hundred_owner_queues_are_all_served(house: House) -> None:
    """Activity-only and unversioned, as every worker of ours polls its own."""
    names = [f"many-{number}-{house.queue}" for number in range(_OWNERS)]
    async with AsyncExitStack() as serving:
        await serving.enter_async_context(Worker(house.client, task_queue=house.queue, workflows=[Everywhere]))
        for name in names:
            await serving.enter_async_context(Worker(house.client, task_queue=owner_queue(name), activities=[_where]))
        workflow_id = f"everywhere-{house.queue}"
        served = await house.client.execute_workflow(Everywhere.run, names, id=workflow_id, task_queue=house.queue)
    assert served == [owner_queue(name) for name in names]
