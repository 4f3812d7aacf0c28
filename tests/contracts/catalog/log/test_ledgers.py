"""Ledgers: created, attached, closed; what becomes of those that lose."""

import pytest

from logstore.errors import PreconditionFailed, UnknownObject
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.ports.catalog.log import Segment, TopicState
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import append, filled, listed, new_topic, newborn, race, roll, segment
from tests.contracts.catalog.worlds import World


def test_create_ledger_in_new_catalog_has_id_zero_and_is_ordinary(world: World) -> None:
    """Id 0 is a ledger like every other (apache/bookkeeper#950)."""
    topic = new_topic(world)
    statement = world.catalog.ledgers.create_ledger(topic.topic_id, application="sexton")
    assert statement.ledger_id == 0
    assert statement.epoch == world.catalog.ledgers.catalog_epoch() == 1
    assert statement.owner.application == "sexton"
    assert statement.owner.component is Component.MANAGED_LEDGER
    assert (statement.owner.topic, statement.owner.topic_id) == (topic.name, topic.topic_id)
    assert world.catalog.ledgers.attach_ledger(LedgerId(0), after=None)
    assert roll(world, topic.topic_id) == 1
    assert listed(world, topic.topic_id) == [0, 1]


@pytest.mark.postgres
def test_create_ledger_thirty_two_at_once_no_id_twice(world: World) -> None:
    """Ids are never given twice."""
    topic = new_topic(world)
    ids = race(lambda _: newborn(world, topic.topic_id))
    assert sorted(ids) == list(range(32))  # type: ignore[type-var]  # all are ids
    assert listed(world, topic.topic_id) == []


def test_create_ledger_unknown_or_deleting_topic_is_refused(world: World) -> None:
    """A topic that is being deleted gets no new ledgers."""
    topic = new_topic(world)
    with pytest.raises(UnknownObject):
        newborn(world, TopicId(topic.topic_id + 1))
    world.set_state(topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
        newborn(world, topic.topic_id)


def test_attach_closes_the_last_one_and_opens_the_next(world: World) -> None:
    """One ledger of a list is open: its last."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    append(world, topic.topic_id, first, entries=7, size_bytes=70)
    second = roll(world, topic.topic_id)
    old, new = world.catalog.ledgers.list_ledgers(topic.topic_id)
    assert (old.ledger_id, old.state, old.entries, old.size_bytes) == (first, LedgerState.CLOSED, 7, 70)
    assert old.closed_us is not None
    assert old.closed_us >= old.created_us
    assert (new.ledger_id, new.state, new.entries, new.closed_us) == (second, LedgerState.OPEN, 0, None)
    assert (new.last_segment, new.copies) == (-1, (CopyKind.LEDGER,))
    assert world.catalog.ledgers.last_ledger(topic.topic_id) == new


def test_attach_repeated_is_true_again_and_changes_nothing(world: World) -> None:
    """A caller unsure of its commit may ask again, also after the ledger was closed in its turn."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    assert world.catalog.ledgers.attach_ledger(first, after=None)
    roll(world, topic.topic_id)
    before = world.catalog.ledgers.list_ledgers(topic.topic_id)
    assert world.catalog.ledgers.attach_ledger(first, after=None)
    assert world.catalog.ledgers.list_ledgers(topic.topic_id) == before
    assert world.intents() == []


@pytest.mark.postgres
def test_attach_behind_another_than_the_last_files_the_newborns_intent(world: World) -> None:
    """A newborn whose registration lost is filed for deletion, not forgotten (apache/pulsar#350)."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    late = newborn(world, topic.topic_id)
    second = roll(world, topic.topic_id)
    assert not world.catalog.ledgers.attach_ledger(late, after=first)
    assert not world.catalog.ledgers.attach_ledger(late, after=second)
    later = newborn(world, topic.topic_id)
    assert not world.catalog.ledgers.attach_ledger(later, after=first)
    assert listed(world, topic.topic_id) == [first, second]
    assert world.intents() == [late, later]


@pytest.mark.postgres
def test_attach_older_newborn_behind_newer_last_is_refused(world: World) -> None:
    """A list ascends by id: an older newborn never stands behind a newer ledger, even if it names the last one."""
    topic = new_topic(world)
    older, newer = newborn(world, topic.topic_id), newborn(world, topic.topic_id)
    assert world.catalog.ledgers.attach_ledger(newer, after=None)
    assert not world.catalog.ledgers.attach_ledger(older, after=newer)
    assert listed(world, topic.topic_id) == [newer]
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].state is LedgerState.OPEN
    assert world.intents() == [older]


@pytest.mark.postgres
def test_attach_thirty_two_at_once_exactly_one_wins(world: World) -> None:
    """Exactly one newborn follows; every other one has its intent (apache/pulsar#350)."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    born = [newborn(world, topic.topic_id) for _ in range(32)]
    born.reverse()  # the last runner opens the gate and so goes first: with the oldest, all others could follow it
    answers = race(lambda number: world.catalog.ledgers.attach_ledger(born[number], after=first))
    assert sorted(answers) == [False] * 31 + [True]  # type: ignore[type-var]  # all are bool
    winner = born[answers.index(True)]
    assert listed(world, topic.topic_id) == [first, winner]
    assert world.intents() == sorted(ledger_id for ledger_id in born if ledger_id != winner)


def test_attach_after_detach_is_false(world: World) -> None:
    """A ledger that was attached and detached since is not in its list: the caller is told."""
    topic = new_topic(world)
    first, _ = filled(world, topic.topic_id, 2)
    world.detach(topic.topic_id, [first])
    assert not world.catalog.ledgers.attach_ledger(first, after=None)


def test_attach_deleting_topic_is_refused(world: World) -> None:
    """Roll requires ACTIVE in its own transaction."""
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    world.set_state(topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
        world.catalog.ledgers.attach_ledger(born, after=None)
    assert listed(world, topic.topic_id) == []


def test_segments_from_entry_are_those_that_hold_it_or_later(world: World) -> None:
    """Bounds: `from_entry` is inclusive, a segment's end is exclusive."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    writes = [segment(topic.topic_id, ledger, number, entries=5, size_bytes=9) for number in (0, 3, 19)]
    world.catalog.commits.commit_writes(writes)
    whole = [
        Segment(ledger_id=ledger, number=number, first_entry=first, entries=5, size_bytes=9, delayed=0)
        for number, first in ((0, 0), (3, 5), (19, 10))
    ]
    for from_entry, expected in ((0, whole), (4, whole), (5, whole[1:]), (14, whole[2:]), (15, [])):
        assert world.catalog.ledgers.list_segments(ledger, from_entry=from_entry) == expected
    assert world.catalog.ledgers.list_segments(LedgerId(ledger + 1)) == []


@pytest.mark.postgres
def test_ledgers_that_hold_entries_come_with_those_segments_alone(world: World) -> None:
    """Both bounds: a range ends before its stop. What is another topic's, or in no list, is left out."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    foreign, ledgers = roll(world, other.topic_id), []
    for _ in range(3):
        ledgers.append(roll(world, topic.topic_id))
        writes = [segment(topic.topic_id, ledgers[-1], number, entries=5, size_bytes=9) for number in (0, 3, 19)]
        world.catalog.commits.commit_writes(writes)
    gone = newborn(world, topic.topic_id)
    first, second, third = ledgers
    wanted = {third: range(5, 10), first: range(4, 6), second: range(15, 20), foreign: range(9), gone: range(9)}
    found = world.catalog.ledgers.find_segments_of_ranges(topic.topic_id, wanted)
    assert [(one.ledger_id, [row.number for row in rows]) for one, rows in found] == [
        (first, [0, 3]),
        (second, []),
        (third, [3]),
    ]
    assert [one for one, _ in found] == world.catalog.ledgers.list_ledgers(topic.topic_id)
    assert next(rows for _, rows in found) == world.catalog.ledgers.list_segments(first)[:2]
    assert world.catalog.ledgers.find_segments_of_ranges(topic.topic_id, {}) == []


def test_topics_do_not_see_each_others_ledgers(world: World) -> None:
    """Two topics, two lists."""
    one, two = new_topic(world), new_topic(world, "persistent://a/b/other")
    first, second = roll(world, one.topic_id), roll(world, two.topic_id)
    assert listed(world, one.topic_id) == [first]
    assert listed(world, two.topic_id) == [second]
    assert [ledger.topic_id for ledger in world.catalog.ledgers.list_ledgers(two.topic_id)] == [two.topic_id]
