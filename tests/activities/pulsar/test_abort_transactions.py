"""Steps of aborts: refusals are named up to a number, and a cancellation ends each step at its next transaction."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import CancelledError
from temporalio.testing import ActivityEnvironment

from activities.pulsar.inputs_and_results import (
    AbortAttempt,
    AbortTransactionInput,
    BeginAbortInput,
    CheckAbortsInput,
)
from logstore.errors import PreconditionFailed
from logstore.pulsar.cluster_transactions import TransactionAbort, TransactionParticipant, TransactionReport
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.activities.activity_world import World, make_activity_environment, open_activity_world, run
from tests.fakes.cluster_transactions import FakeTransaction

_RUN_ID = "abort-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = open_activity_world(tmp_path)
    with opened.opened:
        opened.cluster.transactions.add(1, 2)
        yield opened


def begin(*sequences: int) -> BeginAbortInput:
    return BeginAbortInput(run_id=_RUN_ID, transactions=[f"0:{each}" for each in sequences], actor="tests")


def cancel_at_first_look(world: World, env: ActivityEnvironment, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of looked at transactions, which grows."""
    looks: list[str] = []
    find: Callable[[TransactionId], Any] = world.cluster.transactions.find

    def find_and_cancel(transaction_id: TransactionId) -> Any:
        looks.append(str(transaction_id))
        env.cancel()
        return find(transaction_id)

    monkeypatch.setattr(world.cluster.transactions, "find", find_and_cancel)
    return looks


def test_message_names_the_first_refusals_and_the_number_of_others(world: World) -> None:
    with pytest.raises(PreconditionFailed) as raised:
        run(world.activities.transaction_aborting.begin_abort, begin(1, *range(11, 18)))
    message = str(raised.value)
    assert [f"0:{sequence}: " in message for sequence in range(11, 18)] == [True] * 5 + [False] * 2
    assert message.endswith(". 2 more are refused. Nothing was aborted")


def test_few_refusals_are_all_named(world: World) -> None:
    with pytest.raises(PreconditionFailed, match=r"0:15: [^.]*\. Nothing was aborted"):
        run(world.activities.transaction_aborting.begin_abort, begin(*range(11, 16)))


def test_cancelled_begin_looks_at_no_further_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_activity_environment()
    looks = cancel_at_first_look(world, env, monkeypatch)
    with pytest.raises(CancelledError):
        env.run(world.activities.transaction_aborting.begin_abort, begin(1, 2))
    assert looks == ["0:1"]


def test_cancelled_check_looks_at_no_further_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1, 2))
    env = make_activity_environment()
    looks = cancel_at_first_look(world, env, monkeypatch)
    with pytest.raises(CancelledError):
        env.run(world.activities.transaction_aborting.check_aborts, CheckAbortsInput(run_id=_RUN_ID, attempts={}))
    assert looks == ["0:1"]


def abort(world: World, sequence: int) -> AbortAttempt:
    request = AbortTransactionInput(run_id=_RUN_ID, txn=f"0:{sequence}")
    return run(world.activities.transaction_aborting.abort_transaction, request)


def test_transaction_that_has_ended_is_not_aborted(world: World) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1, 2))
    world.cluster.transactions.transactions[1].state = "COMMITTED"
    assert abort(world, 1) == AbortAttempt()
    assert world.cluster.transactions.aborts == []


def test_transaction_that_is_being_committed_is_not_aborted(world: World) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1, 2))
    world.cluster.transactions.transactions[1].state = "COMMITTING"
    assert abort(world, 1).problem == "transaction 0:1: expected OPEN or ABORTING, found COMMITTING"
    assert world.cluster.transactions.aborts == []


def test_begin_after_the_end_returns_the_results_and_records_no_act(world: World) -> None:
    aborting = world.activities.transaction_aborting
    run(aborting.begin_abort, begin(1))
    abort(world, 1)
    results = conclude(world)
    assert [each.outcome for each in results] == ["aborted"]
    acts = world.catalog.inspection.list_audit_entries(limit=10)
    assert run(aborting.begin_abort, begin(1)).done == results
    assert conclude(world) == results
    assert world.catalog.inspection.list_audit_entries(limit=10) == acts


def conclude(world: World) -> list[TransactionAbort]:
    request = CheckAbortsInput(run_id=_RUN_ID, attempts={})
    return run(world.activities.transaction_aborting.conclude_abort, request)


def test_look_at_another_cluster_is_refused(world: World) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1))
    world.cluster.replace_cluster()
    with pytest.raises(PreconditionFailed, match=f"abort {_RUN_ID}: expected the cluster"):
        conclude(world)


def test_open_transaction_with_the_same_id_is_another_one(world: World) -> None:
    """Its coordinator was made anew. The transaction of the run has ended."""
    run(world.activities.transaction_aborting.begin_abort, begin(1))
    world.cluster.transactions.transactions[1] = FakeTransaction(1, opened_ms=2_000)
    checked = run(world.activities.transaction_aborting.check_aborts, CheckAbortsInput(run_id=_RUN_ID, attempts={}))
    assert (checked.open, checked.aborting) == ([], [])


def test_open_transactions_are_named(world: World) -> None:
    """They get another abort."""
    run(world.activities.transaction_aborting.begin_abort, begin(1, 2))
    abort(world, 2)
    request = CheckAbortsInput(run_id=_RUN_ID, attempts={})
    checked = run(world.activities.transaction_aborting.check_aborts, request)
    assert (checked.open, checked.aborting) == (["0:1"], [])


def test_other_transactions_are_read_only_if_somebody_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    transactions, reads = world.cluster.transactions, list[int]()
    list_open = transactions.list_open

    def count_and_list() -> TransactionReport:
        reads.append(1)
        return list_open()

    monkeypatch.setattr(transactions, "list_open", count_and_list)
    run(world.activities.transaction_aborting.begin_abort, begin(2))
    abort(world, 2)
    check = CheckAbortsInput(run_id=_RUN_ID, attempts={})
    run(world.activities.transaction_aborting.check_aborts, check)
    assert len(reads) == 1, "transaction 0:1 holds consumers back"
    transactions.transactions[1].state = "ABORTED"
    run(world.activities.transaction_aborting.check_aborts, check)
    assert len(reads) == 1


def test_transaction_whose_commit_is_decided_counts_as_committed(world: World) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1))
    world.cluster.transactions.transactions[1].state = "COMMITTING"
    (result,) = conclude(world)
    assert (result.outcome, result.problem) == ("committed", "expected its end, found it COMMITTING")


def test_transaction_whose_participant_owes_something_is_unsettled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world.activities.transaction_aborting.begin_abort, begin(1))
    abort(world, 1)
    owing = TransactionParticipant(topic="persistent://t/ns/a", subscription="s", owes="abort")
    monkeypatch.setattr(world.cluster.transactions, "read_participants_after_end", lambda _: (owing,))
    (result,) = conclude(world)
    assert (result.outcome, result.problem) == ("unsettled", f"{owing}: it still owes abort")


def test_end_of_a_transaction_whose_abort_was_decided_is_an_abort(world: World) -> None:
    """No topic tells how it ended, and it ended before any request."""
    transactions = world.cluster.transactions.transactions
    transactions[1] = FakeTransaction(1, state="ABORTING", has_messages=False)
    run(world.activities.transaction_aborting.begin_abort, begin(1))
    transactions[1].state = "ABORTED"
    assert [each.outcome for each in conclude(world)] == ["aborted"]
