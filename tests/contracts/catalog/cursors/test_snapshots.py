"""Cursor ledgers: a cursor's state in two parts, which are never less and never more than the whole."""

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import SnapshotNeeded
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.ports.catalog.deletion import IntentResult, IntentRowRange
from logstore.ports.catalog.log import AcknowledgeResult, TopicState
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.log.component_steps import (
    CURSOR,
    acknowledge_with,
    acknowledgement,
    change_of,
    covered,
    cursor_newborn,
    publish,
    snapshot,
    state_of,
)
from tests.contracts.catalog.steps import acknowledge, append, at, filled, listed, new_topic, race
from tests.contracts.catalog.world import World

_TEN = range(10)
_ALL = IntentRowRange(first=0, last=1_000_000, rows=1)


def _topic(world: World, count: int = 1) -> tuple[TopicId, list[LedgerId]]:
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, count)
    world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    return topic.topic_id, ledgers


def _cursor_ledgers(world: World, topic_id: TopicId) -> list[LedgerId]:
    found = world.catalog.components.list_ledgers(topic_id)
    return [one.ledger_id for one in found if one.component is Component.MANAGED_CURSOR]


def _intent(world: World, ledger_id: LedgerId) -> DeletionIntent:
    return next(one for one in world.catalog.deletions.list_intents(None, limit=1000) if one.ledger_id == ledger_id)


def test_component_ledger_newborn_is_in_no_list_and_says_whose_it_is(world: World) -> None:
    """CREATING until it is published; its statement carries every key of the component."""
    topic_id, ledgers = _topic(world)
    made = world.catalog.components.create_component_ledger(
        topic_id, Component.MANAGED_CURSOR, {"cursor": CURSOR}, application="sexton"
    )
    assert (made.owner.component, made.owner.keys) == (Component.MANAGED_CURSOR, {"cursor": CURSOR})
    assert made.ledger_id > ledgers[-1]
    assert [one.ledger_id for one in world.catalog.components.list_ledgers(topic_id)] == ledgers
    assert listed(world, topic_id) == ledgers


@pytest.mark.postgres
def test_snapshot_published_is_listed_closed_behind_the_data_ledgers(world: World) -> None:
    """One segment of one entry, its own list, its own keys; the data list is what it was."""
    topic_id, ledgers = _topic(world)
    acknowledge(world, topic_id, CURSOR, (ledgers[0], 5))
    held = publish(world, topic_id, (ledgers[0], 5))
    append(world, topic_id, ledgers[0])
    found = world.catalog.components.list_ledgers(topic_id)
    assert [one.ledger_id for one in found] == [*ledgers, held.ledger_id]
    last = found[-1]
    assert (last.component, last.keys, last.state) == (
        Component.MANAGED_CURSOR,
        {"cursor": CURSOR},
        LedgerState.CLOSED,
    )
    assert (last.entries, last.size_bytes, last.last_segment, last.copies) == (1, 50, 0, (CopyKind.LEDGER,))
    assert [row.size_bytes for row in world.catalog.ledgers.list_segments(held.ledger_id)] == [50]
    assert listed(world, topic_id) == ledgers
    assert world.intents() == []


def test_snapshot_published_takes_the_state_and_the_row_keeps_what_came_meanwhile(world: World) -> None:
    """Acknowledgements between the reading of the row and the publication are never lost (apache/pulsar#20638)."""
    topic_id, (ledger,) = _topic(world)
    acknowledge(world, topic_id, CURSOR, (ledger, 5), (ledger, 7))
    change = change_of(world, topic_id)
    acknowledge(world, topic_id, CURSOR, (ledger, 3))
    held = publish(world, topic_id, (ledger, 5), (ledger, 7), change=change)
    row = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert (row.snapshot_ledger, covered(row.state, [(ledger, e) for e in _TEN])) == (held.ledger_id, {(ledger, 3)})
    state = state_of(world, topic_id, held)
    assert covered(state, [(ledger, e) for e in _TEN]) == {(ledger, e) for e in (3, 5, 7)}


@pytest.mark.postgres
def test_page_of_topics_counts_no_backlog_that_a_snapshot_decides(world: World) -> None:
    """The row alone would count what the cursor ledger says is acknowledged."""
    topic_id, (ledger,) = _topic(world)
    (before,) = world.catalog.topics.list_topic_summaries(limit=1).topics
    publish(world, topic_id, (ledger, 5))
    (after,) = world.catalog.topics.list_topic_summaries(limit=1).topics
    assert [[one.backlog for one in page.subscriptions] for page in (before, after)] == [[10], [None]]


def test_snapshot_published_twice_counts_once(world: World) -> None:
    """Repeated after an unknown outcome, it is answered the same and changes nothing."""
    topic_id, (ledger,) = _topic(world)
    change = change_of(world, topic_id)
    made = snapshot(cursor_newborn(world, topic_id), (ledger, 5))
    assert [world.catalog.cursors.publish_snapshot(change, made, size_bytes=50) for _ in range(2)] == [True, True]
    assert _cursor_ledgers(world, topic_id) == [made.ledger_id]
    assert world.intents() == []


def test_snapshot_superseded_is_retired_in_the_same_transaction(world: World) -> None:
    """The predecessor is never left behind: an intent, and a word in the audit log (apache/pulsar#982)."""
    topic_id, (ledger,) = _topic(world)
    first = publish(world, topic_id, (ledger, 5))
    second = publish(world, topic_id, (ledger, 5), (ledger, 7))
    assert _cursor_ledgers(world, topic_id) == [second.ledger_id]
    assert world.intents() == [first.ledger_id]
    intent = _intent(world, first.ledger_id)
    assert (intent.component, intent.keys, intent.batch_id) == ("MANAGED_CURSOR", {"cursor": CURSOR}, "")
    assert (intent.segments, intent.last_segment, intent.referenced) == (1, 0, False)
    (told,) = world.audited("retire")
    assert (told.reason, told.detail) == (f"superseded by ledger {second.ledger_id}", {"ledger": first.ledger_id})
    done = world.phase_one(topic_id)
    assert (done.ledgers, done.intents) == (0, 1), "the topic's trim takes it up"


def test_snapshot_listed_is_still_in_use(world: World) -> None:
    """An intent for a cursor ledger that its cursor needs is refused (promise 1)."""
    topic_id, (ledger,) = _topic(world)
    first = publish(world, topic_id, (ledger, 5))
    second = publish(world, topic_id, (ledger, 5), (ledger, 7))
    row_id = _intent(world, first.ledger_id).row_id
    assert [one.referenced for one in world.catalog.deletions.list_intents_in_range("", _ALL)] == [False]
    world.forge(row_id, second.ledger_id, CopyKind.LEDGER)
    assert [one.referenced for one in world.catalog.deletions.list_intents_in_range("", _ALL)] == [True]


@pytest.mark.parametrize("what", ["snapshot", "seek", "topic"])
def test_snapshot_of_a_row_that_changed_is_filed_as_an_intent(world: World, what: str) -> None:
    """The newborn that lost leaves an intent in the transaction that refuses it, and no trace (apache/pulsar#350)."""
    topic_id, (ledger,) = _topic(world)
    acknowledge(world, topic_id, CURSOR, (ledger, 5))
    change = change_of(world, topic_id)
    loser = snapshot(cursor_newborn(world, topic_id), (ledger, 5))
    if what == "snapshot":
        publish(world, topic_id, (ledger, 5))
    elif what == "seek":
        world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(ledger, 1))
    else:
        world.set_state(topic_id, TopicState.DELETING)
    before = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert not world.catalog.cursors.publish_snapshot(change, loser, size_bytes=50)
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR) == before
    assert world.intents() == [loser.ledger_id]
    assert loser.ledger_id not in _cursor_ledgers(world, topic_id)
    assert not world.catalog.cursors.publish_snapshot(change, loser, size_bytes=50), "and again"
    assert world.intents() == [loser.ledger_id]


@pytest.mark.postgres
def test_snapshot_thirty_two_at_once_leave_one_ledger(world: World) -> None:
    """Of racing snapshots one is the cursor's, and every other newborn has an intent."""
    topic_id, (ledger,) = _topic(world)
    acknowledge(world, topic_id, CURSOR, (ledger, 5))
    change = change_of(world, topic_id)

    def run(_: int) -> bool:
        made = snapshot(cursor_newborn(world, topic_id), (ledger, 5))
        return world.catalog.cursors.publish_snapshot(change, made, size_bytes=50)

    answers = race(run)
    assert sorted(map(bool, answers)) == [False] * 31 + [True], answers
    (winner,) = _cursor_ledgers(world, topic_id)
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR).snapshot_ledger == winner
    assert len(world.intents()) == 31
    assert winner not in world.intents()


def test_acknowledge_without_the_snapshot_is_refused_and_names_it(world: World) -> None:
    """Nobody works on half a state: absent or another one, the commit says which ledger it needs."""
    topic_id, (ledger,) = _topic(world)
    old = publish(world, topic_id, (ledger, 5))
    held = publish(world, topic_id, (ledger, 5), (ledger, 7))
    before = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    for carried in (None, old):
        refused = acknowledge_with(world, topic_id, carried, (ledger, 0))
        assert isinstance(refused, SnapshotNeeded)
        assert refused.needed == held.ledger_id
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR) == before


@pytest.mark.postgres
def test_acknowledge_with_the_snapshot_moves_over_both_parts(world: World) -> None:
    """Mark-delete advances over what the snapshot holds; the row takes no more than the rest."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 1), (ledger, 2), (ledger, 6))
    answer = acknowledge_with(world, topic_id, held, (ledger, 4), (ledger, 6))
    assert answer == AcknowledgeResult(mark_delete=at(ledger, -1))
    row = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert covered(row.state, [(ledger, e) for e in _TEN]) == {(ledger, 4)}
    answer = acknowledge_with(world, topic_id, held, (ledger, 0))
    assert isinstance(answer, AcknowledgeResult)
    assert (answer.mark_delete, answer.snapshot_ledger) == (at(ledger, 2), held.ledger_id)
    row = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert answer.row_bytes > 0
    answer = acknowledge_with(world, topic_id, held, up_to=(ledger, 4))
    assert answer == AcknowledgeResult(mark_delete=at(ledger, 4))
    answer = acknowledge_with(world, topic_id, held, (ledger, 5))
    assert isinstance(answer, AcknowledgeResult)
    assert (answer.mark_delete, answer.row_bytes) == (at(ledger, 6), 0)
    assert state_of(world, topic_id, held) == CursorState(at(ledger, 6))


def test_acknowledge_in_one_commit_share_a_snapshot(world: World) -> None:
    """Two writes to one cursor are applied one on top of the other; one that lacks the snapshot fails alone."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 1), (ledger, 3))
    writes = [
        acknowledgement(topic_id, held, (ledger, 0)),
        acknowledgement(topic_id, None, (ledger, 9)),
        acknowledgement(topic_id, held, (ledger, 2)),
    ]
    first, refused, last = world.catalog.commits.commit_writes(writes)
    assert (first, last) == (AcknowledgeResult(mark_delete=at(ledger, 1)), AcknowledgeResult(mark_delete=at(ledger, 3)))
    assert isinstance(refused, SnapshotNeeded)
    assert not state_of(world, topic_id, held).covers(at(ledger, 9))


def test_acknowledge_with_a_snapshot_that_the_cursor_has_no_more_is_not_mistaken(world: World) -> None:
    """After a seek the row is the whole, whatever the sender still carries."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 1), (ledger, 2))
    world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(ledger, 0))
    answer = acknowledge_with(world, topic_id, held, (ledger, 0))
    assert isinstance(answer, AcknowledgeResult)
    assert (answer.mark_delete, answer.snapshot_ledger) == (at(ledger, 0), None)


def test_seek_retires_the_snapshot_and_counts(world: World) -> None:
    """A seek replaces the whole state; the ledger that held it is not left behind (apache/pulsar#982)."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 5))
    moved = world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(ledger, 2))
    assert (moved.state, moved.snapshot_ledger, moved.seeks) == (CursorState(at(ledger, 1)), None, 1)
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR) == moved
    assert world.intents() == [held.ledger_id]
    assert [told.reason for told in world.audited("retire")] == ["the cursor was moved by a seek"]
    assert _cursor_ledgers(world, topic_id) == []
    again = world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(ledger, 2))
    assert (again.seeks, world.intents()) == (2, [held.ledger_id])


def test_fold_takes_the_state_back_into_the_row(world: World) -> None:
    """The whole state stands in the row, and the ledger is retired in the same transaction."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 5))
    acknowledge_with(world, topic_id, held, (ledger, 7))
    before = state_of(world, topic_id, held)
    change = change_of(world, topic_id)
    assert world.catalog.cursors.move_snapshot_into_row(change, held, limit_bytes=1000)
    assert state_of(world, topic_id, None) == before
    assert world.intents() == [held.ledger_id]
    assert not world.catalog.cursors.move_snapshot_into_row(change, held, limit_bytes=1000), "it is done already"
    assert world.intents() == [held.ledger_id]
    assert [told.reason for told in world.audited("retire")] == ["folded into its cursor's row"]


@pytest.mark.parametrize("why", ["large", "superseded", "sought", "deleting"])
def test_fold_of_what_is_large_or_changed_does_nothing(world: World, why: str) -> None:
    """A row that is not as it was read is left alone."""
    topic_id, (ledger,) = _topic(world)
    held = publish(world, topic_id, (ledger, 5))
    change = change_of(world, topic_id)
    if why == "superseded":
        publish(world, topic_id, (ledger, 5))
    elif why == "sought":
        world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(ledger, 1))
    elif why == "deleting":
        world.set_state(topic_id, TopicState.DELETING)
    before = world.catalog.cursors.get_cursor(topic_id, CURSOR)
    assert not world.catalog.cursors.move_snapshot_into_row(change, held, limit_bytes=10 if why == "large" else 1000)
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR) == before


def test_detach_by_force_never_lets_a_cursor_with_a_snapshot_overtake(world: World) -> None:
    """It moves by the row alone and may stop short; the next acknowledgement, empty too, moves on (pulsar#9136)."""
    topic_id, (first, second, third) = _topic(world, 3)
    held = publish(world, topic_id, *((first, e) for e in range(1, 10)), *((third, e) for e in range(5)))
    world.detach(topic_id, [second])
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR).state.mark_delete == at(first, -1)
    answer = acknowledge_with(world, topic_id, held, (first, 0))
    assert answer == AcknowledgeResult(mark_delete=at(third, 4))
    world.catalog.cursors.seek_cursor(topic_id, CURSOR, at(first, 0))
    held = publish(world, topic_id, *((third, e) for e in range(5)))
    world.detach(topic_id, [first])
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR).state.mark_delete < at(third, 0)
    assert acknowledge_with(world, topic_id, held) == AcknowledgeResult(mark_delete=at(third, 4))


def test_newborn_of_a_cursor_that_was_abandoned_is_detached_by_the_trim(world: World) -> None:
    """A trim takes abandoned newborns of every component, and none that is young (apache/pulsar#350)."""
    topic_id, _ = _topic(world)
    old, young = cursor_newborn(world, topic_id), cursor_newborn(world, topic_id)
    world.age(old, seconds=601)
    assert world.phase_one(topic_id).intents == 1
    assert world.intents() == [old]
    intent = _intent(world, old)
    assert (intent.component, intent.keys, intent.segments) == ("MANAGED_CURSOR", {"cursor": CURSOR}, 0)
    assert young in world.rows().ledgers


def test_publication_of_a_newborn_abandoned_too_early_lets_phase_two_look_again(world: World) -> None:
    """A creator that woke late has put objects since: its intent is open again, and nothing is listed."""
    topic_id, (ledger,) = _topic(world)
    change = change_of(world, topic_id)
    late = snapshot(cursor_newborn(world, topic_id), (ledger, 5))
    world.age(late.ledger_id, seconds=601)
    world.phase_one(topic_id)
    abandoned = _intent(world, late.ledger_id)
    gone = IntentResult(row_id=abandoned.row_id, outcome=Outcome.ALREADY_GONE)
    world.catalog.deletions.record_outcomes([gone], holder=abandoned.batch_id)
    assert not world.catalog.cursors.publish_snapshot(change, late, size_bytes=50)
    assert world.catalog.cursors.get_cursor(topic_id, CURSOR).snapshot_ledger is None
    intent = _intent(world, late.ledger_id)
    assert (intent.state, intent.batch_id) == (DeletionState.PENDING, "")
