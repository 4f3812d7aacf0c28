"""Exit code 5 says which: the items that failed are in the JSON, and the next commands are on stderr."""

from collections.abc import Sequence

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import StoreUnavailable
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId, TopicId
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices, FakeDeletionResult

JOBS = [
    (("topic", "trim", ORDERS_TOPIC), {"topic_id"}),
    (("topic", "delete", ORDERS_TOPIC), {"topic_id"}),
    (("ledger", "delete", ORDERS_TOPIC, "4", "5"), {"topic_id", "ledger_ids"}),
    (("deletion", "redrive", "12"), {"batch_id"}),
    (("deletion", "sweep"), set()),
]


def failed(row_id: int, *, error: str | None, alone: bool = False) -> DeletionIntent:
    """A dead letter, or a deletion that is tried again alone."""
    return DeletionIntent(
        row_id=row_id,
        batch_id="b",
        ledger_id=LedgerId(row_id + 100),
        copy=CopyKind.LEDGER,
        generation=1,
        application="sexton",
        component="MANAGED_LEDGER",
        topic_id=TopicId(7),
        topic="persistent://public/default/orders",
        keys={},
        state=DeletionState.PENDING if alone else DeletionState.DEAD_LETTERED,
        outcome=None if alone else Outcome.METADATA_MISMATCH,
        last_error=error,
        handed_to="delete-ledger/9" if alone else None,
    )


@pytest.mark.parametrize(("args", "asked"), JOBS, ids=lambda one: " ".join(one[:2]) if isinstance(one, tuple) else "")
def test_job_that_ended_in_part_names_what_failed(
    run: Run, services: FakeCommandServices, orders: str, args: Sequence[str], asked: set[str]
) -> None:
    """Deletion, ledger and error of each, in JSON; what to run next, on stderr."""
    services.client.result = FakeDeletionResult({"DELETED": 1, "METADATA_MISMATCH": 1, "RETRYING": 1})
    services.log.failed = [failed(12, error="somebody else's"), failed(11, error=None, alone=True)]
    ended = run(*args, "--json")
    assert document(ended, 5)["failed"] == [
        {"id": 12, "ledger_id": 112, "error": "somebody else's"},
        {"id": 11, "ledger_id": 111, "error": "delete-ledger/9 is at work on it"},
    ]
    of_topic = f" --topic {orders}" if "topic_id" in asked else ""
    assert f"sexton deletion list --state DEAD_LETTERED{of_topic}\n" in ended.stderr
    assert "sexton deletion redrive 12\n" in ended.stderr
    assert f"sexton deletion list --state PENDING{of_topic}\n" in ended.stderr
    (call,) = services.log.failed_intent_queries
    assert (set(call), call["limit"]) == (asked | {"limit"}, 100)


def test_job_that_ended_in_part_shows_people_a_table_of_what_failed(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """With each error beneath its row."""
    services.client.result = FakeDeletionResult({"METADATA_MISMATCH": 1})
    services.log.failed = [failed(12, error="somebody else's")]
    ended = run("topic", "trim", orders)
    assert ended.exit_code == 5
    assert "somebody else's" in ended.stdout.partition("failed")[2]


def test_job_that_is_done_asks_for_no_failures(run: Run, services: FakeCommandServices, orders: str) -> None:
    """There are none of it, and those of other jobs are not its own."""
    services.log.failed = [failed(12, error="of another job")]
    assert "failed" not in document(run("topic", "trim", orders, "--json"))
    assert services.log.failed_intent_queries == []


def test_job_in_part_whose_catalog_is_away_by_then_still_answers(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """What it came to is known, and is not lost with the list."""
    services.client.result = FakeDeletionResult({"DELETED": 1, "DEAD_LETTERED": 1})
    services.log.failures_fault = StoreUnavailable("no route")
    ended = run("topic", "trim", orders, "--json")
    told = document(ended, 5)
    assert (told["outcomes"], told["failed"]) == ({"DEAD_LETTERED": 1, "DELETED": 1}, [])
    assert "no route" in ended.stderr
