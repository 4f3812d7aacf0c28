"""`topic offload`: what it asks for, what it answers, and its exit codes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, TopicId
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeJobHandle
from tests.workers.cli.test_failures import failed
from workflows.offload.job_definitions import OffloadTopicResult

DONE = OffloadTopicResult(offloaded=2, already=1, size_bytes=4_096)


class Asked:
    """What the command asked of the catalog and of the client."""

    def __init__(self, result: OffloadTopicResult) -> None:
        self.result = result
        self.started: list[tuple[object, ...]] = []
        self.checked: list[list[LedgerId]] = []
        self.refusal: Exception | None = None

    def check(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> None:
        """Refuse what it was told to."""
        self.checked.append(list(ledger_ids))
        if self.refusal:
            raise self.refusal

    def candidates(self, topic_id: TopicId, ledger_ids: object, *, after: LedgerId, limit: int) -> list[LedgerId]:
        """Two of them."""
        assert after == -1
        return [LedgerId(4), LedgerId(5)][:limit]

    def removable(self, topic_id: TopicId, ledger_ids: object, *, after: LedgerId, limit: int) -> list[Any]:
        """One that was offloaded before."""
        assert after == -1
        return [SimpleNamespace(statement=SimpleNamespace(ledger_id=LedgerId(2)))][:limit]

    async def offload_topic(self, topic: Topic, *asked: object) -> Any:
        self.started.append((topic.name, *asked[:3]))
        return FakeJobHandle(self.result, id="offload-topic/7")  # type: ignore[arg-type]


@pytest.fixture
def asked(services: FakeCommandServices) -> Asked:
    """Stands behind catalog and client."""
    made = Asked(DONE)
    services.log.catalog.offloads = SimpleNamespace(
        require_offloadable=made.check,
        list_offload_candidates=made.candidates,
        list_removable_primaries=made.removable,
    )
    services.client.offload_topic = made.offload_topic  # type: ignore[attr-defined]
    return made


def test_offload_answers_ledgers_and_bytes(run: Run, asked: Asked, orders: str) -> None:
    """The fields of the contract, and what else became of the ledgers."""
    told = document(run("topic", "offload", orders, "--json"))
    assert told == {
        "workflow_id": "offload-topic/7",
        "offloaded": 2,
        "bytes": 4_096,
        "already": 1,
        "gone": 0,
        "running": 0,
        "failed": [],
        "failed_count": 0,
        "refused": 0,
        "refusals": [],
        "errors": {},
    }
    assert asked.started == [(orders, None, False, "")]


def test_offload_shows_people_only_what_there_is(run: Run, asked: Asked, orders: str) -> None:
    """No rows of zeros and of empty lists; why a ledger failed stands once, in the table of what failed."""
    asked.result = OffloadTopicResult(offloaded=0)
    shown = run("topic", "offload", orders).stdout
    assert [line.split("  ")[0].strip() for line in shown.splitlines()] == ["workflow id", "offloaded", "bytes"]
    asked.result = OffloadTopicResult(offloaded=1, failed=1, errors={4: "UploadUnproven: not there"})
    shown = run("topic", "offload", orders, "--delete-primary").stdout
    assert [line.split("  ")[0].strip() for line in shown.splitlines()][:5] == [
        "workflow id",
        "offloaded",
        "bytes",
        "failed count",
        "removed",
    ]
    assert shown.count("UploadUnproven") == 1


def test_offload_of_given_ledgers_with_removal_asks_for_just_that(run: Run, asked: Asked, orders: str) -> None:
    """A ledger named twice is one ledger; the reason travels to the audit log."""
    asked.result = OffloadTopicResult(offloaded=1, removed=1, outcomes={"DELETED": 1})
    args = ("--ledger", "5", "--ledger", "4", "--ledger", "5", "--delete-primary", "--reason", "cold")
    told = document(run("topic", "offload", orders, *args, "--json"))
    assert (told["removed"], told["outcomes"]) == (1, {"DELETED": 1})
    assert asked.started == [(orders, [5, 4], True, "cold")]


@pytest.mark.parametrize(
    "result",
    [
        OffloadTopicResult(offloaded=1, failed=1, errors={4: "UploadUnproven: 4-ledger-4: not there"}),
        OffloadTopicResult(running=1),
        OffloadTopicResult(offloaded=1, refused=1, refusals=["PreconditionFailed: ledger 9: expected state CLOSED"]),
        OffloadTopicResult(offloaded=1, removed=1, outcomes={"RETRYING": 1}),
        OffloadTopicResult(removed=1, outcomes={"DELETED": 1}, unproved=1, doubts={5: "MissingData: not in storage"}),
    ],
)
def test_offload_in_part_is_exit_code_5(run: Run, asked: Asked, orders: str, result: OffloadTopicResult) -> None:
    """Some failed, or are not done yet: the answer says which."""
    asked.result = result
    told = document(run("topic", "offload", orders, "--delete-primary", "--json"), 5)
    assert told["errors"] == {str(ledger): error for ledger, error in result.errors.items()}
    assert told["doubts"] == {str(ledger): doubt for ledger, doubt in result.doubts.items()}
    assert told["unproved"] == result.unproved
    why = {**result.errors, **result.doubts}
    assert told["failed"] == [{"id": ledger, "error": error} for ledger, error in why.items()]
    assert told["failed_count"] == result.failed


def test_offload_whose_primary_copies_are_not_gone_names_their_ledgers(
    run: Run, services: FakeCommandServices, asked: Asked, orders: str
) -> None:
    """After those that were not copied; an id is a ledger's, and the error names the deletion."""
    asked.result = OffloadTopicResult(failed=1, errors={4: "UploadUnproven: no"}, removed=1, outcomes={"RETRYING": 1})
    services.log.failed = [failed(12, error="slow down", alone=True)]
    told = document(run("topic", "offload", orders, "--delete-primary", "--json"), 5)
    assert told["failed"] == [
        {"id": 4, "error": "UploadUnproven: no"},
        {"id": 112, "error": "deletion 12: slow down"},
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnknownObject("ledger", expected="one", found=9), 2), (PreconditionFailed("ledger 9: expected state CLOSED"), 3)],
)
def test_offload_of_what_cannot_be_starts_nothing(
    run: Run, asked: Asked, orders: str, error: Exception, code: int
) -> None:
    """Bad input changes nothing."""
    asked.refusal = error
    assert document(run("topic", "offload", orders, "--ledger", "9", "--json"), code)["error"]["type"] == (
        type(error).__name__
    )
    assert (asked.checked, asked.started) == ([[9]], [])


def test_offload_dry_run_changes_nothing(run: Run, asked: Asked, orders: str) -> None:
    """What would be copied, and with --delete-primary which primary copies would go."""
    told = document(run("topic", "offload", orders, "--dry-run", "--json"))
    assert told == {"dry_run": True, "offloaded": 2, "ledger_ids": [4, 5], "removed": []}
    told = document(run("topic", "offload", orders, "--dry-run", "--delete-primary", "--json"))
    assert told["removed"] == [2, 4, 5]
    assert asked.started == []


def test_offload_without_waiting_answers_at_once(run: Run, asked: Asked, orders: str) -> None:
    """The workflow and its run."""
    told = document(run("topic", "offload", orders, "--no-wait", "--json"))
    assert told == {"workflow_id": "offload-topic/7", "run_id": "run-1"}
