"""Two builds side by side on a real server: rolled out by a share, made current, rolled back."""

import asyncio
import math
import uuid
from collections import Counter
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from activities.records.record_upkeep import RecordPassInput
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.records.job_results import ShippedBlocks
from tests.workflows.deletion.test_batch_control import gate_at
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workers.operations import worker_builds
from workers.operations.worker_builds import (
    WorkerDeployment,
    deploy_build,
    deploy_just_started_build,
    deploy_unless_current_build_is_served,
    find_unserved_queues,
    read_worker_deployment,
)
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DeletionPolicy
from workflows.records.job_definitions import ReplicateRecordsInput, ReplicateRecordsResult
from workflows.records.replicate_records import ReplicateRecords

pytestmark = pytest.mark.external_service

_AT_ONCE_S = 30.0  # on a busy machine; a new build is waited for twice as long
_MANY = 24  # runs of which each begins on either build with even chances: all on one side is 1 in 8 million


class Shipping:
    """The one activity of a pinned workflow, held in the run that is to be held."""

    def __init__(self) -> None:
        self.held = f"held-{uuid.uuid4().hex[:8]}"
        self.gate = Gate()

    @activity.defn(name="records.ship")
    def ship(self, request: RecordPassInput) -> list[ShippedBlocks]:
        """Ship nothing."""
        if activity.info().workflow_id == self.held:
            self.gate.wait()
        return []


async def _pinned(house: WorkflowHarness, workflow_id: str) -> WorkflowHandle[Any, ReplicateRecordsResult]:
    return await house.client.start_workflow(
        ReplicateRecords.run, ReplicateRecordsInput(), id=workflow_id, task_queue=house.queue
    )


async def _build_of(handle: WorkflowHandle[Any, Any]) -> str:
    """The build that the run's last step was done on."""
    info = (await handle.describe()).raw_description.workflow_execution_info
    return info.versioning_info.deployment_version.build_id


async def _new(house: WorkflowHarness) -> str:
    """The build that a new run begins and ends on."""
    handle = await _pinned(house, f"new-{uuid.uuid4().hex[:8]}")
    assert (await handle.result()).shipped == []
    return await _build_of(handle)


async def _moved(house: WorkflowHarness, batch: WorkflowHandle[Any, Any], build_id: str) -> None:
    """Let the batch do a step that changes nothing, as it is paused already, and see which build did it."""

    async def there() -> bool:
        await batch.execute_update(DeleteLedgers.pause)
        return await _build_of(batch) == build_id

    await assert_eventually(there)


async def test_two_builds_share_ramp_and_roll_back(house: WorkflowHarness) -> None:
    """A pinned run ends on its build, a batch of deletions moves, and what a rollback leaves waits in SQL.

    The batch is paused on the newer build, which is then taken back: the older one serves it, and nothing of it is
    deleted or lost until it is resumed.
    """
    shipping, name = Shipping(), house.queue
    ledgers = house.world.fill(2)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    first = gate_at(house, ledgers[0])
    async with house.build("a", replacements=[shipping.ship]):
        assert (await deploy_just_started_build(house.client, name, "a")).current == "a"
        pinned = await _pinned(house, shipping.held)
        batch = await house.delete(ledgers)
        await assert_eventually(lambda: shipping.gate.reached.is_set() and first.reached.is_set())
        assert (await batch.execute_update(DeleteLedgers.pause)).paused
        first.open()
        async with house.build("b", replacements=[shipping.ship]):
            ramped = await deploy_just_started_build(house.client, name, "b", ramp=50)
            assert (ramped.current, ramped.ramping, ramped.ramp_percent) == ("a", "b", 50)
            assert {row.build_id: row.status for row in ramped.builds} == {"a": "CURRENT", "b": "RAMPING"}
            assert set(Counter([await _new(house) for _ in range(_MANY)])) == {"a", "b"}

            assert (await deploy_build(house.client, name, "b")).current == "b"
            assert await _new(house) == "b"
            await _moved(house, batch, "b")
            assert await _build_of(pinned) == "a"
            shipping.gate.open()
            assert (await pinned.result()).shipped == []
            assert await _build_of(pinned) == "a"

            back = await deploy_build(house.client, name, "a")
            assert (back.current, back.ramping) == ("a", None)
            assert await _new(house) == "a"
            await _moved(house, batch, "a")
        assert house.world.left_of(ledgers[1]), "a build that was taken back left its deletions to nobody else"
        assert house.world.catalog.deletions.count_undeleted_copies().estimated_inflight == 1
        with pytest.raises(
            PreconditionFailed, match=f"build b of {name}: expected workers that poll .* found none at {name};"
        ):
            await deploy_build(house.client, name, "b")
        with pytest.raises(PreconditionFailed, match="found none at"):
            await deploy_build(house.client, name, "b", ramp=10)
        assert (await deploy_build(house.client, name, "b", without_workers=True)).current == "b"
        assert await find_unserved_queues(house.client, name, "b") == [name]
        async with house.build("b", replacements=[shipping.ship]):
            await _moved(house, batch, "b")
            await batch.execute_update(DeleteLedgers.resume)
            assert (await batch.result()).outcomes == {"DELETED": 2}
            assert await _build_of(batch) == "b"
    assert not house.world.left_of(ledgers[1])


async def test_rollback_in_the_middle_of_a_ramp_ends_the_ramp(house: WorkflowHarness) -> None:
    """The earlier build is current all the time: deploying it again takes the share back, and so does a share of 0."""
    name = house.queue
    shipping = Shipping()
    async with house.build("a", replacements=[shipping.ship]), house.build("b", replacements=[shipping.ship]):
        await deploy_just_started_build(house.client, name, "a")
        await deploy_just_started_build(house.client, name, "b", ramp=100)
        assert await _new(house) == "b"
        assert (await deploy_build(house.client, name, "a")).ramping is None
        assert await _new(house) == "a"
        await deploy_build(house.client, name, "b", ramp=10)
        with pytest.raises(PreconditionFailed, match=r"build a of .*current"):
            await deploy_build(house.client, name, "a", ramp=10)
        with pytest.raises(PreconditionFailed, match=r"build a of .*: expected that it ramps, found that b does"):
            await deploy_build(house.client, name, "a", ramp=0)
        assert (await read_worker_deployment(house.client, name)).ramp_percent == 10
        for _ in range(2):
            assert (await deploy_build(house.client, name, "b", ramp=0)).ramping is None


async def test_ramp_of_another_build_that_began_meanwhile_is_not_ended(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operator takes back the share of a build, and another one begins that of the next at the same moment."""
    name = house.queue
    async with house.build("a"), house.build("b"), house.build("c"):
        await deploy_just_started_build(house.client, name, "a")
        await deploy_just_started_build(house.client, name, "b", ramp=10)
        await deploy_just_started_build(house.client, name, "c", ramp=20)
        await deploy_just_started_build(house.client, name, "b", ramp=10)

        async def read(client: Client, of: str) -> WorkerDeployment:
            found = await read_worker_deployment(client, of)
            monkeypatch.undo()
            await deploy_build(client, of, "c", ramp=20)
            return found

        monkeypatch.setattr(worker_builds, "read_worker_deployment", read)
        with pytest.raises(PreconditionFailed, match=f"build b of {name}: "):
            await deploy_build(house.client, name, "b", ramp=0)
        found = await read_worker_deployment(house.client, name)
        assert (found.ramping, found.ramp_percent) == ("c", 20)


async def test_build_that_becomes_current_ends_a_ramp_to_what_has_no_version(house: WorkflowHarness) -> None:
    """Other tools may begin one; its share of new runs would wait for workers that do not exist any more."""
    name = house.queue
    async with house.build("a"):
        await deploy_just_started_build(house.client, name, "a")
        await worker_builds._set_ramp_percent(house.client, name, "", 30)
        assert str(await read_worker_deployment(house.client, name)) == (
            f"{name}: a is current, what has no version ramps at 30 %"
        )
        found = await deploy_build(house.client, name, "a")
        assert (found.current, found.has_ramp, found.ramp_percent) == ("a", False, 0)


@pytest.mark.parametrize("share", [math.nan, -1.0, 100.5])
async def test_share_that_is_none_is_refused(house: WorkflowHarness, share: float) -> None:
    """Also what is no number, which is neither less than 0 nor more than 100."""
    with pytest.raises(InvalidInput, match="ramp: expected a share of new runs, 0 to 100 per cent"):
        await deploy_build(house.client, house.queue, "a", ramp=share)


async def test_refusal_that_no_wait_can_change_is_told_at_once(house: WorkflowHarness) -> None:
    """Temporal knows all of a build that is current: that it cannot ramp too has nothing to do with its start."""
    async with house.build("a"):
        await deploy_just_started_build(house.client, house.queue, "a")
        async with asyncio.timeout(_AT_ONCE_S):
            with pytest.raises(PreconditionFailed, match=r"build a of .*current"):
                await deploy_just_started_build(house.client, house.queue, "a", ramp=10)


async def test_new_build_takes_no_place_of_another_whose_workers_poll(house: WorkflowHarness) -> None:
    """An operator chose that one; once its workers have gone, the new one is current, or no run would begin."""
    name = house.queue
    async with house.build("b"):
        async with house.build("a"):
            assert (await deploy_unless_current_build_is_served(house.client, name, "a")).current == "a"
            assert (await deploy_unless_current_build_is_served(house.client, name, "b")).current == "a"
            await deploy_build(house.client, name, "b", ramp=10)
            again = await deploy_unless_current_build_is_served(house.client, name, "a")
            assert (again.current, again.ramping) == ("a", "b")
        assert (await deploy_unless_current_build_is_served(house.client, name, "b")).current == "b"


async def test_build_that_is_about_to_serve_is_waited_for(house: WorkflowHarness) -> None:
    """Its worker begins after the call."""
    deployed = asyncio.create_task(deploy_just_started_build(house.client, house.queue, "a"))
    async with house.build("a"):
        assert (await deployed).current == "a"


async def test_build_that_never_served_is_refused(house: WorkflowHarness) -> None:
    """New runs would wait for it; those that there are, are named."""
    with pytest.raises(PreconditionFailed, match="expected one that a worker has served with, found none"):
        await deploy_build(house.client, house.queue, "a")
    assert (await read_worker_deployment(house.client, house.queue)).builds == ()
    async with house.build("a"):
        await deploy_just_started_build(house.client, house.queue, "a")
        with pytest.raises(PreconditionFailed, match="found a"):
            await deploy_build(house.client, house.queue, "z")
        assert (await read_worker_deployment(house.client, house.queue)).current == "a"
