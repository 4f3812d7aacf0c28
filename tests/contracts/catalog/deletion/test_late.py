"""Who came too late: phase two looks again wherever an upload may have landed behind its back, and nowhere else."""

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import LedgerFenced
from logstore.log.ledgers import Component, CopyKind
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.contracts.catalog.offload.test_offloads import offloaded, remove
from tests.contracts.catalog.steps import filled, listed, new_topic, newborn, race, segment
from tests.contracts.catalog.world import World


def _intents(world: World, ledger_id: LedgerId) -> dict[CopyKind, DeletionIntent]:
    rows = world.catalog.deletions.list_intents(None, limit=100)
    return {row.copy: row for row in rows if row.ledger_id == ledger_id}


def _end(world: World, ledger_id: LedgerId, outcome: Outcome = Outcome.DELETED) -> DeletionIntent:
    """Phase two ends for the primary copy; its row."""
    row = _intents(world, ledger_id)[CopyKind.LEDGER]
    ended = world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=outcome, error="e")], holder=row.batch_id
    )
    assert ended == {row.row_id}
    return _intents(world, ledger_id)[CopyKind.LEDGER]


def _deleted(world: World, *, ledgers: int = 2) -> tuple[Topic, LedgerId]:
    """A topic and its first ledger, which is gone."""
    topic = new_topic(world)
    first = filled(world, topic.topic_id, ledgers)[0]
    world.phase_one(topic.topic_id, [first], batch_id="b")
    _end(world, first)
    return topic, first


def test_give_up_on_a_deleted_ledger_lets_phase_two_look_again(world: World) -> None:
    """What was uploaded landed when phase two had ended: the next trim takes the intent up, whoever had it."""
    topic, gone = _deleted(world)
    world.catalog.ledgers.record_abandoned_upload(gone, epoch=1)
    row = _intents(world, gone)[CopyKind.LEDGER]
    assert (row.state, row.outcome, row.batch_id, row.handed_to) == (DeletionState.PENDING, None, "", None)
    assert world.phase_one(topic.topic_id, batch_id="next").intents == 1


@pytest.mark.postgres
def test_row_counts_how_often_it_was_opened_after_it_had_ended(world: World) -> None:
    """Told of by its workflow's id; what is still on its way is not opened, however often somebody gives up."""
    topic, gone = _deleted(world)
    found = []
    for number in range(2):
        for _ in range(2):
            world.catalog.ledgers.record_abandoned_upload(gone, epoch=1)
        found.append(_intents(world, gone)[CopyKind.LEDGER].openings)
        world.phase_one(topic.topic_id, batch_id=f"again-{number}")
        _end(world, gone)
    assert found == [1, 2]


def test_give_up_repeated_is_one_intent_that_ends_as_before(world: World) -> None:
    """Told twice, or told with an answer that got lost: one more look, and no second row."""
    topic, gone = _deleted(world)
    for _ in range(2):
        world.catalog.ledgers.record_abandoned_upload(gone, epoch=1)
    assert world.intents() == [gone]
    assert world.phase_one(topic.topic_id, batch_id="next").intents == 1
    assert _end(world, gone, Outcome.ALREADY_GONE).state is DeletionState.DELETED


def test_give_up_while_phase_two_is_at_work_takes_the_row_from_it(world: World) -> None:
    """An attempt that listed before the upload landed may not end the row afterwards."""
    topic = new_topic(world)
    gone = filled(world, topic.topic_id, 2)[0]
    world.phase_one(topic.topic_id, [gone], batch_id="early")
    row = _intents(world, gone)[CopyKind.LEDGER]
    world.catalog.ledgers.record_abandoned_upload(gone, epoch=1)
    late = IntentResult(row_id=row.row_id, outcome=Outcome.DELETED)
    assert world.catalog.deletions.record_outcomes([late], holder="early") == frozenset()
    assert world.phase_one(topic.topic_id, batch_id="next").intents == 1


@pytest.mark.parametrize("component", [Component.MANAGED_LEDGER, Component.SCHEMA_STORAGE])
def test_give_up_on_a_newborn_taken_for_abandoned_lets_phase_two_look_again(world: World, component: Component) -> None:
    """Its creator put a `meta.json` that nobody answered for."""
    topic = new_topic(world)
    if component is Component.MANAGED_LEDGER:
        born = newborn(world, topic.topic_id)
    else:
        keys = {"schema": topic.name}
        born = world.catalog.components.create_component_ledger(
            topic.topic_id, component, keys, application="sexton"
        ).ledger_id
    world.age(born, seconds=601)
    assert world.phase_one(topic.topic_id).intents == 1
    _end(world, born, Outcome.ALREADY_GONE)
    world.catalog.ledgers.record_abandoned_upload(born, epoch=1)
    assert _intents(world, born)[CopyKind.LEDGER].state is DeletionState.PENDING


def test_give_up_on_what_will_be_looked_at_anyway_changes_nothing(world: World) -> None:
    """A listed ledger, open or closed, a newborn, and one that no catalog ever had."""
    topic, _ = _deleted(world, ledgers=3)
    born = newborn(world, topic.topic_id)
    before = world.everything()
    for ledger_id in (*listed(world, topic.topic_id), born, LedgerId(born + 1)):
        world.catalog.ledgers.record_abandoned_upload(ledger_id, epoch=1)
    assert world.everything() == before


def test_give_up_on_a_listed_ledger_leaves_an_intent_that_speaks_of_it(world: World) -> None:
    """An intent for a copy that stands is nobody's errand (PIP-186): opened again it could only be refused."""
    topic, gone = _deleted(world)
    (kept,) = listed(world, topic.topic_id)
    world.forge(_intents(world, gone)[CopyKind.LEDGER].row_id, kept, CopyKind.LEDGER)
    before = world.everything()
    world.catalog.ledgers.record_abandoned_upload(kept, epoch=1)
    assert world.everything() == before


def test_give_up_speaks_of_the_primary_copy_alone(world: World) -> None:
    """Nobody appends to a tiered copy; who uploads those has a way of its own to give up."""
    topic = new_topic(world)
    first, _ = filled(world, topic.topic_id, 2)
    offloaded(world, first)
    assert world.phase_one(topic.topic_id, [first], batch_id="b").intents == 2
    ended = [IntentResult(row_id=row.row_id, outcome=Outcome.DELETED) for row in _intents(world, first).values()]
    assert len(world.catalog.deletions.record_outcomes(ended, holder="b")) == 2
    world.catalog.ledgers.record_abandoned_upload(first, epoch=1)
    states = {copy: row.state for copy, row in _intents(world, first).items()}
    assert states == {
        CopyKind.LEDGER: DeletionState.PENDING,
        CopyKind.OFFLOADED_LEDGER: DeletionState.DELETED,
    }


def test_give_up_in_another_catalog_changes_nothing(world: World) -> None:
    """That catalog's ledger of this id is not ours: what it left is for people to look at."""
    _, gone = _deleted(world)
    before = world.everything()
    world.catalog.ledgers.record_abandoned_upload(gone, epoch=7)
    assert world.everything() == before


def test_give_up_leaves_a_dead_letter_to_people(world: World) -> None:
    """A refusal stands: storage said that something there is another's."""
    topic = new_topic(world)
    gone = filled(world, topic.topic_id, 2)[0]
    world.phase_one(topic.topic_id, [gone], batch_id="b")
    _end(world, gone, Outcome.METADATA_MISMATCH)
    before = world.everything()
    world.catalog.ledgers.record_abandoned_upload(gone, epoch=1)
    assert world.everything() == before


@pytest.mark.parametrize("asks", [True, False])
def test_late_upload_to_a_ledger_whose_primary_copy_alone_was_removed_is_looked_for(world: World, asks: bool) -> None:
    """The ledger is listed, and nothing will ever list its primary prefix again; its tiered copy stays."""
    topic = new_topic(world)
    first, _ = filled(world, topic.topic_id, 2)
    offloaded(world, first)
    assert remove(world, topic, first).intents == 1
    _end(world, first)
    if asks:
        (refused,) = world.catalog.commits.commit_writes([segment(topic.topic_id, first, 5)])
        assert isinstance(refused, LedgerFenced)
    else:
        world.catalog.ledgers.record_abandoned_upload(first, epoch=1)
    assert _intents(world, first)[CopyKind.LEDGER].state is DeletionState.PENDING
    assert first in listed(world, topic.topic_id)
    assert remove(world, topic, batch_id="next").intents == 1


@pytest.mark.postgres
def test_give_up_racing_with_phase_two_never_leaves_the_row_ended(world: World) -> None:
    """Whichever comes first, the row is open in the end: who looked before may not end it."""
    topic = new_topic(world)
    *gone, _ = filled(world, topic.topic_id, 9)
    world.phase_one(topic.topic_id, gone, batch_id="b")
    rows = [_intents(world, ledger_id)[CopyKind.LEDGER] for ledger_id in gone]
    ended = [IntentResult(row_id=row.row_id, outcome=Outcome.DELETED) for row in rows]

    def act(number: int) -> object:
        if number == 0:
            return world.catalog.deletions.record_outcomes(ended, holder="b")
        world.catalog.ledgers.record_abandoned_upload(gone[number - 1], epoch=1)
        return None

    answers = race(act, len(gone) + 1)
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert world.catalog.deletions.count_undeleted_copies().estimated_inflight == len(gone)
