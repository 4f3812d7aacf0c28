"""`txn snapshot`: of one topic or of all, and what was built is counted."""

from collections.abc import Sequence
from typing import Any

import pytest

from logstore.ports.catalog.log import Topic
from logstore.validated_names import TopicName
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices, FakeJobHandle
from workflows.topic_build_types import BuildResult

_COUNTS = {"topics": 3, "switched": 2, "superseded": 0, "empty": 1, "gone": 0, "unreadable": 0}


class _Asked:
    def __init__(self) -> None:
        self.started: list[tuple[list[str] | None, dict[str, Any]]] = []
        self.result = BuildResult(run_id="snapshots-1", counts=dict(_COUNTS))

    async def build(self, topics: Sequence[Topic] | None, **asked: Any) -> Any:
        self.started.append((None if topics is None else [one.name for one in topics], asked))
        return FakeJobHandle(self.result, id="build-transaction-snapshots/snapshots-1")  # type: ignore[arg-type]


@pytest.fixture
def asked(services: FakeCommandServices, orders: str) -> _Asked:
    made = _Asked()
    services.client.build_transaction_snapshots = made.build  # type: ignore[attr-defined]
    return made


def test_snapshot_of_a_topic_says_what_was_built(run: Run, asked: _Asked) -> None:
    found = document(run("txn", "snapshot", ORDERS_TOPIC, "--reason", "a test", "--json"))
    assert {**_COUNTS, "run_id": "snapshots-1"}.items() <= found.items()
    ((topics, rest),) = asked.started
    assert topics == [TopicName.parse_existing(ORDERS_TOPIC).encoded]
    assert (rest["reason"], rest["master"]) == ("a test", "")


def test_snapshots_of_all_topics_go_to_the_cluster_that_was_named(run: Run, asked: _Asked) -> None:
    assert run("txn", "snapshot", "--all", "--master", "spark://h:7077").exit_code == 0
    ((topics, rest),) = asked.started
    assert (topics, rest["master"]) == (None, "spark://h:7077")


@pytest.mark.parametrize("words", [[], [ORDERS_TOPIC, "--all"], ["--all", "--master", "h:7077"], ["not-a-topic"]])
def test_neither_or_both_of_topic_and_all_is_refused(run: Run, asked: _Asked, words: list[str]) -> None:
    """And nothing was started."""
    assert run("txn", "snapshot", *words).exit_code == 2
    assert asked.started == []


def test_topics_that_could_not_be_read_are_shown_and_told_by_the_exit_code(run: Run, asked: _Asked) -> None:
    """The rest is done."""
    asked.result = BuildResult(
        run_id="snapshots-1", counts=_COUNTS | {"unreadable": 1}, left_out=["topic 7: ledger 5: an object is absent"]
    )
    found = document(run("txn", "snapshot", "--all", "--json"), 5)
    assert found["failed"] == [{"topic": "topic 7", "error": "ledger 5: an object is absent"}]
