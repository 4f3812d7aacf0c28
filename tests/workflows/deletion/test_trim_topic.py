"""`trim-topic`: passes until one that began after the last request detaches nothing."""

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from activities.deletion.inputs_and_results import DetachInput, DetachResult
from activities.owner_routing import OwnerRoutedAnswer
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.deletion.test_batch_control import gate_at
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
    require_documented_error,
)
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DeletionPolicy, TrimTopicResult
from workflows.deletion.trim_topic import TrimTopic


def listed(house: WorkflowHarness) -> list[LedgerId]:
    return [one.ledger_id for one in house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)]


def deletes_of(ledger_id: LedgerId, **more: object) -> Fault:
    """A fault of one ledger's deletes."""
    prefix = ledger_prefix(ledger_id)
    return Fault(operation=StoreOperation.DELETE, matches=lambda key: key.startswith(prefix), **more)  # type: ignore[arg-type]


async def test_trim_of_consumed_ledgers_deletes_them(house: WorkflowHarness) -> None:
    """What retention lets go is out of the list and gone from storage; the last ledger stays (promises 1, 2)."""
    ledgers = house.world.fill(3)
    result = await house.done(house.trim())
    assert (result.detached, result.deleted, result.objects, result.outcomes) == (3, 3, 9, {"DELETED": 3})
    assert result.passes == 2
    assert not set(ledgers) & set(listed(house))
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_trim_of_a_topic_that_needs_all_changes_nothing(house: WorkflowHarness) -> None:
    """A ledger that a subscription has not acknowledged stays, and all behind it too (apache/pulsar#20898)."""
    ledgers = house.world.fill(3, acknowledged=False)
    house.world.acknowledge(ledgers[0], "fast")
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)
    result = await house.done(house.trim())
    assert result == TrimTopicResult(passes=1)
    assert len(listed(house)) == 4


async def test_trim_that_cannot_roll_deletes_all_the_same(house: WorkflowHarness) -> None:
    """A best-effort step does not veto the main one (apache/pulsar#26431)."""
    house.world.fill(2)
    house.roller.failures = 100
    result = await house.done(house.trim())
    assert result.deleted == 2
    assert house.roller.calls == 3 * result.passes


async def test_trim_of_an_unknown_topic_fails(house: WorkflowHarness) -> None:
    """Terminal: work for a topic that is gone ends and says so (apache/bookkeeper#3316)."""
    house.world.sql("DELETE FROM topic")
    async with house.worker():
        handle = await house.trim()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value)[0] == "UnknownObject"


async def test_trim_fails_as_the_batch_did_that_it_waits_for(house: WorkflowHarness) -> None:
    """Its batch was paused and then released, to be taken up by a sweep: the trim says so, as its reference does."""
    ledgers = house.world.fill(2)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate = gate_at(house, ledgers[0])
    async with house.worker():
        handle = await house.trim()
        await assert_eventually(gate.reached.is_set)
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        await house.client.get_workflow_handle(f"delete-ledgers/{batch}").execute_update(DeleteLedgers.pause)
        assert house.world.catalog.deletions.release_paused_batch(str(batch))
        gate.open()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    require_documented_error(handle.id, caught.value)
    kind, sentence = failure_type_and_message(caught.value)
    assert (kind, "found that it was released" in sentence) == ("ClaimHeld", True)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_trim_stopped_midway_lets_its_deletion_go_on(house: WorkflowHarness, how: str) -> None:
    """Intents are filed, so the abandoned `delete-ledgers` finishes them without its parent (apache/pulsar#13526)."""
    ledgers = house.world.fill(2)
    gate = Gate()
    house.world.objects.plan(deletes_of(ledgers[0], kind=FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.trim()
        await assert_eventually(gate.reached.is_set)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        child = house.client.get_workflow_handle(f"delete-ledgers/{batch}")
        assert (await child.describe()).status is WorkflowExecutionStatus.RUNNING
        gate.open()
        await child.result()
    assert (await child.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_trim_asked_for_while_it_runs_joins_and_swallows_no_work(house: WorkflowHarness) -> None:
    """Signal-with-start coalesces into the running one, which then passes over the new work (PostHog/posthog#97438)."""
    (old,) = house.world.fill(1)
    gate = Gate()
    house.world.objects.plan(deletes_of(old, kind=FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.trim()
        await assert_eventually(gate.reached.is_set)
        house.world.fill(2)
        joined = await house.trim()
        gate.open()
        assert (await handle.result()).deleted == 4  # the old one, the one that was open, and the two new ones
    assert joined.first_execution_run_id in {None, handle.first_execution_run_id}
    assert len(listed(house)) == 1


async def test_trim_asked_for_just_before_its_end_passes_once_more(house: WorkflowHarness) -> None:
    """`again` at the worst moment, while the last empty pass is being answered, is not lost."""
    gate = Gate()
    real = house.world.deletion.detach
    held = [gate]

    @activity.defn(name="deletion.detach")
    def detach(request: DetachInput) -> OwnerRoutedAnswer[DetachResult]:
        answer = real(request)
        if held:
            held.pop().wait()  # the answer is known, and work comes up before it is heard
        return answer

    async with house.worker(replacements=[detach]):
        handle = await house.trim()
        await assert_eventually(gate.reached.is_set)
        house.world.fill(2)
        await handle.signal(TrimTopic.again)
        gate.open()
        result = await handle.result()
    assert (result.deleted, result.passes) == (2, 3)


async def test_trim_asked_for_at_any_moment_leaves_no_work_behind(house: WorkflowHarness) -> None:
    """Whenever `again` comes, also while the last task completes: the work it announced is done."""
    async with house.worker():
        for _ in range(6):
            handle = await house.trim()
            house.world.fill(1)
            await house.trim()
            await handle.result()
            last = house.client.get_workflow_handle(house.trim_workflow_id)
            await last.result()
            assert len(listed(house)) == 1


async def test_trim_continued_as_new_carries_totals(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier runs did is in the result, and in the query of the last one."""
    house.world.fill(3)
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    async with house.worker():
        handle = await house.trim()
        result = await handle.result()
        progress = await handle.query(TrimTopic.progress)
    assert (result.detached, result.deleted, result.objects, result.passes) == (3, 3, 9, 2)
    assert progress == result
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


@pytest.mark.external_service
async def test_trim_shows_itself_and_its_batch_to_operators(house: WorkflowHarness) -> None:
    """Summary, details and search attributes say which topic, which batch and how far."""
    house.world.fill(2)
    async with house.worker():
        handle = await house.trim()
        await handle.result()
        assert (await query_current_details(handle)).startswith("2 ledgers detached, 2 copies deleted, 6 objects")
    assert await (await handle.describe()).static_summary() == f"trim {house.world.topic.name}"
    (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
    shown = await house.client.get_workflow_handle(f"delete-ledgers/{batch}").describe()
    assert await shown.static_summary() == f"2 copies of {house.world.topic.name}"
    assert shown.search_attributes["SextonTopic"] == [house.world.topic.name]
    assert shown.search_attributes["SextonRunId"] == [batch]
    assert shown.search_attributes["SextonOutcome"] == ["DELETED"]


async def test_trim_takes_up_rows_that_nobody_works_on(house: WorkflowHarness) -> None:
    """Stalled intents of a terminated batch join the next trim and are deleted (apache/pulsar#13526, #982)."""
    ledgers = house.world.fill(2)
    house.world.detach()
    house.world.sql("UPDATE run SET claim_until_us=0")
    result = await house.done(house.trim())
    assert (result.detached, result.deleted) == (0, 2)
    assert not any(house.world.left_of(one) for one in ledgers)
