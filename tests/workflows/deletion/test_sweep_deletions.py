"""`sweep-deletions`: what nobody works on is taken up, what ended long ago forgotten, and a quiet run does nothing."""

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from logstore.deletion.intents import DeletionState
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import (
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.deletion.job_definitions import SweepDeletionsResult

_LAPSED = "UPDATE run SET claim_until_us = 1 WHERE finished_us IS NULL"


def stalled(house: WorkflowHarness, count: int, *, batch_id: str = "") -> list[LedgerId]:
    """Detached ledgers whose batch was never started, or was terminated."""
    ledgers = house.world.fill(count)
    house.world.detach(batch_id=batch_id or f"{house.queue}-dead")
    house.world.sql(_LAPSED)
    return ledgers


async def test_sweep_takes_up_stalled_rows_and_deletes_them(house: WorkflowHarness) -> None:
    """A batch that died is finished by the next sweep, and its ledgers are gone (promise 2; PIP-186, back-off)."""
    ledgers = stalled(house, 3)
    async with house.worker():
        handle = await house.sweep()
        result = await handle.result()
        assert await query_current_details(handle) == "3 copies taken up, 3 deleted"
    assert (result.batches, result.intents, result.outcomes, result.objects) == (1, 3, {"DELETED": 3}, 9)
    assert (result.deleted, result.uncertified) == (3, 0)
    assert not any(house.world.left_of(one) for one in ledgers)
    assert len(house.attempts("deletion.adopt")) == 2


async def test_sweep_with_nothing_to_do_leaves_no_trace(house: WorkflowHarness) -> None:
    """Once a minute for ever: two small reads, no row, no child."""
    house.world.fill(2)
    house.world.detach(batch_id=house.queue)
    before = [house.world.sql(f"SELECT * FROM {name}") for name in ("run", "pending_deletion", "audit")]
    async with house.worker():
        assert await (await house.sweep()).result() == SweepDeletionsResult()
    assert [house.world.sql(f"SELECT * FROM {name}") for name in ("run", "pending_deletion", "audit")] == before
    assert [one.type for one in house.attempts()] == ["deletion.adopt", "deletion.forget"]


async def test_sweep_finds_the_row_of_a_workflow_that_was_terminated(house: WorkflowHarness) -> None:
    """Handed to a `delete-ledger` that an operator terminated: found once its claim has ended (apache/pulsar#982)."""
    (ledger,) = stalled(house, 1)
    key = house.world.key(ledger)
    (intent,) = house.world.catalog.deletions.list_intents(None, limit=1)
    name = house.alone(key).id
    house.world.catalog.deletions.move_to_own_workflows(
        {intent.row_id: name}, batch_id=intent.batch_id, error_by_row={}, ttl_s=-1
    )
    async with house.worker():
        assert (await (await house.sweep()).result()).outcomes == {"DELETED": 1}
    assert not house.world.left_of(ledger)


@pytest.mark.external_service
async def test_sweep_batch_has_no_topic_and_its_failing_rows_have_theirs(house: WorkflowHarness) -> None:
    """A batch is of any topics, so that no filter by topic finds it; a dead letter is found by its own."""
    good, bad = stalled(house, 2)
    house.world.objects.put_if_absent(f"{ledger_prefix(bad)}theirs.txt", b"theirs", metadata={})
    async with house.worker():
        result = await (await house.sweep()).result()
        with pytest.raises(WorkflowFailureError) as caught:
            await house.alone(house.world.key(bad)).result()
    assert result.outcomes == {"DELETED": 1, "METADATA_MISMATCH": 1}
    assert failure_type_and_message(caught.value)[0] == "METADATA_MISMATCH"
    alone = await house.alone(house.world.key(bad)).describe()
    assert alone.search_attributes["SextonTopic"] == [house.world.topic.name]
    assert await alone.static_summary() == f"ledger {bad} of {house.world.topic.name}"
    (intent,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    batch = await house.client.get_workflow_handle(f"delete-ledgers/{intent.batch_id}").describe()
    assert "SextonTopic" not in batch.search_attributes
    assert batch.search_attributes["SextonRunId"] == [intent.batch_id]
    assert not house.world.left_of(good)


async def test_sweep_detaches_a_newborn_ledger_of_an_idle_topic(house: WorkflowHarness) -> None:
    """Nobody trims the topic, and yet what its creator left is taken away (apache/pulsar#350)."""
    made = house.world.catalog.ledgers.create_ledger(house.world.topic.topic_id, application="sexton")
    house.world.store(made, 0)
    house.world.catalog.upkeep._newborn_us = -1_000_000
    result = await house.done(house.sweep())
    assert (result.newborn, result.intents, result.outcomes) == (1, 1, {"DELETED": 1})
    assert house.world.sql("SELECT * FROM ledger") == []
    assert not house.world.left_of(made.ledger_id)


async def test_sweep_forgets_finished_rows_after_a_month(house: WorkflowHarness) -> None:
    """Rows and their batch go, the dead letter stays, and the audit log says who asked (promise 2)."""
    good, bad = house.world.fill(2)
    house.world.objects.put_if_absent(f"{ledger_prefix(bad)}theirs.txt", b"theirs", metadata={})
    async with house.worker():
        await (await house.delete([good, bad])).result()
        for table in ("pending_deletion", "run"):
            house.world.sql(f"UPDATE {table} SET finished_us = finished_us - 31 * 86400000000")
        result = await (await house.sweep(actor="tests", reason="a test")).result()
    assert (result.forgotten, result.forgotten_runs, result.intents) == (1, 0, 0)
    assert [one.ledger_id for one in house.world.catalog.deletions.list_intents(None, limit=9)] == [bad]
    assert house.world.sql("SELECT actor, reason FROM audit WHERE act = 'forget'") == [("tests", "a test")]


async def test_sweep_whose_batch_fails_goes_on_and_says_so(house: WorkflowHarness) -> None:
    """A batch that was terminated leaves rows that the next sweep finds; this one ends."""
    ledgers = stalled(house, 2)
    gate = house.gate(StoreOperation.LIST)
    async with house.worker():
        handle = await house.sweep()
        await assert_eventually(gate.reached.is_set)
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        await house.client.get_workflow_handle(f"delete-ledgers/{batch}").terminate()
        result = await handle.result()
        assert (result.batches, result.uncertified, result.outcomes) == (1, 1, {})
        house.world.sql(_LAPSED)
        again = await house.sweep()
        await assert_eventually(
            lambda: batch not in {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        )
        gate.open()
        assert (await again.result()).intents == 2
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_sweep_cancelled_midway_leaves_its_batch_at_work(house: WorkflowHarness) -> None:
    """Rows that were taken up are their batch's, whatever becomes of the sweep (promise 2)."""
    ledgers = stalled(house, 2)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await house.sweep()
        await assert_eventually(gate.reached.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        gate.open()
        await house.client.get_workflow_handle(f"delete-ledgers/{batch}").result()
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_sweep_continued_as_new_carries_totals(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stalls while it works is found by the next run of it, and both are in the result."""
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    stalled(house, 2)

    def one_more() -> None:
        stalled(house, 1, batch_id="later")

    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=one_more))
    async with house.worker():
        handle = await house.sweep()
        result = await handle.result()
    assert (result.batches, result.intents, result.outcomes) == (2, 4, {"DELETED": 4})
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
