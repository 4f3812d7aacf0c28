"""`delayed`: what there is, and what seals, merges and clears come to."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices, FakeJobHandle
from workflows.delayed.job_definitions import MERGE_BUCKETS, MergeBucketsResult, MergeOutcome, SealBucketsResult

_DUE_MS = 1_800_000_000_000


@dataclass
class _Jobs:
    """Seals and merges that were started."""

    sealed: SealBucketsResult = field(default_factory=lambda: SealBucketsResult(topics=1, buckets=2, messages=70))
    merged: MergeBucketsResult = field(
        default_factory=lambda: MergeBucketsResult(
            outcome=MergeOutcome.WITHIN, merges=1, messages=6, buckets=1, limit=1
        )
    )
    asked: list[tuple[object, ...]] = field(default_factory=list)

    async def seal(self, topic: Topic, reason: str, actor: str) -> Any:
        self.asked.append(("seal", topic.name, reason))
        return FakeJobHandle(self.sealed, id="seal-buckets/7")  # type: ignore[arg-type]

    async def merge(self, topic: Topic, max_buckets: int, reason: str, actor: str) -> Any:
        self.asked.append(("merge", max_buckets, reason))
        return FakeJobHandle(self.merged, id="merge-buckets/7")  # type: ignore[arg-type]


@pytest.fixture
def jobs(services: FakeCommandServices, orders: str) -> _Jobs:
    made = _Jobs()
    services.client.seal_buckets = made.seal  # type: ignore[attr-defined]
    services.client.merge_buckets = made.merge  # type: ignore[attr-defined]
    return made


def _put(services: FakeCommandServices, *counts: int) -> list[IndexBucket]:
    """Buckets of so many messages, one ledger each."""
    index, made = services.log.index, list[IndexBucket]()
    for number, count in enumerate(counts):
        ledger = LedgerId(number)
        rows = DelayedRows.from_messages([(_DUE_MS + at, Position(ledger, at)) for at in range(count)])
        made.append(index.snapshots.put(50 + number, rows, Position(ledger, 0), Position(ledger, 9_999)))
    index.list = IndexBucketList(version=1, sealed_to=made[-1].last, buckets=tuple(made))
    return made


def test_status_tells_every_bucket_and_what_is_in_none(run: Run, services: FakeCommandServices, orders: str) -> None:
    """The documented fields; the tail has no id, and no segments."""
    _put(services, 5, 2)
    services.log.index.behind = 3
    run("topic", "append", orders, "--file", "-", text='{"payload": "x"}')
    told = document(run("delayed", "status", orders, "--json"))
    assert told["messages"] == 10
    assert 0 < told["memory_bytes"] < 10_000
    names = ("bucket_id", "first_ledger", "last_ledger", "messages", "segments", "state")
    assert [[one[name] for name in names] for one in told["buckets"]] == [
        [50, 0, 0, 5, 2, "SEALED"],
        [51, 1, 1, 2, 1, "SEALED"],
        [None, 4, 4, 3, 0, "OPEN"],
    ]
    assert told["buckets"][0]["first_due"] == "2027-01-15T08:00:00Z"
    assert (told["buckets"][1]["first"], told["buckets"][1]["last"]) == ("1:0", "1:9999")


def test_status_of_a_topic_without_delayed_messages_is_empty(run: Run, orders: str) -> None:
    """No bucket, no memory."""
    assert document(run("delayed", "status", orders, "--json")) == {"messages": 0, "memory_bytes": 0, "buckets": []}
    assert "(no delayed messages)" in run("delayed", "status", orders).stdout


def test_status_marks_what_a_merge_works_on_and_what_cannot_be_read(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """The neighbours with the fewest messages, while a merge holds the list; a lost snapshot whoever holds it."""
    _put(services, 9, 2, 3, 4)
    del services.log.index.snapshots.files[LedgerId(53)]

    def states() -> list[str]:
        return [one["state"] for one in document(run("delayed", "status", orders, "--json"))["buckets"]]

    services.log.index.at_work = "seal-buckets/7"
    assert states() == ["SEALED", "SEALED", "SEALED", "DAMAGED"]
    assert "delayed build persistent://public/default/orders" in run("delayed", "status", orders).stderr
    services.log.index.at_work = MERGE_BUCKETS.id(7)
    assert states() == ["SEALED", "MERGING", "MERGING", "DAMAGED"]


def test_status_fits_a_terminal(run: Run, services: FakeCommandServices, orders: str) -> None:
    """80 columns; everything with --wide."""
    _put(services, 1_000)
    shown = run("delayed", "status", orders).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert any("SEALED" in line and "1000" in line for line in shown)
    assert "2027-01-15T08:00:00.999000Z" in run("delayed", "status", orders, "--wide").stdout


def test_seal_answers_what_was_sealed(run: Run, jobs: _Jobs, orders: str) -> None:
    """With what else it did; the reason travels."""
    told = document(run("delayed", "seal", orders, "--reason", "before a move", "--json"))
    counts = {"buckets": 2, "messages": 70, "dropped": 0, "merging": False}
    assert told == {"workflow_id": "seal-buckets/7", **counts}
    assert jobs.asked == [("seal", orders, "before a move")]


def test_seal_says_that_merges_follow_and_that_more_came(run: Run, jobs: _Jobs, orders: str) -> None:
    """On stderr; the answer has it, too."""
    jobs.sealed = SealBucketsResult(topics=1, buckets=1, messages=4, overtaken=1, merging=1)
    ended = run("delayed", "seal", orders, "--json")
    assert document(ended)["merging"] is True
    assert "their merge was started" in ended.stderr
    assert "seal again" in ended.stderr


def test_seal_that_another_job_kept_waiting_is_not_done(run: Run, jobs: _Jobs, orders: str) -> None:
    """Exit code 5, with the topic."""
    jobs.sealed = SealBucketsResult(topics=1, held=1)
    (failed,) = document(run("delayed", "seal", orders, "--json"), 5)["failed"]
    assert (failed["id"], "another job" in failed["error"]) == (7, True)


@pytest.mark.parametrize(("buckets", "asked"), [(0, 1), (1, 1), (2, 1), (5, 4), (90, 20)])
def test_merge_goes_on_until_there_are_as_few_as_the_settings_say(
    run: Run, services: FakeCommandServices, jobs: _Jobs, buckets: int, asked: int
) -> None:
    """And in any case one pair is merged where there is one."""
    if buckets:
        _put(services, *[1] * buckets)
    told = document(run("delayed", "merge", ORDERS_TOPIC, "--json"))
    counts = {"merges": 1, "messages": 6, "passed": 0, "buckets": 1, "max_buckets": 1}
    assert told == {"workflow_id": "merge-buckets/7", "outcome": "WITHIN", **counts}
    assert jobs.asked == [("merge", asked, "")]


def test_merge_goes_on_until_there_are_as_few_as_are_asked_for(run: Run, jobs: _Jobs, orders: str) -> None:
    """However many there are."""
    document(run("delayed", "merge", orders, "--max-buckets", "3", "--reason", "quiet hours", "--json"))
    assert jobs.asked == [("merge", 3, "quiet hours")]


@pytest.mark.parametrize("outcome", [MergeOutcome.DAMAGED, MergeOutcome.WITHIN, MergeOutcome.HELD])
def test_merge_that_left_something_undone_says_what(run: Run, jobs: _Jobs, orders: str, outcome: MergeOutcome) -> None:
    """Exit code 5: a bucket that cannot be read, also where there are few enough in the end; another job."""
    damaged = [] if outcome is MergeOutcome.HELD else [51]
    jobs.merged = MergeBucketsResult(outcome=outcome, damaged=damaged, buckets=3, limit=1)
    (failed,) = document(run("delayed", "merge", orders, "--json"), 5)["failed"]
    assert failed["id"] == ("merge-buckets/7" if outcome is MergeOutcome.HELD else 51)


@pytest.mark.parametrize("number", ["0", "-1", "x", str(2**31)])
def test_merge_to_a_limit_below_one_is_refused(run: Run, jobs: _Jobs, orders: str, number: str) -> None:
    """And nothing was started."""
    assert document(run("delayed", "merge", orders, "--max-buckets", number, "--json"), 2)
    assert jobs.asked == []


@pytest.mark.parametrize("verb", ["seal", "merge"])
def test_without_waiting_ids_are_told_at_once(run: Run, jobs: _Jobs, orders: str, verb: str) -> None:
    """And nothing else."""
    told = document(run("delayed", verb, orders, "--no-wait", "--json"))
    assert told == {"workflow_id": f"{verb}-buckets/7", "run_id": "run-1"}


def test_clear_throws_all_buckets_away_for_a_reason(run: Run, services: FakeCommandServices, orders: str) -> None:
    """A dry run tells the same, and changes nothing; a job that is at work is named."""
    _put(services, 5, 2)
    told = document(run("delayed", "clear", orders, "--dry-run", "--json"))
    assert (told, services.log.index.cleared) == ({"dry_run": True, "buckets": 2, "messages": 7}, [])
    services.log.index.at_work = "merge-buckets/7"
    ended = run("delayed", "clear", orders, "--reason", "damaged", "--json")
    assert (document(ended), services.log.index.cleared) == ({"buckets": 2, "messages": 7}, ["damaged"])
    assert "merge-buckets/7 is at work" in ended.stderr


@pytest.mark.parametrize("words", [("status",), ("seal",), ("merge",), ("clear",)])
def test_unknown_topic_is_refused(run: Run, words: tuple[str, ...]) -> None:
    """By each of the commands."""
    told = document(run("delayed", *words, "persistent://public/default/nothing", "--json"), 2)
    assert told["error"]["type"] == "UnknownObject"
