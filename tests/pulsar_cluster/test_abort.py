"""Abort of a transaction whose client and broker are gone, on a real cluster."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pulsar
import pytest

from logstore.pulsar.cluster_transactions import parse_position
from tests.e2e.shell import Shell
from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.filling import open_client, run_transactions, topic_url
from workers.demo.temporary_homes import kill_processes_and_remove_home, make_home

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_800)]

_SILENCE_MS: Final = 5_000  # without a message, after which a consumer counts as held back
_MAX_WAIT_MS: Final = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """A new cluster without damage, or the one in the home that SEXTON_TEST_PULSAR_HOME names."""
    if home := os.environ.get("SEXTON_TEST_PULSAR_HOME"):
        attached = RealCluster.attach(Path(home))
        attached.start_broker()
        yield attached
        return
    started = RealCluster(make_home(), print)
    try:
        started.start()
        yield started
    finally:
        started.kill()
        kill_processes_and_remove_home(started.home.root)


@pytest.fixture(scope="module")
def sexton(cluster: RealCluster) -> Iterator[Shell]:
    home = make_home()
    try:
        shell = Shell(home, SEXTON_HOME=str(home), **cluster.settings())
        shell.json("up", "--free-ports")
        yield shell
    finally:
        kill_processes_and_remove_home(home)


def _receive_all(consumer: Any, *, first_within_ms: int = _SILENCE_MS) -> list[bytes]:
    """Acknowledge and return messages until none comes."""
    received: list[bytes] = []
    while True:
        try:
            message = consumer.receive(timeout_millis=_SILENCE_MS if received else first_within_ms)
        except pulsar.Timeout:
            return received
        consumer.acknowledge(message)
        received.append(message.data())


def _find_transaction(sexton: Shell, topic: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the only open transaction with messages in a topic, and its part there."""
    rows = sexton.json("pulsar", "transactions")["transactions"]
    (found,) = [
        (row, part)
        for row in rows
        for part in row["participants"]
        if (part["topic"], part["subscription"]) == (topic, None)
    ]
    transaction, participant = found
    return transaction, participant


def test_abort_lets_consumers_read_on_after_client_and_broker_of_a_transaction_are_gone(
    cluster: RealCluster, sexton: Shell
) -> None:
    """The broker comes back without the coordinator, so that no timeout would end the transaction."""
    name = uuid4().hex[:8]
    source, target = f"paid-{name}", f"booked-{name}"
    with closing(open_client(cluster)) as client:
        client.subscribe(topic_url(source), "bank").close()
        client.subscribe(topic_url(target), "reader").close()
        producer = client.create_producer(topic_url(source))
        for number in range(3):
            producer.send(f"payment {number}".encode())
    run_transactions(cluster, source, "bank", target)
    cluster.kill_broker()
    cluster.start_broker()
    with closing(open_client(cluster)) as client:
        client.create_producer(topic_url(target)).send(b"behind the open transaction")
        reader = client.subscribe(topic_url(target), "reader")
        assert len(_receive_all(reader, first_within_ms=_MAX_WAIT_MS)) == 1, "the message of the committed transaction"

        transaction, before = _find_transaction(sexton, topic_url(target))
        txn = transaction["txn"]
        assert (transaction["state"], transaction["coordinator_loaded"]) == ("OPEN", False)
        assert (before["owes"], before["waiting"]) == ("commit or abort", ["reader"])
        assert parse_position(before["max_read_position"]) < parse_position(before["position"])

        refused = sexton.json("pulsar", "abort", txn, code=3)["error"]["message"]
        assert f"transaction {txn}: expected an age of 600 s, found " in refused
        assert sexton.json("pulsar", "abort", txn, "--unsafe-age", "--dry-run")["transactions"][0]["txn"] == txn
        assert _find_transaction(sexton, topic_url(target))[0]["state"] == "OPEN"

        aborted = sexton.json("pulsar", "abort", txn, "--unsafe-age", "--reason", "its client is gone")
        (row,) = aborted["transactions"]
        assert (aborted["aborted"], row["outcome"], row["still_held"]) == ([txn], "aborted", [])
        assert {part["owes"] for part in row["after"]} == {"nothing"}
        (after,) = [part for part in row["after"] if part["subscription"] is None]
        assert parse_position(after["max_read_position"]) > parse_position(before["max_read_position"])
        assert _receive_all(reader, first_within_ms=_MAX_WAIT_MS) == [b"behind the open transaction"]
        bank = client.subscribe(topic_url(source), "bank", consumer_type=pulsar.ConsumerType.Shared)
        assert len(_receive_all(bank, first_within_ms=_MAX_WAIT_MS)) == 2, "acknowledgements of both aborts came back"

    assert txn not in [row["txn"] for row in sexton.json("pulsar", "transactions")["transactions"]]
    assert "found that it has ended" in sexton.json("pulsar", "abort", txn, code=3)["error"]["message"]
    acts = [row["act"] for row in sexton.json("audit", "list") if row["reason"] == "its client is gone"]
    assert sorted(acts) == ["abort-transactions", "aborted-transactions"]
