"""`abort-transactions`: aborts and looks of transactions that go another way than expected."""

from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from logstore.errors import SextonError, StoreUnavailable
from logstore.pulsar.cluster_transactions import AFTER_ABORT, BEFORE_ABORT, TransactionAbort
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.fakes.cluster_transactions import TOPIC, FakeTransaction
from tests.workflows.pulsar.cluster_aborts import abort, abort_run_id
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows.pulsar.job_definitions import AbortTransactionsResult


async def _abort(house: WorkflowHarness, *sequences: int, **more: Any) -> AbortTransactionsResult:
    async with house.worker():
        handle: WorkflowHandle[Any, AbortTransactionsResult] = await abort(house, *sequences, **more)
        return await handle.result()


def _outcomes(result: AbortTransactionsResult) -> dict[str, str]:
    return {each.txn: each.outcome for each in result.transactions}


async def test_transactions_are_aborted_and_seen_before_and_after(house: WorkflowHarness) -> None:
    transactions = house.world.cluster.transactions
    transactions.add(1, 2)
    result = await _abort(house, 1, 2, reason="gone")
    assert result.transactions == [TransactionAbort(txn=f"0:{each}", outcome="aborted") for each in (1, 2)]
    assert transactions.aborts == ["0:1", "0:2"]
    run = house.world.catalog.reconciliation.get_run(abort_run_id(house))
    assert (run.summary["actor"], run.summary["reason"], run.finished_us is None) == ("tests", "gone", False)
    before, after = run.summary[BEFORE_ABORT]["0:1"]["participants"][0], run.summary[AFTER_ABORT]["0:1"][0]
    assert (before["owes"], before["max_read_position"], before["waiting"]) == ("commit or abort", "5:0", ["search"])
    assert (after["owes"], after["max_read_position"], after["waiting"]) == ("nothing", "5:99", [])
    acts = house.world.catalog.inspection.list_audit_entries(limit=10)
    assert [(each.act, each.actor, each.reason) for each in acts[:2]] == [
        ("aborted-transactions", "tests", "gone"),
        ("abort-transactions", "tests", "gone"),
    ]
    assert acts[0].detail["results"] == {"0:1": "aborted", "0:2": "aborted"}
    assert len(house.attempts("pulsar.check_aborts")) == 1


@pytest.mark.parametrize(
    ("transaction", "message"),
    [
        (FakeTransaction(2, state="COMMITTING"), "0:2: expected OPEN or ABORTING, found COMMITTING"),
        (FakeTransaction(2, state="ABORTED"), "0:2: expected OPEN or ABORTING, found that it has ended"),
        (FakeTransaction(2, opened_ms=1 << 50), "0:2: expected an age of 600 s, found -"),
        (FakeTransaction(3), "0:2: expected a transaction of the coordinator, found none"),
    ],
)
async def test_one_wrong_transaction_refuses_all_before_anything_changes(
    house: WorkflowHarness, transaction: FakeTransaction, message: str
) -> None:
    transactions = house.world.cluster.transactions
    transactions.add(1)
    transactions.transactions[transaction.sequence] = transaction
    refused = (await _abort(house, 1, 2)).refused
    assert refused
    assert message in refused.message
    assert refused.message.endswith("Nothing was aborted")
    assert transactions.aborts == []


async def test_young_transaction_is_aborted_if_the_operator_insists(house: WorkflowHarness) -> None:
    house.world.cluster.transactions.transactions[2] = FakeTransaction(2, opened_ms=1 << 50)
    assert _outcomes(await _abort(house, 2, unsafe_age=True)) == {"0:2": "aborted"}


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("coordinator 0: expected an answer, found none"),
        UnreadableMetadata("log of coordinator 0", expected="an entry", found="a damaged one"),
    ],
)
async def test_failure_of_one_transaction_does_not_hinder_others(house: WorkflowHarness, error: SextonError) -> None:
    """Nothing can be read about it after the beginning. All pauses pass, and the others are aborted."""
    transactions = house.world.cluster.transactions
    transactions.add(1, 2, 3)
    transactions.before_abort = lambda: setattr(transactions.transactions[2], "read_error", error)
    result = await _abort(house, 1, 2, 3)
    assert _outcomes(result) == {"0:1": "aborted", "0:2": "unsettled", "0:3": "aborted"}
    assert str(error) in result.transactions[1].problem
    assert transactions.aborts == ["0:1", "0:3"]


async def test_abort_that_happened_and_was_reported_as_failed_is_found_done(house: WorkflowHarness) -> None:
    transactions = house.world.cluster.transactions
    transactions.add(1)
    transactions.abort_error = StoreUnavailable("POST: expected success, found no answer in time")
    assert _outcomes(await _abort(house, 1)) == {"0:1": "aborted"}
    assert transactions.aborts == ["0:1"]


async def test_abort_that_did_not_happen_is_asked_for_again(house: WorkflowHarness) -> None:
    transactions = house.world.cluster.transactions
    transactions.add(1)

    def refuse_once() -> None:
        transactions.before_abort = lambda: None
        raise StoreUnavailable("POST: expected success, found no connection")

    transactions.before_abort = refuse_once
    assert _outcomes(await _abort(house, 1)) == {"0:1": "aborted"}
    assert (transactions.aborts, len(house.attempts("pulsar.abort_transaction"))) == (["0:1"], 2)


async def test_abort_without_messages_that_was_reported_as_failed_counts_as_an_end(house: WorkflowHarness) -> None:
    """No topic tells how the transaction ended."""
    transactions = house.world.cluster.transactions
    transactions.transactions[1] = FakeTransaction(1, has_messages=False)
    transactions.abort_error = StoreUnavailable("POST: expected success, found no answer in time")
    (result,) = (await _abort(house, 1)).transactions
    assert (result.txn, result.outcome) == ("0:1", "ended")
    assert "nothing says whether by an abort or a commit. The request said: POST" in result.problem


async def test_commit_that_comes_first_is_no_abort(house: WorkflowHarness) -> None:
    transactions = house.world.cluster.transactions
    transactions.transactions[1] = FakeTransaction(1, commits_first=True)
    (result,) = (await _abort(house, 1)).transactions
    assert (result.txn, result.outcome) == ("0:1", "ended")
    assert "expected OPEN, found COMMITTED" in result.problem


async def test_participants_that_never_confirm_are_named(house: WorkflowHarness) -> None:
    """The coordinator goes on telling them, and gets no second request."""
    transactions = house.world.cluster.transactions
    transactions.transactions[1] = FakeTransaction(1, is_stuck=True)
    (result,) = (await _abort(house, 1)).transactions
    assert result.outcome == "unsettled"
    assert result.problem.startswith(
        f"expected its end, found it ABORTING, and these participants owe the abort: {TOPIC}; {TOPIC}, subscription"
    )
    assert transactions.aborts == ["0:1"]
    checks = house.attempts("pulsar.check_aborts")
    assert (checks[-1].scheduled - checks[0].scheduled).total_seconds() > 200


@pytest.mark.external_service
@pytest.mark.parametrize(("commits_first", "outcome"), [(False, "ABORTED"), (True, "FAILED_IN_PART")])
async def test_outcome_of_the_job_says_whether_all_are_aborted(
    house: WorkflowHarness, commits_first: bool, outcome: str
) -> None:
    house.world.cluster.transactions.transactions[1] = FakeTransaction(1, commits_first=commits_first)
    async with house.worker():
        handle = await abort(house, 1)
        await handle.result()
    assert (await handle.describe()).search_attributes["SextonOutcome"] == [outcome]


async def test_participants_that_confirm_late_are_waited_for(house: WorkflowHarness) -> None:
    """Nobody has an answer of the coordinator, but it was seen ABORTING."""
    transactions = house.world.cluster.transactions
    transactions.transactions[1] = FakeTransaction(1, is_stuck=True, has_messages=False)
    async with house.worker():
        handle = await abort(house, 1)
        await assert_eventually(lambda: len(house.attempts("pulsar.check_aborts")) > 1)
        transactions.transactions[1].state = "ABORTED"
        assert _outcomes(await handle.result()) == {"0:1": "aborted"}


async def test_another_transaction_that_still_holds_consumers_back_is_named(house: WorkflowHarness) -> None:
    house.world.cluster.transactions.add(1, 2)
    (result,) = (await _abort(house, 2)).transactions
    assert result.outcome == "aborted"
    assert result.still_held == [f"{TOPIC}: subscriptions search wait at 5:0 for messages of transaction 0:1"]


async def test_transaction_of_a_new_coordinator_with_the_same_id_is_left_alone(house: WorkflowHarness) -> None:
    transactions = house.world.cluster.transactions
    transactions.add(1, 2)

    def replace_second() -> None:
        transactions.transactions[2] = FakeTransaction(2, opened_ms=2_000)

    transactions.before_abort = replace_second
    await _abort(house, 1, 2)
    assert transactions.aborts == ["0:1"]
    assert transactions.transactions[2].state == "OPEN"


async def test_cluster_made_anew_stops_the_job(house: WorkflowHarness) -> None:
    cluster = house.world.cluster
    cluster.transactions.add(1, 2)
    gate = Gate()
    cluster.transactions.before_abort = gate.wait
    async with house.run_until_gate(gate, abort(house, 1, 2)) as handle:
        cluster.replace_cluster()
        gate.open()
        with pytest.raises(Exception, match="Workflow execution failed"):
            await handle.result()
    assert cluster.transactions.aborts == ["0:1"]


async def test_second_run_with_the_same_id_returns_the_first_result(house: WorkflowHarness) -> None:
    house.world.cluster.transactions.add(1)
    first = await _abort(house, 1)
    assert await _abort(house, 1) == first
    assert house.world.cluster.transactions.aborts == ["0:1"]
