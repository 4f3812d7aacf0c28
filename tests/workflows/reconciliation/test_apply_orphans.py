"""`apply-orphans`: pages of findings in two phases, under an operator's hand, resumable, and refused as a result."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from logstore.deletion.intents import DeletionState
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.reconciliation.orphaned import apply, orphan_ledgers, orphan_segments, planned, run_id
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workers.client.deletion_batches import DeletionBatchControl
from workers.client.wait_for_job import wait_for_result
from workflows.deletion.job_definitions import DeletionPolicy, SetRateInput
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.job_definitions import ApplyOrphansProgress


def fates(house: WorkflowHarness, page: int = 0) -> list[tuple[FindingFate, str]]:
    """What became of a page."""
    stored = house.world.catalog.reconciliation.read_fates(f"apply-{run_id(house)}", page)
    return [(fate.fate, fate.reason) for fate in stored.values() if fate]


def deletes_at(house: WorkflowHarness, key: str) -> Gate:
    """Holds the deletion of a key."""
    gate = Gate()
    fault = Fault(
        operation=StoreOperation.DELETE, kind=FaultKind.CALL, matches=lambda found: found == key, action=gate.wait
    )
    house.world.objects.plan(fault)
    return gate


# -- what it does


@pytest.mark.external_service
async def test_orphaned_ledgers_go_through_two_phases_page_by_page(house: WorkflowHarness) -> None:
    """Each page is a batch of its own, and nothing of them is left in storage."""
    ledgers = orphan_ledgers(house, 5)
    alive = house.world.fill(1)
    await planned(house)
    async with house.worker():
        handle = await apply(house)
        result = await handle.result()
        details = await query_current_details(handle)
    assert (result.done.applied, result.done.skipped, result.done.failed) == ({"orphan_ledger": 5}, {}, 0)
    assert result.done.objects == 15
    assert result.done.size_bytes > 5 * 2 * 100
    assert not any(house.world.left_of(one) for one in ledgers)
    assert len(house.world.left_of(alive[0])) == 3
    for page in range(3):
        batch = await house.client.get_workflow_handle(f"delete-ledgers/orphans-{run_id(house)}-{page}").describe()
        assert batch.status is WorkflowExecutionStatus.COMPLETED
    assert "applied: **orphan_ledger** — 5" in details
    assert (await handle.describe()).search_attributes["SextonOutcome"] == ["APPLIED"]


async def test_single_objects_are_deleted_without_a_batch(house: WorkflowHarness) -> None:
    """A page without copies starts no workflow."""
    keys = orphan_segments(house, 3)
    await planned(house)
    async with house.worker():
        result = await (await apply(house)).result()
    assert result.done.applied == {"orphan_segment": 3}
    assert not set(keys) & set(house.world.objects.keys)
    assert house.attempts("deletion.next_ranges") == []


async def test_what_is_only_reported_is_left_alone(house: WorkflowHarness) -> None:
    """Data loss, contradictions and what is somebody else's are for people."""
    house.world.objects.put_if_absent("notes.txt", b"theirs", metadata={})
    for kind in (FindingKind.MISSING_DATA, FindingKind.MISMATCH, FindingKind.FOREIGN):
        house.world.bulk.findings.append(Finding(kind=kind, key="notes.txt"))
    await planned(house)
    async with house.worker():
        done = (await (await apply(house)).result()).done
    assert (done.applied, done.skipped, done.failed) == ({}, {}, 0)
    assert "notes.txt" in house.world.objects.keys


@pytest.mark.external_service
async def test_ledger_that_storage_keeps_goes_on_alone_and_counts_as_failed(house: WorkflowHarness) -> None:
    """Its neighbours are not held up; the row is listed, and tried again (PIP-186, back-off)."""
    ledgers = orphan_ledgers(house, 2)
    await planned(house)
    prefix = ledger_prefix(ledgers[0])
    house.world.objects.plan(
        Fault(
            operation=StoreOperation.DELETE,
            kind=FaultKind.REPORT_KEY_FAILED,
            matches=lambda key: key.startswith(prefix),
            times=99,
        )
    )
    async with house.worker():
        handle = await apply(house)
        result = await handle.result()
    assert (result.done.applied, result.done.failed) == ({"orphan_ledger": 1}, 1)
    assert result.done.failures["0"].startswith("RETRYING")
    assert house.world.left_of(ledgers[0])
    assert [one.ledger_id for one in house.world.catalog.deletions.list_intents(DeletionState.PENDING, limit=9)] == [
        ledgers[0]
    ]
    assert (await handle.describe()).search_attributes["SextonOutcome"] == ["FAILED_IN_PART"]


async def test_ledger_that_came_back_to_life_is_kept(house: WorkflowHarness) -> None:
    """Each finding is looked at again: an object younger than the cut-off keeps the whole ledger."""
    ledgers = orphan_ledgers(house, 2)
    await planned(house)
    house.world.objects.put_if_absent(f"{ledger_prefix(ledgers[0])}00000009.parquet", b"x", metadata={})
    async with house.worker():
        done = (await (await apply(house)).result()).done
    assert done.applied == {"orphan_ledger": 1}
    assert done.skipped == {"an object is younger than the plan's cut-off, or of unknown age": 1}
    assert len(house.world.left_of(ledgers[0])) == 4
    assert [fate for fate, _ in fates(house)] == [FindingFate.KEPT, FindingFate.DELETED]


# -- refusals


async def test_refused_apply_completes_and_changes_nothing(house: WorkflowHarness) -> None:
    """The command exits 3 with the sentence, and the Web UI shows no failure."""
    ledgers = orphan_ledgers(house, 2)
    await planned(house)
    async with house.worker():
        handle = await apply(house, max_orphan_share=0.01)
        result = await handle.result()
        assert "**Refused**, nothing changed" in await query_current_details(handle)
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(house.client, handle, lambda _: None)
    assert result.refused
    assert "orphan share" in result.refused.message
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "PreconditionFailed"
    assert all(len(house.world.left_of(one)) == 3 for one in ledgers)


async def test_apply_of_no_plan_is_refused(house: WorkflowHarness) -> None:
    """By the name of what was asked for."""
    async with house.worker():
        result = await (await apply(house)).result()
    assert result.refused
    assert result.refused.type == "UnknownObject"


async def test_share_can_be_raised_after_a_refusal(house: WorkflowHarness) -> None:
    """The refused apply has left nothing behind that would be joined."""
    orphan_ledgers(house, 1)
    await planned(house)
    async with house.worker():
        assert (await (await apply(house, max_orphan_share=0.0)).result()).refused
        assert (await (await apply(house)).result()).done.applied == {"orphan_ledger": 1}


async def test_catalog_that_was_rebuilt_meanwhile_fails_the_apply(house: WorkflowHarness) -> None:
    """Later than at its beginning something has changed: that is no refusal."""
    keys = orphan_segments(house, 4)
    await planned(house)
    gate = deletes_at(house, keys[0])
    async with house.run_until_gate(gate, apply(house)) as handle:
        house.world.sql("UPDATE catalog SET epoch = 2")
        gate.open()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert failure_type_and_message(caught.value)[0] == "StaleCatalog"
    assert keys[3] in house.world.objects.keys


# -- again, and elsewhere


async def test_plan_that_was_applied_answers_what_it_came_to(house: WorkflowHarness) -> None:
    """Applied again it does nothing."""
    orphan_segments(house, 3)
    await planned(house)
    async with house.worker():
        first = (await (await apply(house)).result()).done
        again = (await (await apply(house)).result()).done
    assert first == again
    assert len(house.attempts("reconciliation.delete_objects")) == 2


async def test_apply_that_runs_is_joined(house: WorkflowHarness) -> None:
    """Two people who ask for the same plan get one answer."""
    keys = orphan_segments(house, 1)
    await planned(house)
    gate = deletes_at(house, keys[0])
    async with house.run_until_gate(gate, apply(house)) as first:
        second = await apply(house)
        gate.open()
        assert await first.result() == await second.result()
    assert len(house.attempts("reconciliation.begin_apply")) == 1


async def test_terminated_apply_goes_on_where_it_was_when_it_is_asked_for_again(house: WorkflowHarness) -> None:
    """What its batch deletes meanwhile counts once, and is waited for."""
    ledgers = orphan_ledgers(house, 4)
    await planned(house)
    gate = deletes_at(house, f"{ledger_prefix(ledgers[0])}00000000.parquet")
    async with house.run_until_gate(gate, apply(house)) as first:
        await first.terminate()
        second = await apply(house)
        await assert_eventually(lambda: len(house.attempts("reconciliation.file_page")) == 2)
        gate.open()
        done = (await second.result()).done
    assert (done.applied, done.objects) == ({"orphan_ledger": 4}, 12)
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_apply_that_waits_long_for_an_earlier_batch_keeps_its_history_short(house: WorkflowHarness) -> None:
    """An operator has paused that batch, for as long as it may take."""
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    ledgers = orphan_ledgers(house, 3, page=3)
    await planned(house)
    gate = deletes_at(house, f"{ledger_prefix(ledgers[0])}00000000.parquet")
    batch = f"delete-ledgers/orphans-{run_id(house)}-0"
    async with house.run_until_gate(gate, apply(house)) as first:
        await DeletionBatchControl(house.client).pause(batch)
        await first.terminate()
        gate.open()
        second = await apply(house)
        run = house.client.get_workflow_handle(second.id, run_id=second.first_execution_run_id)

        async def has_gone_on() -> bool:
            return (await run.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW

        await assert_eventually(has_gone_on)
        await DeletionBatchControl(house.client).resume(batch)
        assert (await second.result()).done.applied == {"orphan_ledger": 3}


async def test_apply_whose_worker_is_lost_goes_on_at_another(house: WorkflowHarness) -> None:
    """Pages that are done stay done."""
    keys = orphan_segments(house, 4)
    await planned(house)
    gate = deletes_at(house, keys[2])
    handle = await house.stop_worker_at_gate(gate, apply(house), max_cached_workflows=0)
    async with house.worker(max_cached_workflows=0):
        assert (await handle.result()).done.applied == {"orphan_segment": 4}
    pages = house.attempts("reconciliation.record_page")
    assert len(pages) == 2


async def test_cancelled_apply_leaves_its_batch_to_itself(house: WorkflowHarness) -> None:
    """The intents are filed: their deletion must not stop with whoever filed them."""
    ledgers = orphan_ledgers(house, 4)
    await planned(house)
    gate = deletes_at(house, f"{ledger_prefix(ledgers[0])}00000000.parquet")
    async with house.run_until_gate(gate, apply(house)) as handle:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        gate.open()
        batch = house.client.get_workflow_handle(f"delete-ledgers/orphans-{run_id(house)}-0")
        await batch.result()
    assert not house.world.left_of(ledgers[0])
    assert len(house.world.left_of(ledgers[2])) == 3


async def test_batch_that_is_stopped_does_not_stop_the_apply(house: WorkflowHarness) -> None:
    """Its rows stay listed, and a sweep finds them."""
    ledgers = orphan_ledgers(house, 3)
    await planned(house)
    gate = deletes_at(house, f"{ledger_prefix(ledgers[0])}00000000.parquet")
    async with house.run_until_gate(gate, apply(house)) as handle:
        await house.client.get_workflow_handle(f"delete-ledgers/orphans-{run_id(house)}-0").terminate()
        gate.open()
        done = (await handle.result()).done
    assert done.failed + done.applied["orphan_ledger"] == 3  # what was in hand may have ended before it was counted
    assert not house.world.left_of(ledgers[2])


async def test_many_pages_continue_as_new_with_their_sums(house: WorkflowHarness) -> None:
    """One history holds so many pages; the rate goes on with them."""
    orphan_segments(house, 30, page=1)
    await planned(house)
    async with house.worker():
        handle = await apply(house)
        result = await handle.result()
    assert result.done.applied == {"orphan_segment": 30}
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


# -- under an operator's hand


async def test_paused_apply_begins_no_page(house: WorkflowHarness) -> None:
    """The one in hand ends; told to go on, the rest goes."""
    keys = orphan_segments(house, 4)
    await planned(house)
    gate = deletes_at(house, keys[0])
    async with house.run_until_gate(gate, apply(house)) as handle:
        assert (await DeletionBatchControl(house.client).pause(handle.id)).paused
        gate.open()
        await assert_eventually(lambda: len(house.attempts("reconciliation.record_page")) == 1)

        async def one_page_is_done() -> bool:
            return (await handle.query(ApplyOrphans.progress)).pages_done == 1

        await assert_eventually(one_page_is_done)
        assert "**paused**" in await query_current_details(handle)
        progress = await DeletionBatchControl(house.client).progress(handle.id)
        assert isinstance(progress, ApplyOrphansProgress)
        assert (progress.done, progress.left, progress.outcomes["applied"], progress.pages) == (2, 2, 2, 2)
        assert keys[2] in house.world.objects.keys
        assert not (await DeletionBatchControl(house.client).resume(handle.id)).paused
        assert (await handle.result()).done.applied == {"orphan_segment": 4}


async def test_pause_before_the_first_task_is_obeyed(house: WorkflowHarness) -> None:
    """Nothing is deleted before it is resumed."""
    keys = orphan_segments(house, 2)
    await planned(house)
    handle = await apply(house)
    paused = asyncio.ensure_future(handle.execute_update(ApplyOrphans.pause))
    await asyncio.sleep(0)
    async with house.worker():
        assert (await paused).paused
        await handle.execute_update(ApplyOrphans.resume)
        assert (await handle.result()).done.applied == {"orphan_segment": 2}
    assert not set(keys) & set(house.world.objects.keys)


@pytest.mark.external_service
async def test_rate_is_passed_to_batches_and_single_deletes(house: WorkflowHarness) -> None:
    """From the next page on."""
    ledgers, keys = orphan_ledgers(house, 2), orphan_segments(house, 2)
    await planned(house)
    gate = deletes_at(house, f"{ledger_prefix(ledgers[0])}00000000.parquet")
    async with house.run_until_gate(gate, apply(house)) as handle:
        assert (await DeletionBatchControl(house.client).set_rate(handle.id, 100)).rate == 100
        gate.open()
        assert (await handle.result()).done.applied == {"orphan_ledger": 2, "orphan_segment": 2}
        history = await handle.fetch_history()
    told = [
        event.activity_task_scheduled_event_attributes.input.payloads[0].data
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "reconciliation.delete_objects"
    ]
    assert [b'"objects_per_s":100.0' in one for one in told] == [True]
    assert not set(keys) & set(house.world.objects.keys)


async def test_impossible_rate_is_refused(house: WorkflowHarness) -> None:
    """Before it is in the history."""
    orphan_segments(house, 1)
    await planned(house)
    handle = await apply(house)
    async with house.worker():
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await handle.execute_update(ApplyOrphans.set_rate, SetRateInput(objects_per_s=-1))
        await handle.result()
        with pytest.raises(PreconditionFailed, match="running"):
            await DeletionBatchControl(house.client).pause(handle.id)
        with pytest.raises(InvalidInput, match="apply-orphans"):
            await DeletionBatchControl(house.client).pause(f"reconcile-orphans/{run_id(house)}")
    assert isinstance(caught.value.cause, ApplicationError)
    assert (caught.value.cause.type, caught.value.cause.details) == ("InvalidInput", ({"field": "rate"},))
