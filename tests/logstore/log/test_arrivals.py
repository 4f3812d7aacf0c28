"""Waiting readers: parked at no cost of their own, and woken by whatever lets them see more."""

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.errors import StoreUnavailable
from logstore.log.services.log_end_watch import LogEndPoller, Watch
from logstore.ports.catalog.log import Ledger
from logstore.positions import TopicId
from tests.logstore.eventually import assert_eventually
from tests.logstore.log.world import World, plain
from tests.logstore.transactions.histories import History, open_history


class _Looks:
    """All of a catalog that waiting readers may use; counts, and is away if told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: list[set[TopicId]] = []
        self.away = False

    def last_ledgers(self, topic_ids: Collection[TopicId]) -> list[Ledger]:
        self.asked.append(set(topic_ids))
        if self.away:
            raise StoreUnavailable("away")
        return self._world.catalog.ledgers.last_ledgers(topic_ids)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as made:
        yield made


def _threads() -> int:
    return sum(thread.name == "arrivals" for thread in threading.enumerate())


def _parked(arrivals: LogEndPoller, count: int) -> None:
    assert_eventually(lambda: len(arrivals._parked) == count)


def test_parked_reader_is_woken_by_an_append_of_another_process(pool: ThreadPoolExecutor) -> None:
    """And by each one once."""
    with World() as world:
        mine, other = world.process(), world.process()
        watch = mine.watch(world.topic)
        for text in (b"1", b"2"):
            waiting = pool.submit(watch.wait, 60.0)
            _parked(mine._log_end_poller, 1)
            assert not waiting.done()
            other.append(world.topic, plain(text))
            assert waiting.result(60)


def test_what_comes_between_read_and_wait_ends_the_wait_at_once() -> None:
    """Nothing is missed."""
    with World() as world:
        process = world.process()
        watch = process.watch(world.topic)
        assert process.read(world.topic, max_entries=1) == []
        process.append(world.topic, plain(b"1"))
        assert watch.wait(60.0)
        assert not watch.wait(0.01)


def test_parked_readers_cost_one_statement_together_and_end_with_their_thread(pool: ThreadPoolExecutor) -> None:
    """However many they are, on however many topics; they ask for nothing else, and rarely (apache/pulsar#14286)."""
    with World() as world:
        topics = [world.topic, world.catalog.topics.create_topic("persistent://t/n/other", world.topic.policy)]
        looks = _Looks(world)
        arrivals = LogEndPoller(looks)  # type: ignore[arg-type]  # the part of the port that it uses
        watches = [Watch(arrivals, topics[number % 2].topic_id) for number in range(30)]
        waiting = [pool.submit(one.wait, 60.0) for one in watches]
        _parked(arrivals, len(watches))
        looks.asked.clear()
        assert_eventually(lambda: len(looks.asked) >= 3)
        assert all(asked == {one.topic_id for one in topics} for asked in looks.asked)
        assert _threads() == 1
        world.process().append(world.topic, plain(b"1"))
        woken = [waiting[number] for number in range(0, 30, 2)]
        assert all(one.result(60) for one in woken)
        assert not any(one.done() for one in waiting[1::2])
        arrivals.close()
        assert not any(one.result(60) for one in waiting[1::2])
        assert_eventually(lambda: not _threads())
        assert not watches[0].wait(60.0)


def test_reader_that_waited_long_enough_goes_on_without_an_entry() -> None:
    """And nobody looks any more."""
    with World() as world:
        process = world.process()
        assert not process.watch(world.topic).wait(0.01)
        assert_eventually(lambda: not _threads())


def test_catalog_that_does_not_answer_lets_readers_wait(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and asked again less and less often (apache/pulsar#26374)."""
    with World() as world:
        looks = _Looks(world)
        arrivals = LogEndPoller(looks)  # type: ignore[arg-type]  # the part of the port that it uses
        watches = [Watch(arrivals, world.topic.topic_id)]
        world.process().append(world.topic, plain(b"1"))
        watches.append(Watch(arrivals, world.topic.topic_id))
        looks.away = True
        waiting = [pool.submit(one.wait, 60.0) for one in watches]
        assert_eventually(lambda: len(looks.asked) > 5)
        assert not any(one.done() for one in waiting)
        world.process().append(world.topic, plain(b"2"))
        looks.away = False
        assert all(one.result(60) for one in waiting)
    assert caplog.text.count("readers wait on") == 1


def _read_all(history: History, watch: Watch, wanted: int) -> Callable[[], list[list[bytes]]]:
    """A consumer: what each of its reads has found, until it has so many entries."""

    def consume() -> list[list[bytes]]:
        found: list[list[bytes]] = []
        while sum(map(len, found)) < wanted:
            entries = history.world.log.topic_logs.read(history.world.topic, max_entries=100)
            found.append([entry.payload or b"" for entry in entries])
            if len(entries) < wanted:
                watch.wait(60.0)
        return found

    return consume


def test_reader_behind_an_open_transaction_is_parked_until_it_ends(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """It reads once for each thing that comes, never in between; aborted messages at the end block nobody.

    Source: apache/pulsar#22610, whose reader was told that there was more, and waited for it for ever.
    """
    history = open_history(tmp_path)
    log = history.world.log
    history.take([("begin", 0, 0), ("produce", 0, 1)])
    consumer: Future[list[list[bytes]]] = pool.submit(_read_all(history, log.topic_logs.watch(history.world.topic), 2))
    _parked(log.topic_logs._log_end_poller, 1)
    history.take([("decide", 0, 0), ("settle", 0, 1)])
    _parked(log.topic_logs._log_end_poller, 1)
    history.take([("begin", 0, 0), ("produce", 0, 1)])
    assert not consumer.done()
    history.take([("decide", 0, 1), ("settle", 0, 1)])
    reads = consumer.result(60)
    assert [len(one) for one in reads if one] == [2]
    assert len(reads) <= 5, "one at first, and one for each of four appends"
