"""Merging concurrent appends of one process."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from logstore.errors import InvalidInput, OutcomeUnknown, SextonError, StoreUnavailable
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import AppendResult, TopicLogs
from logstore.log.services.batched_appends import AppendQueue
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.eventually import assert_eventually
from tests.logstore.log.world import World, numbered, plain


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(50) as pool:
        yield pool


def _queued(process: TopicLogs, world: World) -> int:
    return len(process._get_append_queue(world.topic)._queue)


def _behind_a_slow_one(
    world: World, threads: ThreadPoolExecutor, process: TopicLogs, appends: Sequence[ProducedEntries]
) -> list["Future[AppendResult]"]:
    """Append all of them, in order, while an earlier upload is under way; they queue and go together."""
    slow = threading.Event()
    uploading = threading.Event()

    def hold() -> None:
        uploading.set()
        assert slow.wait(30)

    process.append(world.topic, plain(b"ledger"))
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=hold))
    threads.submit(process.append, world.topic, plain(b"slow"))
    assert uploading.wait(30)
    futures = []
    for at, produced in enumerate(appends, start=1):
        futures.append(threads.submit(process.append, world.topic, produced))
        assert_eventually(lambda at=at: _queued(process, world) == at)  # type: ignore[misc]
    slow.set()
    return futures


def test_merge_appends_that_queue_during_an_upload_become_one_segment(
    world: World, threads: ThreadPoolExecutor
) -> None:
    """Forty small appends cost one object and one registration, and each learns its own place."""
    process = world.process()
    futures = _behind_a_slow_one(world, threads, process, [plain(b"%d" % at, b"+") for at in range(40)])
    places = [future.result(30) for future in futures]
    assert len(world.segments()) == 3
    entries = {entry.position: entry.payload for entry in world.entries()}
    for at, place in enumerate(places):
        assert place.first is not None
        assert place.last is not None
        assert (place.count, place.last.entry_id - place.first.entry_id) == (2, 1)
        assert (entries[place.first], entries[place.last]) == (b"%d" % at, b"+")


def test_merge_keeps_the_order_in_which_appends_came(world: World, threads: ThreadPoolExecutor) -> None:
    """A segment is in the order of the queue."""
    process = world.process()
    futures = _behind_a_slow_one(world, threads, process, [plain(b"%d" % at) for at in range(10)])
    for future in futures:
        future.result(30)
    assert world.payloads()[2:] == [b"%d" % at for at in range(10)]


def test_merge_second_append_of_a_producer_is_judged_by_the_first(world: World, threads: ThreadPoolExecutor) -> None:
    """A request sent twice at the same time is stored once, even within one segment."""
    process = world.process()
    appends = [numbered([1, 2]), numbered([2, 3]), numbered([1, 2, 3]), plain(b"z")]
    found = [future.result(30) for future in _behind_a_slow_one(world, threads, process, appends)]
    assert [(place.count, place.duplicates) for place in found] == [(2, 0), (1, 1), (0, 3), (1, 0)]
    assert [place.first.entry_id if place.first else None for place in found] == [2, 4, None, 5]
    assert world.payloads()[2:] == [b"p1", b"p2", b"p3", b"z"]


def test_merge_append_that_cannot_be_encoded_fails_alone(world: World, threads: ThreadPoolExecutor) -> None:
    """Its neighbours are stored, and what it claimed to store makes nobody's entry a duplicate."""
    bad = ProducedEntries(entries=[NewEntry(payload=b"x", key="\ud800", sequence_id=5)], producer="p")
    process = world.process()
    futures = _behind_a_slow_one(world, threads, process, [plain(b"a"), bad, numbered([5]), plain(b"b")])
    assert isinstance(futures[1].exception(30), InvalidInput)
    assert [futures[at].result(30).count for at in (0, 2, 3)] == [1, 1, 1]
    assert world.payloads()[2:] == [b"a", b"p5", b"b"]
    assert len(world.segments()) == 3


def test_merge_failure_of_the_batch_is_everybodys(world: World, threads: ThreadPoolExecutor) -> None:
    """Nobody is told that their entries are stored when the segment is not; the topic goes on."""
    process = world.process()
    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=5, matches=lambda key: key.endswith("2.parquet")
        )
    )
    futures = _behind_a_slow_one(world, threads, process, [plain(b"a"), plain(b"b")])
    assert [type(future.exception(30)) for future in futures] == [StoreUnavailable] * 2
    process.append(world.topic, plain(b"c"))
    assert world.payloads() == [b"ledger", b"slow", b"c"]


def _lane(rule: Callable[[Sequence[ProducedEntries]], None] = lambda _parts: None) -> tuple[AppendQueue, list[int]]:
    batches: list[int] = []

    def store(parts: Sequence[ProducedEntries]) -> Sequence[AppendResult | SextonError]:
        batches.append(len(parts))
        rule(parts)
        return [AppendResult(count=len(part.entries), first=None, last=None) for part in parts]

    return AppendQueue(store), batches


def test_merge_many_threads_lose_no_wake_up(threads: ThreadPoolExecutor) -> None:
    """Leadership passes on for as long as somebody waits, and the lane is idle in the end."""
    lane, batches = _lane()
    found = list(threads.map(lambda _: lane.append(plain(b"x")).count, range(3000)))
    assert sum(found) == sum(batches) == 3000
    assert lane.idle


@pytest.mark.parametrize(
    ("appends", "batches"),
    [
        ([plain(bytes(size << 20)) for size in (12, 12, 12, 40, 12)], [1, 2, 1, 1, 1]),
        ([plain(*[b""] * count) for count in (20_000, 30_000, 1, 60_000, 1)], [1, 2, 1, 1, 1]),
    ],
)
def test_merge_batch_stays_within_its_limits(
    threads: ThreadPoolExecutor, appends: list[ProducedEntries], batches: list[int]
) -> None:
    """Large appends are not piled into one object without end; one above the limit goes alone."""
    held, started = threading.Event(), threading.Event()

    def rule(_parts: Sequence[ProducedEntries]) -> None:
        started.set()
        assert held.wait(30)

    lane, found = _lane(rule)
    futures = [threads.submit(lane.append, plain(b"x"))]
    assert started.wait(30)
    for at, produced in enumerate(appends, start=1):
        futures.append(threads.submit(lane.append, produced))
        assert_eventually(lambda at=at: len(lane._queue) == at)  # type: ignore[misc]
    held.set()
    assert all(future.result(30).count for future in futures)
    assert found == batches


@pytest.mark.parametrize("death", [SimulatedCrash("planned"), KeyboardInterrupt()])
def test_merge_interrupted_leader_tells_its_batch_and_hands_over(
    threads: ThreadPoolExecutor, death: BaseException
) -> None:
    """The followers cannot know whether they were stored; those behind them are led by another."""
    started, go = threading.Event(), threading.Event()
    seen: list[str] = []

    def rule(parts: Sequence[ProducedEntries]) -> None:
        seen.append("batch")
        if len(seen) == 1:
            started.set()
            assert go.wait(30)
        if len(seen) == 2:
            late.append(threads.submit(lane.append, plain(b"late")))
            assert_eventually(lambda: len(lane._queue) == 1)
            raise death

    late: list[Future[AppendResult]] = []
    lane, _ = _lane(rule)
    first = threads.submit(lane.append, plain(b"first"))
    assert started.wait(30)
    batch = []
    for at in (1, 2):
        batch.append(threads.submit(lane.append, plain(b"x")))
        assert_eventually(lambda at=at: len(lane._queue) == at)  # type: ignore[misc]
    go.set()
    assert first.result(30).count == 1
    assert batch[0].exception(30) is death
    assert isinstance(batch[1].exception(30), OutcomeUnknown)
    assert late[0].result(30).count == 1
    assert lane.idle


class _Interrupted:
    """Stands in for a waiter's event: the wait is interrupted after `meanwhile` has run."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def wait(self) -> None:
        self._meanwhile()
        raise KeyboardInterrupt

    def set(self) -> None:
        pass


@pytest.mark.parametrize("promoted", [True, False])
def test_merge_interrupted_follower_leaves_the_queue(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, promoted: bool
) -> None:
    """Neither stored later nor waited for as a leader that never comes."""
    started, go = threading.Event(), threading.Event()

    def rule(parts: Sequence[ProducedEntries]) -> None:
        started.set()
        assert go.wait(30)

    lane, batches = _lane(rule)
    first = threads.submit(lane.append, plain(b"first"))
    assert started.wait(30)

    def meanwhile() -> None:
        if promoted:
            go.set()
            first.result(30)

    monkeypatch.setattr(threading, "Event", lambda: _Interrupted(meanwhile))
    with pytest.raises(KeyboardInterrupt):
        lane.append(plain(b"gone"))
    monkeypatch.undo()
    go.set()
    assert first.result(30).count == 1
    assert lane.idle
    assert lane.append(plain(b"next")).count == 1
    assert batches == [1, 1]
