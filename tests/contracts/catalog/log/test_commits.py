"""Group commit: every write is answered in its place, and none disturbs another."""

from itertools import pairwise

import pytest

from logstore.errors import (
    AlreadyExists,
    InvalidInput,
    LedgerFenced,
    PreconditionFailed,
    ProducerFenced,
    StaleCatalog,
    UnknownObject,
)
from logstore.log.entries import HighestSequenceIds
from logstore.ports.catalog.log import (
    AcknowledgeResult,
    AcknowledgeWrite,
    GroupCommitWrite,
    RegisterSegmentResult,
    TopicState,
)
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import CROWD, NAME, acknowledge, at, filled, new_topic, newborn, race, roll, segment
from tests.contracts.catalog.worlds import World


def test_commit_nothing_answers_nothing(world: World) -> None:
    """An empty batch is no error."""
    assert world.catalog.commits.commit_writes([]) == []


def test_commit_segments_answers_where_entries_went(world: World) -> None:
    """First entries follow each other, inside a batch and from batch to batch; numbers may have gaps."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    batch = [segment(topic.topic_id, ledger, 0, entries=3), segment(topic.topic_id, ledger, 17, entries=4)]
    assert world.catalog.commits.commit_writes(batch) == [
        RegisterSegmentResult(first_entry=0, ledger_entries=3, ledger_size_bytes=100),
        RegisterSegmentResult(first_entry=3, ledger_entries=7, ledger_size_bytes=200),
    ]
    (third,) = world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 18, entries=1, size_bytes=5)])
    assert third == RegisterSegmentResult(first_entry=7, ledger_entries=8, ledger_size_bytes=205)
    found = world.catalog.ledgers.last_ledger(topic.topic_id)
    assert found is not None
    assert (found.entries, found.size_bytes, found.last_segment) == (8, 205, 18)


@pytest.mark.postgres
def test_commit_one_of_every_refusal_does_not_disturb_the_others(world: World) -> None:
    """Each refused write is answered with its own error; good ones before, between and after are done."""
    topic, going = new_topic(world), new_topic(world, f"{NAME}-going")
    ledger, doomed = roll(world, topic.topic_id), roll(world, going.topic_id)
    born = newborn(world, topic.topic_id)
    world.set_state(going.topic_id, TopicState.DELETING)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    me = topic.topic_id
    plan: list[tuple[GroupCommitWrite, type]] = [
        (segment(me, ledger, 0, producers=[("p", 5, 9)]), RegisterSegmentResult),
        (segment(me, ledger, 1, epoch=2), StaleCatalog),
        (segment(TopicId(me + 99), ledger, 1), UnknownObject),
        (segment(going.topic_id, doomed, 0), PreconditionFailed),
        (segment(me, LedgerId(ledger + 99), 0), LedgerFenced),
        (segment(me, born, 0), LedgerFenced),
        (segment(me, ledger, 0), AlreadyExists),
        (segment(me, ledger, 1, producers=[("p", 9, 12)]), ProducerFenced),
        (segment(me, ledger, 1, producers=[("q", 0, 0), ("p", 7, 7)]), ProducerFenced),
        (segment(me, ledger, 1, producers=[("q", 0, 0), ("p", 10, 10)]), RegisterSegmentResult),
        (AcknowledgeWrite(topic_id=me, subscription="nobody", up_to=at(ledger, 0)), UnknownObject),
        (AcknowledgeWrite(topic_id=me, subscription="billing", positions=(at(ledger, 99),)), InvalidInput),
        (AcknowledgeWrite(topic_id=me, subscription="billing", up_to=at(ledger, 99)), InvalidInput),
        (AcknowledgeWrite(topic_id=me, subscription="billing", up_to=at(ledger, 12)), AcknowledgeResult),
    ]
    answers = world.catalog.commits.commit_writes([write for write, _ in plan])
    assert [type(answer) for answer in answers] == [expected for _, expected in plan]
    assert answers[9] == RegisterSegmentResult(first_entry=10, ledger_entries=20, ledger_size_bytes=200)
    assert answers[13] == AcknowledgeResult(mark_delete=at(ledger, 12))
    assert world.catalog.ledgers.producer_sequences(me, ["p", "q", "r"]) == {
        "p": HighestSequenceIds.without_transaction(10),
        "q": HighestSequenceIds.without_transaction(0),
    }
    assert [found.number for found in world.catalog.ledgers.list_segments(ledger)] == [0, 1]


def test_commit_segment_of_another_topics_ledger_is_fenced(world: World) -> None:
    """The topic that is checked to be ACTIVE is the ledger's own."""
    one, two = new_topic(world), new_topic(world, f"{NAME}-2")
    ledger = roll(world, one.topic_id)
    (answer,) = world.catalog.commits.commit_writes([segment(two.topic_id, ledger, 0)])
    assert isinstance(answer, LedgerFenced), answer
    assert world.catalog.ledgers.list_segments(ledger) == []


def test_commit_segment_of_closed_or_detached_ledger_is_fenced(world: World) -> None:
    """A write after a close or a delete fails (apache/bookkeeper#4462)."""
    topic = new_topic(world)
    first, second, _ = filled(world, topic.topic_id, 3)
    world.detach(topic.topic_id, [first])
    writes = [segment(topic.topic_id, first, 1), segment(topic.topic_id, second, 1)]
    assert [type(answer) for answer in world.catalog.commits.commit_writes(writes)] == [LedgerFenced, LedgerFenced]


@pytest.mark.postgres
def test_commit_same_write_again_is_refused(world: World) -> None:
    """Repeating a registration changes nothing: the number is taken, the sequence is behind."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    write = segment(topic.topic_id, ledger, 4, producers=[("p", 0, 9)])
    first, second = world.catalog.commits.commit_writes([write, write])
    assert isinstance(first, RegisterSegmentResult)
    assert isinstance(second, AlreadyExists)
    later = segment(topic.topic_id, ledger, 5, producers=[("p", 0, 9)])
    assert isinstance(world.catalog.commits.commit_writes([later])[0], ProducerFenced)
    assert world.catalog.ledgers.producer_sequences(topic.topic_id, ["p"]) == {
        "p": HighestSequenceIds.without_transaction(9)
    }


@pytest.mark.postgres
def test_commit_thirty_two_appenders_leave_no_gap_and_no_overlap(world: World) -> None:
    """However appends race, entries of a ledger are contiguous: every first entry is the sum of those before."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)

    def append(number: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < 2:
            last, turn = world.catalog.ledgers.last_ledger(topic.topic_id), len(taken)
            free = last.last_segment + 1 + number if last else number
            write = segment(topic.topic_id, ledger, free, entries=number + 1, producers=[(f"p{number}", turn, turn)])
            (answer,) = world.catalog.commits.commit_writes([write])
            if isinstance(answer, RegisterSegmentResult):
                taken.append(answer.first_entry)
        return taken

    answers = race(append)
    found = world.catalog.ledgers.list_segments(ledger)
    assert sorted(one.first_entry for one in found) == sorted(first for answer in answers for first in answer)  # type: ignore[union-attr]
    assert found[0].first_entry == 0
    assert all(after.first_entry == before.first_entry + before.entries for before, after in pairwise(found))
    assert [one.number for one in found] == sorted(one.number for one in found)
    whole = world.catalog.ledgers.last_ledger(topic.topic_id)
    assert whole is not None
    assert whole.entries == sum(one.entries for one in found) == 2 * sum(range(1, CROWD + 1))
    sequences = world.catalog.ledgers.producer_sequences(topic.topic_id, [f"p{number}" for number in range(CROWD)])
    assert set(sequences.values()) == {HighestSequenceIds.without_transaction(1)}


def test_commit_thirty_two_of_one_producer_exactly_one_registers_each_sequence(world: World) -> None:
    """Deduplication under a race: a sequence id is registered once, by whoever came first."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)

    def append(number: int) -> bool:
        for attempt in range(200):
            write = segment(topic.topic_id, ledger, number + CROWD * attempt, producers=[("p", 0, 0)])
            (answer,) = world.catalog.commits.commit_writes([write])
            if not isinstance(answer, AlreadyExists):
                return isinstance(answer, RegisterSegmentResult)
        return False

    assert sorted(race(append)) == [False] * 31 + [True]  # type: ignore[type-var]  # all are bool
    assert len(world.catalog.ledgers.list_segments(ledger)) == 1


@pytest.mark.postgres
def test_commit_racing_a_roll_never_registers_in_a_closed_ledger(world: World) -> None:
    """Success is reported only for what the close counted (apache/bookkeeper#4812)."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    born = newborn(world, topic.topic_id)

    def act(number: int) -> bool:
        if number == 7:
            return not world.catalog.ledgers.attach_ledger(born, after=first)
        return isinstance(
            world.catalog.commits.commit_writes([segment(topic.topic_id, first, number)])[0], RegisterSegmentResult
        )

    taken = sum(bool(answer) for answer in race(act))
    closed = world.catalog.ledgers.list_ledgers(topic.topic_id)[0]
    assert closed.ledger_id == first
    assert closed.entries == 10 * taken == sum(one.entries for one in world.catalog.ledgers.list_segments(first))


def test_commit_acknowledge_of_the_same_batchs_segment_is_applied(world: World) -> None:
    """A batch is one transaction: what it registers can be acknowledged in it."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    ack = AcknowledgeWrite(topic_id=topic.topic_id, subscription="billing", up_to=at(ledger, 9))
    answers = world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 0), ack])
    assert answers[1] == AcknowledgeResult(mark_delete=at(ledger, 9))


def test_commit_acknowledge_to_never_moves_back(world: World) -> None:
    """An acknowledgement that comes late is harmless."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 1)[0]
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    acknowledge(world, topic.topic_id, "billing", up_to=(ledger, 7))
    assert acknowledge(world, topic.topic_id, "billing", up_to=(ledger, 3)) == AcknowledgeResult(
        mark_delete=at(ledger, 7)
    )


@pytest.mark.postgres
def test_commit_thousands_of_writes_over_many_topics_is_one_batch(world: World) -> None:
    """No limit of parameters is met by the largest group that a writer makes."""
    topics = [new_topic(world, f"{NAME}-{number}") for number in range(20)]
    ledgers = [roll(world, topic.topic_id) for topic in topics]
    names = [f"producer-{number}" for number in range(10)]
    writes = [
        segment(topic.topic_id, ledger, turn, producers=[(name, turn, turn) for name in names])
        for turn in range(200)
        for topic, ledger in zip(topics, ledgers, strict=True)
    ]
    for topic in topics:
        world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    acks = [AcknowledgeWrite(topic_id=one.topic_id, subscription="billing", up_to=at(0, 0)) for one in topics]
    answers = world.catalog.commits.commit_writes([*writes, *acks])
    assert all(isinstance(answer, RegisterSegmentResult) for answer in answers[:4000])
    assert all(isinstance(answer, AcknowledgeResult) for answer in answers[4000:])
    last = world.catalog.ledgers.last_ledger(topics[-1].topic_id)
    assert last is not None
    assert last.entries == 2000
    assert world.catalog.ledgers.producer_sequences(topics[0].topic_id, names) == dict.fromkeys(
        names, HighestSequenceIds.without_transaction(199)
    )
