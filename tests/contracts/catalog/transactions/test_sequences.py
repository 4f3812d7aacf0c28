"""Producers' sequence ids in transactions: they count once the transaction commits, and never did if it aborts."""

from dataclasses import replace

import pytest

from logstore.errors import ProducerFenced
from logstore.log.entries import HighestSequenceIds, ProducerSequenceRange
from logstore.ports.catalog.log import (
    GroupCommitResult,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Topic,
)
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.contracts.catalog.blocking import behind
from tests.contracts.catalog.steps import new_topic, race
from tests.contracts.catalog.transactions.steps import begin, end, one, registration, settle
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres


def _write(world: SqlWorld, topic: Topic, *moved: tuple[TransactionId | None, int, int]) -> RegisterSegmentWrite:
    plain = registration(world, topic, [(txn, last - first + 1) for txn, first, last in moved])
    parts = [ProducerSequenceRange(producer="p", first=first, last=last, txn=txn) for txn, first, last in moved]
    return replace(plain, producers=tuple(parts))


def _store(world: SqlWorld, topic: Topic, *moved: tuple[TransactionId | None, int, int]) -> GroupCommitResult:
    return one(world, _write(world, topic, *moved))


def _known(world: SqlWorld, topic: Topic) -> HighestSequenceIds:
    return world.catalog.ledgers.producer_sequences(topic.topic_id, ["p"])["p"]


def test_ids_in_an_open_transaction_count_for_it_alone(sql_world: SqlWorld) -> None:
    """Whatever comes from elsewhere is refused until it is decided."""
    topic, first, second = new_topic(sql_world), begin(sql_world), begin(sql_world)
    assert isinstance(_store(sql_world, topic, (None, 1, 2), (first, 3, 4)), RegisterSegmentResult)
    assert _known(sql_world, topic) == HighestSequenceIds(2, 4, first)
    for refused in (second, None):
        for ids in ((3, 3), (9, 9)):
            assert isinstance(_store(sql_world, topic, (refused, *ids)), ProducerFenced)
    assert isinstance(_store(sql_world, topic, (first, 4, 5)), ProducerFenced)
    assert isinstance(_store(sql_world, topic, (first, 5, 6)), RegisterSegmentResult)
    assert _known(sql_world, topic) == HighestSequenceIds(2, 6, first)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("told", ["decided", "settled", "forgotten"])
def test_ids_of_a_decided_transaction_count_if_it_committed(sql_world: SqlWorld, told: str, *, commit: bool) -> None:
    """From its end on, and for ever: not only once it is settled, and not only as long as its row stands."""
    topic, first, second = new_topic(sql_world), begin(sql_world), begin(sql_world)
    _store(sql_world, topic, (None, 1, 2), (first, 3, 4))
    end(sql_world, first, commit=commit)
    if told != "decided":
        settle(sql_world, first, topic)
    if told == "forgotten":
        assert sql_world.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10) == 1
        assert sql_world.sql("SELECT count(*) FROM producer_sequence WHERE txn_tc IS NOT NULL") == [(0,)]
    assert _known(sql_world, topic) == HighestSequenceIds.without_transaction(4 if commit else 2)
    answer = _store(sql_world, topic, (second, 3, 3))
    assert isinstance(answer, ProducerFenced if commit else RegisterSegmentResult)
    assert _known(sql_world, topic) == (
        HighestSequenceIds.without_transaction(4) if commit else HighestSequenceIds(2, 3, second)
    )


def test_of_racing_transactions_one_has_the_producer(sql_world: SqlWorld) -> None:
    """The row's lock decides, and before there is a row the ledger's."""
    topic = new_topic(sql_world)
    txns = [begin(sql_world) for _ in range(8)]
    first = _write(sql_world, topic, (txns[0], 0, 0))
    writes = [replace(_write(sql_world, topic, (txn, 0, 0)), number=first.number + at) for at, txn in enumerate(txns)]
    race(lambda number: one(sql_world, writes[number]), runners=8)
    held = _known(sql_world, topic)
    assert (held.committed, held.last) == (-1, 0)
    assert held.txn in txns
    assert len({row[0] for row in sql_world.sql("SELECT sequence FROM buffer_range")}) == 1


def test_registration_behind_an_end_sees_its_decision(sql_world: SqlWorld) -> None:
    """What became of the transaction is looked up under the producer's lock, and is as new as that."""
    topic, first, second = new_topic(sql_world), begin(sql_world), begin(sql_world)
    _store(sql_world, topic, (first, 0, 3))
    write = _write(sql_world, topic, (second, 0, 0))
    held = ["UPDATE producer_sequence SET kept_id = -1"]
    aborted = [f"UPDATE \"transaction\" SET state = 'ABORTED' WHERE sequence = {first.sequence}"]
    assert isinstance(behind(sql_world, held, lambda: one(sql_world, write), aborted), RegisterSegmentResult)
    assert _known(sql_world, topic) == HighestSequenceIds(-1, 0, second)
