"""Rows of participants of transactions: nothing else writes them. Their transactions' rows are locked.

A participant is a topic with messages of a transaction, or a subscription with the acknowledgements that it holds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from pyroaring import BitMap
from sqlalchemy import Connection, LargeBinary, and_, case, delete, func, literal, select, true, tuple_, update
from sqlalchemy.types import TypeEngine

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, TEXT, Statement, bulk_parameter, dialect_insert
from infra.catalog.transactions.buffer_rows import asked_for, txn_pairs
from logstore.cursors.state import pack_acknowledged, unpack_acknowledged
from logstore.ports.catalog import Settled, StoredParticipant
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transactions import Participant, TransactionId, TransactionState

_T = t.transaction.c
_P = t.transaction_participant.c
_Kinds = dict[str, TypeEngine[Any]]

_STORED: Final = (
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
"""The columns of a participant as `_participant` reads them, by their order: hundreds are read at once."""
_OF_TRANSACTION: Final = and_(_P.tc_id == _T.tc_id, _P.sequence == _T.sequence)


def join(connection: Connection, joined: Iterable[tuple[TransactionId, Participant, str]]) -> None:
    """Insert participants that are not there, each with its topic's name; their open transactions are locked."""
    rows = {(txn.tc_id, txn.sequence, one.topic_id, one.subscription, topic) for txn, one, topic in joined}
    if rows:
        _joining(connection.dialect.name).execute(connection, rows)


@cache
def _joining(dialect: str) -> Statement:
    kinds: _Kinds = {"tc_id": BIG, "sequence": BIG, "topic_id": BIG, "subscription": TEXT, "topic": TEXT}
    joined = bulk_parameter(dialect, "joined", kinds)
    columns = [joined.source.c[name] for name in kinds]
    rows = select(*columns, literal(b"", LargeBinary())).where(true())  # SQLite reads ON as a join's without a WHERE
    put = dialect_insert(dialect, t.transaction_participant).from_select([*kinds, "positions"], rows)
    return Statement(sql=put.on_conflict_do_nothing(), rows=joined)


def hold(
    connection: Connection, txn: TransactionId, participant: Participant, positions: Mapping[LedgerId, BitMap]
) -> None:
    """Replace the entries that a transaction holds of a subscription. Its cursor is locked."""
    mine = (_P.tc_id == txn.tc_id, _P.sequence == txn.sequence, _P.topic_id == participant.topic_id)
    this = update(t.transaction_participant).where(*mine, _P.subscription == participant.subscription)
    connection.execute(this.values(positions=pack_acknowledged(positions)))


def held(
    connection: Connection, subscriptions: Collection[tuple[TopicId, str]]
) -> dict[tuple[TopicId, str], dict[TransactionId, dict[LedgerId, BitMap]]]:
    """Return the entries that open transactions hold of each subscription."""
    held_entries: dict[tuple[TopicId, str], dict[TransactionId, dict[LedgerId, BitMap]]] = {
        key: {} for key in subscriptions
    }
    rows = _holding(connection.dialect.name).execute(connection, held_entries) if held_entries else ()
    for row in rows:
        txn = TransactionId(row.tc_id, row.sequence)
        held_entries[TopicId(row.topic_id), row.subscription][txn] = unpack_acknowledged(row.positions)
    return held_entries


@cache
def _holding(dialect: str) -> Statement:
    """Build a query that uses the index of unfinished transactions. A subscription may have had many finished ones."""
    asked = bulk_parameter(dialect, "asked", {"topic_id": BIG, "subscription": TEXT})
    same = and_(_P.topic_id == asked.source.c.topic_id, _P.subscription == asked.source.c.subscription)
    query = select(_P.topic_id, _P.subscription, _P.tc_id, _P.sequence, _P.positions)
    query = query.join(t.transaction, _OF_TRANSACTION).join(asked.source, same)
    is_open = (_T.state == TransactionState.OPEN.value, _T.finished_us.is_(None))
    return Statement(sql=query.where(*is_open), rows=asked)


def participants_of(
    connection: Connection, txns: Collection[TransactionId]
) -> dict[TransactionId, list[StoredParticipant]]:
    """Return the participants of each transaction, ascending."""
    participants: dict[TransactionId, list[StoredParticipant]] = {txn: [] for txn in txns}
    rows = _participating(connection.dialect.name).every.execute(connection, txn_pairs(txns)) if participants else ()
    for row in rows:
        participants[TransactionId(row.tc_id, row.sequence)].append(_participant(row))
    return participants


def holding_in(
    connection: Connection, txns: Collection[TransactionId]
) -> tuple[set[TransactionId], list[tuple[TransactionId, StoredParticipant]]]:
    """Return the transactions that have participants, and the subscriptions among these that have positions."""
    participating, pairs = _participating(connection.dialect.name), txn_pairs(txns)
    counted = participating.counted.execute(connection, pairs).all()
    holding = any(row.holding for row in counted)
    rows = participating.holding.execute(connection, pairs) if holding else ()
    subscriptions = [(TransactionId(row.tc_id, row.sequence), _participant(row)) for row in rows]
    return {TransactionId(row.tc_id, row.sequence) for row in counted}, subscriptions


class _Participating(NamedTuple):
    """Of transactions that are asked for."""

    every: Statement  # participants, ascending
    counted: Statement  # transactions with participants, and how many of these hold positions
    holding: Statement  # participants that hold positions, ascending


@cache
def _participating(dialect: str) -> _Participating:
    asked, same = asked_for(dialect, _P)
    every = select(*(_P[name] for name in _STORED)).join(asked.source, same)
    every = every.order_by(_P.tc_id, _P.sequence, _P.topic_id, _P.subscription)
    holds = func.length(_P.positions) > 0
    counted = select(_P.tc_id, _P.sequence, func.sum(case((holds, 1), else_=0)).label("holding"))
    counted = counted.join_from(t.transaction_participant, asked.source, same).group_by(_P.tc_id, _P.sequence)
    return _Participating(
        every=Statement(sql=every, rows=asked),
        counted=Statement(sql=counted, rows=asked),
        holding=Statement(sql=every.where(holds), rows=asked),
    )


def owing(tc_id: Any, sequence: Any) -> Any:  # noqa: ANN401 - two columns; an EXISTS
    """Whether a participant of the transaction has not been told."""
    mine = (_P.tc_id == tc_id, _P.sequence == sequence, _P.settled_us.is_(None))
    return select(_P.tc_id).where(*mine).exists()


def _participant(row: Sequence[Any]) -> StoredParticipant:
    _, _, topic_id, subscription, topic, positions, settled_us, how, last_error = row
    return StoredParticipant(
        participant=Participant(TopicId(topic_id), subscription),
        topic=topic,
        positions=unpack_acknowledged(positions) if positions else {},
        settled_us=settled_us,
        how=Settled(how) if how else None,
        last_error=last_error,
    )


def settle_participants(
    connection: Connection, done: Iterable[tuple[TransactionId, Participant, Settled]], *, now_us: int
) -> int:
    """Count participants of decided transactions as told; those that are stay as they are. How many are new."""
    rows = [(txn.tc_id, txn.sequence, who.topic_id, who.subscription, how.value, now_us) for txn, who, how in done]
    if not rows:
        return 0
    return _settling(connection.dialect.name).execute(connection, rows).rowcount


@cache
def _settling(dialect: str) -> Statement:
    kinds: _Kinds = {
        "tc_id": BIG,
        "sequence": BIG,
        "topic_id": BIG,
        "subscription": TEXT,
        "how": TEXT,
        "settled_us": BIG,
    }
    told = bulk_parameter(dialect, "told", kinds)
    c = told.source.c
    same = [_P[name] == c[name] for name in ("tc_id", "sequence", "topic_id", "subscription")]
    mine = update(t.transaction_participant).where(*same, _P.settled_us.is_(None))
    return Statement(sql=mine.values(how=c.how, settled_us=c.settled_us, last_error=None), rows=told)


def put_errors(connection: Connection, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
    """Write down why participants could not be told."""
    mine = (_P.tc_id == txn.tc_id, _P.sequence == txn.sequence, _P.settled_us.is_(None))
    for who, error in sorted(failures.items()):
        this = (_P.topic_id == who.topic_id, _P.subscription == who.subscription)
        connection.execute(update(t.transaction_participant).where(*mine, *this).values(last_error=error))


def remove_participants(connection: Connection, pairs: Collection[tuple[int, int]]) -> None:
    """Remove the participants of transactions that are forgotten."""
    connection.execute(delete(t.transaction_participant).where(tuple_(_P.tc_id, _P.sequence).in_(pairs)))
