"""Rows of coordinators and of transactions: nothing else writes these two tables.

Locks: after topics, lists, ledgers and sequences of producers, before coordinators and cursors; of several transactions
by id, all that a transaction of the database will need at once. Settled participants come before their transaction.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.types import TypeEngine

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, TEXT, Statement, bulk_parameter, dataclass_from_row, insert_if_absent
from infra.catalog.transactions.buffer_rows import asked_for, txn_pairs
from infra.catalog.transactions.participant_rows import owing, participants_of, remove_participants
from infra.telemetry import current_trace_id
from logstore.errors import IdsExhausted
from logstore.ports.catalog import Finished, StoredParticipant, StoredTransaction
from logstore.transactions.transactions import BROADCASTING_STATES, TransactionId, TransactionState

_T = t.transaction.c
_C = t.transaction_coordinator.c
_Kinds = dict[str, TypeEngine[Any]]


def next_sequences(connection: Connection, tc_id: int, count: int) -> range:
    """Take the coordinator's next ids; its row is made if there is none.

    Raises:
        IdsExhausted: They are not all below the ceiling.
    """
    below = _C.next_sequence + count <= select(t.record_log.c.transaction_ceiling).scalar_subquery()
    connection.execute(insert_if_absent(connection, t.transaction_coordinator).values(tc_id=tc_id, next_sequence=0))
    taken = connection.execute(
        update(t.transaction_coordinator)
        .where(_C.tc_id == tc_id, below)
        .values(next_sequence=_C.next_sequence + count)
        .returning(_C.next_sequence)
    ).scalar_one_or_none()
    if taken is None:
        raise IdsExhausted(f"coordinator {tc_id}: expected {count} ids below the ceiling; flush the record log")
    return range(taken - count, taken)


def insert_open(connection: Connection, opened: Sequence[tuple[TransactionId, int]], *, now_us: int) -> None:
    """Insert open transactions, each with its timeout in microseconds."""
    rows = [
        {
            "tc_id": txn.tc_id,
            "sequence": txn.sequence,
            "state": TransactionState.OPEN.value,
            "created_us": now_us,
            "deadline_us": now_us + timeout_us,
            "timed_out": 0,
            "attempts": 0,
        }
        for txn, timeout_us in opened
    ]
    connection.execute(insert(t.transaction), rows)


@cache
def _locking(dialect: str) -> Statement:
    asked, same = asked_for(dialect, _T)
    query = select(t.transaction).join(asked.source, same).order_by(_T.tc_id, _T.sequence)
    return Statement(sql=query.with_for_update(of=t.transaction), rows=asked)


def lock_transactions(connection: Connection, txns: Iterable[TransactionId]) -> dict[TransactionId, Row[Any]]:
    """Lock those of the transactions that exist, by id."""
    pairs = txn_pairs(txns)
    rows = _locking(connection.dialect.name).execute(connection, pairs).all() if pairs else []
    return {TransactionId(row.tc_id, row.sequence): row for row in rows}


def decide(
    connection: Connection, states: Mapping[TransactionId, TransactionState], *, now_us: int, timed_out: bool
) -> None:
    """OPEN → what was decided, for locked transactions; a final state at once for those without participants."""
    rows = [(txn.tc_id, txn.sequence, state.value, now_us if state.is_final else None) for txn, state in states.items()]
    trace = current_trace_id()  # what tells participants later runs in the trace of all that its coordinator does
    _deciding(connection.dialect.name).execute(connection, rows, now=now_us, late=int(timed_out), trace=trace)


@cache
def _deciding(dialect: str) -> Statement:
    kinds: _Kinds = {"tc_id": BIG, "sequence": BIG, "state": TEXT, "finished_us": BIG}
    changed = bulk_parameter(dialect, "changed", kinds)
    c = changed.source.c
    mine = update(t.transaction).where(_T.tc_id == c.tc_id, _T.sequence == c.sequence)
    values = {
        "state": c.state,
        "finished_us": c.finished_us,
        "decided_us": bindparam("now"),
        "trace_id": bindparam("trace"),
    }
    return Statement(sql=mine.values(**values, timed_out=bindparam("late")), rows=changed)


def stored(row: Row[Any], participants: Sequence[StoredParticipant]) -> StoredTransaction:
    """A row of `transaction` as a value."""
    return dataclass_from_row(
        StoredTransaction,
        row,
        txn=TransactionId(row.tc_id, row.sequence),
        state=TransactionState(row.state),
        timed_out=bool(row.timed_out),
        participants=participants,
    )


def with_participants(connection: Connection, rows: Sequence[Row[Any]]) -> list[StoredTransaction]:
    """Rows of `transaction` as values, in their order."""
    found = participants_of(connection, [TransactionId(row.tc_id, row.sequence) for row in rows])
    return [stored(row, found[TransactionId(row.tc_id, row.sequence)]) for row in rows]


def one(txn: TransactionId) -> tuple[ColumnElement[bool], ...]:
    """The transaction's row."""
    return (_T.tc_id == txn.tc_id, _T.sequence == txn.sequence)


def finish(connection: Connection, txns: Collection[TransactionId], *, now_us: int) -> list[Finished]:
    """Make final those of the decided transactions whose participants are all told; return all that are final now."""
    finishing, pairs = _finishing(connection.dialect.name), txn_pairs(txns)
    locked = finishing.locked.execute(connection, pairs).all()
    over = [Finished(txn=TransactionId(row.tc_id, row.sequence)) for row in locked if row.finished_us is not None]
    ended = [
        Finished(txn=TransactionId(row.tc_id, row.sequence), took_us=now_us - row.decided_us)
        for row in finishing.ended.execute(connection, pairs, now=now_us)
    ]
    return sorted([*over, *ended], key=lambda one: one.txn)


class _Finishing(NamedTuple):
    """Its two statements, in this order: to wait for locks in a subquery would be to see what was before."""

    locked: Statement  # by id
    ended: Statement


@cache
def _finishing(dialect: str) -> _Finishing:
    asked, same = asked_for(dialect, _T)
    locked = select(_T.tc_id, _T.sequence, _T.finished_us).join(asked.source, same).order_by(_T.tc_id, _T.sequence)
    commits = _T.state == TransactionState.COMMITTING.value
    final = case((commits, TransactionState.COMMITTED.value), else_=TransactionState.ABORTED.value)
    unclaimed = {"claim_workflow": None, "claim_run": None, "claim_until_us": None}
    mine = update(t.transaction).where(same, _T.state.in_(BROADCASTING_STATES), ~owing(_T.tc_id, _T.sequence))
    ended = mine.values(state=final, finished_us=bindparam("now"), **unclaimed)
    return _Finishing(
        locked=Statement(sql=locked.with_for_update(of=t.transaction), rows=asked),
        ended=Statement(sql=ended.returning(_T.tc_id, _T.sequence, _T.decided_us), rows=asked),
    )


def states_of(connection: Connection, txns: Iterable[TransactionId]) -> dict[TransactionId, TransactionState]:
    """The state of each of the transactions that exists."""
    found = _stating(connection.dialect.name).execute(connection, txn_pairs(txns))
    return {TransactionId(row.tc_id, row.sequence): TransactionState(row.state) for row in found}


@cache
def _stating(dialect: str) -> Statement:
    asked, same = asked_for(dialect, _T)
    return Statement(sql=select(_T.tc_id, _T.sequence, _T.state).join(asked.source, same), rows=asked)


def unclaimed(now_us: Any) -> ColumnElement[bool]:  # noqa: ANN401 - a number, or a parameter
    """Transactions that no workflow works on at that time."""
    ended: ColumnElement[bool] = func.coalesce(_T.claim_until_us, 0) <= now_us
    return ended


def take(
    connection: Connection, txn: TransactionId, claim: Mapping[str, Any], *, workflow_id: str, now_us: int
) -> bool:
    """Claim one transaction unless another workflow works on it; whether it is this one's."""
    free = or_(unclaimed(now_us), _T.claim_workflow == workflow_id)
    return bool(connection.execute(update(t.transaction).where(*one(txn), free).values(**claim)).rowcount)


def tell_failure(connection: Connection, txn: TransactionId, error: str, **claim: Any) -> None:  # noqa: ANN401
    """Count an attempt of an unfinished transaction that failed, and set its claim's columns, if any are given."""
    mine = update(t.transaction).where(*one(txn), _T.finished_us.is_(None))
    connection.execute(mine.values(attempts=_T.attempts + 1, last_error=error, **claim))


def put_claim(connection: Connection, txns: Collection[TransactionId], claim: Mapping[str, Any]) -> None:
    """Set the claim's columns of locked transactions."""
    if txns:
        _claiming(connection.dialect.name).execute(
            connection, [(one.tc_id, one.sequence, *claim.values()) for one in txns]
        )


@cache
def _claiming(dialect: str) -> Statement:
    kinds: _Kinds = {"tc_id": BIG, "sequence": BIG, "claim_workflow": TEXT, "claim_run": TEXT, "claim_until_us": BIG}
    claimed = bulk_parameter(dialect, "claimed", kinds)
    c = claimed.source.c
    mine = update(t.transaction).where(_T.tc_id == c.tc_id, _T.sequence == c.sequence)
    taken = {name: c[name] for name in ("claim_workflow", "claim_run", "claim_until_us")}
    return Statement(sql=mine.values(taken), rows=claimed)


def finished_before(connection: Connection, before_us: int, limit: int) -> dict[TransactionId, TransactionState]:
    """Transactions that finished before that time, oldest first."""
    old = select(_T.tc_id, _T.sequence, _T.state).where(_T.finished_us < before_us)
    rows = connection.execute(old.order_by(_T.finished_us).limit(limit))
    return {TransactionId(row.tc_id, row.sequence): TransactionState(row.state) for row in rows}


def remove(connection: Connection, finished: Collection[TransactionId]) -> None:
    """Remove transactions with their participants; nothing refers to them any more."""
    pairs = sorted(txn_pairs(finished))
    if pairs:
        remove_participants(connection, pairs)
        connection.execute(delete(t.transaction).where(tuple_(_T.tc_id, _T.sequence).in_(pairs)))


def count_states(connection: Connection) -> Sequence[Row[Any]]:
    """Return count and earliest time of each state of unfinished transactions."""
    since = func.min(func.coalesce(_T.decided_us, _T.created_us)).label("since")
    query = select(_T.state, func.count().label("rows"), since).where(_T.finished_us.is_(None)).group_by(_T.state)
    return connection.execute(query).all()
