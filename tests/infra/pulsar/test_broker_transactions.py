"""One transaction of a cluster: found, aborted, and looked at after its end, by answers as real brokers gave them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, BrokerAdminAddress
from infra.pulsar.broker_transactions import BrokerTransactions
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable, UnknownObject
from logstore.pulsar.cluster_transactions import NOTHING, OpenTransaction, TransactionParticipant
from logstore.pulsar.protos.broker_commands_pb2 import Command
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.infra.pulsar.fake_admin import NOT_FOUND, RECORDED, FakeAdmin, Redirect, serve_admin
from tests.infra.pulsar.fake_broker import PING, FakeBroker, make_failure, make_unknown_command, serve_broker
from tests.infra.pulsar.test_transaction_log_reads import serve_log

pytestmark = pytest.mark.external_service

_API = "/admin/v3/transactions"
_METADATA = f"{_API}/transactionMetadata/0/0"
_STATISTICS = f"{_API}/coordinatorStats?coordinatorId=0"
_ABORT = f"POST {_API}/abortTransaction/0/0"
_PLACED, _RAW = "persistent://acme/orders/placed", "persistent://acme/orders/raw"
_FIRST = TransactionId(0, 0)
_NO_COORDINATOR = (404, '{"reason":"Transaction coordinator not found! coordinator id : 0"}')
_NO_TRANSACTION = (404, '{"reason":"Transaction (0,0) not found!"}')


@pytest.fixture
def server() -> Iterator[FakeAdmin]:
    """A cluster with open transactions 0:0 to 0:2, whose coordinator is loaded."""
    with serve_admin(RECORDED["loaded"]) as admin:
        all_transactions = json.loads(RECORDED["loaded"][f"{_API}/slowTransactions/-1?coordinatorId=0"][1])
        admin.answers[_METADATA] = all_transactions["(0,0)"]
        admin.answers[_STATISTICS] = {"state": "Ready", "leastSigBits": 2, "lowWaterMark": -1, "ongoingTxnSize": 3}
        yield admin


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serve_broker() as found:
        yield found


def _transactions(server: FakeAdmin, reader: ZnodeReader, token_file: str = "") -> BrokerTransactions:
    address = BrokerAdminAddress(url=server.url, token_file=token_file)
    return BrokerTransactions(BrokerAdmin(address, timeout_s=1.0, sleep=lambda _: None), reader, "ledgers")


def _unload_coordinator(server: FakeAdmin, broker: FakeBroker) -> None:
    """Let the coordinator be unknown to its broker until it is loaded."""
    statistics = server.answers[_STATISTICS]
    server.answers |= {_METADATA: _NO_COORDINATOR, _STATISTICS: _NO_COORDINATOR, _ABORT: (500, "")}
    server.answers[f"{_API}/coordinators"] = [{"id": 0, "brokerServiceUrl": broker.url}]

    def load() -> None:
        server.answers |= {_STATISTICS: statistics, _ABORT: (204, "")}

    broker.before_answer = load


def test_open_transaction_is_found_with_participants_and_who_waits(server: FakeAdmin, reader: ZnodeReader) -> None:
    found = _transactions(server, reader).find(_FIRST)
    assert found
    assert (found.id, found.state, found.coordinator_loaded) == ("0:0", "OPEN", True)
    messages, acknowledgements = found.participants
    assert (messages.topic, messages.position, messages.max_read_position) == (_PLACED, "5:1", "5:0")
    assert messages.waiting == ("billing", "search")
    assert (acknowledgements.subscription, acknowledgements.pending_transactions) == ("importer", 1)


def test_ended_transaction_differs_from_one_that_never_was(server: FakeAdmin, reader: ZnodeReader) -> None:
    server.answers[_METADATA] = _NO_TRANSACTION
    for sequence in (2, 3):
        server.answers[f"{_API}/transactionMetadata/0/{sequence}"] = _NO_TRANSACTION
    assert _transactions(server, reader).find(_FIRST) is None
    assert _transactions(server, reader).find(TransactionId(0, 2)) is None, "the newest one"
    with pytest.raises(UnknownObject, match="expected a transaction up to 0:2, the newest one, found '0:3'"):
        _transactions(server, reader).find(TransactionId(0, 3))


def test_transaction_of_a_coordinator_that_no_broker_has_loaded_is_in_its_log(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient, broker: FakeBroker
) -> None:
    _unload_coordinator(server, broker)
    with serve_log(cluster):
        found = _transactions(server, reader).find(_FIRST)
    assert found
    assert (found.state, found.coordinator_loaded, found.participants[0].position) == ("OPEN", False, "5:1")
    assert broker.commands == [], "a look loads nothing"


def test_coordinator_that_fails_leaves_the_answer_to_its_log(
    server: FakeAdmin, reader: ZnodeReader, cluster: KazooClient
) -> None:
    """It fails if the topic of a participant is not loaded."""
    server.answers[_METADATA] = (500, '{"reason":"Topic not found persistent://acme/orders/placed"}')
    with serve_log(cluster):
        found = _transactions(server, reader).find(_FIRST)
        assert found
        assert found.coordinator_loaded
        server.answers[f"{_API}/transactionMetadata/0/3"] = (500, "")
        assert _transactions(server, reader).find(TransactionId(0, 3)) is None


def test_coordinator_without_a_log_has_no_transaction(server: FakeAdmin, reader: ZnodeReader) -> None:
    server.answers |= {_METADATA: _NO_COORDINATOR, _STATISTICS: _NO_COORDINATOR}
    with pytest.raises(UnknownObject, match="a coordinator that has had transactions"):
        _transactions(server, reader).find(_FIRST)


@pytest.mark.parametrize("answer", [(401, ""), (404, "<html>"), (200, "[]")])
def test_answer_that_is_none_is_an_error_and_no_end(
    server: FakeAdmin, reader: ZnodeReader, answer: tuple[int, str]
) -> None:
    server.answers[_METADATA] = answer
    with pytest.raises(AdminRequestFailed, match=_METADATA):
        _transactions(server, reader).find(_FIRST)


def test_participant_that_cannot_be_asked_is_an_error(server: FakeAdmin, reader: ZnodeReader) -> None:
    path = f"{_API}/pendingAckStats/acme/orders/raw/importer"
    server.answers[path] = (500, "")
    with pytest.raises(StoreUnavailable, match=path):
        _transactions(server, reader).find(_FIRST)


def test_abort_goes_to_the_broker_of_the_coordinator(server: FakeAdmin, reader: ZnodeReader) -> None:
    with serve_admin({_ABORT: (204, "")}) as owner:
        server.answers[_ABORT] = Redirect(f"{owner.url}{_ABORT.removeprefix('POST ')}")
        _transactions(server, reader).abort(_FIRST)
        assert owner.count(_ABORT) == 1


def test_abort_that_a_broker_does_not_confirm_is_not_sent_again(server: FakeAdmin, reader: ZnodeReader) -> None:
    for answer in ((500, '{"reason":"Expect Txn (0,0) to be in ABORTING status but it is in COMMITTING"}'), None):
        server.answers[_ABORT] = answer
        server.requests.clear()
        with pytest.raises(AdminRequestFailed, match=_ABORT):
            _transactions(server, reader).abort(_FIRST)
        assert server.count(_ABORT) == 1


def test_abort_loads_a_coordinator_that_no_broker_has_loaded(
    server: FakeAdmin, reader: ZnodeReader, broker: FakeBroker, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    _unload_coordinator(server, broker)
    broker.answers = [PING, *broker.answers]
    _transactions(server, reader, str(tmp_path / "token")).abort(_FIRST)
    assert broker.types() in (
        [Command.CONNECT, Command.LOAD_COORDINATOR, Command.PONG],
        [Command.CONNECT, Command.LOAD_COORDINATOR],  # the connection may end before the answer to the ping is read
    )
    connect, load = broker.commands[:2]
    assert (connect.connect.auth_method, connect.connect.auth_data) == ("token", b"secret")
    assert load.load_coordinator.coordinator == 0
    assert server.count(_ABORT) == 1


def test_broker_that_only_pings_is_not_waited_for(server: FakeAdmin, reader: ZnodeReader, broker: FakeBroker) -> None:
    _unload_coordinator(server, broker)
    broker.answers = [PING] * 30
    with pytest.raises(AdminRequestFailed, match="found 11 pings and no answer"):
        _transactions(server, reader).abort(_FIRST)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (make_failure(Command.COORDINATOR_LOADED, "not the owner"), "found not the owner"),
        (make_failure(Command.ERROR, "Transactions are not enabled."), "found Transactions are not enabled"),
        (make_unknown_command(), "found a command of type 19"),
        (b"HTTP/1.1 400 Bad Request", "an answer that is no command of Pulsar"),
        (b"\0\0", "found the end of the connection"),
    ],
)
def test_coordinator_that_cannot_be_loaded_gets_no_abort(
    server: FakeAdmin, reader: ZnodeReader, broker: FakeBroker, answer: Command | bytes, message: str
) -> None:
    _unload_coordinator(server, broker)
    broker.answers = [answer]
    with pytest.raises(AdminRequestFailed, match=message):
        _transactions(server, reader).abort(_FIRST)
    assert server.count(_ABORT) == 0


@pytest.mark.parametrize("url", ["pulsar://10.0.0.1:6650", "http://127.0.0.1:6650", "pulsar://127.0.0.1"])
def test_token_goes_to_brokers_of_the_cluster_only(
    server: FakeAdmin, reader: ZnodeReader, broker: FakeBroker, url: str
) -> None:
    _unload_coordinator(server, broker)
    server.answers[f"{_API}/coordinators"] = [{"id": 0, "brokerServiceUrl": url}]
    with pytest.raises(AdminRequestFailed, match="the token was not sent there"):
        _transactions(server, reader).abort(_FIRST)
    assert server.count(_ABORT) == 0


def test_coordinator_that_does_not_exist_is_not_loaded(
    server: FakeAdmin, reader: ZnodeReader, broker: FakeBroker
) -> None:
    """A broker would create the log of any coordinator."""
    _unload_coordinator(server, broker)
    server.answers[f"{_API}/coordinators"] = [{"id": 1, "brokerServiceUrl": broker.url}]
    with pytest.raises(UnknownObject, match="a transaction of an existing coordinator"):
        _transactions(server, reader).abort(_FIRST)
    assert broker.commands == []


def _ended(server: FakeAdmin, reader: ZnodeReader) -> tuple[OpenTransaction, BrokerTransactions]:
    """Find the first transaction, and let it end by an abort, after which nobody holds back its topic."""
    transactions = _transactions(server, reader)
    found = transactions.find(_FIRST)
    assert found
    server.answers |= {
        f"{_API}/transactionInBufferStats/acme/orders/placed/0/0": {"startPosition": None, "aborted": True},
        f"{_API}/transactionInPendingAckStats/acme/orders/raw/importer/0/0": {"cumulativeAckPosition": None},
        f"{_API}/transactionBufferStats/acme/orders/placed": {"maxReadPosition": "5:4"},
        f"{_API}/pendingAckStats/acme/orders/raw/importer": {"ongoingTxnSize": 0},
    }
    return found, transactions


def test_participants_that_have_ended_their_part_owe_nothing(server: FakeAdmin, reader: ZnodeReader) -> None:
    found, transactions = _ended(server, reader)
    messages, acknowledgements = transactions.read_participants_after_end(found)
    assert messages == TransactionParticipant(
        topic=_PLACED, subscription=None, owes=NOTHING, position="5:1", max_read_position="5:4", was_aborted=True
    )
    assert acknowledgements == TransactionParticipant(topic=_RAW, subscription="importer", owes=NOTHING)


def test_topic_without_messages_of_the_transaction_is_not_asked_for_consumers(
    server: FakeAdmin, reader: ZnodeReader
) -> None:
    """Nobody waits for it."""
    found, transactions = _ended(server, reader)
    messages = replace(found.participants[0], position=None)
    server.requests.clear()
    (after,) = transactions.read_participants_after_end(replace(found, participants=(messages,)))
    assert after == TransactionParticipant(topic=_PLACED, subscription=None, owes=NOTHING, was_aborted=True)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("path", "answer", "changes"),
    [
        ("transactionInBufferStats/acme/orders/placed/0/0", {"startPosition": "5:1"}, {"owes": "abort"}),
        ("transactionInBufferStats/acme/orders/placed/0/0", NOT_FOUND, {"owes": NOTHING, "loaded": False}),
        ("transactionInBufferStats/acme/orders/placed/0/0", (500, ""), {"problem": "status 500"}),
        ("transactionBufferStats/acme/orders/placed", {"maxReadPosition": "5:0"}, {"waiting": ("billing", "search")}),
        ("transactionBufferStats/acme/orders/placed", (500, ""), {"problem": "status 500"}),
    ],
)
def test_topic_that_has_not_ended_its_part_says_so(
    server: FakeAdmin, reader: ZnodeReader, path: str, answer: Any, changes: dict[str, Any]
) -> None:
    found, transactions = _ended(server, reader)
    server.answers[f"{_API}/{path}"] = answer
    messages, _ = transactions.read_participants_after_end(found)
    for name, value in changes.items():
        assert value == getattr(messages, name) or (name == "problem" and value in messages.problem)


@pytest.mark.parametrize(
    ("path", "answer", "changes"),
    [
        ("transactionInPendingAckStats/acme/orders/raw/importer/0/0", {"cumulativeAckPosition": "7:1"}, "abort"),
        ("pendingAckStats/acme/orders/raw/importer", {"ongoingTxnSize": 2}, 2),
        ("pendingAckStats/acme/orders/raw/importer", (500, '{"reason":"null"}'), "status 500"),
    ],
)
def test_subscription_that_has_not_ended_its_part_says_so(
    server: FakeAdmin, reader: ZnodeReader, path: str, answer: Any, changes: str | int
) -> None:
    found, transactions = _ended(server, reader)
    server.answers[f"{_API}/{path}"] = answer
    _, acknowledgements = transactions.read_participants_after_end(found)
    said = (acknowledgements.owes, acknowledgements.pending_transactions, acknowledgements.problem)
    assert changes in said or str(changes) in acknowledgements.problem
