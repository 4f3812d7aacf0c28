"""A store that answers late for snapshots: only consumers who need the same answer wait for it, and none is misled.

What is read comes back to a tracker that others have used meanwhile.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.services.consumers import Consumer
from logstore.delayed.snapshot_file import IndexSnapshotFooter
from logstore.errors import StoreUnavailable
from logstore.log.entries import Entry
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.delivering import World
from tests.logstore.delayed.rows import Snapshots

_PATIENCE_S: Final = 60
"""What never ends by then is blocked."""


class _Late(Snapshots):
    """Answers late where it is told to; a reader waits until it is let go on."""

    def __init__(self) -> None:
        super().__init__(segment_rows=(1, 3), step_ms=10)
        self.is_late: Callable[[int | None], bool] = lambda _number: False  # of a segment, or None of a footer
        self.asked, self.answers = threading.Semaphore(0), threading.Event()

    def read_footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        self._wait(None)
        return super().read_footer(bucket)

    def read_segment(self, bucket: IndexBucket, number: int) -> DelayedRows:
        self._wait(number)
        return super().read_segment(bucket, number)

    def _wait(self, number: int | None) -> None:
        if self.is_late(number):
            self.asked.release()
            assert self.answers.wait(_PATIENCE_S), "nobody let the store answer"

    def answer(self) -> None:
        """From now on at once."""
        self.is_late = lambda _number: False
        self.answers.set()


@pytest.fixture
def late() -> Iterator[_Late]:
    """It answers in the end, whatever fails."""
    store = _Late()
    yield store
    store.answer()


@pytest.fixture
def world(late: _Late) -> Iterator[World]:
    """A topic with two subscriptions, and no entries yet."""
    with World(ledger_entries=1_000, snapshots=late) as made:
        made.subscribe("billing", "shipping")
        yield made


@contextmanager
def _receiving(late: _Late, consumer: Consumer) -> Iterator[Future[list[Entry]]]:
    """Within the block the store owes an answer to this consumer, and then it gives it."""
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(consumer.receive, 100)
        try:
            assert late.asked.acquire(timeout=_PATIENCE_S), "the store was not asked"
            assert not received.done()
            yield received
        finally:
            late.answer()


def _in_time(do: Callable[[], object]) -> None:
    """Do it in a thread, and fail where it waits for the store."""
    threads = ThreadPoolExecutor(1)
    try:
        threads.submit(do).result(_PATIENCE_S)
    finally:
        threads.shutdown(wait=False)


def _ids(entries: list[Entry]) -> list[int]:
    return [entry.position.entry_id for entry in entries]


def _at(entry_id: int) -> Position:
    return Position(LedgerId(0), entry_id)


def test_segment_that_comes_late_keeps_nobody_waiting_that_does_not_need_it(world: World, late: _Late) -> None:
    """Others give back and receive that, acknowledge, append, come, go and are counted; all messages come once."""
    world.append(None, None, 10, 12, 5_000)
    world.seal()
    delivery = world.process().delivery
    slow, other, leaving = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping", "shipping"))
    assert (_ids(slow.receive(100)), _ids(other.receive(100))) == ([0, 1], [0, 1])
    world.advance(20)
    late.is_late = lambda number: number is not None
    with _receiving(late, slow) as received:

        def others() -> None:
            other.nack([_at(0)])
            other.wait(0)
            other.wait(0)
            assert _ids(other.receive(1)) == [0]
            world.acknowledge("shipping", [_at(1), _at(3)])
            world.append(None, 30)
            leaving.close()
            with delivery.create_consumer(world.topic, "billing"):
                assert delivery.trackers_memory_bytes > 0

        _in_time(others)
        assert not received.done()
    assert _ids(received.result()) == [2, 3, 5]
    assert _ids(other.receive(100)) == [2, 5]
    world.advance(30)
    assert (_ids(slow.receive(100)), _ids(other.receive(100))) == ([6], [6])
    world.advance(5_000)
    assert (_ids(slow.receive(100)), _ids(other.receive(100))) == ([4], [4])
    assert len(late.reads) == len({*late.reads}), "each was read once"


def test_two_subscriptions_that_need_a_segment_read_it_once(world: World, late: _Late) -> None:
    """The second one waits for what the first one has asked for."""
    world.append(10, 11)
    world.seal()
    delivery = world.process().delivery
    one, two = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    assert (one.receive(9), two.receive(9)) == ([], [])
    world.advance(20)
    late.is_late = lambda number: number is not None
    with ThreadPoolExecutor(1) as threads, _receiving(late, one) as first:
        second = threads.submit(two.receive, 9)
        late.answer()
        assert (_ids(first.result()), _ids(second.result())) == ([0, 1], [0, 1])
    assert [number for _, number in late.reads if number is not None] == [0]


def test_list_whose_buckets_come_late_keeps_nobody_waiting(world: World, late: _Late) -> None:
    """Another consumer goes on with the list that was there before, and reads what is in the log."""
    world.append(10, 500_000)
    delivery = world.process().delivery
    slow, other = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    assert (slow.receive(9), other.receive(9)) == ([], [])
    world.seal()
    world.append(None)
    world.advance(11_000)
    late.is_late = lambda number: number is None
    found: list[int] = []
    with _receiving(late, slow) as received:
        _in_time(lambda: found.extend(_ids(other.receive(9))))
        assert not received.done()
    assert sorted(found) == sorted(_ids(received.result())) == [0, 2]
    world.advance(500_000)
    assert (_ids(slow.receive(9)), _ids(other.receive(9))) == ([1], [1])


def test_first_list_that_comes_late_is_waited_for_and_one_topic_holds_up_no_other(world: World, late: _Late) -> None:
    """Without it a second consumer would read the whole log; consumers of anything come and go meanwhile."""
    world.append(10, None)
    world.seal()
    delivery = world.process().delivery
    slow, other = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    late.is_late = lambda number: number is None
    with ThreadPoolExecutor(1) as threads, _receiving(late, slow) as received:
        second = threads.submit(other.receive, 9)

        def come_and_go() -> None:
            with delivery.create_consumer(world.topic):
                assert len(delivery._trackers) == 1

        _in_time(come_and_go)
        late.answer()
        assert (_ids(received.result()), _ids(second.result())) == ([1], [1])
    assert [number for _, number in late.reads] == [None]


_CHANGES: Final[dict[str, Callable[[World], None]]] = {
    "merge": lambda world: world.merge(0),
    "clear": lambda world: world.clear(),
    "drop": lambda world: world.drop(0),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_segment_that_comes_after_its_bucket_has_left_the_list_is_not_taken_over(
    world: World, late: _Late, change: Callable[[World], None]
) -> None:
    """Another consumer has loaded the newer list; what is due comes once, from there or from the log."""
    for _ in range(2):
        world.append(10, 20, 5_000)
        world.seal()
    world.append(None)
    delivery = world.process().delivery
    slow, other = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    assert (_ids(slow.receive(9)), _ids(other.receive(9))) == ([6], [6])
    world.advance(15)
    late.is_late = lambda number: number is not None
    with _receiving(late, slow) as received:
        late.is_late = lambda _number: False
        change(world)
        world.advance(11_000)
        other.nack([_at(6)])
        _in_time(lambda: other.receive(1))
        assert world.lookups == 2
    assert sorted(_ids(received.result())) == list(range(6))
    assert sorted(_ids(other.receive(9))) == list(range(6))
    assert world.alarms == []


def test_store_that_fails_late_loses_nothing_and_is_asked_again_by_all(world: World, late: _Late) -> None:
    """Once by whoever asks, as if nobody had asked before."""
    world.append(10, 20)
    world.seal()
    (bucket,) = world.buckets.buckets
    delivery = world.process().delivery
    slow, other = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    assert (slow.receive(9), other.receive(9)) == ([], [])
    world.advance(15)
    late.is_late = lambda number: number is not None
    late.damaged[bucket.bucket_id, 0] = StoreUnavailable("after a long time")
    with ThreadPoolExecutor(1) as threads, _receiving(late, slow) as received:
        second = threads.submit(other.receive, 9)
        late.answer()
        for one in (received, second):
            with pytest.raises(StoreUnavailable):
                one.result()
    late.damaged.clear()
    assert (_ids(slow.receive(9)), _ids(other.receive(9))) == ([0], [0])
    world.advance(5)
    assert (_ids(slow.receive(9)), _ids(other.receive(9))) == ([1], [1])
