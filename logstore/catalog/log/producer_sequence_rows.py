"""Sole writer of producers' sequence ids.

The last sequence id of a row may belong to a transaction. The id is valid only if the transaction commits. Each read
looks up the state of the transaction, so that the end of a transaction need not change the row. Before a transaction is
removed, the valid sequence id is stored in the row.

Lock order: after topics and ledgers, before transactions. Rows are locked in the order of topic and producer.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, and_, case, delete, select, true, tuple_, update
from sqlalchemy.types import TypeEngine

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import BIG, TEXT, BulkStatement, build_bulk_parameter, build_dialect_insert
from logstore.catalog.transactions.transaction_rows import read_transaction_states
from logstore.log.entries import HighestSequenceIds
from logstore.positions import TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState

ProducerKey = tuple[int, str]
"""Id of a topic, and name of a producer."""

_P: Final = t.producer_sequence.c
_COLUMNS: Final = (_P.topic_id, _P.producer, _P.sequence_id, _P.kept_id, _P.txn_tc, _P.txn_seq)
_OF_TRANSACTION: Final = ("kept_id", "txn_tc", "txn_seq")


def read_producer_sequences(
    connection: Connection, topic_id: TopicId, producers: Iterable[str]
) -> dict[str, HighestSequenceIds]:
    query = select(*_COLUMNS).where(_P.topic_id == topic_id, _P.producer.in_(sorted(producers)))
    sequences = _sequences_from_rows(connection, connection.execute(query).all())
    return {producer: sequence for (_, producer), sequence in sequences.items()}


def lock_producer_sequences(
    connection: Connection, keys: Collection[ProducerKey]
) -> dict[ProducerKey, HighestSequenceIds]:
    """Lock and return producers' sequences. For a producer without a row, the lock of the open ledger is enough."""
    rows = _compile_sequence_lock(connection.dialect.name).execute(connection, keys).all() if keys else []
    return _sequences_from_rows(connection, rows)


@cache
def _compile_sequence_lock(dialect: str) -> BulkStatement:
    requested = build_bulk_parameter(dialect, "asked", {"topic_id": BIG, "producer": TEXT})
    c = requested.source.c
    query = select(*_COLUMNS).join(requested.source, and_(_P.topic_id == c.topic_id, _P.producer == c.producer))
    in_order = query.order_by(_P.topic_id, _P.producer).with_for_update(of=t.producer_sequence)
    return BulkStatement(sql=in_order, rows=requested)


def _sequences_from_rows(connection: Connection, rows: Collection[Any]) -> dict[ProducerKey, HighestSequenceIds]:
    """Convert rows. A transaction that is decided during this call may still count as open. Callers then ask again."""
    txns = {TransactionId(row.txn_tc, row.txn_seq) for row in rows if row.txn_tc is not None}
    states = read_transaction_states(connection, txns) if txns else {}
    return {
        (topic_id, producer): HighestSequenceIds(last, last)
        if tc_id is None
        else _sequence_in_transaction(last, kept_id, TransactionId(tc_id, sequence), states)
        for topic_id, producer, last, kept_id, tc_id, sequence in rows
    }


def _sequence_in_transaction(
    last: int, kept_id: int, txn: TransactionId, states: Mapping[TransactionId, TransactionState]
) -> HighestSequenceIds:
    state = states.get(txn)
    if state is TransactionState.OPEN:
        return HighestSequenceIds(kept_id, last, txn)
    return HighestSequenceIds.without_transaction(last if state is None or state.is_commit else kept_id)


def store_producer_sequences(connection: Connection, sequences: Mapping[ProducerKey, HighestSequenceIds]) -> None:
    rows_without_txn = [(*key, sequence.last) for key, sequence in sequences.items() if sequence.txn is None]
    rows_in_txn = [
        (*key, sequence.last, sequence.committed, txn.tc_id, txn.sequence)
        for key, sequence in sequences.items()
        if (txn := sequence.txn)
    ]
    for rows, columns in ((rows_without_txn, ()), (rows_in_txn, _OF_TRANSACTION)):
        if rows:
            _compile_sequence_upsert(connection.dialect.name, columns).execute(connection, rows)


@cache
def _compile_sequence_upsert(dialect: str, more: tuple[str, ...]) -> BulkStatement:
    """Return the statement that writes the sequence id and the columns `more`. Other columns become null."""
    type_by_column: dict[str, TypeEngine[Any]] = {"topic_id": BIG, "producer": TEXT, "sequence_id": BIG}
    moved = build_bulk_parameter(dialect, "moved", {**type_by_column, **dict.fromkeys(more, BIG)})
    # without WHERE, SQLite parses ON CONFLICT as the ON of a join
    source = select(*(moved.source.c[name] for name in moved.columns)).where(true())
    statement = build_dialect_insert(dialect, t.producer_sequence).from_select(moved.columns, source)
    new = {name: statement.excluded[name] for name in ("sequence_id", *_OF_TRANSACTION)}  # others become null
    return BulkStatement(
        sql=statement.on_conflict_do_update(index_elements=["topic_id", "producer"], set_=new), rows=moved
    )


def store_outcomes_in_sequences(connection: Connection, state_by_txn: Mapping[TransactionId, TransactionState]) -> None:
    """Drop the sequence ids of aborted transactions, and keep the ids of committed transactions."""
    if not state_by_txn:
        return
    row_txn = tuple_(_P.txn_tc, _P.txn_seq)
    aborted = [(txn.tc_id, txn.sequence) for txn, state in state_by_txn.items() if not state.is_commit]
    kept_id = case((row_txn.in_(aborted), _P.kept_id), else_=_P.sequence_id) if aborted else _P.sequence_id
    change = update(t.producer_sequence).where(row_txn.in_([(txn.tc_id, txn.sequence) for txn in state_by_txn]))
    connection.execute(change.values(sequence_id=kept_id, kept_id=None, txn_tc=None, txn_seq=None))


def remove_producers(connection: Connection, topic_id: TopicId) -> int:
    return connection.execute(delete(t.producer_sequence).where(_P.topic_id == topic_id)).rowcount
