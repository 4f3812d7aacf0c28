"""Sole writer of the table `transaction_participant`. The caller has locked the participants' transactions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from pyroaring import BitMap
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    and_,
    case,
    delete,
    func,
    literal,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.types import TypeEngine

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import BIG, TEXT, BulkStatement, build_bulk_parameter, build_dialect_insert
from logstore.catalog.transactions.buffer_rows import build_transaction_id_parameter, transaction_id_rows
from logstore.cursors.cursor_state import pack_acknowledged, unpack_acknowledged
from logstore.ports.catalog.transactions import SettlementReason, StoredParticipant
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState

_T = t.transaction.c
_P = t.transaction_participant.c
_ColumnTypes = dict[str, TypeEngine[Any]]

_COLUMNS: Final = (
    "tc_id",
    "sequence",
    "topic_id",
    "subscription",
    "topic",
    "positions",
    "settled_us",
    "how",
    "last_error",
)
"""Columns in the order in which `_participant_from_row` reads them. Access by order is faster than by name."""
_IS_OF_TRANSACTION: Final = and_(_P.tc_id == _T.tc_id, _P.sequence == _T.sequence)


def insert_participants(
    connection: Connection, participants_to_add: Iterable[tuple[TransactionId, Participant, str]]
) -> None:
    """Insert missing participants, each with the name of its topic. The caller has locked the open transactions."""
    rows = {
        (txn.tc_id, txn.sequence, participant.topic_id, participant.subscription, topic)
        for txn, participant, topic in participants_to_add
    }
    if rows:
        _compile_participant_insert(connection.dialect.name).execute(connection, rows)


@cache
def _compile_participant_insert(dialect: str) -> BulkStatement:
    column_types: _ColumnTypes = {"tc_id": BIG, "sequence": BIG, "topic_id": BIG, "subscription": TEXT, "topic": TEXT}
    joined = build_bulk_parameter(dialect, "joined", column_types)
    columns = [joined.source.c[name] for name in column_types]
    # without WHERE, SQLite parses ON CONFLICT as the ON of a join
    rows = select(*columns, literal(b"", LargeBinary())).where(true())
    put = build_dialect_insert(dialect, t.transaction_participant).from_select([*column_types, "positions"], rows)
    return BulkStatement(sql=put.on_conflict_do_nothing(), rows=joined)


def replace_held_entries(
    connection: Connection, txn: TransactionId, participant: Participant, positions: Mapping[LedgerId, BitMap]
) -> None:
    """Replace the entries that a transaction holds for a subscription. The caller has locked the cursor."""
    matching = update(t.transaction_participant).where(*_match_participant(txn, participant))
    connection.execute(matching.values(positions=pack_acknowledged(positions)))


def _match_participant(txn: TransactionId, participant: Participant) -> tuple[ColumnElement[bool], ...]:
    return (
        _P.tc_id == txn.tc_id,
        _P.sequence == txn.sequence,
        _P.topic_id == participant.topic_id,
        _P.subscription == participant.subscription,
    )


def read_held_entries(
    connection: Connection, subscriptions: Collection[tuple[TopicId, str]]
) -> dict[tuple[TopicId, str], dict[TransactionId, dict[LedgerId, BitMap]]]:
    held_entries: dict[tuple[TopicId, str], dict[TransactionId, dict[LedgerId, BitMap]]] = {
        key: {} for key in subscriptions
    }
    rows = (
        _compile_held_entries_query(connection.dialect.name).execute(connection, held_entries) if held_entries else ()
    )
    for row in rows:
        txn = TransactionId(row.tc_id, row.sequence)
        held_entries[TopicId(row.topic_id), row.subscription][txn] = unpack_acknowledged(row.positions)
    return held_entries


@cache
def _compile_held_entries_query(dialect: str) -> BulkStatement:
    """Let the query use the index of unfinished transactions. A subscription may have many finished transactions."""
    subscriptions = build_bulk_parameter(dialect, "asked", {"topic_id": BIG, "subscription": TEXT})
    c = subscriptions.source.c
    is_requested = and_(_P.topic_id == c.topic_id, _P.subscription == c.subscription)
    query = select(_P.topic_id, _P.subscription, _P.tc_id, _P.sequence, _P.positions)
    query = query.join(t.transaction, _IS_OF_TRANSACTION).join(subscriptions.source, is_requested)
    is_open = (_T.state == TransactionState.OPEN.value, _T.finished_us.is_(None))
    return BulkStatement(sql=query.where(*is_open), rows=subscriptions)


def read_participants(
    connection: Connection, txns: Collection[TransactionId]
) -> dict[TransactionId, list[StoredParticipant]]:
    participants: dict[TransactionId, list[StoredParticipant]] = {txn: [] for txn in txns}
    rows = (
        _compile_participant_queries(connection.dialect.name).participants.execute(
            connection, transaction_id_rows(txns)
        )
        if participants
        else ()
    )
    for row in rows:
        participants[TransactionId(row.tc_id, row.sequence)].append(_participant_from_row(row))
    return participants


def find_participating_txns_and_holders(
    connection: Connection, txns: Collection[TransactionId]
) -> tuple[set[TransactionId], list[tuple[TransactionId, StoredParticipant]]]:
    statements, pairs = _compile_participant_queries(connection.dialect.name), transaction_id_rows(txns)
    counts = statements.holder_counts.execute(connection, pairs).all()
    rows = statements.holders.execute(connection, pairs) if any(row.holding for row in counts) else ()
    holders = [(TransactionId(row.tc_id, row.sequence), _participant_from_row(row)) for row in rows]
    return {TransactionId(row.tc_id, row.sequence) for row in counts}, holders


class _ParticipantQueries(NamedTuple):
    participants: BulkStatement  # reads participants, ascending
    holder_counts: BulkStatement  # reads transactions with participants, and the number of participants with entries
    holders: BulkStatement  # reads participants that hold entries, ascending


@cache
def _compile_participant_queries(dialect: str) -> _ParticipantQueries:
    ids, is_requested = build_transaction_id_parameter(dialect, _P)
    participants = select(*(_P[name] for name in _COLUMNS)).join(ids.source, is_requested)
    participants = participants.order_by(_P.tc_id, _P.sequence, _P.topic_id, _P.subscription)
    is_holder = func.length(_P.positions) > 0
    counts = select(_P.tc_id, _P.sequence, func.sum(case((is_holder, 1), else_=0)).label("holding"))
    counts = counts.join_from(t.transaction_participant, ids.source, is_requested).group_by(_P.tc_id, _P.sequence)
    return _ParticipantQueries(
        participants=BulkStatement(sql=participants, rows=ids),
        holder_counts=BulkStatement(sql=counts, rows=ids),
        holders=BulkStatement(sql=participants.where(is_holder), rows=ids),
    )


def match_owing_transactions(tc_id: Any, sequence: Any) -> Any:  # noqa: ANN401 - two columns; an EXISTS
    is_owed = (_P.tc_id == tc_id, _P.sequence == sequence, _P.settled_us.is_(None))
    return select(_P.tc_id).where(*is_owed).exists()


def _participant_from_row(row: Sequence[Any]) -> StoredParticipant:
    _, _, topic_id, subscription, topic, positions, settled_us, how, last_error = row
    return StoredParticipant(
        participant=Participant(TopicId(topic_id), subscription),
        topic=topic,
        positions=unpack_acknowledged(positions) if positions else {},
        settled_us=settled_us,
        settlement=SettlementReason(how) if how else None,
        last_error=last_error,
    )


def settle_participants(
    connection: Connection, settlements: Iterable[tuple[TransactionId, Participant, SettlementReason]], *, now_us: int
) -> int:
    """Settle owed participants of decided transactions. Return the number of participants that were owed."""
    rows = [
        (txn.tc_id, txn.sequence, participant.topic_id, participant.subscription, settlement.value, now_us)
        for txn, participant, settlement in settlements
    ]
    if not rows:
        return 0
    return _compile_participant_settling(connection.dialect.name).execute(connection, rows).rowcount


@cache
def _compile_participant_settling(dialect: str) -> BulkStatement:
    column_types: _ColumnTypes = {
        "tc_id": BIG,
        "sequence": BIG,
        "topic_id": BIG,
        "subscription": TEXT,
        "how": TEXT,
        "settled_us": BIG,
    }
    settled = build_bulk_parameter(dialect, "told", column_types)
    c = settled.source.c
    is_same = [_P[name] == c[name] for name in ("tc_id", "sequence", "topic_id", "subscription")]
    owed = update(t.transaction_participant).where(*is_same, _P.settled_us.is_(None))
    return BulkStatement(sql=owed.values(how=c.how, settled_us=c.settled_us, last_error=None), rows=settled)


def store_participant_errors(connection: Connection, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
    for participant, error in sorted(failures.items()):
        is_owed = (*_match_participant(txn, participant), _P.settled_us.is_(None))
        connection.execute(update(t.transaction_participant).where(*is_owed).values(last_error=error))


def remove_participants(connection: Connection, pairs: Collection[tuple[int, int]]) -> None:
    connection.execute(delete(t.transaction_participant).where(tuple_(_P.tc_id, _P.sequence).in_(pairs)))
