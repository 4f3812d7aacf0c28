"""`pulsar abort`: its checks, the request to the job, and the answer about each transaction."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.errors import PreconditionFailed
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.pulsar.cluster_transactions import (
    AFTER_ABORT,
    BEFORE_ABORT,
    NOTHING,
    OpenTransaction,
    TransactionAbort,
    TransactionParticipant,
)
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeJobHandle
from workflows.pulsar.job_definitions import AbortTransactionsResult

_TOPIC = "persistent://shop/main/orders"
_PARTICIPANT = TransactionParticipant(
    topic=_TOPIC,
    subscription=None,
    owes="commit or abort",
    position="5:1",
    waiting=("search",),
    max_read_position="5:0",
)
_AFTER = TransactionParticipant(topic=_TOPIC, subscription=None, owes=NOTHING, position="5:1", max_read_position="5:9")
_HELD = f"{_TOPIC}: subscriptions search wait at 5:9 for messages of transaction 0:3"


def _transaction(sequence: int) -> OpenTransaction:
    return OpenTransaction(
        coordinator=0,
        sequence=sequence,
        state="OPEN",
        opened_ms=1_000,
        timeout_ms=7_200_000,
        participants=(_PARTICIPANT,),
    )


class AbortingClient:
    """Client whose aborts end at once. `asked` has the arguments of each."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], dict[str, Any]]] = []
        self.results = [TransactionAbort(txn="0:1", outcome="aborted", still_held=[_HELD])]

    async def abort_transactions(self, transactions: list[str], **asked: Any) -> Any:
        self.asked.append((transactions, asked))
        result = AbortTransactionsResult(run_id="abort-1", transactions=self.results)
        return FakeJobHandle(result, id="abort-transactions/abort-1")  # type: ignore[arg-type]


def _get_run(run_id: str) -> ReconciliationRun:
    summary = {
        BEFORE_ABORT: {f"0:{each}": asdict(_transaction(each)) for each in (1, 2)},
        AFTER_ABORT: {"0:1": [asdict(_AFTER)], "0:2": []},
    }
    return ReconciliationRun(run_id=run_id, kind=RunKind.ABORT, created_us=1, finished_us=2, summary=summary)


@pytest.fixture
def aborting(services: FakeCommandServices) -> AbortingClient:
    client = AbortingClient()
    services.client.abort_transactions = client.abort_transactions  # type: ignore[attr-defined]
    services.log.catalog = SimpleNamespace(reconciliation=SimpleNamespace(get_run=_get_run))
    return client


def test_answer_has_what_was_seen_before_and_after(run: Run, aborting: AbortingClient) -> None:
    answer = document(run("pulsar", "abort", "0:1", "0:1", "--reason", "gone", "--json"))
    ((transactions, asked),) = aborting.asked
    assert (transactions, asked["reason"], asked["unsafe_age"]) == (["0:1"], "gone", False)
    assert (answer["run_id"], answer["workflow_id"]) == ("abort-1", "abort-transactions/abort-1")
    assert answer["aborted"] == ["0:1"]
    (row,) = answer["transactions"]
    assert (row["txn"], row["outcome"], row["still_held"]) == ("0:1", "aborted", [_HELD])
    assert [each["max_read_position"] for each in (*row["participants"], *row["after"])] == ["5:0", "5:9"]
    assert [each["owes"] for each in (*row["participants"], *row["after"])] == ["commit or abort", NOTHING]


def test_one_failure_is_a_partial_result(run: Run, aborting: AbortingClient) -> None:
    aborting.results.append(TransactionAbort(txn="0:2", outcome="unsettled", problem="found it ABORTING"))
    answer = document(run("pulsar", "abort", "0:1", "0:2", "--json"), 5)
    assert answer["aborted"] == ["0:1"]
    assert answer["failed"] == [{"id": "0:2", "error": "found it ABORTING"}]
    shown = run("pulsar", "abort", "0:1", "0:2")
    assert shown.exit_code == 5
    assert "found it ABORTING" in shown.stdout
    assert _HELD in " ".join(shown.stdout.split())
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("txn", ["3-17", "-1:4", "4096:1", "0:01", ""])
def test_id_of_another_form_is_refused(run: Run, aborting: AbortingClient, txn: str) -> None:
    assert document(run("pulsar", "abort", "--json", "--", txn), 2)["error"]["field"] == "txn"
    assert aborting.asked == []


def test_more_transactions_than_one_job_takes_are_refused(run: Run, aborting: AbortingClient) -> None:
    ids = [f"0:{sequence}" for sequence in range(101)]
    assert "at most 100 transactions" in document(run("pulsar", "abort", *ids, "--json"), 2)["error"]["message"]
    assert aborting.asked == []


def test_dry_run_shows_the_transactions_and_starts_nothing(
    run: Run, aborting: AbortingClient, services: FakeCommandServices
) -> None:
    def read(_settings: Any, ids: list[str], *, unsafe_age: bool) -> list[OpenTransaction]:
        assert (ids, unsafe_age) == (["0:1"], False)
        return [_transaction(1)]

    services.require_abortable_pulsar_transactions = read  # type: ignore[method-assign]
    answer = document(run("pulsar", "abort", "0:1", "--dry-run", "--json"))
    assert (answer["dry_run"], answer["transactions"][0]["txn"]) == (True, "0:1")
    assert f"{_TOPIC}: messages from 5:1 on" in run("pulsar", "abort", "0:1", "--dry-run").stdout
    assert aborting.asked == []


def test_dry_run_is_refused_as_the_job_would_be(
    run: Run, aborting: AbortingClient, services: FakeCommandServices
) -> None:
    def refuse(*_: Any, **__: Any) -> list[OpenTransaction]:
        raise PreconditionFailed("transaction 0:1: expected an age of 600 s, found 12 s")

    services.require_abortable_pulsar_transactions = refuse  # type: ignore[method-assign]
    assert "found 12 s" in document(run("pulsar", "abort", "0:1", "--dry-run", "--json"), 3)["error"]["message"]
    assert aborting.asked == []
