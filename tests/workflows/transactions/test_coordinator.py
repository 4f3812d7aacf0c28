"""`transaction-coordinator`: everything that is decided is told, whatever becomes of signals, runs and participants."""

from collections.abc import Callable

import pytest
from temporalio import activity

from activities.transactions.coordinate_transactions import DrainInput, DrainResult
from logstore.transactions.transaction_ids_and_states import TransactionState
from tests.workflows.transactions.parties import TC, Parties, broadcast_id, owing, pauses, worked
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually, query_current_details
from workflows.transactions.broadcast_transaction import BroadcastTransaction
from workflows.transactions.job_definitions import BroadcastProgress
from workflows.transactions.transaction_coordinator import TransactionCoordinator

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED


async def test_coordinator_tells_what_is_decided_and_then_waits(house: WorkflowHarness, parties: Parties) -> None:
    """Both verbs, and nothing of one that is open; later it looks at that deadline, which comes soon here."""
    kept, gone, still = parties.decided(), parties.decided(commit=False), parties.begin()
    async with house.worker():
        handle = await parties.coordinator()
        await parties.told(kept, gone)
        progress = await worked(handle)
        shown = await query_current_details(handle)
    assert (parties.state(kept), parties.state(gone), parties.state(still)) == (
        COMMITTED,
        ABORTED,
        TransactionState.OPEN,
    )
    assert parties.seen(parties.topics[0]) == parties.seen(parties.topics[1]) == [str(kept)]
    assert parties.hows(kept) == parties.hows(gone) == ["MARKED", "MARKED"]
    assert progress.finished == 2
    assert shown.startswith("2 transactions told")


def _drain(answers: list[DrainResult], calls: list[int]) -> Callable[[DrainInput], DrainResult]:
    """The activity with these answers, one a call; `calls` gets the coordinators that were asked for."""

    @activity.defn(name="transactions.drain")
    def drain(request: DrainInput) -> DrainResult:
        calls.append(request.tc_id)
        return answers[len(calls) - 1]

    return drain


async def test_coordinator_works_again_at_the_next_deadline(house: WorkflowHarness, parties: Parties) -> None:
    """By a timer of its own, a little behind the deadline; without one it waits for a signal."""
    answers = [DrainResult(next_deadline_s=120.0), DrainResult(next_deadline_s=7.0), DrainResult()]
    calls: list[int] = []
    async with house.worker(replacements=[_drain(answers, calls)]):
        handle = await parties.coordinator()
        await worked(handle, drains=len(answers))
    first, second = pauses(house, "transactions.drain")
    assert 120 < first < 121
    assert 7 < second < 8
    assert calls == [TC] * 3


async def test_coordinator_aborts_what_has_timed_out_without_being_asked(
    house: WorkflowHarness, parties: Parties
) -> None:
    """Nobody signals after the first drain: its timer is enough (apache/pulsar#19200)."""
    late = parties.begin(timeout_s=0.2)
    async with house.worker():
        await parties.coordinator()
        await parties.told(late)
    assert parties.state(late) is ABORTED
    assert parties.log.catalog.transactions.get_transaction(late).timed_out
    assert parties.seen(parties.topics[0]) == []


async def test_signal_during_a_drain_leads_to_another(house: WorkflowHarness, parties: Parties) -> None:
    """What was decided after the drain had looked is told though nobody signals again."""
    gate, calls = Gate(), list[DrainResult]()
    real = house.world.activities.coordination.abort_expired_and_broadcast_decided

    @activity.defn(name="transactions.drain")
    def drain(request: DrainInput) -> DrainResult:
        calls.append(real(request))
        if len(calls) == 1:
            gate.wait()
        return calls[-1]

    first = parties.decided()
    async with house.run_until_gate(gate, parties.coordinator(), replacements=[drain]) as handle:
        second = parties.decided()
        await handle.signal(TransactionCoordinator.wake)
        gate.open()
        await parties.told(first, second)
    assert calls[0].finished == 1


async def test_drain_that_left_something_is_followed_by_another(house: WorkflowHarness, parties: Parties) -> None:
    """Nobody signals: the answer itself says that there is more."""
    calls: list[int] = []

    @activity.defn(name="transactions.drain")
    def drain(request: DrainInput) -> DrainResult:
        calls.append(request.tc_id)
        return DrainResult(more=len(calls) < 3)

    async with house.worker(replacements=[drain]):
        handle = await parties.coordinator()
        await worked(handle, drains=3)
    assert len(calls) == 3


async def test_coordinator_continues_as_new_without_losing_a_wake_up(house: WorkflowHarness, parties: Parties) -> None:
    """Each transaction is signalled once; histories are long here after 30 tasks."""
    async with house.worker():
        handle = await parties.coordinator()
        for _ in range(40):
            txn = parties.decided()
            newest = house.client.get_workflow_handle(handle.id)
            await newest.signal(TransactionCoordinator.wake)
            await parties.told(txn)
        progress = await worked(newest, finished=40)
        run_id = (await newest.describe()).run_id
    assert run_id != handle.first_execution_run_id, "it never continued as new"
    assert progress.finished == 40


async def test_transaction_with_a_participant_that_is_away_goes_to_a_broadcast_of_its_own(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up no other, and says what is owed, and why (redpanda#3544)."""
    parties = Parties(house, monkeypatch, count=2)
    stuck = parties.decided()
    near, far = parties.topics
    parties.away.add(far.topic_id)
    parties.topics = [near]
    other = parties.decided()
    async with house.worker():
        handle = await parties.coordinator()
        await parties.told(other)
        alone = house.client.get_workflow_handle(broadcast_id(stuck), result_type=BroadcastProgress)
        await assert_eventually(lambda: bool(house.attempts("transactions.tell")))
        progress = await owing(alone)
        assert parties.state(stuck) is TransactionState.COMMITTING
        assert (await handle.query(TransactionCoordinator.progress)).owed == [str(stuck)]
        assert str(stuck) in await query_current_details(handle)
        parties.away.clear()
        await alone.signal(BroadcastTransaction.retry)
        result = await alone.result()
    assert [(one.participant, one.topic) for one in progress.owed] == [(str(far.topic_id), far.name)]
    assert "the topic is away" in progress.owed[0].error
    assert (progress.settled, progress.owed_count) == (1, 1)
    assert (result.state, result.settled, result.owed_count) == ("COMMITTED", 2, 0)
    assert parties.state(stuck) is COMMITTED
    assert parties.seen(far) == [str(stuck)]


async def test_broadcast_that_runs_is_neither_started_nor_counted_again(
    house: WorkflowHarness, parties: Parties
) -> None:
    """Answers name what is handed over until its broadcast has begun: they name one twice."""
    txn = parties.decided()
    parties.away.update(topic.topic_id for topic in parties.topics)
    answers = [DrainResult(handed_over=[str(txn)], more=True), DrainResult(handed_over=[str(txn)])]
    calls: list[int] = []
    async with house.worker(replacements=[_drain(answers, calls)]):
        handle = await parties.coordinator()
        progress = await worked(handle, drains=2)
        alone = house.client.get_workflow_handle(broadcast_id(txn))
        await owing(alone)
        parties.away.clear()
        await alone.signal(BroadcastTransaction.retry)
        await alone.result()
    assert (progress.handed_over, progress.owed) == (1, [str(txn)])


async def test_drain_waits_where_no_topic_can_be_told(house: WorkflowHarness, parties: Parties) -> None:
    """All of storage is away: each transaction would else get a workflow of its own."""
    txn = parties.decided()
    parties.away.update(topic.topic_id for topic in parties.topics)
    async with house.worker():
        await parties.coordinator()
        await assert_eventually(lambda: len(house.attempts("transactions.drain")) > 3)
        parties.away.clear()
        await parties.told(txn)
    assert not house.attempts("transactions.tell")
    assert parties.state(txn) is COMMITTED
