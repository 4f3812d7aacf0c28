"""Snapshots of buffers in the catalog: due after changes, switched whole, and gone with their topic."""

import pytest
from pyroaring import BitMap

from logstore.errors import SextonError
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import BeginTransactionResult, BeginTransactionWrite, EndTransactionWrite, TopicState
from logstore.ports.catalog.transactions import (
    SNAPSHOT_AFTER_S,
    SNAPSHOT_CHANGES,
    BufferSnapshotReplacement,
    SettlementReason,
)
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId
from tests.contracts.catalog.steps import at, new_topic, race
from tests.contracts.catalog.transactions.steps import begin, end, produce, settle
from tests.contracts.catalog.world import CAUSE, claim
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_START = Position(LedgerId(-1), -1)


def _newborn(world: SqlWorld, topic_id: TopicId) -> LedgerId:
    return world.catalog.components.create_component_ledger(
        topic_id, Component.TXN_SNAPSHOT, {}, application="sexton"
    ).ledger_id


def _publish(
    world: SqlWorld,
    topic_id: TopicId,
    *,
    expected: LedgerId | None = None,
    read_to: Position = _START,
    ledger_id: LedgerId | None = None,
) -> tuple[LedgerId, bool]:
    born = _newborn(world, topic_id) if ledger_id is None else ledger_id
    switch = BufferSnapshotReplacement(topic_id=topic_id, expected=expected, read_to=read_to)
    return born, world.catalog.transaction_snapshots.publish_snapshot(switch, born, size_bytes=50, sha256="ab")


def _listed(world: SqlWorld, topic_id: TopicId) -> list[LedgerId]:
    found = world.catalog.components.list_ledgers(topic_id)
    return [one.ledger_id for one in found if one.component is Component.TXN_SNAPSHOT]


def _due(world: SqlWorld) -> list[TopicId]:
    return world.catalog.transaction_snapshots.reserve_due_topics(limit=10, reserved_for_s=60)


def _let_time_pass(world: SqlWorld) -> None:
    world.sql("UPDATE transaction_snapshot SET due_us = due_us - 61000000")


def _settled(world: SqlWorld, topic_id: TopicId) -> TransactionId:
    topic = world.catalog.topics.get_topic_by_id(topic_id)
    txn = begin(world)
    produce(world, topic, (txn, 1))
    end(world, txn, commit=True)
    settle(world, txn, topic)
    return txn


def test_first_snapshot_is_listed_and_named_by_its_topics_row(sql_world: SqlWorld) -> None:
    """And published again it still is."""
    topic_id = new_topic(sql_world).topic_id
    first, done = _publish(sql_world, topic_id, read_to=at(5, 7))
    assert done
    assert _publish(sql_world, topic_id, read_to=at(5, 7), ledger_id=first) == (first, True)
    found = sql_world.catalog.transaction_snapshots.get_snapshot(topic_id)
    assert (found.ledger_id, found.read_to, _listed(sql_world, topic_id)) == (first, at(5, 7), [first])
    assert sql_world.intents() == []


def test_next_snapshot_retires_its_predecessor(sql_world: SqlWorld) -> None:
    """By an intent, in the transaction of the switch."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = _publish(sql_world, topic_id)
    second, done = _publish(sql_world, topic_id, expected=first, read_to=at(5, 7))
    assert done
    assert (_listed(sql_world, topic_id), sql_world.intents()) == ([second], [first])
    assert [one.detail["ledger"] for one in sql_world.audited("retire")] == [first]


@pytest.mark.parametrize("read_to", [at(5, 6), at(5, 8)])
def test_snapshot_that_lost_its_place_or_knows_less_is_ignored(sql_world: SqlWorld, read_to: Position) -> None:
    """One row is compared and set: of the newborn an intent is left, and the one that stands stays."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = _publish(sql_world, topic_id, read_to=at(5, 7))
    expected = first if read_to < at(5, 7) else None
    lost, done = _publish(sql_world, topic_id, expected=expected, read_to=read_to)
    assert not done
    assert (_listed(sql_world, topic_id), sql_world.intents()) == ([first], [lost])


def test_of_racing_snapshots_one_wins_and_the_other_is_an_intent(sql_world: SqlWorld) -> None:
    """They need not know of each other."""
    topic_id = new_topic(sql_world).topic_id
    born = [_newborn(sql_world, topic_id) for _ in range(2)]
    done = race(lambda number: _publish(sql_world, topic_id, ledger_id=born[number])[1], len(born))
    assert sorted(map(str, done)) == ["False", "True"]
    (winner,) = _listed(sql_world, topic_id)
    assert sql_world.intents() == [one for one in born if one != winner]


def test_publication_that_dies_anywhere_is_whole_once_repeated(sql_world: SqlWorld) -> None:
    """The old snapshot stands until the new one does."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = _publish(sql_world, topic_id)
    born = _newborn(sql_world, topic_id)
    deaths = 0
    for _ in sql_world.deaths_in(lambda: _publish(sql_world, topic_id, expected=first, ledger_id=born)):
        deaths += 1
        assert (_listed(sql_world, topic_id), sql_world.intents()) == ([first], [])
    assert deaths > 5
    assert (_listed(sql_world, topic_id), sql_world.intents()) == ([born], [first])


def test_snapshot_is_due_a_while_after_a_settled_transaction(sql_world: SqlWorld) -> None:
    """Not before, not without one, and once for all that came meanwhile."""
    topic_id = new_topic(sql_world).topic_id
    assert sql_world.catalog.transaction_snapshots.get_snapshot(topic_id).due_us is None
    txn = _settled(sql_world, topic_id)
    before = sql_world.catalog.transaction_snapshots.get_snapshot(topic_id).due_us
    _settled(sql_world, topic_id)
    settle(sql_world, txn, sql_world.catalog.topics.get_topic_by_id(topic_id))
    assert sql_world.catalog.transaction_snapshots.get_snapshot(topic_id).due_us == before
    assert sql_world.sql("SELECT changes FROM transaction_snapshot") == [(2,)]
    assert _due(sql_world) == []
    _let_time_pass(sql_world)
    assert (_due(sql_world), _due(sql_world)) == ([topic_id], [])
    _publish(sql_world, topic_id)
    assert sql_world.catalog.transaction_snapshots.get_snapshot(topic_id).due_us is None


def test_snapshot_is_due_at_once_after_many_settled_transactions(sql_world: SqlWorld) -> None:
    """So that what a rebuild reads stays bounded."""
    topic_id = new_topic(sql_world).topic_id
    _settled(sql_world, topic_id)
    sql_world.sql("UPDATE transaction_snapshot SET changes = :n", n=SNAPSHOT_CHANGES - 2)
    _settled(sql_world, topic_id)
    assert _due(sql_world) == []
    _settled(sql_world, topic_id)
    assert _due(sql_world) == [topic_id]


def test_snapshot_is_due_at_once_after_many_that_were_settled_together(sql_world: SqlWorld) -> None:
    """The topic's first ones; of another topic only a few are."""
    busy, quiet = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/quiet")
    commit = sql_world.catalog.commits.commit_writes
    begun = commit([BeginTransactionWrite(tc_id=0, timeout_s=60)] * SNAPSHOT_CHANGES)
    txns = [one.txn for one in begun if isinstance(one, BeginTransactionResult)]
    produce(sql_world, busy, *[(txn, 1) for txn in txns])
    produce(sql_world, quiet, (txns[0], 1))
    commit([EndTransactionWrite(txn=txn, commit=True) for txn in txns])
    told = [(txn, Participant(busy.topic_id), SettlementReason.MARKED) for txn in txns]
    over = sql_world.catalog.transactions.settle_participants(
        [*told, (txns[0], Participant(quiet.topic_id), SettlementReason.MARKED)]
    )
    assert len(over) == SNAPSHOT_CHANGES
    due = dict(map(tuple, sql_world.sql("SELECT topic_id, due_us FROM transaction_snapshot")))
    assert due[quiet.topic_id] - due[busy.topic_id] == SNAPSHOT_AFTER_S * 1_000_000
    assert _due(sql_world)[0] == busy.topic_id


def test_change_while_a_snapshot_is_written_makes_another_one_due(sql_world: SqlWorld) -> None:
    """What is not in it must not wait for the change after it."""
    topic_id = new_topic(sql_world).topic_id
    _settled(sql_world, topic_id)
    _let_time_pass(sql_world)
    _due(sql_world)
    _settled(sql_world, topic_id)
    first, _ = _publish(sql_world, topic_id)
    _let_time_pass(sql_world)
    assert _due(sql_world) == [topic_id]
    assert _publish(sql_world, topic_id, expected=first)[1]


def test_snapshot_whose_writer_died_is_due_again(sql_world: SqlWorld) -> None:
    """After its lease."""
    topic_id = new_topic(sql_world).topic_id
    _settled(sql_world, topic_id)
    _let_time_pass(sql_world)
    assert _due(sql_world) == [topic_id]
    _let_time_pass(sql_world)
    assert _due(sql_world) == [topic_id]


def test_buffer_has_what_is_open_and_what_is_hidden_at_one_moment(sql_world: SqlWorld) -> None:
    """What is decided is decided, whether it was settled or not."""
    topic = new_topic(sql_world)
    kept, dropped, committed = (begin(sql_world) for _ in range(3))
    first = produce(sql_world, topic, (None, 1), (kept, 2), (dropped, 2), (committed, 1))
    end(sql_world, dropped, commit=False)
    end(sql_world, committed, commit=True)
    for _ in range(2):
        found = sql_world.catalog.transaction_snapshots.read_buffer(topic.topic_id)
        assert found.read_to == at(first.ledger_id, 5)
        assert found.max_read_position == at(first.ledger_id, 0)
        assert {txn: dict(entries) for txn, entries in found.open.items()} == {kept: {first.ledger_id: BitMap([1, 2])}}
        assert {ledger: set(bits) for ledger, bits in found.hidden.items()} == {first.ledger_id: {3, 4}}
        settle(sql_world, dropped, topic)
        settle(sql_world, committed, topic)


def test_deleted_topic_leaves_no_snapshot_and_takes_none(sql_world: SqlWorld) -> None:
    """Its ledgers go as all others do; a settlement that comes late leaves no row behind."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 1))
    end(sql_world, txn, commit=True)
    first, _ = _publish(sql_world, topic.topic_id)
    late = _newborn(sql_world, topic.topic_id)
    sql_world.set_state(topic.topic_id, TopicState.DELETING)
    assert not _publish(sql_world, topic.topic_id, expected=first, ledger_id=late)[1]
    sql_world.catalog.phase_one.detach_whole_topic(topic.topic_id, batch_id="b", claim=claim(), cause=CAUSE)
    assert sql_world.intents()[-2:] == sorted([first, late])
    settle(sql_world, txn, topic)
    assert sql_world.catalog.phase_one.remove_topic(topic.topic_id, CAUSE)
    settle(sql_world, txn, topic)
    assert sql_world.left_of(topic.topic_id).keys() <= {"transaction_participant"}
    with pytest.raises(SextonError):
        _newborn(sql_world, topic.topic_id)
