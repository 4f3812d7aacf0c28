"""Scenes of `tests.replay.record` in which a topic has an owner that is not the worker of the shared queue."""

from typing import Any

from temporalio.client import WorkflowHandle

from logstore.errors import StoreUnavailable
from tests.fakes.owners import FakeOwners
from tests.workflows.deletion.test_delete_ledger import handed_over
from tests.workflows.ownership.neighbours import Neighbours
from tests.workflows.workflow_harness import WorkflowHarness

Handle = WorkflowHandle[Any, Any]


async def trim_at_its_owner(house: WorkflowHarness) -> Handle:
    """Asked for once; the batch and the second pass go straight to it."""
    house.world.fill(3)
    street = Neighbours(house)
    street.moves_in("a")
    async with street.shared(), street.owner("a"):
        handle = await house.trim()
        await handle.result()
    return handle


async def delete_at_the_next_owner(house: WorkflowHarness) -> Handle:
    """Who is believed to own the topic has lost it."""
    house.world.fill(3)
    house.world.detach(batch_id=house.queue)
    street = Neighbours(house)
    street.moves_in("b")
    async with street.shared(), street.owner("a"), street.owner("b"):
        handle = await house.delete(batch_id=house.queue, owner=street.name("a"))
        await handle.result()
    return handle


async def one_whose_owner_is_not_known(house: WorkflowHarness) -> Handle:
    """ZooKeeper is away, and anybody does it."""
    _, key = handed_over(house)
    street = Neighbours(house)
    street.moves_in("a")
    street.ownership.trouble = StoreUnavailable("planned: zookeeper does not answer")
    async with street.shared():
        handle = await house.claim_and_delete_copy(key)
        await handle.result()
    return handle


async def one_let_lie(house: WorkflowHarness) -> Handle:
    """The owner does not pick it up, and anybody does it."""
    _, key = handed_over(house)
    street = Neighbours(house)
    street.moves_in("a")
    async with street.shared():
        handle = await house.claim_and_delete_copy(key, owner_patience_s=1)
        await handle.result()
    return handle


async def one_refused_by_its_owner(house: WorkflowHarness) -> Handle:
    """NotOwner, twice, and anybody does it."""
    _, key = handed_over(house)
    street = Neighbours(house)
    street.moves_in("a")
    async with street.shared(), street.owner("a", owners=FakeOwners(street.ownership, "nobody")):
        handle = await house.claim_and_delete_copy(key)
        await handle.result()
    return handle
