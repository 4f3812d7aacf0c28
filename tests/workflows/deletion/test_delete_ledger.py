"""`delete-ledger`: one row, to success or to a dead letter that fails the workflow."""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from logstore.deletion.intents import DeletionState, IntentKey, Outcome
from logstore.errors import CorruptData
from logstore.ports.catalog.deletion import Claim
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import (
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.job_definitions import DeletionPolicy


def handed_over(house: WorkflowHarness) -> tuple[LedgerId, IntentKey]:
    """A detached ledger whose row belongs to a workflow of its own."""
    (ledger,) = house.world.fill(1)
    house.world.detach()
    key = house.world.key(ledger)
    name = f"delete-ledger/{ledger}/LEDGER/1"
    (intent,) = house.world.intents()
    house.world.catalog.deletions.move_to_own_workflows(
        {intent.row_id: name}, batch_id=intent.batch_id, error_by_row={}, ttl_s=60
    )
    return ledger, key


async def test_delete_ledger_of_own_objects_succeeds(house: WorkflowHarness) -> None:
    """Nothing of the copy is left, and the row says so (promise 2)."""
    ledger, key = handed_over(house)
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        result = await handle.result()
        progress = await handle.query(DeleteLedger.progress)
    assert (result.outcome, result.objects) == (Outcome.DELETED, 3)
    assert (progress.step, progress.outcome) == ("ended", Outcome.DELETED)
    assert not house.world.left_of(ledger)


async def test_delete_ledger_exhausted_is_a_dead_letter_and_fails(house: WorkflowHarness) -> None:
    """Ten attempts 600 s apart, the batch's own among them, then DEAD_LETTERED with its error (PIP-186)."""
    ledger, key = handed_over(house)
    house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=100))
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value) == ("DEAD_LETTERED", "StoreUnavailable: planned fault: 503 SlowDown")
    times = [one.scheduled for one in house.attempts("deletion.delete_one")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == 9
    assert all(timedelta(seconds=600) <= gap < timedelta(seconds=660) for gap in gaps)
    (row,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert row.last_error == "StoreUnavailable: planned fault: 503 SlowDown"
    assert len(house.world.left_of(ledger)) == 3


async def test_delete_ledger_without_progress_is_a_dead_letter_before_the_end(house: WorkflowHarness) -> None:
    """Storage keeps the same keys: after five answers, not ten, and the workflow fails as NoProgress."""
    ledger, key = handed_over(house)
    kept = f"{ledger:016x}/00000000.parquet"
    refused = Fault(
        operation=StoreOperation.DELETE,
        kind=FaultKind.REPORT_KEY_FAILED,
        times=1_000,
        matches=lambda name: name.endswith(kept),
    )
    house.world.objects.plan(refused)
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        progress = await handle.query(DeleteLedger.progress)
        with pytest.raises(WorkflowFailureError) as again:
            await (await house.claim_and_delete_copy(key)).result()
    type_, message = failure_type_and_message(caught.value)
    assert (type_, progress.outcome) == ("NoProgress", Outcome.DEAD_LETTERED)
    assert message.startswith(f"NoProgress: ledger {ledger}: 2 keys left after each of 5 attempts; 1 keys kept")
    assert failure_type_and_message(again.value) == (type_, message), "asked again, the dead letter says the same"
    times = [one.scheduled for one in house.attempts("deletion.delete_one")][:5]
    assert all(timedelta(seconds=600) <= b - a < timedelta(seconds=660) for a, b in itertools.pairwise(times))
    assert len(house.attempts("deletion.delete_one")) == 6
    (row,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert row.last_error == message


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [
        ("UPDATE pending_deletion SET topic=''", "INVALID"),
        ("UPDATE pending_deletion SET application='other'", "METADATA_MISMATCH"),
        ("DELETE FROM pending_deletion", "UNKNOWN"),
        ("UPDATE catalog SET epoch=2", "STALE_CATALOG"),
    ],
)
async def test_delete_ledger_refused_fails_with_the_outcome_and_is_not_retried(
    house: WorkflowHarness, spoil: str, outcome: str
) -> None:
    """A refusal fails the workflow with its outcome as the type, at once, and deletes nothing (promise 3)."""
    ledger, key = handed_over(house)
    house.world.sql(spoil)
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value)[0] == outcome
    assert len(house.attempts("deletion.delete_one")) == 1
    assert len(house.world.left_of(ledger)) == 3


async def test_delete_ledger_that_another_workflow_holds_completes_as_taken_over(house: WorkflowHarness) -> None:
    """Another workflow at work is no failure of the row: it is no dead letter, and not seen among the failed."""
    _, key = handed_over(house)
    house.world.sql("UPDATE pending_deletion SET claim_workflow='delete-ledger/other'")
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        result = await handle.result()
        assert (await query_current_details(handle)).startswith(
            "**RETRYING** — 0 objects. taken over by another workflow"
        )
    assert result.outcome is Outcome.RETRYING
    assert result.detail.endswith("expected no other workflow at work, found delete-ledger/other")
    assert not house.attempts("deletion.dead_letter")
    assert house.world.intents()[0].state is DeletionState.PENDING
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_delete_ledger_that_a_sweep_takes_over_in_mid_delete_can_be_handed_over_again(
    house: WorkflowHarness,
) -> None:
    """It ends nothing that is not its own any more, completes, and its id is free for the batch that has the row."""
    ledger, key = handed_over(house)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        first = await house.claim_and_delete_copy(key)
        await assert_eventually(gate.reached.is_set)
        house.world.sql("UPDATE pending_deletion SET claim_until_us = 1")
        sweep = Claim(workflow_id=f"delete-ledgers/{house.queue}", run_id="", ttl_s=60)
        assert (
            house.world.catalog.upkeep.move_abandoned_work_to_batch(batch_id=house.queue, claim=sweep, limit=9).intents
            == 1
        )
        gate.open()
        taken = await first.result()
        house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=_corrupt))
        await (await house.delete(batch_id=house.queue)).result()
        second = await house.alone(key).result()
    assert (taken.outcome, second["outcome"]) == (Outcome.RETRYING, "ALREADY_GONE")
    assert sweep.workflow_id in taken.detail
    assert not house.world.left_of(ledger)


def _corrupt() -> Exception:
    """An error that is no sign of a store that is down."""
    return CorruptData("planned: not XML")


async def test_delete_ledger_with_a_single_attempt_makes_none_of_its_own(house: WorkflowHarness) -> None:
    """The batch's own was the one: the row is a dead letter with what the batch was told, and seen as failed."""
    (ledger,) = house.world.fill(1)
    house.policy = DeletionPolicy(max_attempts=1)
    house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=_corrupt, times=9))
    async with house.worker():
        certificate = await (await house.delete([ledger])).result()
        with pytest.raises(WorkflowFailureError) as caught:
            await house.alone(house.world.key(ledger)).result()
    assert sum(certificate.outcomes.values()) == 1
    assert not house.attempts("deletion.delete_one")
    assert failure_type_and_message(caught.value) == ("DEAD_LETTERED", "CorruptData: planned: not XML")
    (row,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert (row.attempts, row.last_error) == (1, "CorruptData: planned: not XML")


async def test_delete_ledger_of_a_row_opened_again_is_another_workflow(house: WorkflowHarness) -> None:
    """The first has completed; what came late is deleted by one whose id says how often the row was opened again."""
    ledger, key = handed_over(house)
    late = next(name for name in house.world.objects.keys if name.endswith("0.parquet"))
    async with house.worker():
        stored = house.world.objects.get(late)
        assert stored
        assert (await (await house.claim_and_delete_copy(key)).result()).outcome is Outcome.DELETED
        house.world.catalog.ledgers.record_abandoned_upload(ledger, epoch=1)
        house.world.objects.put_if_absent(late, stored.body, metadata=stored.metadata)
        house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, error=_corrupt))
        assert (await (await house.sweep()).result()).intents == 1
        again = house.alone(replace(key, openings=1))
        assert again.id == f"delete-ledger/{ledger}/LEDGER/1/1"
        assert (await again.result())["outcome"] == "DELETED"
    assert not house.world.left_of(ledger)


async def test_delete_ledger_cancelled_midway_ends_cancelled_and_keeps_its_row(house: WorkflowHarness) -> None:
    """Cancellation passes through: no dead letter, no success, and the row is taken up again later (promise 2)."""
    ledger, key = handed_over(house)
    gate = house.gate(StoreOperation.LIST)
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        await assert_eventually(gate.reached.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    gate.open()
    assert isinstance(caught.value.cause, CancelledError)
    assert house.world.intents()[0].state is DeletionState.PENDING
    assert len(house.world.left_of(ledger)) == 3


@pytest.mark.external_service
async def test_delete_ledger_shows_its_outcome_to_operators(house: WorkflowHarness) -> None:
    """The outcome is a search attribute and stands in the current details."""
    _, key = handed_over(house)
    async with house.worker():
        handle = await house.claim_and_delete_copy(key)
        await handle.result()
        assert (await query_current_details(handle)).startswith("**DELETED** — 3 objects")
    description = await handle.describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED
    assert list(description.search_attributes["SextonOutcome"]) == ["DELETED"]
