"""Scenes of coordinators, broadcasts and their sweep; see `record`. Each has a coordinator of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError

from activities.transactions.coordinate_transactions import BusyCoordinatorsInput
from logstore.errors import CorruptData
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.replay.courses import Handle, completed, ended, first_run
from tests.workflows.builds import buffer_of_topic, build
from tests.workflows.transactions.parties import Parties, broadcast_id, owing, worked
from tests.workflows.workflow_harness import Gate, WorkflowHarness
from workflows.transactions.broadcast_transaction import BroadcastTransaction
from workflows.transactions.job_definitions import (
    BUILD_TRANSACTION_SNAPSHOTS,
    SWEEP_TRANSACTIONS,
    SweepTransactionsInput,
)
from workflows.transactions.sweep_transactions import SweepTransactions
from workflows.transactions.transaction_coordinator import TransactionCoordinator


@asynccontextmanager
async def _parties(house: WorkflowHarness) -> AsyncIterator[Parties]:
    with pytest.MonkeyPatch.context() as patch:
        async with house.worker():
            yield Parties(house, patch)


async def coordinator_running(house: WorkflowHarness) -> Handle:
    """It tells two transactions, and times another one out at its deadline; then it waits."""
    async with _parties(house) as parties:
        kept, gone = parties.decided(tc_id=10), parties.decided(tc_id=10, commit=False)
        late = parties.begin(tc_id=10, timeout_s=0.3)
        handle = await parties.coordinator(tc_id=10)
        await parties.told(kept, gone, late)
        await worked(handle, finished=3)
    return handle


async def coordinator_that_hands_over(house: WorkflowHarness) -> Handle:
    """One topic is away, and comes back."""
    async with _parties(house) as parties:
        stuck = parties.decided(tc_id=11)
        parties.away.add(parties.topics[1].topic_id)
        handle = await parties.coordinator(tc_id=11)
        await worked(handle)
        await owing(house.client.get_workflow_handle(broadcast_id(stuck)))
        parties.away.clear()
        await parties.told(stuck)
    return handle


async def coordinator_continued(house: WorkflowHarness) -> Handle:
    """Signals without end."""
    async with _parties(house) as parties:
        handle = await parties.coordinator(tc_id=12)
        newest = house.client.get_workflow_handle(handle.id)
        while (await newest.describe()).run_id == handle.first_execution_run_id:
            txn = parties.decided(tc_id=12)
            await newest.signal(TransactionCoordinator.wake)
            await parties.told(txn)
    return first_run(house, handle)


async def broadcast_complete(house: WorkflowHarness) -> Handle:
    """A participant is away, and comes back; somebody asks for a try."""
    async with _parties(house) as parties:
        txn = parties.decided(tc_id=13)
        parties.away.add(parties.topics[0].topic_id)
        handle = await parties.broadcast(txn, pause_s=1_000.0, most_pause_s=1_000.0)
        await owing(handle)
        parties.away.clear()
        await handle.signal(BroadcastTransaction.retry)
        await handle.result()
    return handle


async def broadcast_failed(house: WorkflowHarness) -> Handle:
    """There is no such transaction."""
    async with _parties(house) as parties:
        handle = await parties.broadcast(TransactionId(14, 99))
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def broadcast_running(house: WorkflowHarness) -> Handle:
    """A participant is away."""
    async with _parties(house) as parties:
        txn = parties.decided(tc_id=15)
        parties.away.add(parties.topics[0].topic_id)
        handle = await parties.broadcast(txn)
        await owing(handle)
    return handle


async def sweep_complete(house: WorkflowHarness) -> Handle:
    """It starts one coordinator and wakes another one."""
    async with _parties(house) as parties:
        await worked(await parties.coordinator(tc_id=16))
        first, second = parties.decided(tc_id=16), parties.decided(tc_id=17)
        handle = await _sweep(house)
        await handle.result()
        await parties.told(first, second)
    return handle


async def sweep_failed(house: WorkflowHarness) -> Handle:
    """Its input is refused."""
    return await ended(house, _sweep(house, reason="x" * 3_000))


async def sweep_running(house: WorkflowHarness) -> Handle:
    """It looks for coordinators with work."""
    gate = Gate()
    real = house.world.activities.coordination.list_coordinators_with_work

    @activity.defn(name="transactions.busy_coordinators")
    def busy(request: BusyCoordinatorsInput) -> list[int]:
        gate.wait()
        return real(request)

    return await house.stop_worker_at_gate(gate, _sweep(house), replacements=[busy])


async def _sweep(house: WorkflowHarness, **more: Any) -> Handle:
    return await house.client.start_workflow(
        SweepTransactions.run,
        SweepTransactionsInput(**more),
        id=f"{SWEEP_TRANSACTIONS.id()}/{house.queue}",
        task_queue=house.queue,
    )


async def build_complete(house: WorkflowHarness) -> Handle:
    """One topic."""
    buffer_of_topic(house)
    return await completed(house, build(house, BUILD_TRANSACTION_SNAPSHOTS))


async def build_failed(house: WorkflowHarness) -> Handle:
    """What the bulk job reads is damaged."""

    def fail(_job: BulkJob, _beat: object) -> None:
        raise CorruptData("a checksum differs")

    house.world.bulk.meanwhile = fail
    return await ended(house, build(house, BUILD_TRANSACTION_SNAPSHOTS))


async def build_running(house: WorkflowHarness) -> Handle:
    """Its bulk job is at work."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda _job, _beat: gate.wait()
    return await house.stop_worker_at_gate(gate, build(house, BUILD_TRANSACTION_SNAPSHOTS))
