"""Subscriptions: where they begin, how they move, what they keep."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, TopicState
from logstore.positions import TopicId
from tests.contracts.catalog.steps import acknowledge, append, at, filled, new_topic, race, roll
from tests.contracts.catalog.worlds import World


def test_subscribe_earliest_stands_before_the_first_listed_entry(world: World) -> None:
    """Earliest means the first that is listed, whatever was there before."""
    topic = new_topic(world)
    first, second, _ = filled(world, topic.topic_id, 3)
    world.detach(topic.topic_id, [first])
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    assert made.state == CursorState(at(second, -1))
    assert world.catalog.cursors.get_cursor(topic.topic_id, "billing") == made


@pytest.mark.postgres
def test_subscribe_latest_stands_behind_the_last_entry(world: World) -> None:
    """Latest covers everything that is there now and nothing that comes."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=True)
    assert made.state.mark_delete == at(ledgers[-1], 9)
    append(world, topic.topic_id, ledgers[-1])
    assert not world.catalog.cursors.get_cursor(topic.topic_id, "billing").state.covers(at(ledgers[-1], 10))


@pytest.mark.parametrize("latest", [True, False])
def test_subscribe_empty_topic_misses_nothing_that_comes(world: World, latest: bool) -> None:
    """A cursor made before the first ledger stands before its first entry, id 0 or not."""
    topic = new_topic(world)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=latest)
    ledger = roll(world, topic.topic_id)
    append(world, topic.topic_id, ledger)
    assert not world.catalog.cursors.get_cursor(topic.topic_id, "billing").state.covers(at(ledger, 0))


def test_subscribe_existing_is_returned_as_it_is(world: World) -> None:
    """A repeated subscribe moves no cursor."""
    topic = new_topic(world)
    (ledger,) = filled(world, topic.topic_id, 1)
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    acknowledge(world, topic.topic_id, "billing", up_to=(ledger, 4))
    again = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=True)
    assert again.state.mark_delete == at(ledger, 4)
    assert again.created_us == made.created_us


@pytest.mark.postgres
def test_subscribe_thirty_two_at_once_make_one_cursor(world: World) -> None:
    """All of them are told the same."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 1)
    answers = race(
        lambda number: world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=bool(number % 2))
    )
    assert all(isinstance(answer, StoredCursor) for answer in answers), answers
    assert all(answer == answers[0] for answer in answers)
    assert world.catalog.cursors.list_cursors(topic.topic_id) == answers[:1]


def test_all_subscriptions_are_ascending_by_name(world: World) -> None:
    """Byte order, and of this topic only."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    for name in ("b", "Z", "_", "a-1", "a"):
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=True)
    world.catalog.cursors.create_subscription(other.topic_id, "elsewhere", latest=True)
    assert [found.name for found in world.catalog.cursors.list_cursors(topic.topic_id)] == ["Z", "_", "a", "a-1", "b"]


def test_cursor_unknown_is_refused(world: World) -> None:
    """Neither a name nor a topic that does not exist is taken for an empty one."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 1)
    cursors, nowhere = world.catalog.cursors, TopicId(topic.topic_id + 1)
    asks: list[Callable[[], object]] = [
        lambda: cursors.get_cursor(topic.topic_id, "nobody"),
        lambda: cursors.seek_cursor(topic.topic_id, "nobody", at(0, 0)),
        lambda: cursors.create_subscription(nowhere, "billing", latest=True),
        lambda: cursors.seek_cursor(nowhere, "billing", at(0, 0)),
    ]
    for ask in asks:
        with pytest.raises(UnknownObject):
            ask()


def test_seek_makes_the_position_next_and_forgets_single_acknowledgements(world: World) -> None:
    """Back and forth: what was acknowledged before the seek does not count any more."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 1)[0]
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    acknowledge(world, topic.topic_id, "billing", (ledger, 5), up_to=(ledger, 2))
    sought = world.catalog.cursors.seek_cursor(topic.topic_id, "billing", at(ledger, 1))
    assert sought == replace(made, state=CursorState(at(ledger, 0)), seeks=1, releases=1)
    assert world.catalog.cursors.get_cursor(topic.topic_id, "billing") == sought
    end = world.catalog.cursors.seek_cursor(topic.topic_id, "billing", at(ledger, 10))
    assert end.state.mark_delete == at(ledger, 9)


def test_seek_beyond_the_end_is_refused_and_moves_nothing(world: World) -> None:
    """A cursor never stands where no entry was."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 1)[0]
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    for entry in (at(ledger, 11), at(ledger + 1, 0), at(ledger + 7, 0)):
        with pytest.raises(InvalidInput, match="position"):
            world.catalog.cursors.seek_cursor(topic.topic_id, "billing", entry)
    assert world.catalog.cursors.get_cursor(topic.topic_id, "billing") == made


def test_subscribe_and_seek_deleting_topic_are_refused(world: World) -> None:
    """Neither can add a reason to keep a ledger of a topic that is going; reading a cursor is still allowed."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 1)
    made = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    world.set_state(topic.topic_id, TopicState.DELETING)
    for name in ("billing", "another"):
        with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
            world.catalog.cursors.create_subscription(topic.topic_id, name, latest=True)
    with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
        world.catalog.cursors.seek_cursor(topic.topic_id, "billing", at(0, 0))
    assert world.catalog.cursors.list_cursors(topic.topic_id) == [made]


def test_acknowledge_single_entries_survive_as_bitmaps_until_contiguous(world: World) -> None:
    """Any number of holes survives (apache/pulsar#20638); the frontier moves over what became contiguous."""
    topic = new_topic(world)
    first, second = filled(world, topic.topic_id, 2)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    holes = [(ledger, entry) for ledger in (first, second) for entry in range(1, 10, 2)]
    assert acknowledge(world, topic.topic_id, "billing", *holes) == AcknowledgeResult(mark_delete=at(first, -1))
    state = world.catalog.cursors.get_cursor(topic.topic_id, "billing").state
    assert {
        (ledger, entry) for ledger in (first, second) for entry in range(10) if state.covers(at(ledger, entry))
    } == {*holes}
    rest = [(first, entry) for entry in range(0, 10, 2)]
    assert acknowledge(world, topic.topic_id, "billing", *rest) == AcknowledgeResult(mark_delete=at(first, 9))
    assert acknowledge(world, topic.topic_id, "billing", (second, 0)) == AcknowledgeResult(mark_delete=at(second, 1))


@pytest.mark.postgres
def test_acknowledge_thirty_two_at_once_lose_nothing(world: World) -> None:
    """Thirty-two clients acknowledge one entry each on one cursor: none overwrites another."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 1, entries=64)[0]
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    race(lambda number: acknowledge(world, topic.topic_id, "billing", (ledger, number)))
    assert world.catalog.cursors.get_cursor(topic.topic_id, "billing").state == CursorState(at(ledger, 31))


def test_acknowledge_what_is_detached_is_harmless(world: World) -> None:
    """A ledger that is gone counts as acknowledged and never pins the frontier (apache/pulsar#18620)."""
    topic = new_topic(world)
    first, second = filled(world, topic.topic_id, 2)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    world.detach(topic.topic_id, [first])
    answer = acknowledge(world, topic.topic_id, "billing", (first, 3), (second, 0))
    assert answer == AcknowledgeResult(mark_delete=at(second, 0))
