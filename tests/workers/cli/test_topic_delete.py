"""`topic delete`."""

import pytest

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeDeletionResult


def test_topic_delete_waits_and_counts(run: Run, services: FakeCommandServices, orders: str) -> None:
    """The answer is the certificate; the reason travels."""
    told = document(run("topic", "delete", orders, "--reason", "why", "--json"))
    assert told == {"workflow_id": "delete-topic/7", "outcomes": {"DELETED": 3}}
    assert services.client.asked == [("delete", orders, "why")]


def test_topic_delete_no_wait_answers_at_once(run: Run, orders: str) -> None:
    """Only ids are told."""
    told = document(run("topic", "delete", orders, "--no-wait", "--json"))
    assert told == {"workflow_id": "delete-topic/7", "run_id": "run-1"}


def test_topic_delete_dry_run_counts_and_starts_nothing(run: Run, services: FakeCommandServices, orders: str) -> None:
    """By component and kind of copy, with its subscriptions."""
    assert document(run("topic", "delete", orders, "--dry-run", "--json")) == {
        "dry_run": True,
        "ledgers": {"MANAGED_LEDGER": 2},
        "copies": {"MANAGED_LEDGER": {"LEDGER": 2, "OFFLOADED_LEDGER": 1}},
        "subscriptions": 3,
    }
    assert services.client.asked == []
    shown = run("topic", "delete", orders, "--dry-run").stdout
    assert "MANAGED_LEDGER: (LEDGER: 2, OFFLOADED_LEDGER: 1)" in shown, "it is plain what is of which component"


@pytest.mark.parametrize("outcome", ["RETRYING", "DEAD_LETTERED", "METADATA_MISMATCH"])
def test_topic_delete_in_part_exits_5(run: Run, services: FakeCommandServices, orders: str, outcome: str) -> None:
    """The topic is gone, and something of it is not: the exit code says so."""
    services.client.result = FakeDeletionResult({"DELETED": 1, outcome: 1})
    told = document(run("topic", "delete", orders, "--json"), 5)
    assert told["outcomes"] == dict(sorted({"DELETED": 1, outcome: 1}.items()))


def test_topic_delete_of_an_unknown_topic_is_bad_input(run: Run, services: FakeCommandServices) -> None:
    """Nothing is started for a name that nobody created, and one part of a name is none."""
    assert document(run("topic", "delete", "persistent://a/b/none", "--json"), 2)["error"]["field"] == "topic"
    assert document(run("topic", "delete", "orders", "--json"), 2)
    assert services.client.asked == []
