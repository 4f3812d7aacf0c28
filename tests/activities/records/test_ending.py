"""A page of records that a function is asked of: shorter for a slow function, and its batch is held meanwhile."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from activities.records.end_records import EndRecordsActivities, EndRecordsPageInput
from logstore.records.functions import LedgerRecord, RecordFunction
from logstore.records.job_results import SelectionPageStart
from logstore.retrying_clock import Clock
from tests.activities.activity_world import BATCH_ID, BATCH_WORKFLOW_ID, World, run


class _One:
    """One function, under every name."""

    def __init__(self, function: Callable[[LedgerRecord], LedgerRecord | None]) -> None:
        self._function = function

    def find_function(self, name: str) -> RecordFunction:
        del name
        return self._function


def _ending(world: World, function: Callable[[LedgerRecord], LedgerRecord | None], **more: Any) -> EndRecordsActivities:
    catalog = world.catalog
    return EndRecordsActivities(
        catalog=catalog,
        functions=_One(function),
        **more,
    )


def _page(world: World, after: SelectionPageStart, **more: Any) -> EndRecordsPageInput:
    asked: dict[str, Any] = {"topic_id": world.topic.topic_id, "page": 500, "now_us": 1, "catalog_epoch": 1} | more
    return EndRecordsPageInput(
        function="mine", after=after, batch_id=BATCH_ID, batch_workflow_id=BATCH_WORKFLOW_ID, actor="tests", **asked
    )


@pytest.mark.parametrize("of_all", [False, True])
def test_function_that_is_slow_gets_shorter_pages_and_is_asked_of_all(world: World, of_all: bool) -> None:
    """A page that outlasted its timeout would be asked again and again, and the job would never get on."""
    ledgers = world.fill(5)
    time_s, asked = [0.0], list[int]()

    def slow(record: LedgerRecord) -> None:
        asked.append(record.ledger_id)
        time_s[0] += 301

    ending = _ending(world, slow, clock=Clock(monotonic_s=lambda: time_s[0]))
    more = {"topic_id": 0} if of_all else {}
    counts = list[int]()
    place: SelectionPageStart | None = SelectionPageStart()
    while place is not None:
        page = run(ending.end_page, _page(world, place, **more))
        counts.append(page.ended)
        place = page.after
    assert asked == ledgers
    assert [count for count in counts if count] == [2, 2, 1]


def test_batch_is_held_while_the_function_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep would else take up what earlier pages have detached, and the job would not tell of its deletion."""
    monkeypatch.setattr("activities.heartbeats._BEAT_INTERVAL_S", 0.01)
    monkeypatch.setattr("activities.heartbeats._RENEWAL_INTERVAL_S", 0.01)
    world.fill(2)
    renewed, real = threading.Semaphore(0), world.catalog.deletions.renew_batch_claim

    def renew(*args: Any) -> Any:
        found = real(*args)
        renewed.release()
        return found

    def waiting(record: LedgerRecord) -> None:
        if asked:
            assert all(renewed.acquire(timeout=30) for _ in range(3)), "at its begin, and while it is asked"
        asked.append(record.ledger_id)

    asked = list[int]()
    ending = _ending(world, waiting)
    first = run(ending.end_page, _page(world, SelectionPageStart(), page=1))
    assert first.after
    monkeypatch.setattr(world.catalog.deletions, "renew_batch_claim", renew)
    second = run(ending.end_page, _page(world, first.after, page=1))
    assert (first.ended, second.ended) == (1, 1)
