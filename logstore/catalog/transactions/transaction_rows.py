"""Sole writer of the tables `transaction` and `transaction_coordinator`.

Lock order: transactions come after topics, lists, ledgers and producer sequences, and before coordinators and cursors.
A SQL transaction locks all the transactions that it needs at once, in the order of ids. Participants are settled before
their transaction is finished.
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

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_insert_if_absent,
    dataclass_from_row,
)
from logstore.catalog.transactions.buffer_rows import build_transaction_id_parameter, transaction_id_rows
from logstore.catalog.transactions.participant_rows import (
    match_owing_transactions,
    read_participants,
    remove_participants,
)
from logstore.errors import IdsExhausted
from logstore.ports.catalog.transactions import FinishedTransaction, StoredTransaction
from logstore.trace_id import current_trace_id
from logstore.transactions.transaction_ids_and_states import BROADCASTING_STATES, TransactionId, TransactionState

_T = t.transaction.c
_C = t.transaction_coordinator.c
_ColumnTypes = dict[str, TypeEngine[Any]]


def take_next_sequences(connection: Connection, tc_id: int, count: int) -> range:
    """Take the coordinator's next sequence numbers. Raise `IdsExhausted` if a number is not below the ceiling."""
    is_below_ceiling = _C.next_sequence + count <= select(t.record_log.c.transaction_ceiling).scalar_subquery()
    connection.execute(
        build_insert_if_absent(connection, t.transaction_coordinator).values(tc_id=tc_id, next_sequence=0)
    )
    end = connection.execute(
        update(t.transaction_coordinator)
        .where(_C.tc_id == tc_id, is_below_ceiling)
        .values(next_sequence=_C.next_sequence + count)
        .returning(_C.next_sequence)
    ).scalar_one_or_none()
    if end is None:
        raise IdsExhausted(f"coordinator {tc_id}: expected {count} ids below the ceiling; flush the record log")
    return range(end - count, end)


def insert_open_transactions(
    connection: Connection, opened: Sequence[tuple[TransactionId, int]], *, now_us: int
) -> None:
    """Insert open transactions. `opened` has each transaction with its timeout in microseconds."""
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
def _compile_transaction_lock(dialect: str) -> BulkStatement:
    ids, is_requested = build_transaction_id_parameter(dialect, _T)
    query = select(t.transaction).join(ids.source, is_requested).order_by(_T.tc_id, _T.sequence)
    return BulkStatement(sql=query.with_for_update(of=t.transaction), rows=ids)


def lock_transactions(connection: Connection, txns: Iterable[TransactionId]) -> dict[TransactionId, Row[Any]]:
    """Lock the existing transactions in the order of their ids. Return their rows."""
    pairs = transaction_id_rows(txns)
    rows = _compile_transaction_lock(connection.dialect.name).execute(connection, pairs).all() if pairs else []
    return {TransactionId(row.tc_id, row.sequence): row for row in rows}


def store_decided_states(
    connection: Connection, states: Mapping[TransactionId, TransactionState], *, now_us: int, timed_out: bool
) -> None:
    """Store the decided states of locked transactions. A transaction with a final state also gets `finished_us`."""
    rows = [(txn.tc_id, txn.sequence, state.value, now_us if state.is_final else None) for txn, state in states.items()]
    trace = current_trace_id()  # stored now, because the broadcast has one trace for many transactions
    _compile_state_update(connection.dialect.name).execute(
        connection, rows, now=now_us, late=int(timed_out), trace=trace
    )


@cache
def _compile_state_update(dialect: str) -> BulkStatement:
    column_types: _ColumnTypes = {"tc_id": BIG, "sequence": BIG, "state": TEXT, "finished_us": BIG}
    changed = build_bulk_parameter(dialect, "changed", column_types)
    c = changed.source.c
    matching = update(t.transaction).where(_T.tc_id == c.tc_id, _T.sequence == c.sequence)
    values = {
        "state": c.state,
        "finished_us": c.finished_us,
        "decided_us": bindparam("now"),
        "trace_id": bindparam("trace"),
    }
    return BulkStatement(sql=matching.values(**values, timed_out=bindparam("late")), rows=changed)


def transactions_from_rows(connection: Connection, rows: Sequence[Row[Any]]) -> list[StoredTransaction]:
    participants = read_participants(connection, [TransactionId(row.tc_id, row.sequence) for row in rows])
    return [
        dataclass_from_row(
            StoredTransaction,
            row,
            txn=(txn := TransactionId(row.tc_id, row.sequence)),
            state=TransactionState(row.state),
            timed_out=bool(row.timed_out),
            participants=participants[txn],
        )
        for row in rows
    ]


def match_transaction(txn: TransactionId) -> tuple[ColumnElement[bool], ...]:
    return (_T.tc_id == txn.tc_id, _T.sequence == txn.sequence)


def finish_settled_transactions(
    connection: Connection, txns: Collection[TransactionId], *, now_us: int
) -> list[FinishedTransaction]:
    """Finish decided transactions without an owed participant. Return the transactions in `txns` that are final now."""
    statements, pairs = _compile_finishing_statements(connection.dialect.name), transaction_id_rows(txns)
    locked = statements.lock.execute(connection, pairs).all()
    already_finished = [
        FinishedTransaction(txn=TransactionId(row.tc_id, row.sequence)) for row in locked if row.finished_us is not None
    ]
    finished_now = [
        FinishedTransaction(txn=TransactionId(row.tc_id, row.sequence), duration_us=now_us - row.decided_us)
        for row in statements.finish.execute(connection, pairs, now=now_us)
    ]
    return sorted([*already_finished, *finished_now], key=lambda finished: finished.txn)


class _FinishingStatements(NamedTuple):
    """Statements that finish transactions.

    There are two statements, because a single statement would read the participants before it gets its locks.
    """

    lock: BulkStatement  # in the order of ids
    finish: BulkStatement


@cache
def _compile_finishing_statements(dialect: str) -> _FinishingStatements:
    ids, is_requested = build_transaction_id_parameter(dialect, _T)
    lock = select(_T.tc_id, _T.sequence, _T.finished_us).join(ids.source, is_requested)
    lock = lock.order_by(_T.tc_id, _T.sequence)
    commits = _T.state == TransactionState.COMMITTING.value
    final_state = case((commits, TransactionState.COMMITTED.value), else_=TransactionState.ABORTED.value)
    no_claim = {"claim_workflow": None, "claim_run": None, "claim_until_us": None}
    finish = update(t.transaction).where(
        is_requested, _T.state.in_(BROADCASTING_STATES), ~match_owing_transactions(_T.tc_id, _T.sequence)
    )
    finish = finish.values(state=final_state, finished_us=bindparam("now"), **no_claim)
    return _FinishingStatements(
        lock=BulkStatement(sql=lock.with_for_update(of=t.transaction), rows=ids),
        finish=BulkStatement(sql=finish.returning(_T.tc_id, _T.sequence, _T.decided_us), rows=ids),
    )


def read_transaction_states(
    connection: Connection, txns: Iterable[TransactionId]
) -> dict[TransactionId, TransactionState]:
    rows = _compile_states_query(connection.dialect.name).execute(connection, transaction_id_rows(txns))
    return {TransactionId(row.tc_id, row.sequence): TransactionState(row.state) for row in rows}


@cache
def _compile_states_query(dialect: str) -> BulkStatement:
    ids, is_requested = build_transaction_id_parameter(dialect, _T)
    return BulkStatement(sql=select(_T.tc_id, _T.sequence, _T.state).join(ids.source, is_requested), rows=ids)


def match_unclaimed_transactions(now_us: Any) -> ColumnElement[bool]:  # noqa: ANN401 - a number, or a parameter
    has_lapsed: ColumnElement[bool] = func.coalesce(_T.claim_until_us, 0) <= now_us
    return has_lapsed


def claim_transaction(
    connection: Connection, txn: TransactionId, claim: Mapping[str, Any], *, workflow_id: str, now_us: int
) -> bool:
    can_claim = or_(match_unclaimed_transactions(now_us), _T.claim_workflow == workflow_id)
    claimed = update(t.transaction).where(*match_transaction(txn), can_claim).values(**claim)
    return bool(connection.execute(claimed).rowcount)


def record_transaction_failure(connection: Connection, txn: TransactionId, error: str, **claim: Any) -> None:  # noqa: ANN401
    """Count a failed attempt of an unfinished transaction. `claim` has new values of the claim's columns."""
    unfinished = update(t.transaction).where(*match_transaction(txn), _T.finished_us.is_(None))
    connection.execute(unfinished.values(attempts=_T.attempts + 1, last_error=error, **claim))


def set_transaction_claims(connection: Connection, txns: Collection[TransactionId], claim: Mapping[str, Any]) -> None:
    if txns:
        rows = [(txn.tc_id, txn.sequence, *claim.values()) for txn in txns]
        _compile_claim_update(connection.dialect.name).execute(connection, rows)


@cache
def _compile_claim_update(dialect: str) -> BulkStatement:
    claim_types: _ColumnTypes = {"claim_workflow": TEXT, "claim_run": TEXT, "claim_until_us": BIG}
    claims = build_bulk_parameter(dialect, "claimed", {"tc_id": BIG, "sequence": BIG} | claim_types)
    c = claims.source.c
    matching = update(t.transaction).where(_T.tc_id == c.tc_id, _T.sequence == c.sequence)
    return BulkStatement(sql=matching.values({name: c[name] for name in claim_types}), rows=claims)


def read_states_finished_before(
    connection: Connection, before_us: int, limit: int
) -> dict[TransactionId, TransactionState]:
    """Return the transactions that finished before `before_us`, oldest first."""
    query = select(_T.tc_id, _T.sequence, _T.state).where(_T.finished_us < before_us)
    rows = connection.execute(query.order_by(_T.finished_us).limit(limit))
    return {TransactionId(row.tc_id, row.sequence): TransactionState(row.state) for row in rows}


def remove_transactions(connection: Connection, finished: Collection[TransactionId]) -> None:
    pairs = sorted(transaction_id_rows(finished))
    if pairs:
        remove_participants(connection, pairs)
        connection.execute(delete(t.transaction).where(tuple_(_T.tc_id, _T.sequence).in_(pairs)))


def count_unfinished_by_state(connection: Connection) -> Sequence[Row[Any]]:
    """Return `state`, `rows` and `since` of unfinished transactions.

    `since` is the time of the earliest decision or, for the state OPEN, of the earliest begin.
    """
    since = func.min(func.coalesce(_T.decided_us, _T.created_us)).label("since")
    query = select(_T.state, func.count().label("rows"), since).where(_T.finished_us.is_(None)).group_by(_T.state)
    return connection.execute(query).all()
