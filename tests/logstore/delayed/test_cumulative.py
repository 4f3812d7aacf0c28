"""A consumer acknowledges everything up to a message only if it has received all of that.

Source: apache/pulsar#10431 and apache/pulsar#14371, in which messages of an aborted transaction are never delivered.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from logstore.delayed.services.consumers import Consumer
from logstore.errors import AcknowledgementStale, PreconditionFailed, StoreUnavailable
from logstore.failpoints import arm
from logstore.log.entries import Entry
from logstore.ports.catalog.log import AcknowledgeResult
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.logstore.delayed.delivering import World

_SUB = "billing"


@pytest.fixture
def world() -> Iterator[World]:
    """A topic of ten messages, with a subscription."""
    with World(ledger_entries=1_000) as made:
        made.subscribe(_SUB)
        made.append(*[None] * 10)
        yield made


def _at(entry_id: int) -> Position:
    return Position(LedgerId(0), entry_id)


def _ids(entries: list[Entry]) -> list[int]:
    return [entry.position.entry_id for entry in entries]


def _consumer(world: World) -> Consumer:
    return world.process().delivery.create_consumer(world.topic, _SUB)


def _left(world: World) -> list[int]:
    """What a consumer of another process gets."""
    with _consumer(world) as fresh:
        return _ids(fresh.receive(99))


def _refused(consumer: Consumer, entry_id: int, gap: int | None = None) -> None:
    found = "expected releases" if gap is None else f"found that 0:{gap} was not"
    with pytest.raises(AcknowledgementStale, match=found):
        consumer.acknowledge_to(_at(entry_id))


def test_consumer_that_received_everything_acknowledges_it(world: World) -> None:
    """And nothing behind it."""
    consumer = _consumer(world)
    assert _ids(consumer.receive(5)) == [0, 1, 2, 3, 4]
    _refused(consumer, 5, gap=5)
    assert consumer.acknowledge_to(_at(3)).mark_delete == _at(3)
    assert _left(world) == [4, 5, 6, 7, 8, 9]
    assert consumer.acknowledge_to(_at(2)).mark_delete == _at(3), "again, and less"
    assert _ids(consumer.receive(99)) == [5, 6, 7, 8, 9]
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_abort_that_the_consumer_has_not_seen_refuses_it(world: World) -> None:
    """It read past what a transaction of another consumer held."""
    consumer = _consumer(world)
    world.hold(_SUB, [_at(number) for number in range(5)])
    assert _ids(consumer.receive(99)) == [5, 6, 7, 8, 9]
    world.abort(_SUB)
    _refused(consumer, 9)
    assert _ids(consumer.receive(3)) == [0, 1, 2]
    _refused(consumer, 9, gap=3)
    assert consumer.acknowledge_to(_at(2)).mark_delete == _at(2), "received since"
    assert _ids(consumer.receive(99)) == [3, 4]
    _refused(consumer, 9, gap=5)
    consumer.nack([_at(number) for number in range(5, 10)])
    assert _ids(consumer.receive(99)) == [5, 6, 7, 8, 9]
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


@pytest.mark.parametrize("gives_back", [True, False])
def test_one_long_consumer_whose_own_transaction_is_aborted(world: World, gives_back: bool) -> None:
    """It has received everything once; what its transaction acknowledged has to come again, by `nack` or not."""
    consumer = _consumer(world)
    assert len(consumer.receive(5)) == 5
    world.hold(_SUB, [_at(number) for number in range(5)])
    assert _ids(consumer.receive(99) if gives_back else []) == ([5, 6, 7, 8, 9] if gives_back else [])
    world.abort(_SUB)
    if gives_back:
        consumer.nack([_at(number) for number in range(5)])
        _refused(consumer, 9)
        assert _ids(consumer.receive(99)) == [0, 1, 2, 3, 4]
        _refused(consumer, 9, gap=5)
    else:
        assert _ids(consumer.receive(99)) == [5, 6, 7, 8, 9]
        _refused(consumer, 9, gap=0)
    assert _left(world) == list(range(10))


def test_transaction_of_the_consumer_that_is_aborted_is_received_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `nack`, and without a look while it was open."""
    delivery, asked = world.process().delivery, list[object]()
    consumer = delivery.create_consumer(world.topic, _SUB)
    assert len(consumer.receive(5)) == 5

    def hold(*_: object, up_to: Position, txn: TransactionId, **more: object) -> AcknowledgeResult:
        asked.append((up_to, txn, more))
        world.hold(_SUB, [_at(number) for number in range(up_to.entry_id + 1)])
        return AcknowledgeResult(mark_delete=_at(-1))

    with monkeypatch.context() as patch:
        patch.setattr(delivery.subscriptions, "acknowledge", hold)
        consumer.acknowledge_to(_at(4), txn=TransactionId(0, 1))
    assert asked == [(_at(4), TransactionId(0, 1), {"releases": 0})]
    world.abort(_SUB)
    assert _ids(consumer.receive(99)) == list(range(10))
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_message_that_was_given_back_is_not_vouched_for(world: World) -> None:
    """Until it was received again."""
    consumer = _consumer(world)
    assert len(consumer.receive(99)) == 10
    consumer.nack([_at(2)])
    _refused(consumer, 9, gap=2)
    assert consumer.acknowledge_to(_at(1)).mark_delete == _at(1)
    assert _ids(consumer.receive(1)) == [2]
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_message_that_another_consumer_has_is_not_vouched_for(world: World) -> None:
    """Consumers of a subscription share its messages; what was acknowledged singly is nobody's."""
    delivery = world.process().delivery
    first, second = (delivery.create_consumer(world.topic, _SUB) for _ in range(2))
    assert (_ids(first.receive(2)), _ids(second.receive(99))) == ([0, 1], [2, 3, 4, 5, 6, 7, 8, 9])
    _refused(second, 9, gap=0)
    assert first.acknowledge_to(_at(1)).mark_delete == _at(1)
    assert second.receive(1) == []
    assert second.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_delayed_message_that_has_not_come_is_not_vouched_for(world: World) -> None:
    """Whether the tracker met it in the log or in a bucket; it comes at its time."""
    world.append(50, None)
    for sealed in (False, True):
        if sealed:
            world.seal()
        with _consumer(world) as consumer:
            assert _ids(consumer.receive(99)) == [*range(10), 11]
            _refused(consumer, 11, gap=10)
    consumer = _consumer(world)
    assert len(consumer.receive(99)) == 11
    world.advance(50)
    _refused(consumer, 11, gap=10)
    assert _ids(consumer.receive(99)) == [10]
    assert consumer.acknowledge_to(_at(11)).mark_delete == _at(11)


def test_seek_back_refuses_what_was_received_before(world: World) -> None:
    """By whatever process."""
    consumer = _consumer(world)
    assert len(consumer.receive(99)) == 10
    consumer.acknowledge_to(_at(4))
    world.catalog.cursors.seek_cursor(world.topic.topic_id, _SUB, _at(0))
    _refused(consumer, 9)
    assert _ids(consumer.receive(99)) == list(range(10))
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_acknowledgement_that_failed_changes_nothing_here(world: World) -> None:
    """The consumer still has what it received."""
    consumer = _consumer(world)
    assert len(consumer.receive(99)) == 10
    arm("catalog.group_commit.before", "fail")
    with pytest.raises(StoreUnavailable):
        consumer.acknowledge_to(_at(9))
    assert consumer.receive(99) == []
    assert consumer.acknowledge_to(_at(9)).mark_delete == _at(9)


def test_reader_without_a_cursor_of_its_own_acknowledges_nothing(world: World) -> None:
    """Of a consumer that begins at a position nobody knows what stands before it; a closed one has nothing."""
    delivery = world.process().delivery
    readers = [
        delivery.create_consumer(world.topic, _SUB, from_position=_at(3)),
        delivery.create_consumer(world.topic),
        delivery.create_consumer(world.topic, _SUB),
    ]
    readers[2].close()
    for reader in readers:
        with pytest.raises(PreconditionFailed):
            reader.acknowledge_to(_at(4))
    assert readers[0].cumulative_bounds() is None
    with _consumer(world) as consumer:
        consumer.receive(4)
        assert consumer.cumulative_bounds() == (0, _at(4))


@pytest.mark.parametrize("ending", ["committed", "aborted", "open", "sought"])
def test_other_consumers_receive_while_one_acknowledges(
    world: World, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """What becomes of the acknowledgement before the consumer enters it, they see it, and no message is lost."""
    delivery = world.process().delivery
    first, second = (delivery.create_consumer(world.topic, _SUB) for _ in range(2))
    assert _ids(first.receive(5)) == [0, 1, 2, 3, 4]
    acknowledge, received = delivery.subscriptions.acknowledge, list[int]()

    def acknowledge_slowly(topic_id: TopicId, name: str, **wanted: Any) -> AcknowledgeResult:
        if ending in {"aborted", "open"}:
            world.hold(_SUB, [_at(number) for number in range(5)])
            answer = AcknowledgeResult(mark_delete=_at(-1))
        else:
            answer = acknowledge(topic_id, name, **wanted)
        received.extend(_ids(thread.submit(second.receive, 1).result(timeout=30)))
        if ending == "aborted":
            world.abort(_SUB)
        elif ending == "sought":
            world.catalog.cursors.seek_cursor(world.topic.topic_id, _SUB, _at(0))
        if ending != "open":
            received.extend(_ids(thread.submit(second.receive, 1).result(timeout=30)))
        return answer

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patch:
        patch.setattr(delivery.subscriptions, "acknowledge", acknowledge_slowly)
        first.acknowledge_to(_at(4))
    if ending == "open":
        world.abort(_SUB)
    again = {"committed": [], "aborted": [0, 1, 2, 3, 4], "open": [0, 1, 2, 3, 4], "sought": [0, 1, 2, 3, 4, 5]}[ending]
    assert received == {"committed": [5, 6], "aborted": [5, 0], "open": [5], "sought": [5, 0]}[ending]
    assert sorted(received + _ids(first.receive(99))) == sorted([*again, *range(5, 10)])


def test_messages_given_back_during_an_acknowledgement_refuse_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit carries the releases from before it, whatever other consumers have met since."""
    delivery = world.process().delivery
    first, second = (delivery.create_consumer(world.topic, _SUB) for _ in range(2))
    assert _ids(first.receive(5)) == [0, 1, 2, 3, 4]
    acknowledge = delivery.subscriptions.acknowledge

    def acknowledge_late(topic_id: TopicId, name: str, **wanted: Any) -> AcknowledgeResult:
        world.catalog.cursors.seek_cursor(world.topic.topic_id, _SUB, _at(0))
        assert _ids(thread.submit(second.receive, 1).result(timeout=30)) == [0]
        return acknowledge(topic_id, name, **wanted)

    monkeypatch.setattr(delivery.subscriptions, "acknowledge", acknowledge_late)
    refused = pytest.raises(AcknowledgementStale, match="expected releases 1, found 0")
    with ThreadPoolExecutor(1) as thread, refused:
        first.acknowledge_to(_at(4))
    assert _ids(first.receive(99)) == list(range(1, 10))


@pytest.mark.parametrize("releases", [None, 0])
def test_message_whose_time_has_not_come_is_not_covered_without_releases(world: World, releases: int | None) -> None:
    """A consumer that was handed what stands around it may not know of it."""
    waiting, last = world.append(60_000, None)
    process = world.process()
    with process.delivery.create_consumer(world.topic, _SUB) as consumer:
        assert waiting not in {entry.position for entry in consumer.receive(99)}
        assert consumer.cumulative_bounds() == (0, waiting)
    acknowledge = process.subscriptions.acknowledge
    assert acknowledge(world.topic.topic_id, _SUB, up_to=_at(9)).mark_delete == _at(9)
    if releases is None:
        with pytest.raises(AcknowledgementStale, match=str(waiting)):
            acknowledge(world.topic.topic_id, _SUB, up_to=last)
        return
    world.catalog.advance(seconds=60)
    with process.delivery.create_consumer(world.topic, _SUB) as consumer:
        assert len(consumer.receive(99)) == 2
        releases, limit = consumer.cumulative_bounds() or (-1, waiting)
    assert limit > last
    assert acknowledge(world.topic.topic_id, _SUB, up_to=last, releases=releases).mark_delete == last
