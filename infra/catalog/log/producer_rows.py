"""Rows of producers' sequence ids: nothing else writes them.

The last ids of a row may be in a transaction; what became of that says whether they count. It is asked each time, and
written into the row before the transaction is forgotten: to end one costs no statement here.

Locks: behind topics and ledgers, before transactions, by topic and producer.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, and_, case, delete, select, true, tuple_, update
from sqlalchemy.types import TypeEngine

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, TEXT, Statement, bulk_parameter, dialect_insert
from infra.catalog.transactions.transaction_rows import read_states
from logstore.log.producers import ProducerSequence
from logstore.positions import TopicId
from logstore.transactions.transactions import TransactionId, TransactionState

Key = tuple[int, str]
"""A topic's id, and a producer's name."""

_P: Final = t.producer_sequence.c
_COLUMNS: Final = (_P.topic_id, _P.producer, _P.sequence_id, _P.kept_id, _P.txn_tc, _P.txn_seq)
_OF_TRANSACTION: Final = ("kept_id", "txn_tc", "txn_seq")


def read_sequences(connection: Connection, topic_id: TopicId, producers: Iterable[str]) -> dict[str, ProducerSequence]:
    """How far these producers are that have a row."""
    query = select(*_COLUMNS).where(_P.topic_id == topic_id, _P.producer.in_(sorted(producers)))
    found = _read_sequences(connection, connection.execute(query).all())
    return {producer: known for (_, producer), known in found.items()}


def lock_sequences(connection: Connection, keys: Collection[Key]) -> dict[Key, ProducerSequence]:
    """Lock those that have a row; for one that has none the lock of the topic's open ledger stands."""
    rows = _locking(connection.dialect.name).execute(connection, keys).all() if keys else []
    return _read_sequences(connection, rows)


@cache
def _locking(dialect: str) -> Statement:
    asked = bulk_parameter(dialect, "asked", {"topic_id": BIG, "producer": TEXT})
    c = asked.source.c
    query = select(*_COLUMNS).join(asked.source, and_(_P.topic_id == c.topic_id, _P.producer == c.producer))
    in_order = query.order_by(_P.topic_id, _P.producer).with_for_update(of=t.producer_sequence)
    return Statement(sql=in_order, rows=asked)


def _read_sequences(connection: Connection, rows: Collection[Any]) -> dict[Key, ProducerSequence]:
    """Return the last sequence ids of producers.

    A transaction that is decided meanwhile counts as open, so that its producer asks again.
    """
    txns = {TransactionId(row.txn_tc, row.txn_seq) for row in rows if row.txn_tc is not None}
    states = read_states(connection, txns) if txns else {}
    return {
        (topic_id, producer): ProducerSequence(last, last)
        if tc_id is None
        else _sequence_in_transaction(last, kept, TransactionId(tc_id, sequence), states)
        for topic_id, producer, last, kept, tc_id, sequence in rows
    }


def _sequence_in_transaction(
    last: int, kept: int, txn: TransactionId, states: Mapping[TransactionId, TransactionState]
) -> ProducerSequence:
    state = states.get(txn)
    if state is TransactionState.OPEN:
        return ProducerSequence(kept, last, txn)
    return ProducerSequence.without_transaction(last if state is None or state.is_commit else kept)


def put_sequences(connection: Connection, moved: Mapping[Key, ProducerSequence]) -> None:
    """Write how far producers are, whose rows are locked."""
    plain = [(*key, one.last) for key, one in moved.items() if one.txn is None]
    inside = [
        (*key, one.last, one.committed, txn.tc_id, txn.sequence) for key, one in moved.items() if (txn := one.txn)
    ]
    for rows, columns in ((plain, ()), (inside, _OF_TRANSACTION)):
        if rows:
            _putting(connection.dialect.name, columns).execute(connection, rows)


@cache
def _putting(dialect: str, more: tuple[str, ...]) -> Statement:
    """With `more` columns; those that are not among them become null."""
    kinds: dict[str, TypeEngine[Any]] = {"topic_id": BIG, "producer": TEXT, "sequence_id": BIG}
    moved = bulk_parameter(dialect, "moved", {**kinds, **dict.fromkeys(more, BIG)})
    picked = select(*(moved.source.c[name] for name in moved.columns)).where(true())  # or SQLite reads ON as a join's
    put = dialect_insert(dialect, t.producer_sequence).from_select(moved.columns, picked)
    new = {name: put.excluded[name] for name in ("sequence_id", *_OF_TRANSACTION)}  # what is not given, is null
    return Statement(sql=put.on_conflict_do_update(index_elements=["topic_id", "producer"], set_=new), rows=moved)


def conclude_sequences(connection: Connection, ended: Mapping[TransactionId, TransactionState]) -> None:
    """Write into the rows what became of transactions that are forgotten next: aborted ids were never stored."""
    if not ended:
        return
    of = tuple_(_P.txn_tc, _P.txn_seq)
    aborted = [(txn.tc_id, txn.sequence) for txn, state in ended.items() if not state.is_commit]
    kept = case((of.in_(aborted), _P.kept_id), else_=_P.sequence_id) if aborted else _P.sequence_id
    mine = update(t.producer_sequence).where(of.in_([(txn.tc_id, txn.sequence) for txn in ended]))
    connection.execute(mine.values(sequence_id=kept, kept_id=None, txn_tc=None, txn_seq=None))


def remove_producers(connection: Connection, topic_id: TopicId) -> int:
    """Remove the producers of a topic that is being deleted, and say how many."""
    return connection.execute(delete(t.producer_sequence).where(_P.topic_id == topic_id)).rowcount
