"""`pulsar transactions` on a real ZooKeeper and the answers of a real broker."""

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.fake_admin import RECORDED, FakeAdmin, serve_admin
from tests.infra.pulsar.test_transaction_log_reads import serve_log
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.cli.pulsar import _format_age

__all__ = ["cluster", "ensemble", "zookeeper"]

_OPENED_S = 1_795_780_876.775  # of the oldest recorded transaction


@pytest.fixture
def server(services: FakeCommandServices, ensemble: EnsembleOptions, cluster: KazooClient) -> Iterator[FakeAdmin]:
    """The admin API that the settings name."""
    del cluster
    with serve_admin(RECORDED["loaded"]) as admin:
        services.environ |= {"SEXTON_PULSAR_ZOOKEEPER": ensemble.hosts, "SEXTON_PULSAR_ADMIN_URL": admin.url}
        yield admin


@pytest.fixture(autouse=True)
def _at_a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    began = now()
    monkeypatch.setattr("workers.cli.pulsar.time.time", lambda: _OPENED_S + 7_200 + now() - began)


@pytest.mark.external_service
def test_transactions_are_listed_with_age_participants_and_who_waits(run: Run, server: FakeAdmin) -> None:
    answer = document(run("pulsar", "transactions", "--json"))
    assert answer["problems"] == []
    first = answer["transactions"][0]
    assert 7_200 <= first["age_s"] < 7_300
    del first["age_s"]
    assert first == {
        "txn": "0:0",
        "coordinator": 0,
        "state": "OPEN",
        "opened": "2026-11-27T12:01:16Z",
        "timeout_s": 36_000,
        "coordinator_loaded": True,
        "participants": [
            {
                "topic": "persistent://acme/orders/placed",
                "subscription": None,
                "loaded": True,
                "owes": "commit or abort",
                "position": "5:1",
                "waiting": ["billing", "search"],
                "max_read_position": "5:0",
            },
            {
                "topic": "persistent://acme/orders/raw",
                "subscription": "importer",
                "loaded": True,
                "owes": "commit or abort",
                "position": None,
                "waiting": [],
                "max_read_position": None,
            },
        ],
    }
    assert server.requests


@pytest.mark.external_service
def test_people_see_a_table_that_fits_80_columns(run: Run, server: FakeAdmin) -> None:
    shown = run("pulsar", "transactions").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "0:0  OPEN   2026-11-27 12:01  2h      10h            2" in shown
    assert "persistent://acme/orders/placed: messages from 5:1 on, owes commit or abort;" in shown
    assert "waiting: billing, search" in shown
    assert server.requests


@pytest.mark.external_service
def test_younger_transactions_are_left_out(run: Run, server: FakeAdmin) -> None:
    def list_ids(*arguments: str) -> list[str]:
        return [row["txn"] for row in document(run("pulsar", "transactions", "--json", *arguments))["transactions"]]

    assert list_ids("--older-than", "2h") == ["0:0"]
    assert list_ids("--older-than", "3h") == []
    assert "(no open transactions)" in run("pulsar", "transactions", "--older-than", "3h").stdout
    assert document(run("pulsar", "transactions", "--json", "--older-than", "x"), code=2)["error"]["field"]
    assert server.requests


@pytest.mark.external_service
def test_a_transaction_of_a_clock_ahead_of_this_machine_has_no_age(
    run: Run, server: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.cli.pulsar.time.time", lambda: _OPENED_S - 60)
    answer = document(run("pulsar", "transactions", "--json"))
    assert [(row["txn"], row["age_s"]) for row in answer["transactions"]][:1] == [("0:0", 0)]
    assert server.requests


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (5_400, "1h 30m"), (3_605, "1h"), (90_061, "1d 1h"), (864_000, "10d")],
)
def test_an_age_has_two_units(seconds: int, text: str) -> None:
    assert _format_age(seconds) == text


@pytest.mark.external_service
def test_a_topic_that_is_not_loaded_is_shown_as_such(run: Run, server: FakeAdmin, cluster: KazooClient) -> None:
    silent = "/admin/v3/transactions/slowTransactions/-1?coordinatorId=0"
    server.answers = {**RECORDED["unloaded"], silent: (500, "")}
    with serve_log(cluster):
        shown = run("pulsar", "transactions").stdout
    assert "persistent://acme/orders/shipped: not loaded, owes commit or abort" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.external_service
def test_what_cannot_be_read_is_shown_and_fails(run: Run, server: FakeAdmin) -> None:
    server.answers["/admin/v3/transactions/slowTransactions/-1?coordinatorId=0"] = (500, "")
    answer = document(run("pulsar", "transactions", "--json"), code=4)
    assert answer["transactions"] == []
    assert answer["problems"][0].startswith("coordinator 0: it has no log, and its broker fails: ")
    shown = run("pulsar", "transactions")
    assert shown.exit_code == 4
    assert "not read: coordinator 0: it has no log" in shown.stdout


@pytest.mark.external_service
def test_without_the_admin_url_the_setting_is_named(
    run: Run, services: FakeCommandServices, ensemble: EnsembleOptions
) -> None:
    services.environ["SEXTON_PULSAR_ZOOKEEPER"] = ensemble.hosts
    assert document(run("pulsar", "transactions", "--json"), code=2)["error"]["field"] == "pulsar_admin_url"


@pytest.mark.external_service
def test_an_admin_api_that_refuses_is_an_error(run: Run, server: FakeAdmin) -> None:
    server.answers["/admin/v3/transactions/coordinators"] = (403, '{"reason":"no"}')
    error = document(run("pulsar", "transactions", "--json"), code=4)["error"]
    assert "check pulsar_admin_token_file" in error["message"]
