"""`sweep-transactions`: it finds what nobody works on, and forgets what is old."""

from temporalio.client import WorkflowHandle

from logstore.transactions.transaction_ids_and_states import TransactionState
from tests.workflows.transactions.parties import Parties, worked
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.transactions.job_definitions import SWEEP_TRANSACTIONS, SweepTransactionsInput, SweepTransactionsResult
from workflows.transactions.sweep_transactions import SweepTransactions

Sweep = WorkflowHandle[SweepTransactions, SweepTransactionsResult]


async def sweep(house: WorkflowHarness) -> Sweep:
    """Start one."""
    return await house.client.start_workflow(
        SweepTransactions.run, SweepTransactionsInput(), id=SWEEP_TRANSACTIONS.id(), task_queue=house.queue
    )


async def test_sweep_starts_coordinators_with_work_and_no_others(house: WorkflowHarness, parties: Parties) -> None:
    """One has decided transactions, one has expired ones; what is open, told or claimed wakes nobody."""
    decided, late = parties.decided(tc_id=1), parties.begin(tc_id=5, timeout_s=0.001)
    parties.begin(tc_id=7)
    claimed = parties.decided(tc_id=9)
    house.world.sql('UPDATE "transaction" SET claim_until_us = 9000000000000000 WHERE tc_id = 9')
    async with house.worker():
        result = await (await sweep(house)).result()
        await parties.told(decided, late)
    assert (result.woken, result.forgotten) == (2, 0)
    assert parties.state(decided) is TransactionState.COMMITTED
    assert parties.state(late) is TransactionState.ABORTED
    assert parties.state(claimed) is TransactionState.COMMITTING


async def test_sweep_wakes_a_coordinator_that_waits(house: WorkflowHarness, parties: Parties) -> None:
    """It got no signal of what was decided: the client died."""
    async with house.worker():
        handle = await parties.coordinator()
        await worked(handle)
        lost = parties.decided()
        assert (await (await sweep(house)).result()).woken == 1
        await parties.told(lost)
        await worked(handle, drains=2)


async def test_sweep_forgets_what_finished_long_ago_with_its_participants(
    house: WorkflowHarness, parties: Parties
) -> None:
    """And nothing younger, nor anything that is not through."""
    async with house.worker():
        old, young = parties.decided(), parties.decided(commit=False)
        await parties.coordinator()
        await parties.told(old, young)
        house.world.sql('UPDATE "transaction" SET finished_us = 1 WHERE sequence = :old', old=old.sequence)
        open_one = parties.begin()
        assert (await (await sweep(house)).result()).forgotten == 1
    states = parties.log.catalog.transactions.get_transaction_states([old, young, open_one])
    assert states == {young: TransactionState.ABORTED, open_one: TransactionState.OPEN}
    left = house.world.sql("SELECT DISTINCT sequence FROM transaction_participant ORDER BY 1")
    assert [row[0] for row in left] == [young.sequence, open_one.sequence]
    assert parties.seen(parties.topics[0]) == [str(old)], "what it wrote stays"
