"""The work of a topic goes to its owner, once it is known and while it picks it up, and is done anyway."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from activities.deletion.inputs_and_results import ChunkInput, ChunkResult, DeleteIntentInput, DetachInput, DetachResult
from logstore.deletion.intents import DeleteIntentResult, DeletionState, Outcome
from logstore.errors import CorruptData, NotOwner, ServiceFailed, StoreUnavailable
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.fakes.owners import FakeOwners
from tests.workflows.deletion.test_delete_ledger import handed_over
from tests.workflows.ownership.neighbours import Neighbours
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually, failure_type_and_message
from workflows.deletion.job_definitions import DeletionPolicy

_SHARED = "shared"


def unreadable(ledger: LedgerId) -> Fault:
    """A listing that is no XML: an error of this ledger, and no sign of a store that is down."""
    prefix = ledger_prefix(ledger)
    corrupt = Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=lambda: CorruptData("planned: not XML"))
    return replace(corrupt, matches=lambda key: key.startswith(prefix))


async def test_trim_where_another_worker_owns_the_topic_asks_once_and_is_done_at_the_owner(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """The batch believes what phase one learnt: its chunks and its end go straight to the owner's queue."""
    house.world.fill(5)
    street.moves_in("a")
    async with street.shared(), street.owner("a"):
        result = await (await house.trim()).result()
    assert (result.detached, result.deleted) == (5, 5)
    assert street.visits("deletion.detach") == [_SHARED, "a", "a"]
    assert set(street.visits("deletion.delete_chunk")) == {"a"}
    assert street.visits("deletion.certify") == ["a"]
    assert street.ownership.asked == 1


async def test_trim_at_a_worker_that_owns_the_topic_costs_no_activity_more(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """Who gets phase one and is the owner does it; what follows comes by its own queue."""
    house.world.fill(2)
    street.moves_in("s")
    async with street.shared("s"), street.owner("s"):
        await (await house.trim()).result()
    assert street.visits("deletion.detach") == [_SHARED, "s"]
    assert street.visits("deletion.delete_chunk") == ["s"]


async def test_trim_where_nobody_owns_the_topic_runs_on_the_shared_queue(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """As before there were owners, activity by activity."""
    house.world.fill(2)
    async with street.shared():
        result = await (await house.trim()).result()
    assert result.deleted == 2
    assert street.visits("deletion.detach") == [_SHARED] * 2
    assert street.visits("deletion.delete_chunk") == [_SHARED]


async def test_batch_that_believes_an_owner_asks_nobody(house: WorkflowHarness, street: Neighbours) -> None:
    """Detached by this owner under this lease: the owner look-up is skipped, and nothing else."""
    house.world.fill(4)
    detached = house.world.detach(batch_id=house.queue)
    street.moves_in("a")
    async with street.shared(), street.owner("a"):
        certificate = await (await house.delete(batch_id=house.queue, owner=street.name("a"))).result()
    assert certificate.outcomes == {"DELETED": detached.intents}
    assert set(street.visits("deletion.delete_chunk")) == {"a"}
    assert street.ownership.asked == 0


async def test_batch_that_believes_a_wrong_owner_is_done_by_the_right_one(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """What is believed is checked by whoever is believed in."""
    house.world.fill(2)
    house.world.detach(batch_id=house.queue)
    street.moves_in("b")
    async with street.shared(), street.owner("a"), street.owner("b"):
        certificate = await (await house.delete(batch_id=house.queue, owner=street.name("a"))).result()
    assert certificate.outcomes == {"DELETED": 2}
    assert street.visits("deletion.delete_chunk") == ["a", _SHARED, "b"]
    assert not house.attempts("deletion.hand_over_chunk")


async def test_batch_that_continues_as_new_still_knows_the_owner(house: WorkflowHarness, street: Neighbours) -> None:
    """One look-up for the whole of it, however many runs it takes."""
    ledgers = house.world.fill(54)  # more chunks than a page has
    street.moves_in("a")
    async with street.shared(), street.owner("a"):
        handle = await house.delete(ledgers, policy=DeletionPolicy(chunk=1, parallelism=4))
        certificate = await handle.result()
        first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert certificate.outcomes == {"DELETED": 54}
    assert street.visits("deletion.delete_chunk") == ["a"] * 54
    assert street.ownership.asked == 1


async def test_batch_of_several_topics_never_asks(house: WorkflowHarness, street: Neighbours) -> None:
    """It belongs to no owner, whatever it believes; a row that fails has a topic, and its own workflow is routed."""
    ledgers = house.world.fill(3)
    house.world.detach(batch_id=house.queue)
    street.moves_in("a")
    house.world.objects.plan(unreadable(ledgers[1]))
    async with street.shared(), street.owner("a"):
        await (await house.delete(batch_id=house.queue, topic="", owner=street.name("a"))).result()
        await house.alone(house.world.key(ledgers[1])).result()
    assert house.world.outcomes(house.queue) == {"DELETED": 3}
    assert street.visits("deletion.certify") == [_SHARED]
    assert set(street.visits("deletion.delete_chunk")) == {_SHARED}
    assert street.visits("deletion.delete_one") == [_SHARED, "a"]
    assert street.ownership.asked == 1  # for the row


async def test_one_of_a_topic_without_name_is_deleted_by_anybody(house: WorkflowHarness, street: Neighbours) -> None:
    """A request of an older program may name none: as before there were owners."""
    _, key = handed_over(house)
    street.moves_in("a")
    async with street.shared():
        result = await (await house.claim_and_delete_copy(key, topic="")).result()
    assert result.outcome is Outcome.DELETED
    assert street.visits("deletion.delete_one") == [_SHARED]
    assert street.ownership.asked == 0


async def test_one_whose_owner_never_picks_up_is_deleted_by_anybody(house: WorkflowHarness, street: Neighbours) -> None:
    """Let lie for as long as the request says, looked up again, and done without a lease if the same one is named."""
    _, key = handed_over(house)
    street.moves_in("a")
    async with street.shared():
        result = await (await house.claim_and_delete_copy(key, owner_patience_s=3_000)).result()
    first, second, third = house.attempts("deletion.delete_one")
    assert result.outcome is Outcome.DELETED
    assert [one.number for one in (first, second, third)] == [1, 1, 1]
    assert timedelta(seconds=3_000) <= second.scheduled - first.scheduled < timedelta(seconds=6_000)
    assert third.scheduled - second.scheduled < timedelta(seconds=3_000)
    assert house.world.intents()[0].attempts == 2  # the batch's, and this one


async def test_row_handed_over_waits_for_an_owner_as_long_as_its_batch_does(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """The batch's policy goes with it."""
    ledgers = house.world.fill(1)
    house.world.detach(batch_id=house.queue)
    street.moves_in("a")
    house.world.objects.plan(unreadable(ledgers[0]))
    async with street.shared():
        policy = DeletionPolicy(owner_patience_s=1_000)
        await (await house.delete(batch_id=house.queue, topic="", policy=policy)).result()
        await house.alone(house.world.key(ledgers[0])).result()
    first, second, _ = house.attempts("deletion.delete_one")
    assert timedelta(seconds=1_000) <= second.scheduled - first.scheduled < timedelta(seconds=2_000)


async def test_batch_whose_owner_never_picks_up_waits_for_it_once(house: WorkflowHarness, street: Neighbours) -> None:
    """Who let one chunk lie is not waited for again: the batch asks on, and goes to whoever owns the topic next."""
    ledgers = house.world.fill(8)
    street.moves_in("a")

    def after_a_while() -> None:
        street.moves_in("b")

    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=after_a_while))
    async with street.shared(), street.owner("b"):
        handle = await house.delete(ledgers, policy=DeletionPolicy(chunk=2, parallelism=1, owner_patience_s=4_000))
        certificate = await handle.result()
    assert certificate.outcomes == {"DELETED": 8}
    visits = street.visits("deletion.delete_chunk")
    assert visits[-1] == "b"
    assert visits.count(_SHARED) <= 4
    chunks = [one.scheduled for one in house.attempts("deletion.delete_chunk")]
    assert chunks[-1] - chunks[0] < timedelta(seconds=8_000)


async def test_one_whose_owner_says_not_owner_is_deleted_by_anybody_at_the_end(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """Named again and again and never with a lease: asked for twice, and then nobody waits (apache/pulsar#14736)."""
    _, key = handed_over(house)
    street.moves_in("a")
    async with street.shared(), street.owner("a", owners=FakeOwners(street.ownership, "nobody")):
        result = await (await house.claim_and_delete_copy(key)).result()
    assert result.outcome is Outcome.DELETED
    assert street.visits("deletion.delete_one") == [_SHARED, "a", _SHARED, "a", _SHARED]
    assert house.world.intents()[0].attempts == 2
    assert not house.attempts("deletion.dead_letter")


async def test_jobs_of_one_topic_are_done_by_anybody_while_zookeeper_is_away(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """An outage stops no job: with nobody to be looked up each activity is sent once, and no attempt is burnt."""
    house.world.fill(5)
    street.moves_in("a")
    street.ownership.trouble = StoreUnavailable("planned: zookeeper does not answer")
    async with street.shared():
        result = await (await house.trim()).result()
    assert (result.detached, result.deleted) == (5, 5)
    assert street.visits("deletion.detach") == [_SHARED] * 2
    assert set(street.visits("deletion.delete_chunk")) == {_SHARED}
    assert street.visits("deletion.certify") == [_SHARED]
    assert set(street.ownership.patience_s) == {house.policy.owner_patience_s}


async def test_batch_whose_owner_loses_zookeeper_in_its_midst_is_done_by_anybody(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """The owner has no lease without its session, nobody can look up the next, and the job goes on."""
    ledgers = house.world.fill(6)
    street.moves_in("a")

    def outage() -> None:
        street.ownership.forget()
        street.ownership.trouble = StoreUnavailable("planned: zookeeper does not answer")

    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=outage))
    async with street.shared(), street.owner("a"):
        handle = await house.delete(ledgers, policy=DeletionPolicy(chunk=2, parallelism=1))
        certificate = await handle.result()
    assert certificate.outcomes == {"DELETED": 6}
    assert street.visits("deletion.delete_chunk") == ["a", "a", _SHARED, _SHARED]
    assert not house.attempts("deletion.hand_over_chunk")


async def _trim(house: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    house.world.fill(1)
    house.world.detach()
    return await house.trim()


async def _batch(house: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    house.world.fill(1)
    house.world.detach(batch_id=house.queue)
    return await house.delete(batch_id=house.queue)


async def _one(house: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    return await house.claim_and_delete_copy(handed_over(house)[1])


@pytest.mark.parametrize("start", [_trim, _batch, _one])
async def test_job_whose_lookup_zookeeper_refuses_fails_at_once_and_says_so(
    house: WorkflowHarness, street: Neighbours, start: Callable[[WorkflowHarness], Awaitable[WorkflowHandle[Any, Any]]]
) -> None:
    """No row is judged for it, and none is lost: a sweep, which looks up no owner, takes up what is left."""
    street.ownership.trouble = ServiceFailed("zookeeper", "zk/log refuses us", advice="grant all rights on that path")
    async with street.shared():
        handle = await start(house)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value) == (
        "LookupRefused",
        "zookeeper: zk/log refuses us; grant all rights on that path",
    )
    assert not house.attempts("deletion.dead_letter")
    assert not house.attempts("deletion.hand_over_chunk")
    assert [one.state for one in house.world.catalog.deletions.list_intents(None, limit=9)] == [DeletionState.PENDING]


async def test_batch_whose_owner_changes_in_its_midst_is_ended_by_the_next(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """What the first one did under its lease counts, what it does later is refused, nothing is handed over."""
    ledgers = house.world.fill(8)
    street.moves_in("a")
    gate = Gate()
    second = ledger_prefix(ledgers[3])
    house.world.objects.plan(
        Fault(
            operation=StoreOperation.DELETE,
            kind=FaultKind.CALL,
            action=gate.wait,
            matches=lambda key: key.startswith(second),
        )
    )
    paused = street.sees("a")
    async with street.shared(), street.owner("a", owners=paused), street.owner("b"):
        handle = await house.delete(ledgers, policy=DeletionPolicy(chunk=2, parallelism=1))
        await assert_eventually(gate.reached.is_set)
        paused.stale = street.ownership.found(TopicName.from_encoded(house.world.topic.name))
        street.moves_in("b")
        gate.open()
        certificate = await handle.result()
    assert certificate.deleted == 8
    assert not house.attempts("deletion.hand_over_chunk")
    visits = street.visits("deletion.delete_chunk")
    assert visits == sorted(visits, key=["a", _SHARED, "b"].index)
    assert set(visits) == {"a", _SHARED, "b"}


async def test_trim_whose_batch_changed_owner_goes_on_at_the_next(house: WorkflowHarness, street: Neighbours) -> None:
    """The first one may be dead by then, and work that is sent to it would lie for all of `owner_patience_s`."""
    house.world.fill(4)
    street.moves_in("a")

    def overtaken() -> None:
        street.moves_in("b")

    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=overtaken))
    async with street.shared(), street.owner("a"), street.owner("b"):
        result = await (await house.trim()).result()
    assert result.deleted == 4
    assert street.visits("deletion.detach") == [_SHARED, "a", "b"]


@pytest.mark.external_service
async def test_batch_whose_owner_is_of_an_older_build_is_done_by_anybody(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """A roll-out leaves owners for a while that lack an activity: they are not asked again and again."""
    ledgers = house.world.fill(2)
    street.moves_in("a")
    async with street.shared(), street.owner("a", without="close_and_certify_batch"):
        certificate = await (await house.delete(ledgers)).result()
    assert certificate.outcomes == {"DELETED": 2}
    assert street.visits("deletion.certify")[-1] == _SHARED


async def test_batch_of_an_overtaken_lease_is_not_handed_over(house: WorkflowHarness, street: Neighbours) -> None:
    """Not even where the last resort is told NotOwner: the rows stay the batch's, and are found again (promise 2)."""
    ledgers = house.world.fill(2)

    @activity.defn(name="deletion.delete_chunk")
    def delete_chunk(request: ChunkInput) -> ChunkResult:
        raise NotOwner(0, expected="a", found="b")

    async with street.shared(replacements=[delete_chunk]):
        handle = await house.delete(ledgers)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value)[0] == "NotOwner"
    assert len(house.attempts("deletion.delete_chunk")) == 5
    assert not house.attempts("deletion.hand_over_chunk")


async def test_one_of_an_overtaken_lease_is_not_buried(house: WorkflowHarness, street: Neighbours) -> None:
    """As little as one that another workflow holds: nothing of the row has failed."""
    _, key = handed_over(house)

    @activity.defn(name="deletion.delete_one")
    def claim_and_delete_copy(request: DeleteIntentInput) -> DeleteIntentResult:
        raise NotOwner(0, expected="a", found="b")

    async with street.shared(replacements=[claim_and_delete_copy]):
        handle = await house.claim_and_delete_copy(key)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value)[0] == "NotOwner"
    assert not house.attempts("deletion.dead_letter")
    assert house.world.intents()[0].state is DeletionState.PENDING


async def test_one_exhausted_at_its_owner_is_buried_there(house: WorkflowHarness, street: Neighbours) -> None:
    """Ten attempts, the batch's own among them, however it got there; the dead letter is written under the lease."""
    _, key = handed_over(house)
    street.moves_in("a")
    house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=100))
    async with street.shared(), street.owner("a"):
        with pytest.raises(WorkflowFailureError) as caught:
            await (await house.claim_and_delete_copy(key)).result()
    assert failure_type_and_message(caught.value)[0] == "DEAD_LETTERED"
    assert street.visits("deletion.delete_one") == [_SHARED, *["a"] * 9]
    assert street.visits("deletion.dead_letter") == ["a"]


async def test_trim_whose_owner_alone_has_lost_the_catalog_is_done_by_anybody(
    house: WorkflowHarness, street: Neighbours
) -> None:
    """It lives in ZooKeeper and polls its queue, so its bundles stay its own; phase one is retried without end."""

    @activity.defn(name="deletion.detach")
    def detach(request: DetachInput) -> DetachResult:
        raise StoreUnavailable(f"planned: batch {request.batch_id}")

    house.world.fill(2)
    street.moves_in("a")
    async with street.shared(), street.owner("a", replacements=[detach]):
        async with asyncio.timeout(30):
            result = await (await house.trim()).result()
    assert result.deleted == 2
    assert 1 < street.visits("deletion.detach").count("a") < 20
