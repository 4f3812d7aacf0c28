"""`txn commit` and `abort` that wait, and what is told of transactions."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from logstore.ports.catalog.transactions import StoredTransaction
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.logstore.transactions.histories import History, open_history
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.cli.txn import make_transaction_document, report_owed_participants_until_cancelled
from workers.human_readable_values import decode_topic_name


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


class _Looks:
    """Transactions as the command looks at them; after so many looks the participant was tried, and later all ends."""

    def __init__(self, history: History, txn: TransactionId) -> None:
        self._transactions, self._txn = history.world.catalog.transactions, txn
        self._left = 6
        self.over = threading.Event()

    def get_transaction(self, txn: TransactionId) -> StoredTransaction:
        self._left -= 1
        found = self._transactions.get_transaction(txn)
        if self._left == 3:
            self._transactions.record_participant_errors(txn, {found.owed[0].participant: "StoreUnavailable: away"})
        if self._left == 0:
            self.over.set()
        return found


def _said(history: History, txn: TransactionId) -> list[str]:
    """What a person reads who waits."""
    said, looks = list[str](), _Looks(history, txn)

    async def work() -> None:
        telling = asyncio.create_task(
            report_owed_participants_until_cancelled(looks, txn, said.append, interval_s=0.001)  # type: ignore[arg-type]
        )
        await asyncio.to_thread(looks.over.wait, 60)
        telling.cancel()

    asyncio.run(work())
    return said


def test_commit_that_waits_says_who_is_not_told_and_why_once_for_each_reason(history: History) -> None:
    """Without a worker nobody would ever tell."""
    history.take([("begin", 0, 0), ("produce", 0, 0), ("decide", 0, 1)])
    (txn,) = history.decided
    first, second = _said(history, txn)
    about = f"{txn} is COMMITTING, which readers see already; 1 of 1 participants are not told yet: "
    assert first == f"{about}no worker has tried; `sexton status` says whether one runs"
    assert second == f"{about}{history.world.topic.name}: StoreUnavailable: away"


def test_open_transaction_owes_nothing_yet(history: History) -> None:
    """Its participants are to be told how it ends."""
    history.take([("begin", 0, 0), ("produce", 0, 0)])
    (txn,) = history.open
    told = make_transaction_document(history.world.catalog.transactions.get_transaction(txn))
    assert (told["state"], told["owed"], len(told["participants"])) == ("OPEN", 0, 1)
    history.take([("decide", 0, 1)])
    assert make_transaction_document(history.world.catalog.transactions.get_transaction(txn))["owed"] == 1


def test_show_names_the_trace_of_the_transaction_and_not_its_own(
    run: Run, services: FakeCommandServices, history: History
) -> None:
    """Both in JSON and for people: a command that is done adds its own trace only where there is none."""
    context = SpanContext(trace_id=7, span_id=1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with use_span(NonRecordingSpan(context)):
        history.take([("begin", 0, 0), ("produce", 0, 0)])
    (txn,) = history.open
    services.log.catalog.transactions = history.world.catalog.transactions
    assert json.loads(run("txn", "show", str(txn), "--json").stdout)["trace_id"] == f"{7:032x}"
    assert f"{7:032x}" in run("txn", "show", str(txn)).stdout


def test_begin_with_a_timeout_out_of_bounds_says_the_seconds_in_digits(run: Run) -> None:
    """A person compares both numbers."""
    error = document(run("txn", "begin", "--timeout", "1000d", "--json"), 2)["error"]
    assert error["message"].endswith("expected 0.001s to 86400s, found '86400000s'")


def test_append_in_a_transaction_that_never_was_is_bad_input(
    run: Run, services: FakeCommandServices, history: History, orders: str
) -> None:
    """As `topic ack` and `txn show` answer; nothing is uploaded for it."""
    services.log.catalog.transactions = history.world.catalog.transactions
    told = document(run("topic", "append", orders, "--file", "-", "--txn", "99:99", "--json", text='{"payload":""}'), 2)
    assert (told["error"]["type"], told["error"]["field"]) == ("UnknownObject", "txn")
    assert services.log.appends == []


def test_resolve_of_the_last_participant_wakes_the_broadcast_that_waits(
    run: Run, services: FakeCommandServices, history: History
) -> None:
    """Else its page said for a minute that the participant is owed."""
    history.take([("begin", 0, 0), ("produce", 0, 0), ("decide", 0, 1)])
    (txn,) = history.decided
    told: list[TransactionId] = []

    async def broadcast(of: TransactionId) -> None:
        told.append(of)

    services.log.catalog.transactions = history.world.catalog.transactions
    services.client.broadcast_transaction = broadcast  # type: ignore[attr-defined]
    about = ("--participant", str(history.world.topic.topic_id), "--reason", "it is gone")
    found = document(run("txn", "resolve", str(txn), *about, "--json"))
    assert (found["state"], found["owed"], told) == ("COMMITTED", 0, [txn])


def test_show_for_people_has_names_and_errors_whole_on_80_columns(
    run: Run, services: FakeCommandServices, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stand beneath the row of their participant; nothing is cut, and nothing is wider than the terminal."""
    error = "StoreUnavailable: s3 does not answer. Try again, or look at `sexton status` and at the logs of the worker."
    history.take([("begin", 0, 0), ("produce", 0, 0), ("decide", 0, 1)])
    (txn,) = history.decided
    transactions = history.world.catalog.transactions
    transactions.record_participant_errors(txn, {transactions.get_transaction(txn).owed[0].participant: error})
    services.log.catalog.transactions = transactions
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("txn", "show", str(txn)).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "\n\nparticipants\n" in shown, "an empty line before each further table"
    assert f"\n    {decode_topic_name(history.world.topic.name)}\n" in shown
    assert error in " ".join(shown.split())
    (participant,) = document(run("txn", "show", str(txn), "--json"))["participants"]
    assert participant["topic"] == decode_topic_name(history.world.topic.name)
    assert participant["last_error"] == error
