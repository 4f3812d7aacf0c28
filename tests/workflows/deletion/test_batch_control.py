"""`delete-ledgers` under an operator's hand: paused, resumed, slowed down."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.deletion import deletion_pace as pace
from activities.deletion.inputs_and_results import ChunkInput, ChunkResult, ClaimPausedBatchInput
from activities.owner_routing import OwnerRoutedAnswer
from logstore.deletion.intents import BatchCertificate
from logstore.errors import InvalidInput, PreconditionFailed, ServiceFailed, UnknownObject
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.ports.catalog.deletion import Claim
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import Activity, Gate, WorkflowHarness, assert_eventually, query_current_details
from workers.client.deletion_batches import DeletionBatchControl, release_paused_batch
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DeleteLedgersProgress, DeletionPolicy, SetRateInput

Batch = WorkflowHandle[DeleteLedgers, BatchCertificate]


def gate_at(house: WorkflowHarness, ledger_id: LedgerId) -> Gate:
    """Holds the chunk that looks at the ledger."""
    gate, prefix = Gate(), ledger_prefix(ledger_id)
    fault = Fault(
        operation=StoreOperation.LIST, kind=FaultKind.CALL, matches=lambda found: found == prefix, action=gate.wait
    )
    house.world.objects.plan(fault)
    return gate


def held(house: WorkflowHarness) -> int:
    """How often a paused batch was held."""
    return len(house.attempts("deletion.hold_batch"))


async def paused_at(house: WorkflowHarness, ledger_id: LedgerId, handle: Batch, gate: Gate) -> None:
    """Pause while the ledger's chunk is in hand, and let that end."""
    await assert_eventually(gate.reached.is_set)
    assert (await handle.execute_update(DeleteLedgers.pause)).paused
    gate.open()
    await assert_eventually(lambda: not house.world.left_of(ledger_id) and held(house) > 0)


@asynccontextmanager
async def paused(
    house: WorkflowHarness, count: int, *, while_at: int = 0, replacements: Sequence[Activity] = ()
) -> AsyncIterator[tuple[Batch, list[LedgerId]]]:
    """A batch of so many ledgers, one after another, paused while one of them was in hand; and its ledgers."""
    ledgers = house.world.fill(count)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate = gate_at(house, ledgers[while_at])
    async with house.worker(replacements=replacements):
        handle = await house.delete(ledgers)
        await paused_at(house, ledgers[while_at], handle, gate)
        yield handle, ledgers


async def test_pause_lets_chunks_in_hand_end_and_starts_no_other(house: WorkflowHarness) -> None:
    """Nothing of the rest is touched until it is resumed, and then all of it goes."""
    async with paused(house, 4, while_at=1) as (handle, ledgers):
        assert len(house.attempts("deletion.delete_chunk")) == 2
        progress = await handle.query(DeleteLedgers.progress)
        assert (progress.paused, progress.done, progress.left, progress.outcomes) == (True, 2, 2, {"DELETED": 2})
        assert "**paused**" in await query_current_details(handle)
        assert [len(house.world.left_of(one)) for one in ledgers[2:]] == [3, 3]
        resumed = await handle.execute_update(DeleteLedgers.resume)
        assert (resumed.paused, resumed.left) == (False, 2)
        assert (await handle.result()).outcomes == {"DELETED": 4}


async def test_pause_keeps_the_batch_claimed_for_as_long_as_it_lasts(house: WorkflowHarness) -> None:
    """Held for a quarter of an hour, every ten minutes: no sweep takes its rows (promise 2)."""
    ledgers = house.world.fill(3)
    house.policy = DeletionPolicy(chunk=1, parallelism=2)
    gates = [gate_at(house, one) for one in ledgers[:2]]
    async with house.worker():
        handle = await house.delete(ledgers)
        for gate in gates:
            await assert_eventually(gate.reached.is_set)
        await handle.execute_update(DeleteLedgers.pause)
        for gate in gates:
            gate.open()
        waiting = asyncio.ensure_future(handle.result())
        await assert_eventually(lambda: held(house) >= 4)
        times = [one.scheduled for one in house.attempts("deletion.hold_batch")]
        assert all(590 <= (later - earlier).total_seconds() <= 700 for earlier, later in itertools.pairwise(times))
        left = "claim_until_us / 1000000 - CAST(strftime('%s', 'now') AS INT)"
        assert 880 <= house.world.sql(f"SELECT {left} FROM run")[0][0] <= 901
        thief = Claim(workflow_id="thief", run_id="", ttl_s=60)
        assert (
            house.world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="thief", claim=thief, limit=9).intents == 0
        )
        await handle.execute_update(DeleteLedgers.resume)
        assert (await waiting).outcomes == {"DELETED": 3}


async def test_pause_outlasts_the_claim_of_a_batch_whose_workers_are_away(house: WorkflowHarness) -> None:
    """The catalog knows of it once it is answered: no sweep takes up what says that it is paused (promise 2)."""
    ledgers = house.world.fill(2)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate = gate_at(house, ledgers[0])
    async with house.worker(max_cached_workflows=0):
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        await handle.execute_update(DeleteLedgers.pause)
    gate.open()
    house.world.sql("UPDATE run SET claim_until_us = 1")
    thief = Claim(workflow_id="thief", run_id="", ttl_s=60)
    assert house.world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="thief", claim=thief, limit=9).intents == 0
    assert any(one.paused for one in house.world.catalog.deletions.list_intents(None, limit=9))
    async with house.worker(max_cached_workflows=0):
        await handle.execute_update(DeleteLedgers.resume)
        assert (await handle.result()).outcomes == {"DELETED": 2}
    assert house.world.sql("SELECT paused_us FROM run") == [(None,)]


async def test_paused_batch_whose_workflow_was_terminated_goes_on_when_it_is_resumed(house: WorkflowHarness) -> None:
    """Nothing takes it up by itself; told to resume, the next sweep does, whatever is left of its claim."""
    batches = DeletionBatchControl(house.client, partial(release_paused_batch, house.world.catalog.deletions))
    async with paused(house, 2) as (handle, ledgers):
        await handle.terminate()
        with pytest.raises(PreconditionFailed, match="TERMINATED"):
            await batches.pause(handle.id)
    resumed = await batches.resume(handle.id)
    assert (resumed.paused, resumed.done, resumed.left) == (False, 1, 1)
    assert (await house.done(house.sweep())).outcomes == {"DELETED": 1}
    with pytest.raises(PreconditionFailed, match="TERMINATED"):
        await batches.resume(handle.id)
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_pause_and_resume_twice_say_the_same(house: WorkflowHarness) -> None:
    """An operator who is not sure asks again."""
    async with paused(house, 3) as (handle, _):
        first = await handle.execute_update(DeleteLedgers.pause)
        assert await handle.execute_update(DeleteLedgers.pause) == first
        again = await handle.execute_update(DeleteLedgers.resume)
        assert again.paused is (await handle.execute_update(DeleteLedgers.resume)).paused is False
        assert (await handle.result()).deleted == 3


async def test_pause_and_rate_are_carried_into_the_next_run(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is paused, its history stays short, and it does not forget what it was told."""
    long = "temporalio.workflow.Info.is_continue_as_new_suggested"
    monkeypatch.setattr(long, lambda info: info.get_current_history_length() > 40)
    ledgers = house.world.fill(4)
    house.policy = DeletionPolicy(chunk=1, parallelism=2)
    gate = gate_at(house, ledgers[0])
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        await handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=900_000))
        await handle.execute_update(DeleteLedgers.pause)
        gate.open()
        newest: Batch = house.client.get_workflow_handle(handle.id)
        await assert_eventually(lambda: _is_another_run(newest, handle.first_execution_run_id))
        progress = await newest.query("progress", result_type=DeleteLedgersProgress)
        assert (progress.paused, progress.rate) == (True, 900_000)
        await newest.execute_update("resume")
        assert (await handle.result()).outcomes == {"DELETED": 4}
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


async def _is_another_run(handle: Batch, first: str | None) -> bool:
    return (await handle.describe()).run_id != first


async def test_pause_cancelled_ends_cancelled_and_keeps_its_rows(house: WorkflowHarness) -> None:
    """Cancellation gets through a pause; rows are taken up later (promise 2)."""
    async with paused(house, 2) as (handle, ledgers):
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert [bool(house.world.left_of(one)) for one in ledgers] == [False, True]


async def test_pause_outlasts_the_catalog_being_away(house: WorkflowHarness) -> None:
    """The claim cannot be renewed for a while: asked again until it can, and nothing is started meanwhile."""
    failures, real = [1, 2, 3], house.world.upkeep.claim_paused_batch

    @activity.defn(name="deletion.hold_batch")
    def claim_paused_batch(request: ClaimPausedBatchInput) -> None:
        if failures:
            failures.pop()
            raise ApplicationError("catalog is away", type="StoreUnavailable")
        real(request)

    async with paused(house, 2, replacements=[claim_paused_batch]) as (handle, _):
        await assert_eventually(lambda: held(house) >= 4)
        assert len(house.attempts("deletion.delete_chunk")) == 1
        await handle.execute_update(DeleteLedgers.resume)
        assert (await handle.result()).deleted == 2


async def test_sweep_does_not_wait_for_a_batch_that_is_paused(house: WorkflowHarness) -> None:
    """For a while, and then it looks for what else has stalled; the batch goes on by itself."""
    ledgers = house.world.fill(2)
    house.world.detach(batch_id=f"{house.queue}-dead")
    house.world.sql("UPDATE run SET claim_until_us = 1")
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate = gate_at(house, ledgers[0])
    async with house.worker():
        handle = await house.sweep(patience_s=0.5)
        await assert_eventually(gate.reached.is_set)
        (batch_id,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        batch: Batch = house.client.get_workflow_handle_for(DeleteLedgers.run, f"delete-ledgers/{batch_id}")
        await paused_at(house, ledgers[0], batch, gate)
        result = await handle.result()
        assert (result.batches, result.uncertified, result.outcomes) == (1, 1, {})
        await batch.execute_update(DeleteLedgers.resume)
        assert (await batch.result()).outcomes == {"DELETED": 2}


async def test_rate_is_shared_by_the_chunks_and_holds_from_the_next_slice_on(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it for each of two; a slice is cut short, and the rest of its rows is met under the new rate."""
    ledgers = house.world.fill(6)
    house.policy = DeletionPolicy(chunk=3, parallelism=2)
    asked: list[tuple[float, int]] = []
    real, gate = house.world.deletion.delete_chunk, gate_at(house, ledgers[0])
    monkeypatch.setattr(pace, "_SLICE_S", 6e-6)  # at half a million a second: one ledger of three objects

    @activity.defn(name="deletion.delete_chunk")
    def chunk(request: ChunkInput) -> OwnerRoutedAnswer[ChunkResult]:
        asked.append((request.objects_per_s, request.chunk.rows))
        gate.wait()
        return real(request)

    async with house.worker(replacements=[chunk]):
        handle = await house.delete(ledgers)
        await assert_eventually(lambda: len(asked) == 2)
        progress = await handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=1_000_000))
        assert (progress.rate, progress.paused) == (1_000_000, False)
        assert "at most 1,000,000 objects a second" in await query_current_details(handle)
        gate.open()
        assert (await handle.result()).outcomes == {"DELETED": 6}
    assert asked == [(0.0, 3), (0.0, 3)]


async def test_rate_cuts_chunks_into_slices_that_miss_no_row(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is dealt with once, failing ones alone, and the counts are those of the whole."""
    ledgers = house.world.fill(5)
    house.world.objects.put_if_absent(f"{ledger_prefix(ledgers[2])}theirs.txt", b"theirs", metadata={})
    house.policy = DeletionPolicy(chunk=3, parallelism=2)
    monkeypatch.setattr(pace, "_SLICE_S", 6e-6)
    asked: list[tuple[float, int]] = []
    real = house.world.deletion.delete_chunk

    @activity.defn(name="deletion.delete_chunk")
    def chunk(request: ChunkInput) -> OwnerRoutedAnswer[ChunkResult]:
        asked.append((request.objects_per_s, request.chunk.rows))
        return real(request)

    handle = await house.delete(ledgers)
    limited = asyncio.ensure_future(
        handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=1_000_000))
    )
    async with house.worker(replacements=[chunk]):
        await limited
        certificate = await handle.result()
        progress = await handle.query(DeleteLedgers.progress)
    assert certificate.outcomes == {"DELETED": 4, "METADATA_MISMATCH": 1}
    assert (progress.done, progress.left, progress.objects) == (5, 0, 12)
    assert sorted(asked) == [(500_000.0, rows) for rows in (1, 1, 2, 2, 3)]


async def test_rate_of_a_long_batch_continues_as_new_between_slices(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices make a long history: it is cut, and what is left is met by the next run."""
    ledgers = house.world.fill(5)
    house.policy = DeletionPolicy(chunk=5, parallelism=1)
    monkeypatch.setattr(pace, "_SLICE_S", 3e-6)
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    handle = await house.delete(ledgers)
    limited = asyncio.ensure_future(
        handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=1_000_000))
    )
    async with house.worker():
        await limited
        certificate = await handle.result()
        progress = await handle.query("progress", result_type=DeleteLedgersProgress)
    assert certificate.outcomes == {"DELETED": 5}
    assert (progress.done, progress.left, progress.rate, progress.objects) == (5, 0, 1_000_000, 15)


async def test_rate_of_a_long_batch_of_several_chunks_counts_each_row_once(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run meets chunks that were dealt with in part: what is done of them is neither told nor tried again."""
    ledgers = house.world.fill(24)
    house.world.objects.put_if_absent(f"{ledger_prefix(ledgers[0])}theirs.txt", b"theirs", metadata={})
    house.policy = DeletionPolicy(chunk=12, parallelism=2)
    monkeypatch.setattr(pace, "_SLICE_S", 6e-6)
    long = "temporalio.workflow.Info.is_continue_as_new_suggested"
    monkeypatch.setattr(long, lambda info: info.get_current_history_length() > 45)
    handle = await house.delete(ledgers)
    limited = asyncio.ensure_future(
        handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=1_000_000))
    )
    async with house.worker():
        await limited
        certificate = await handle.result()
        progress = await handle.query("progress", result_type=DeleteLedgersProgress)
    assert (await handle.describe()).run_id != handle.first_execution_run_id
    assert progress.outcomes == certificate.outcomes == {"DELETED": 23, "METADATA_MISMATCH": 1}
    assert (progress.done, progress.left) == (24, 0)
    alone = [one for one in house.attempts("deletion.delete_one") if one.number == 1]
    assert len(alone) == 1


@pytest.mark.external_service
@pytest.mark.parametrize("rate", [-1, 1_000_001, 2**40])
async def test_rate_beyond_its_bounds_is_refused_and_changes_nothing(house: WorkflowHarness, rate: int) -> None:
    """The message says what is expected, and the history knows nothing of it."""
    ledgers = house.world.fill(1)
    gate = gate_at(house, ledgers[0])
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=rate))
        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.type == "InvalidInput"
        expected = f"rate: expected 0 (unlimited) to 1,000,000 objects a second, found {rate:,}"
        assert caught.value.cause.message == expected
        assert (await handle.query(DeleteLedgers.progress)).rate == 0
        gate.open()
        await handle.result()
    history = await handle.fetch_history()
    assert not [
        event for event in history.events if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]


@pytest.mark.parametrize("payload", ["fast", {"objects_per_s": "fast"}, {"objects_per_s": 1.5}, {}])
async def test_rate_that_is_no_number_is_refused_and_the_batch_goes_on(house: WorkflowHarness, payload: Any) -> None:
    """Any SDK may have sent it: it neither stops the workflow nor changes it."""
    ledgers = house.world.fill(1)
    gate = gate_at(house, ledgers[0])
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("set_rate", payload)
        assert (await handle.query(DeleteLedgers.progress)).rate == 0
        gate.open()
        assert (await handle.result()).deleted == 1


async def test_control_of_a_workflow_that_is_no_running_batch_is_refused(house: WorkflowHarness) -> None:
    """Each in one sentence: unknown, of another type, finished; nothing hangs."""
    batches = DeletionBatchControl(house.client)
    (ledger,) = house.world.fill(1)
    async with house.worker():
        trim = await house.trim()
        await trim.result()
        done = await house.delete([ledger])
        await done.result()
        for ask in (batches.progress, batches.pause, batches.resume, lambda name: batches.set_rate(name, 5)):
            with pytest.raises(UnknownObject, match="the id of a batch"):
                await ask("delete-ledgers/nobody")
            with pytest.raises(InvalidInput, match="a trim-topic"):
                await ask(trim.id)
            with pytest.raises(PreconditionFailed, match="found COMPLETED"):
                await ask(done.id)


@pytest.mark.external_service
async def test_control_by_the_client_reaches_the_batch(house: WorkflowHarness) -> None:
    """As the command line asks."""
    ledgers = house.world.fill(2)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate, batches = gate_at(house, ledgers[0]), DeletionBatchControl(house.client)
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        assert (await batches.pause(handle.id)).paused
        assert (await batches.set_rate(handle.id, 1_000_000)).rate == 1_000_000
        assert (await batches.progress(handle.id)).paused
        with pytest.raises(WorkflowUpdateFailedError):
            await batches.set_rate(handle.id, -1)
        gate.open()
        assert not (await batches.resume(handle.id)).paused
        assert (await handle.result()).deleted == 2


@pytest.mark.external_service
async def test_control_without_a_worker_says_so(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who waits is told what to try."""
    monkeypatch.setattr("workers.client.deletion_batches._ANSWER_TIMEOUT", timedelta(milliseconds=300))
    (ledger,) = house.world.fill(1)
    handle = await house.delete([ledger])
    for ask in (DeletionBatchControl(house.client).pause, DeletionBatchControl(house.client).progress):
        with pytest.raises(ServiceFailed, match="worker: none answered for delete-ledgers/"):
            await ask(handle.id)
    await handle.terminate()


@pytest.mark.external_service
async def test_control_that_the_sdk_asks_for_again_and_again_ends(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers every 20 s that no worker took the update, which its client then repeats for ever."""

    async def ask_again_and_again(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("workers.client.deletion_batches._ANSWER_TIMEOUT", timedelta(milliseconds=300))
    monkeypatch.setattr("temporalio.client.WorkflowHandle.execute_update", ask_again_and_again)
    (ledger,) = house.world.fill(1)
    handle = await house.delete([ledger])
    with pytest.raises(ServiceFailed, match="worker: none answered for delete-ledgers/"):
        await DeletionBatchControl(house.client).pause(handle.id)
    await handle.terminate()


@pytest.mark.external_service
async def test_control_that_its_caller_cancels_is_cancelled(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's own time limit, or Ctrl-C, is not told as a worker's silence; the SDK has one error for both."""
    sent, real = asyncio.Event(), WorkflowHandle.execute_update

    async def noted(handle: Batch, *update: Any, **options: Any) -> Any:
        sent.set()
        return await real(handle, *update, **options)

    monkeypatch.setattr(WorkflowHandle, "execute_update", noted)
    (ledger,) = house.world.fill(1)
    handle = await house.delete([ledger])
    asked = asyncio.ensure_future(DeletionBatchControl(house.client).pause(handle.id))
    await sent.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert asked.cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await DeletionBatchControl(house.client).resume(handle.id)
    await handle.terminate()


@pytest.mark.external_service
async def test_progress_of_a_batch_whose_worker_is_gone_says_so(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 29 s the server answers a query that it has seen no poller, as a precondition that failed."""

    async def no_poller(*_: object, **__: object) -> None:
        said = "no poller seen for task queue recently, worker may be down"
        raise RPCError(said, RPCStatusCode.FAILED_PRECONDITION, b"")

    monkeypatch.setattr(WorkflowHandle, "query", no_poller)
    (ledger,) = house.world.fill(1)
    handle = await house.delete([ledger])
    with pytest.raises(ServiceFailed, match="worker: none answered for delete-ledgers/"):
        await DeletionBatchControl(house.client).progress(handle.id)
    await handle.terminate()
