"""Delayed delivery by examples: order, restarts, churn, losses, and stores that fail."""

import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from pyroaring import BitMap

from logstore.delayed.services.consumers import Consumer
from logstore.delayed.services.dispatcher import MAX_REPLAY_MESSAGES, Dispatcher, ReplaySet
from logstore.errors import InvalidInput, PreconditionFailed, StoreUnavailable, UnknownObject
from logstore.log.entries import Entry
from logstore.log.services.log_end_watch import Watch
from logstore.ports.catalog.transactions import Frontier
from logstore.positions import LedgerId, Position, TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.delivering import World
from tests.logstore.delayed.rows import Snapshots
from tests.logstore.eventually import assert_eventually


@pytest.fixture
def world() -> Iterator[World]:
    """A topic with two subscriptions, and no entries yet."""
    with World(ledger_entries=1_000) as made:
        made.subscribe("billing", "shipping")
        yield made


def _at(entry_id: int) -> Position:
    return Position(LedgerId(0), entry_id)


def _ids(entries: list[Entry]) -> list[int]:
    return [entry.position.entry_id for entry in entries]


def _consumer(world: World, name: str | None = "billing") -> Consumer:
    return world.process().delivery.create_consumer(world.topic, name)


def test_messages_that_are_due_come_first_in_order_of_their_times_and_then_the_log(world: World) -> None:
    """By delivery time, then position, whichever bucket has them and whether the tracker met them in the log."""
    world.append(30, 10, 20, None)
    world.seal()
    world.append(15, 10, None)
    consumer = _consumer(world)
    assert _ids(consumer.receive(100)) == [3, 6]
    world.append(None)
    world.advance(20)
    assert _ids(consumer.receive(2)) == [1, 5]
    assert _ids(consumer.receive(100)) == [4, 2, 7]
    world.advance(10)
    assert [(entry.position.entry_id, entry.payload) for entry in consumer.receive(100)] == [(0, b"p")]


def test_fresh_process_delivers_what_buckets_hold_in_order_and_the_rest_from_the_log(world: World) -> None:
    """After a restart, too; what was due when a bucket was written is nobody's but the log's."""
    world.append(1, 40, 30)
    world.advance(2)
    world.seal()
    world.append(20, 10)
    world.advance(100)
    assert _ids(_consumer(world).receive(100)) == [2, 1, 0, 3, 4]


def test_message_is_delivered_at_its_time_and_not_a_millisecond_before(world: World) -> None:
    """Inclusive; in the past means at once."""
    world.append(5, -5)
    consumer = _consumer(world)
    assert _ids(consumer.receive(9)) == [1]
    world.advance(4)
    assert consumer.receive(9) == []
    world.advance(1)
    assert _ids(consumer.receive(9)) == [0]


def test_tolerance_lets_messages_come_so_much_before_their_time_and_no_more(world: World) -> None:
    """From the log, and from the tracker."""
    world.append(5, 6)
    consumer = world.process(tolerance_ms=5).delivery.create_consumer(world.topic, "billing")
    assert _ids(consumer.receive(9)) == [0]
    world.advance(1)
    assert _ids(consumer.receive(9)) == [1]


def test_payloads_of_messages_that_are_not_due_are_not_fetched(world: World) -> None:
    """A fresh consumer asks the store for none of their segments; a due one costs its own segment."""
    for _ in range(20):
        world.append(*[1_000] * 5)
    world.append(10)
    world.append(None)
    world.seal()
    world.advance(10)
    before = len(world.objects.calls)
    assert _ids(_consumer(world).receive(50)) == [100, 101]
    assert [operation for operation, _ in world.objects.calls[before:]] == [StoreOperation.GET] * 2


def test_acknowledged_messages_never_return_whatever_their_number(world: World) -> None:
    """Beyond the mark-delete position, over a restart, out of a bucket (apache/pulsar#20638, #6403)."""
    world.append(*[50 + at % 7 for at in range(400)])
    world.seal()
    world.advance(100)
    first = _consumer(world)
    got = first.receive(399)
    left = {at.position for at in got[::100]}
    world.acknowledge("billing", [at.position for at in got if at.position not in left])
    again = [entry.position for entry in _consumer(world).receive(1_000)]
    assert {*again} == left | (world.messages.keys() - {entry.position for entry in got})
    world.acknowledge("billing", again)
    assert _consumer(world).receive(1_000) == []
    assert len(_consumer(world, "shipping").receive(1_000)) == 400


def test_what_is_acknowledged_while_its_segment_is_read_is_not_delivered(world: World) -> None:
    """A consumer that takes few messages at a time looks at what became of the others."""
    world.append(*[None] * 9)
    consumer = _consumer(world)
    assert _ids(consumer.receive(2)) == [0, 1]
    world.acknowledge("billing", [_at(3), _at(5)])
    assert _ids(consumer.receive(9)) == [2, 4, 6, 7, 8]


def test_consumer_that_restarts_before_the_time_gets_the_message_once(world: World) -> None:
    """One delivery for each subscription and message (apache/pulsar#6403)."""
    delivery = world.process().delivery
    world.append(10)
    with delivery.create_consumer(world.topic, "billing") as early:
        assert early.receive(5) == []
    late = delivery.create_consumer(world.topic, "billing")
    assert late.receive(5) == []
    world.advance(10)
    assert _ids(late.receive(5)) == [0]
    assert late.receive(5) == []


def test_consumers_that_come_and_go_change_nothing_of_the_index(world: World) -> None:
    """Trackers end with their last consumer; buckets stay as they are (apache/pulsar#19801)."""
    world.append(10, 20)
    world.seal()
    before = (world.buckets, dict(world.snapshots.files))
    delivery = world.process().delivery
    for _ in range(3):
        with delivery.create_consumer(world.topic, "billing") as one, delivery.create_consumer(world.topic) as two:
            assert one.receive(5) == two.receive(5) == []
            assert (len(delivery._trackers), delivery.trackers_memory_bytes > 0) == (1, True)
        assert (len(delivery._trackers), delivery.trackers_memory_bytes) == (0, 0)
    assert (world.buckets, world.snapshots.files) == before
    assert delivery.snapshots.loads == len(world.snapshots.reads) == 3
    world.advance(20)
    with delivery.create_consumer(world.topic, "billing") as consumer:
        assert _ids(consumer.receive(5)) == [0, 1]


def test_consumers_of_a_subscription_share_its_messages_and_give_back_what_they_leave(world: World) -> None:
    """By closing, or by a negative acknowledgement; one that another consumer has is not its to give."""
    world.append(None, None, None, 5)
    delivery = world.process().delivery
    one, two = (delivery.create_consumer(world.topic, "billing") for _ in range(2))
    assert (_ids(one.receive(2)), _ids(two.receive(9))) == ([0, 1], [2])
    two.nack([_at(0), _at(2), _at(3)])
    assert _ids(one.receive(9)) == [2]
    one.close()
    one.close()
    assert _ids(two.receive(9)) == [0, 1, 2]
    world.advance(5)
    assert _ids(two.receive(9)) == [3]


def test_consumer_leaves_a_long_list_to_the_log(world: World) -> None:
    """What does not fit into the replay set is read again."""
    world.append(*[None] * (MAX_REPLAY_MESSAGES + 50))
    delivery = world.process().delivery
    one, two = (delivery.create_consumer(world.topic, "billing") for _ in range(2))
    assert len(one.receive(MAX_REPLAY_MESSAGES + 50)) == MAX_REPLAY_MESSAGES + 50
    one.close()
    assert _ids(two.receive(MAX_REPLAY_MESSAGES + 100)) == list(range(MAX_REPLAY_MESSAGES + 50))


def test_subscription_that_does_not_receive_is_kept_within_bounds_and_loses_nothing(world: World) -> None:
    """Its replay set is full at some point; the rest it meets in the log."""
    world.snapshots = Snapshots(segment_rows=(1_000, 5_000), step_ms=1)
    world.append(*[10] * (MAX_REPLAY_MESSAGES + 1_500))
    world.seal()
    delivery = world.process().delivery
    fast, slow = (delivery.create_consumer(world.topic, name) for name in ("billing", "shipping"))
    assert fast.receive(5) == slow.receive(5) == []
    world.advance(10)
    got = [entry for _ in range(12) for entry in fast.receive(1_000)]
    assert len(got) == MAX_REPLAY_MESSAGES + 1_500
    assert sorted(_ids(slow.receive(20_000))) == list(range(MAX_REPLAY_MESSAGES + 1_500))


def test_bucket_that_is_lost_is_an_alarm_and_its_messages_come_from_the_log(world: World) -> None:
    """At their time, once; an alarm is given once for a bucket, however often it is looked at (apache/pulsar#22735)."""
    world.append(10, 20)
    world.seal()
    world.append(10)
    world.seal()
    lost = world.buckets.buckets[0].bucket_id
    del world.snapshots.files[lost]
    delivery = world.process().delivery
    consumer = delivery.create_consumer(world.topic, "billing")
    for _ in range(3):
        assert consumer.receive(9) == []
        world.advance(0)
    assert world.alarms == [lost]
    world.advance(10)
    assert sorted(_ids(consumer.receive(9))) == [0, 2]
    world.advance(10)
    assert _ids(consumer.receive(9)) == [1]
    world.advance(60_000)
    assert consumer.receive(9) == []
    assert world.alarms == [lost]


def test_bucket_that_was_merged_meanwhile_is_no_alarm(world: World) -> None:
    """The list is read again, and what it names now has the messages."""
    for _ in range(2):
        world.append(10, 20)
        world.seal()
    consumer = _consumer(world)
    assert consumer.receive(9) == []
    world.merge(0)
    world.advance(10)
    assert _ids(consumer.receive(9)) == [0, 2]
    world.advance(10)
    assert _ids(consumer.receive(9)) == [1, 3]
    assert world.alarms == []


def test_list_of_buckets_is_looked_at_now_and_then(world: World) -> None:
    """Not at each receipt; what was sealed meanwhile is not held twice."""
    world.append(*[1_000_000] * 50)
    delivery = world.process().delivery
    consumer = delivery.create_consumer(world.topic, "billing")
    consumer.receive(9)
    world.seal()
    for _ in range(20):
        consumer.receive(9)
    assert world.lookups == 1
    before = delivery.trackers_memory_bytes
    world.advance(10_000)
    consumer.receive(9)
    assert world.lookups == 2
    assert delivery.trackers_memory_bytes < before


@pytest.mark.parametrize("error", [StoreUnavailable, KeyboardInterrupt])
@pytest.mark.parametrize("segment", [1, 2, 3])
def test_receipt_that_fails_midway_hands_out_nothing_and_loses_nothing(
    world: World, error: type[BaseException], segment: int
) -> None:
    """Due messages of the first segments were fetched already, long after the log was read over them; all come once."""
    world.append(10, 12)
    world.append(11)
    world.seal()
    consumer = _consumer(world)
    assert consumer.receive(9) == []
    world.advance(20)
    world.append(None)

    def fail() -> NoReturn:
        raise error("away")

    numbers = iter(range(1, 9))
    fault = Fault(
        operation=StoreOperation.GET,
        kind=FaultKind.CALL,
        matches=lambda _key: next(numbers) == segment,
        action=fail,
    )
    world.objects.plan(fault)
    with pytest.raises(error):
        consumer.receive(9)
    assert sorted(_ids(consumer.receive(9))) == [0, 1, 2, 3]
    assert consumer.receive(9) == []


def test_due_messages_keep_their_order_when_the_store_fails_once(world: World) -> None:
    """They are put back where they were."""
    world.append(30, 20, 10)
    world.seal()
    world.advance(30)
    consumer = _consumer(world)
    world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        consumer.receive(9)
    assert _ids(consumer.receive(9)) == [2, 1, 0]


def test_message_that_becomes_due_between_its_segments_fetch_and_its_turn_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read ahead as one that is later, and is due when its turn is there."""
    for delay in (None, None, 5):
        world.append(delay)
    real, looks = Dispatcher.due_ms, list[int]()

    def due_ms(dispatcher: Dispatcher) -> int:
        looks.append(real(dispatcher))
        return looks[-1]

    monkeypatch.setattr(Dispatcher, "due_ms", due_ms)
    consumer = _consumer(world)
    assert _ids(consumer.receive(1)) == [0]
    assert _ids(consumer.receive(1)) == [1]
    assert_eventually(lambda: len(looks) == 1)
    world.advance(5)
    assert _ids(consumer.receive(9)) == [2]


def test_due_message_that_may_not_be_seen_yet_comes_when_it_may(world: World) -> None:
    """What is due is checked against transactions once more, and is not forgotten."""
    world.append(10, None)
    world.seal()
    consumer = _consumer(world)
    assert _ids(consumer.receive(9)) == [1]
    world.advance(10)
    real = world.catalog.transactions.read_frontier

    def nothing(topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        del topic_id, from_ledger
        return Frontier(last=None)

    world.catalog.transactions.read_frontier = nothing  # type: ignore[method-assign]
    assert consumer.receive(9) == []
    world.catalog.transactions.read_frontier = real  # type: ignore[method-assign]
    assert _ids(consumer.receive(9)) == [0]


def test_what_an_aborted_transaction_acknowledged_is_delivered_again(world: World) -> None:
    """And nothing else (apache/pulsar#14327)."""
    world.append(None, None, 5)
    consumer = _consumer(world)
    world.advance(5)
    assert len(consumer.receive(9)) == 3
    world.hold("billing", [_at(0), _at(2)])
    assert consumer.receive(9) == []
    world.held.clear()
    assert _ids(consumer.receive(9)) == [0, 2]


def test_seek_delivers_again_what_stands_behind_it(world: World) -> None:
    """What was handed out and not acknowledged, too."""
    world.append(None, None, 5, 1_000)
    consumer = _consumer(world)
    world.advance(5)
    assert _ids(consumer.receive(9)) == [0, 1, 2]
    world.acknowledge("billing", [_at(0), _at(1)])
    world.catalog.cursors.seek_cursor(world.topic.topic_id, "billing", _at(1))
    assert _ids(consumer.receive(9)) == [1, 2]


def test_reader_alone_begins_where_it_is_told_and_shares_with_nobody(world: World) -> None:
    """Of what stands before it gets nothing, due or not."""
    world.append(5, 5, None, None)
    world.seal()
    world.advance(5)
    delivery = world.process().delivery
    one, two = delivery.create_consumer(world.topic), delivery.create_consumer(world.topic, from_position=_at(1))
    assert (_ids(one.receive(9)), _ids(two.receive(9))) == ([0, 1, 2, 3], [1, 2, 3])
    third = delivery.create_consumer(world.topic, "billing", from_position=_at(3))
    assert _ids(third.receive(9)) == [3]


def test_consumer_of_an_unknown_subscription_leaves_nothing_behind(world: World) -> None:
    """Once the subscription exists, the same consumer receives (apache/pulsar#13767)."""
    world.append(None)
    consumer = _consumer(world, "nobody")
    with pytest.raises(UnknownObject):
        consumer.receive(1)
    world.subscribe("nobody")
    assert _ids(consumer.receive(1)) == [0]


def test_tracker_that_could_not_be_loaded_is_loaded_next_time(world: World) -> None:
    """No failure of the beginning stays (apache/pulsar#14801)."""
    world.append(10)
    world.seal()
    (bucket,) = world.buckets.buckets
    world.snapshots.errors[bucket.bucket_id] = StoreUnavailable("away")
    consumer = _consumer(world)
    with pytest.raises(StoreUnavailable):
        consumer.receive(1)
    world.snapshots.errors.clear()
    assert consumer.receive(1) == []
    world.advance(10)
    assert _ids(consumer.receive(1)) == [0]
    assert world.alarms == []


def test_consumer_waits_for_the_log_or_for_the_time_of_a_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not longer than it is told to, and not at all where it holds something that is due."""
    waited: list[float] = []

    def wait(_watch: Watch, timeout_s: float) -> bool:
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(Watch, "wait", wait)
    delivery = world.process().delivery
    consumer, other = (delivery.create_consumer(world.topic, "billing") for _ in range(2))
    consumer.wait(30)
    assert waited == [], "it had not looked at the log before"
    consumer.wait(30)
    world.append(250, None)
    assert _ids(other.receive(9)) == [1]
    consumer.wait(30)
    consumer.wait(0.1)
    other.close()
    consumer.wait(30)
    assert waited == [30, 0.25, 0.1, 0]


def test_columns_that_nobody_asked_for_are_not_fetched(world: World) -> None:
    """Neither from the log nor of what the index hands over; consumers who share messages want the same."""
    world.append(10)
    world.seal()
    world.append(None)
    world.advance(10)
    delivery = world.process().delivery
    with delivery.create_consumer(world.topic, "billing", columns=("key",)) as consumer:
        found = consumer.receive(100)
        assert [(one.position.entry_id, one.payload) for one in found] == [(0, None), (1, None)]
        with pytest.raises(InvalidInput, match="columns: expected key, as"):
            delivery.create_consumer(world.topic, "billing")
    with delivery.create_consumer(world.topic, "billing") as consumer:
        assert [one.payload for one in consumer.receive(100)] == [b"p", b"p"]


def test_closed_consumer_and_a_limit_below_one_are_refused(world: World) -> None:
    """A consumer that gave everything back takes nothing more."""
    consumer = _consumer(world)
    with pytest.raises(InvalidInput, match="max_entries"):
        consumer.receive(0)
    consumer.close()
    with pytest.raises(PreconditionFailed, match="closed"):
        consumer.receive(1)


def test_threads_of_two_subscriptions_get_every_message_once(world: World) -> None:
    """Two consumers each, all at once, while the time passes."""
    for nth in range(40):
        world.append(*[(nth * 7 + at) % 50 or None for at in range(25)])
        if nth % 10 == 9:
            world.seal()
    delivery = world.process().delivery
    consumers = [delivery.create_consumer(world.topic, name) for name in ("billing", "shipping") for _ in range(2)]
    got: list[list[Position]] = [[] for _ in consumers]

    def run(consumer: Consumer, into: list[Position]) -> Callable[[], None]:
        def receive() -> None:
            for _ in range(400):
                into.extend(entry.position for entry in consumer.receive(7))
                world.advance(1)

        return receive

    threads = [threading.Thread(target=run(one, into)) for one, into in zip(consumers, got, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pair in (got[:2], got[2:]):
        assert sorted([*pair[0], *pair[1]]) == sorted(world.messages)


def test_replay_set_holds_each_message_once_and_gives_them_in_order() -> None:
    """As many as it may, and none that is later than asked for."""
    replay = ReplaySet(max_messages=3)
    assert all(replay.add_unless_full(time, _at(entry)) for time, entry in ((5, 1), (5, 0), (3, 9), (3, 9)))
    assert not replay.add_unless_full(1, _at(2))
    assert (len(replay), replay.has_room(9), _at(9) in replay, _at(2) in replay) == (3, False, True, False)
    assert replay.pop_due(4, 9) == [(3, _at(9))]
    assert replay.pop_due(5, 1) == [(5, _at(0))]
    assert (replay.bits, replay.has_room(1), replay.has_room(2)) == ({LedgerId(0): BitMap([1])}, False, True)
    replay.clear()
    assert (len(replay), replay.bits, replay.pop_due(9, 9)) == (0, {}, [])


def test_receiving_asks_once_how_far_consumers_may_see(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plain reader does, whether it meets the end of the log or not; the scan goes on with what is known."""
    world.append(None, None, None)
    asked: list[TopicId] = []
    transactions = world.catalog.transactions
    frontier = transactions.read_frontier

    def counted(topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        asked.append(topic_id)
        return frontier(topic_id, from_ledger=from_ledger)

    monkeypatch.setattr(transactions, "read_frontier", counted)
    consumer = _consumer(world)
    assert (_ids(consumer.receive(2)), len(asked)) == ([0, 1], 1)
    assert (_ids(consumer.receive(2)), len(asked)) == ([2], 2)
    world.append(None)
    asked.clear()
    assert (_ids(consumer.receive(9)), len(asked)) == ([3], 1)


def test_what_came_while_an_old_scan_was_read_is_received_before_a_receiver_waits(world: World) -> None:
    """Its end is of another time: one that finds nothing there asks for the end of today."""
    world.append(None, None)
    consumer = _consumer(world)
    assert _ids(consumer.receive(1)) == [0]
    world.append(None)
    assert _ids(consumer.receive(1)) == [1]
    assert _ids(consumer.receive(1)) == [2]
