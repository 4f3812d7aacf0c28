"""Nothing that is needed is ever detached: subscribe and seek against detach, in both orders and at once."""

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.errors import LedgerStillNeeded
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult
from tests.contracts.catalog.steps import acknowledge, at, filled, listed, new_topic, race
from tests.contracts.catalog.worlds import World


def test_detach_after_subscribe_keeps_what_the_cursor_needs(world: World) -> None:
    """Subscribe first: the decision counts the new cursor."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    world.catalog.cursors.create_subscription(topic.topic_id, "new", latest=False)
    assert world.phase_one(topic.topic_id).ledgers == 0
    with pytest.raises(LedgerStillNeeded, match="new"):
        world.phase_one(topic.topic_id, ledgers[:1])
    acknowledge(world, topic.topic_id, "new", up_to=(ledgers[1], 9))
    world.catalog.cursors.seek_cursor(topic.topic_id, "new", at(ledgers[1], 0))
    assert world.phase_one(topic.topic_id).ledgers == 1


@pytest.mark.postgres
def test_subscribe_after_detach_begins_behind_it(world: World) -> None:
    """Detach first: the cursor begins at what is left, and a seek to what is gone waits for nothing."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    world.phase_one(topic.topic_id)
    made = world.catalog.cursors.create_subscription(topic.topic_id, "new", latest=False)
    assert made.state == CursorState(at(ledgers[2], -1))
    world.catalog.cursors.seek_cursor(topic.topic_id, "new", at(ledgers[0], 0))
    assert acknowledge(world, topic.topic_id, "new", (ledgers[2], 0)) == AcknowledgeResult(
        mark_delete=at(ledgers[2], 0)
    )


@pytest.mark.postgres
@pytest.mark.parametrize("turn", range(3))
def test_subscribe_and_seek_racing_detach_lose_no_entry(world: World, turn: int) -> None:
    """However they race, every ledger from a cursor's next entry on that was listed when it moved still is."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 6)
    world.catalog.cursors.create_subscription(topic.topic_id, "old", latest=True)

    def act(number: int) -> object:
        if number % 4 == 0:
            return world.phase_one(topic.topic_id, batch_id=f"trim-{number}")
        if number % 4 == 1:
            return world.catalog.cursors.seek_cursor(topic.topic_id, "old", at(ledgers[number % 6], 0))
        return world.catalog.cursors.create_subscription(topic.topic_id, f"new-{number}", latest=False)

    answers = race(act, 16)
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    left = listed(world, topic.topic_id)
    assert left == ledgers[-len(left) :]
    made = [one for one in answers if isinstance(one, StoredCursor) and one.name != "old"]
    assert made
    for one in made:  # begun at the first listed entry of its moment: that ledger is kept for it
        assert one.state.mark_delete.ledger_id in left, (one, left)
