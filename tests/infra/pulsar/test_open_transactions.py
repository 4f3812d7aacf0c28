"""Open transactions from the answers that a real broker gave, and from broken ones."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.pulsar import open_transactions
from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, BrokerAdminAddress
from infra.pulsar.open_transactions import read_open_transactions
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.cluster_transactions import NOTHING, TransactionParticipant, TransactionReport
from tests.infra.pulsar.fake_admin import RECORDED, FakeAdmin, serve_admin
from tests.infra.pulsar.test_transaction_log_reads import serve_log

pytestmark = pytest.mark.external_service

_API = "/admin/v3/transactions"
_SLOW = f"{_API}/slowTransactions/-1?coordinatorId=0"
_LOG = "/managed-ledgers/pulsar/system/persistent/__transaction_log_0"
_PLACED, _RAW = "persistent://acme/orders/placed", "persistent://acme/orders/raw"
_SHIPPED = "persistent://acme/orders/shipped"


@pytest.fixture
def server() -> Iterator[FakeAdmin]:
    with serve_admin(RECORDED["loaded"]) as admin:
        yield admin


def _read(server: FakeAdmin, reader: ZnodeReader, *, timeout_s: float = 0.5) -> TransactionReport:
    admin = BrokerAdmin(BrokerAdminAddress(url=server.url), timeout_s=timeout_s, sleep=lambda _: None)
    return read_open_transactions(admin, reader, "ledgers")


def _transaction(sequence: int, *, state: str = "OPEN", **changes: Any) -> dict[str, Any]:
    return {
        "txnId": f"(0,{sequence})",
        "status": state,
        "openTimestamp": 1_000 + sequence,
        "timeoutAt": 60_000,
        "producedPartitions": {},
        "ackedPartitions": {},
        **changes,
    }


def test_transactions_of_a_real_cluster_show_participants_and_who_waits(server: FakeAdmin, reader: ZnodeReader) -> None:
    report = _read(server, reader)
    assert report.problems == ()
    first, second, third = report.transactions
    assert [each.id for each in report.transactions] == ["0:0", "0:1", "0:2"]
    assert (first.state, first.timeout_ms, first.opened_ms) == ("OPEN", 36_000_000, 1_795_780_876_775)
    end = "commit or abort"
    placed = partial(TransactionParticipant, topic=_PLACED, subscription=None, owes=end, max_read_position="5:0")
    shipped = partial(TransactionParticipant, topic=_SHIPPED, subscription=None, owes=end, max_read_position="13:-1")
    waiting = ("billing", "search")
    assert first.participants == (
        placed(position="5:1", waiting=waiting),
        TransactionParticipant(topic=_RAW, subscription="importer", owes=end, pending_transactions=1),
    )
    assert second.participants == (
        placed(position="5:4", waiting=waiting),
        TransactionParticipant(topic=_RAW, subscription="audit", owes=end, position="10:1"),
        shipped(position="13:0"),
    )
    assert third.participants == (
        TransactionParticipant(topic=_PLACED, subscription="billing", owes=end, position="5:0"),
    )


def test_a_topic_that_is_not_loaded_hides_no_transaction(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient
) -> None:
    """A real broker answers nothing to the question for all transactions, but their log is on bookies."""
    expected = _read(server, reader).transactions
    server.answers = dict(RECORDED["unloaded"])
    with serve_log(cluster):
        report = _read(server, reader)
    assert report.problems == ()
    first, second, third = report.transactions
    assert (first, third) == (expected[0], expected[2])
    *others, shipped = second.participants
    assert tuple(others) == expected[1].participants[:2]
    assert (shipped.topic, shipped.loaded, shipped.owes) == (
        _SHIPPED,
        False,
        "commit or abort",
    )


def test_a_coordinator_that_no_client_has_used_has_no_transactions(server: FakeAdmin, reader: ZnodeReader) -> None:
    server.answers[f"{_API}/coordinators"] = [{"id": 7}]
    assert _read(server, reader) == TransactionReport((), ())


def test_a_coordinator_that_fails_and_has_no_log_is_a_problem(server: FakeAdmin, reader: ZnodeReader) -> None:
    server.answers[_SLOW] = (500, '{"reason":"broken"}')
    report = _read(server, reader)
    assert report.transactions == ()
    (problem,) = report.problems
    assert problem.startswith("coordinator 0: it has no log, and its broker fails: ")
    assert "(broken)" in problem


def test_a_coordinator_that_is_not_loaded_has_a_log(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient
) -> None:
    server.answers[_SLOW] = (404, '{"reason":"Transaction coordinator not found!"}')
    with serve_log(cluster):
        assert [each.id for each in _read(server, reader).transactions] == ["0:0", "0:1", "0:2"]


def test_one_coordinator_that_cannot_be_read_hides_no_other(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient
) -> None:
    server.answers[f"{_API}/coordinators"] = [{"id": 0}, {"id": 1}]
    server.answers[f"{_API}/slowTransactions/-1?coordinatorId=1"] = (500, "")
    with serve_log(cluster, coordinator=1):
        cluster.delete("/ledgers/available/bk0")
        report = _read(server, reader)
    assert [each.id for each in report.transactions] == ["0:0", "0:1", "0:2"]
    (problem,) = report.problems
    assert problem.startswith("coordinator 1: it gives no answer, and its log cannot be read: ledger 41: too few")


@pytest.mark.parametrize("answer", [(500, ""), (200, "{}x"), {"startPosition": 7}])
def test_a_participant_in_the_log_that_cannot_be_asked_is_a_problem(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient, answer: object
) -> None:
    path = f"{_API}/transactionInBufferStats/acme/orders/shipped/0/1"
    server.answers = {**RECORDED["unloaded"], path: answer}
    with serve_log(cluster):
        report = _read(server, reader)
    assert [participant.owes for participant in report.transactions[1].participants] == ["commit or abort"] * 3
    assert len(report.problems) == 1
    assert path in report.problems[0]


@pytest.mark.parametrize("answer", [(500, ""), (401, ""), (503, ""), (200, "<html>"), {"id": 0}, [{"id": "0"}], [7]])
def test_without_the_list_of_coordinators_the_reading_fails(
    server: FakeAdmin, reader: ZnodeReader, answer: object
) -> None:
    server.answers[f"{_API}/coordinators"] = answer
    with pytest.raises(AdminRequestFailed, match="/admin/v3/transactions/coordinators"):
        _read(server, reader)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "COMMITTED"},
        {"status": None},
        {"txnId": "0:1"},
        {"openTimestamp": "now"},
        {"producedPartitions": None},
        {"producedPartitions": {_PLACED: []}},
        {"producedPartitions": {_PLACED: {"startPosition": 7}}},
        {"ackedPartitions": {_PLACED: {"billing": None}}},
    ],
)
def test_an_answer_with_another_form_is_none(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient, change: dict[str, Any]
) -> None:
    """The log decides, which cannot be read here."""
    server.answers[_SLOW] = {"(0,1)": _transaction(1, **change)}
    cluster.create(_LOG, b"\xff", makepath=True)
    report = _read(server, reader)
    assert report.transactions == ()
    assert len(report.problems) == 1


def test_what_a_participant_owes_depends_on_the_state(server: FakeAdmin, reader: ZnodeReader) -> None:
    produced = {_PLACED: {"startPosition": None, "aborted": False}}
    acknowledged: dict[str, Any] = {_RAW: {"importer": {}, "audit": {}}}
    server.answers[_SLOW] = {
        "(0,1)": _transaction(1, state="COMMITTING", producedPartitions=produced, ackedPartitions=acknowledged),
        "(0,2)": _transaction(2, state="ABORTING", producedPartitions={_PLACED: {"startPosition": "5:1"}}),
    }
    committing, aborting = _read(server, reader).transactions
    owes = {(each.topic, each.subscription): each.owes for each in committing.participants}
    assert owes == {(_PLACED, None): NOTHING, (_RAW, "importer"): "commit", (_RAW, "audit"): NOTHING}
    assert [each.owes for each in aborting.participants] == ["abort"]


def test_subscriptions_that_still_have_messages_to_read_do_not_wait(server: FakeAdmin, reader: ZnodeReader) -> None:
    path = "/admin/v2/persistent/acme/orders/placed/internalStats"
    statistics = json.loads(RECORDED["loaded"][path][1])
    statistics["cursors"]["billing"]["readPosition"] = "5:0"
    statistics["cursors"]["__compaction"] = statistics["cursors"]["pulsar.dedup"] = {"readPosition": "5:5"}
    server.answers[path] = statistics
    assert _read(server, reader).transactions[0].participants[0].waiting == ("search",)
    statistics["lastConfirmedEntry"] = "5:0"
    assert _read(server, reader).transactions[0].participants[0].waiting == ()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (f"{_API}/transactionBufferStats/acme/orders/placed", (404, '{"reason":"Topic not found"}')),
        (f"{_API}/transactionBufferStats/acme/orders/placed", {"maxReadPosition": "later"}),
        (f"{_API}/pendingAckStats/acme/orders/raw/importer", (500, "")),
        ("/admin/v2/persistent/acme/orders/placed/internalStats", {"lastConfirmedEntry": "5:4"}),
    ],
)
def test_a_participant_that_cannot_be_asked_is_a_problem(
    server: FakeAdmin, reader: ZnodeReader, path: str, answer: object
) -> None:
    server.answers[path] = answer
    report = _read(server, reader)
    assert len(report.transactions) == 3
    (problem,) = report.problems
    assert path in problem


def test_only_so_many_participants_are_asked(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "_MAX_PARTICIPANTS", 1)
    assert _read(server, reader).problems == ("2 of 3 participants were not asked for details",)
    server.answers = dict(RECORDED["unloaded"])
    with serve_log(cluster):
        report = _read(server, reader)
    assert report.problems[0] == "coordinator 0: 5 of 6 participants were not asked for positions"
    assert sum(len(each.participants) for each in report.transactions) == 6
