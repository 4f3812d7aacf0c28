"""Whoever is at work while a topic is deleted, or comes late: nothing of theirs is forgotten."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import event

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import InvalidInput, PreconditionFailed, SextonError, UnknownObject
from logstore.log.ledgers import Component, CopyKind
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.log import RegisterSegmentResult, Topic
from tests.contracts.catalog.delayed.steps import bucket, seal_of
from tests.contracts.catalog.delayed.steps import newborn as sealing
from tests.contracts.catalog.deletion.topic_deletion_steps import (
    OTHER,
    begin,
    delete,
    detach_all,
    intents,
    left_of,
    remove,
    rich,
)
from tests.contracts.catalog.log.component_steps import CURSOR, change_of, snapshot
from tests.contracts.catalog.steps import (
    acknowledge,
    at,
    filled,
    listed,
    new_topic,
    newborn,
    race,
    roll,
    segment,
)
from tests.contracts.catalog.worlds import SqlWorld, World, claim

pytestmark = pytest.mark.postgres


def test_attach_of_a_newborn_during_the_deletion_is_refused(world: World) -> None:
    """Its row stands until phase one takes it; after that its creator is told that it is gone."""
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    begin(world, topic)
    with pytest.raises(PreconditionFailed, match="found DELETING"):
        world.catalog.ledgers.attach_ledger(born, after=None)
    detach_all(world, topic)
    assert world.catalog.ledgers.attach_ledger(born, after=None) is False


@pytest.mark.parametrize("removed", [False, True])
def test_creator_that_wakes_late_has_its_intent_opened_again(world: World, removed: bool) -> None:
    """It has put a meta.json since phase two found nothing, also where the topic's row is gone (apache/pulsar#350)."""
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    begin(world, topic)
    detach_all(world, topic)
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)], holder="all"
    )
    assert not removed or remove(world, topic)
    assert world.catalog.ledgers.attach_ledger(born, after=None) is False
    (again,) = world.catalog.deletions.list_intents(None, limit=9)
    assert (again.state, again.topic, again.outcome) == (DeletionState.PENDING, topic.name, None)
    assert (
        world.catalog.deletions.claim_intent(born, CopyKind.LEDGER, again.generation, claim("sweep")).row_id
        == row.row_id
    )


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(
    "component",
    [
        Component.MANAGED_CURSOR,
        Component.SCHEMA_STORAGE,
        pytest.param(Component.DELAYED_INDEX, marks=pytest.mark.sql),
    ],
)
def test_creator_of_a_component_that_wakes_late_has_its_intent_opened_again(
    world: World, component: Component, removed: bool
) -> None:
    """What it has put is not forgotten, also where the topic's row is gone (apache/pulsar#350, #982)."""
    topic = new_topic(world)
    world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=True)
    change = change_of(world, topic.topic_id)
    keys = {"MANAGED_CURSOR": {"cursor": CURSOR}, "SCHEMA_STORAGE": {"schema": topic.name}}.get(component.value, {})
    create = world.catalog.components.create_component_ledger
    born = create(topic.topic_id, component, keys, application="sexton").ledger_id

    def publish() -> object:
        if component is Component.MANAGED_CURSOR:
            return world.catalog.cursors.publish_snapshot(change, snapshot(born, (0, 1)), size_bytes=50)
        if component is Component.DELAYED_INDEX:
            return world.catalog.delayed.switch_buckets(
                seal_of(topic.topic_id, bucket(born, at(0, 0), at(0, 9)), expected=0)
            )
        publish_ = world.catalog.schemas.publish_schema_version
        return publish_(topic.topic_id, born, digest="d", content_bytes=7, size_bytes=900)

    begin(world, topic)
    detach_all(world, topic)
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)], holder="all"
    )
    assert not removed or remove(world, topic)
    assert not publish()
    (again,) = world.catalog.deletions.list_intents(None, limit=9)
    assert (again.state, again.component, again.keys) == (DeletionState.PENDING, component.value, keys)
    assert removed or remove(world, topic)


@pytest.mark.external_service
def test_attach_whose_topic_goes_between_two_reads_is_false(postgres_url: str) -> None:
    """No list, no topic: it is answered as a newborn that is gone, and not with an error of the database's."""
    world = SqlWorld(postgres_url)  # SQLite lets no other writer come between
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    seen: list[str] = []

    @event.listens_for(world.database.engine, "before_cursor_execute")
    def between(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT topic.") and not seen:
            seen.append(statement)
            thread = threading.Thread(target=delete, args=(world, topic))
            thread.start()
            thread.join()

    assert world.catalog.ledgers.attach_ledger(born, after=None) is False
    assert seen
    assert left_of(world, topic.topic_id) == {}
    world.database.close()


def test_delete_topic_thirty_two_at_once_is_done_once(world: World) -> None:
    """Whoever comes second finds it begun, detached or gone; one row a copy, one audit row an act."""
    topic = new_topic(world)
    copies = rich(world, topic)
    answers = race(lambda number: (begin(world, topic), detach_all(world, topic, f"b{number}"), remove(world, topic)))
    assert {answer[2] for answer in answers if isinstance(answer, tuple)} == {True}
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert sum(answer[1].ledgers for answer in answers if isinstance(answer, tuple)) == len({one for one, _ in copies})
    assert intents(world) == copies
    assert [len(world.audited(act)) for act in ("delete-topic", "detach", "remove-topic")] == [1, 1, 1]


@pytest.mark.sql
def test_delete_topic_against_everything_at_once_forgets_no_ledger(world: World) -> None:
    """Append, roll, subscribe, seek, acknowledge, trim, seal, clear and create of the same name run meanwhile.

    Afterwards every ledger id has one intent, or belongs to the topic that was created again. And the deletion gets
    its turn, however busy the topic is: it once waited as long as others overlapped.
    """
    topic = new_topic(world)
    filled(world, topic.topic_id, 3)
    world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=False)
    gone = threading.Event()
    born: list[Topic] = []

    def append_() -> None:
        last = world.catalog.ledgers.last_ledger(topic.topic_id)
        if last:
            write = segment(topic.topic_id, last.ledger_id, last.last_segment + 1)
            world.catalog.commits.commit_writes([replace(write, delayed=1)])

    def seal_() -> None:
        made = bucket(sealing(world, topic.topic_id), at(0, 0), at(0, 9))
        expected = world.catalog.delayed.get_bucket_list(topic.topic_id).version
        world.catalog.delayed.switch_buckets(seal_of(topic.topic_id, made, expected=expected))

    def acknowledge_() -> None:
        acknowledge(world, topic.topic_id, "s", up_to=(0, 9))

    work: list[Callable[[], object]] = [
        append_,
        lambda: roll(world, topic.topic_id),
        lambda: newborn(world, topic.topic_id),
        lambda: world.catalog.cursors.create_subscription(topic.topic_id, "late", latest=True),
        lambda: world.catalog.cursors.seek_cursor(topic.topic_id, "s", at(0, 0)),
        acknowledge_,
        lambda: world.phase_one(topic.topic_id),
        seal_,
        lambda: world.catalog.delayed.retire_all_buckets(topic.topic_id, reason="asked"),
        lambda: born.append(new_topic(world)),
    ]

    def run(number: int) -> list[Exception]:
        odd: list[Exception] = []
        if number == len(work):
            time.sleep(0.05)
            try:
                delete(world, topic)
            finally:
                gone.set()
        while number < len(work) and not gone.is_set():
            try:
                work[number]()
            except (AssertionError, SextonError) as error:
                odd += [] if isinstance(error, AssertionError | PreconditionFailed | InvalidInput) else [error]
            time.sleep(0.001)
        return odd

    assert race(run, len(work) + 1) == [[]] * (len(work) + 1)
    again = born[0] if born else new_topic(world)
    assert left_of(world, topic.topic_id) == {}
    created = world.catalog.ledgers.create_ledger(again.topic_id, application="sexton").ledger_id
    assert sorted([*world.intents(), *listed(world, again.topic_id)]) == list(range(created))


@pytest.mark.parametrize("removed", [False, True])
def test_writer_that_comes_late_has_its_ledgers_intent_opened_again(world: World, removed: bool) -> None:
    """It uploaded a segment before it was refused, perhaps behind phase two's back: that looks again."""
    topic, other = new_topic(world), new_topic(world, OTHER)
    (ledger,) = filled(world, topic.topic_id, 1)
    theirs = filled(world, other.topic_id, 2)
    begin(world, topic)
    world.catalog.commits.commit_writes(
        [segment(topic.topic_id, ledger, 5)]
    )  # its row is there: nothing was deleted yet
    detach_all(world, topic)
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.DELETED, objects=2)], holder="all"
    )
    assert not removed or remove(world, topic)
    stale = segment(topic.topic_id, ledger, 6, epoch=7)
    world.catalog.commits.commit_writes([stale])  # of another catalog: not our ledger
    assert world.catalog.deletions.count_undeleted_copies().estimated_inflight == 0
    refused, taken = world.catalog.commits.commit_writes(
        [segment(topic.topic_id, ledger, 6), segment(other.topic_id, theirs[1], 6)]
    )
    assert isinstance(refused, PreconditionFailed | UnknownObject)
    assert isinstance(taken, RegisterSegmentResult)
    assert world.catalog.deletions.count_undeleted_copies().estimated_inflight == 1
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    assert (row.ledger_id, row.batch_id, row.handed_to) == (ledger, "", None)
    late = IntentResult(row_id=row.row_id, outcome=Outcome.DELETED)
    assert world.catalog.deletions.record_outcomes([late], holder="all") == frozenset()  # what it saw is no longer true


def test_writer_that_comes_late_to_a_dead_letter_leaves_it_to_people(world: World) -> None:
    """A refusal stands: storage said that something there is another's."""
    topic = new_topic(world)
    (ledger,) = filled(world, topic.topic_id, 1)
    begin(world, topic)
    detach_all(world, topic)
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    letter = IntentResult(row_id=row.row_id, outcome=Outcome.METADATA_MISMATCH, error="theirs")
    world.catalog.deletions.record_outcomes([letter], holder="all")
    world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 6)])
    assert world.catalog.deletions.list_intents(None, limit=9)[0].outcome is Outcome.METADATA_MISMATCH
