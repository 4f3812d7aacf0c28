"""Boundary ids are ordinary values in every filter (apache/bookkeeper#950: `> 0` where `>= 0` was meant)."""

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import InvalidInput, UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import IntentResult, IntentRowRange
from logstore.ports.catalog.log import AcknowledgeResult
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import acknowledge, append, at, listed, new_topic, newborn, roll
from tests.contracts.catalog.worlds import World, claim

_HIGHEST = 2**63 - 1  # what the counter itself may reach
_EVERYTHING = IntentRowRange(first=0, last=_HIGHEST, rows=0)


@pytest.mark.postgres
@pytest.mark.parametrize("first", [0, _HIGHEST - 3])
def test_ledger_of_a_boundary_id_lives_and_goes_as_any_other(world: World, first: int) -> None:
    """The lowest and highest ids are listed, read, acknowledged, detached, claimed, ended (apache/bookkeeper#950)."""
    world.start_ids_at(LedgerId(first))
    topic = new_topic(world)
    ledgers = [roll(world, topic.topic_id) for _ in range(2)]
    assert ledgers == listed(world, topic.topic_id) == [first, first + 1]
    cursors, deletions = world.catalog.cursors, world.catalog.deletions
    assert cursors.create_subscription(topic.topic_id, "billing", latest=False).state == CursorState(at(first, -1))
    assert world.catalog.phase_one.preview_detach(topic.topic_id, None, force=False) == [
        first
    ]  # closed, empty, and needed by nobody
    last = roll(world, topic.topic_id)
    append(world, topic.topic_id, last, entries=2)
    assert world.catalog.ledgers.list_segments(last)[0].first_entry == 0
    answer = acknowledge(world, topic.topic_id, "billing", (last, 0))
    assert isinstance(answer, AcknowledgeResult)
    assert answer.mark_delete == at(last, 0)
    assert cursors.seek_cursor(topic.topic_id, "billing", at(last, 0)).state == CursorState(at(last, -1))
    assert world.phase_one(topic.topic_id, [LedgerId(first)]).ledgers == 1
    assert world.phase_one(topic.topic_id).ledgers == 1
    assert listed(world, topic.topic_id) == [last]
    for ledger_id in ledgers:
        taken = deletions.claim_intent(ledger_id, CopyKind.LEDGER, 1, claim())
        assert deletions.record_outcomes([IntentResult(row_id=taken.row_id, outcome=Outcome.DELETED)], holder="w")
    assert sorted(one.ledger_id for one in deletions.list_intents(DeletionState.DELETED, limit=9)) == ledgers


def test_newborn_of_ledger_zero_is_abandoned_as_any_other(world: World) -> None:
    """An id of zero is no absent id (apache/bookkeeper#950)."""
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    assert born == 0
    world.age(born, seconds=601)
    assert world.phase_one(topic.topic_id, batch_id="b").intents == 1
    assert [one.ledger_id for one in world.catalog.deletions.list_intents_in_range("b", _EVERYTHING)] == [0]
    assert not world.catalog.ledgers.attach_ledger(born, after=None)


@pytest.mark.parametrize("ledger_id", [-1, 0, _HIGHEST])
def test_absent_ledger_of_a_boundary_id_is_unknown_and_touches_nothing(world: World, ledger_id: int) -> None:
    """No id stands for everything, or for nothing (apache/bookkeeper#950)."""
    world.start_ids_at(LedgerId(5))
    topic = new_topic(world)
    kept = [roll(world, topic.topic_id) for _ in range(2)]
    absent, deletions = LedgerId(ledger_id), world.catalog.deletions
    for force in (False, True):
        with pytest.raises(UnknownObject, match="ledger"):
            world.phase_one(topic.topic_id, [absent], force=force)
    with pytest.raises(UnknownObject):
        deletions.claim_intent(absent, CopyKind.LEDGER, 1, claim())
    assert not world.catalog.ledgers.attach_ledger(absent, after=None)
    assert world.catalog.ledgers.list_segments(absent) == []
    assert listed(world, topic.topic_id) == kept
    assert world.intents() == []


@pytest.mark.parametrize("after", [-1, 0, _HIGHEST])
def test_ranges_and_intents_take_boundary_row_ids(world: World, after: int) -> None:
    """Before the first row there is everything, behind the last one nothing (apache/bookkeeper#950)."""
    topic = new_topic(world)
    for _ in range(3):
        roll(world, topic.topic_id)
    world.phase_one(topic.topic_id, batch_id="b")
    found = world.catalog.deletions.list_unfinished_ranges("b", after=after, rows=9, limit=9)
    assert [part.rows for part in found] == ([] if after == _HIGHEST else [2])
    whole = IntentRowRange(first=-1, last=_HIGHEST, rows=0)
    assert len(world.catalog.deletions.list_intents_in_range("b", whole)) == 2
    assert (
        world.catalog.deletions.list_intents_in_range("b", IntentRowRange(first=_HIGHEST, last=_HIGHEST, rows=0)) == []
    )


@pytest.mark.parametrize("position", [(-1, -1), (-1, 0), (0, -1), (_HIGHEST, 0), (0, _HIGHEST)])
def test_acknowledging_a_boundary_position_of_no_entry_changes_nothing(world: World, position: tuple[int, int]) -> None:
    """What no entry has had is refused, or is behind the cursor already (apache/bookkeeper#950)."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    append(world, topic.topic_id, ledger, entries=2)
    before = world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    answer = acknowledge(world, topic.topic_id, "billing", position)
    assert isinstance(answer, InvalidInput | AcknowledgeResult)
    assert world.catalog.cursors.get_cursor(topic.topic_id, "billing").state == before.state
