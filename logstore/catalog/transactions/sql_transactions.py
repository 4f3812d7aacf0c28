"""Transactions in SQL."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap
from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, tuple_

from logstore.catalog import tables as t
from logstore.catalog.audit_log import insert_audit_row
from logstore.catalog.deletion.run_rows import build_claim_columns
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.log.producer_sequence_rows import store_outcomes_in_sequences
from logstore.catalog.log.topics import share_lock_and_filter_active_topics
from logstore.catalog.log.totals_and_backlogs import read_frontier
from logstore.catalog.transactions import participant_rows as participants
from logstore.catalog.transactions import transaction_rows as rows
from logstore.catalog.transactions.buffer_rows import settle_buffer_ranges
from logstore.catalog.transactions.buffer_snapshots import add_settled_changes
from logstore.catalog.transactions.transaction_decisions import store_transaction_decisions
from logstore.errors import ClaimHeld, TransactionNotDecided, UnknownObject
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.transactions import (
    CoordinatorWorkStatus,
    FinishedTransaction,
    Frontier,
    SettlementReason,
    StoredTransaction,
    UnfinishedTransactionCounts,
)
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transaction_ids_and_states import (
    BROADCASTING_STATES,
    Participant,
    TransactionId,
    TransactionState,
    summarize_failures,
)

_T = t.transaction.c
_UNFINISHED = _T.finished_us.is_(None)
_OPEN = (_T.tc_id == bindparam("tc"), _UNFINISHED, _T.state == TransactionState.OPEN.value)
_PENDING_WORK_QUERY = select(
    exists()
    .where(_UNFINISHED, _T.state.in_(BROADCASTING_STATES), rows.match_unclaimed_transactions(bindparam("now")))
    .label("has_unclaimed"),
    select(func.min(_T.deadline_us)).where(*_OPEN).scalar_subquery().label("deadline"),
)
"""Query for pending work of a coordinator. It is built once, because coordinators poll often."""


class Transactions(CatalogAdapter):
    def get_transaction(self, txn: TransactionId) -> StoredTransaction:
        """Return the transaction. Raise `UnknownObject` if the transaction does not exist or was removed."""
        return self._db.read(lambda connection: _require_transaction(connection, txn))

    def list_transactions(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        """Return transactions in `states`, ascending by id. With empty `states`, return all unfinished transactions."""
        query = select(t.transaction).where(_T.state.in_([state.value for state in states]) if states else _UNFINISHED)
        if after is not None:
            query = query.where(tuple_(_T.tc_id, _T.sequence) > (after.tc_id, after.sequence))
        ordered = query.order_by(_T.tc_id, _T.sequence).limit(limit)
        return self._db.read(lambda c: rows.transactions_from_rows(c, c.execute(ordered).all()))

    def get_transaction_states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """Return the states of the transactions that exist, in one SQL statement. Waiting clients poll this method."""
        return self._db.read(lambda connection: rows.read_transaction_states(connection, txns))

    @in_read_transaction
    def count_unfinished_transactions(self, connection: Connection) -> UnfinishedTransactionCounts:
        rows_by_state = {TransactionState(row.state): row for row in rows.count_unfinished_by_state(connection)}
        open_row = rows_by_state.get(TransactionState.OPEN)
        decided = [row.since for state, row in rows_by_state.items() if state.value in BROADCASTING_STATES]
        size = func.coalesce(func.sum(func.length(t.buffer_hidden.c.entries)), 0)
        return UnfinishedTransactionCounts(
            count_by_state={state: row.rows for state, row in rows_by_state.items()},
            oldest_open_us=open_row.since if open_row else None,
            oldest_decided_us=min(decided, default=None),
            hidden_bytes=int(connection.execute(select(size)).scalar_one()),
        )

    def read_frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        """Return the visible part of a topic at one moment. `hidden` has no entries of ledgers before `from_ledger`.

        In an unknown topic no entry is visible.
        """
        return self._db.read(lambda connection: read_frontier(connection, topic_id, from_ledger))

    def find_held_entries(
        self, topic_id: TopicId, subscription: str
    ) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        key = (topic_id, subscription)
        return self._db.read(lambda connection: participants.read_held_entries(connection, [key])[key])

    @in_write_transaction("catalog.expire_transactions")
    def abort_expired_transactions(self, connection: Connection, tc_id: int, *, limit: int) -> int:
        """Abort open transactions whose deadline has passed by the catalog's clock. Return their number."""
        now = self._db.now_us(connection)
        is_expired = (_T.tc_id == tc_id, _T.state == TransactionState.OPEN.value, _T.deadline_us <= now, _UNFINISHED)
        query = select(_T.tc_id, _T.sequence).where(*is_expired).order_by(_T.sequence).limit(limit)
        expired = connection.execute(query.with_for_update(skip_locked=True)).all()
        states = {TransactionId(*row): TransactionState.ABORTING for row in expired}
        return len(store_transaction_decisions(connection, states, now_us=now, timed_out=True))

    @in_read_transaction
    def read_coordinator_work(self, connection: Connection, tc_id: int) -> CoordinatorWorkStatus:
        now = self._db.now_us(connection)
        row = connection.execute(_PENDING_WORK_QUERY, {"now": now, "tc": tc_id}).one()
        return CoordinatorWorkStatus(has_unclaimed=bool(row.has_unclaimed), next_deadline_us=row.deadline, now_us=now)

    @in_read_transaction
    def list_busy_coordinators(self, connection: Connection) -> list[int]:
        """Return coordinators with expired open transactions or unclaimed decided transactions, ascending."""
        now = self._db.now_us(connection)
        has_unclaimed = _T.state.in_(BROADCASTING_STATES) & rows.match_unclaimed_transactions(now)
        has_expired = (_T.state == TransactionState.OPEN.value) & (_T.deadline_us <= now)
        query = select(_T.tc_id).where(_UNFINISHED, or_(has_unclaimed, has_expired)).distinct().order_by(_T.tc_id)
        return list(connection.execute(query).scalars())

    @in_write_transaction("catalog.claim_transactions")
    def claim_decided_transactions(
        self, connection: Connection, claim: Claim, *, limit: int
    ) -> list[StoredTransaction]:
        """Claim decided transactions of any coordinator, except transactions that another workflow run has claimed.

        Idempotency: transactions that this workflow run has claimed are returned again.
        """
        now = self._db.now_us(connection)
        is_own = and_(_T.claim_workflow == claim.workflow_id, _T.claim_run == claim.run_id)
        can_claim = (
            _UNFINISHED,
            _T.state.in_(BROADCASTING_STATES),
            or_(rows.match_unclaimed_transactions(now), is_own),
        )
        query = select(t.transaction).where(*can_claim).order_by(_T.tc_id, _T.sequence).limit(limit)
        claimed = connection.execute(query.with_for_update(skip_locked=True)).all()
        txns = [TransactionId(row.tc_id, row.sequence) for row in claimed]
        rows.set_transaction_claims(connection, txns, build_claim_columns(claim, now))
        return rows.transactions_from_rows(connection, claimed)

    @in_write_transaction("catalog.claim_transaction")
    def claim_transaction(self, connection: Connection, txn: TransactionId, claim: Claim) -> StoredTransaction:
        """Claim one decided transaction, or renew its claim. A finished transaction is returned unchanged.

        Raises:
            UnknownObject: The transaction does not exist.
            ClaimHeld: Another workflow has claimed the transaction.
            TransactionNotDecided: The transaction is open.
        """
        transaction = _require_transaction(connection, txn, lock=True)
        if transaction.state is TransactionState.OPEN:
            raise TransactionNotDecided(str(txn))
        if transaction.finished_us is not None:
            return transaction
        now = self._db.now_us(connection)
        if not rows.claim_transaction(
            connection, txn, build_claim_columns(claim, now), workflow_id=claim.workflow_id, now_us=now
        ):
            raise ClaimHeld(f"txn {txn}: expected no workflow at work on it, found {transaction.claim_workflow}")
        return transaction

    @in_write_transaction("catalog.settle_transactions")
    def settle_participants(
        self, connection: Connection, settlements: Sequence[tuple[TransactionId, Participant, SettlementReason]]
    ) -> list[FinishedTransaction]:
        """Settle participants. Return the given transactions that are finished now, ascending.

        If all participants of a transaction are settled, COMMITTING becomes COMMITTED and ABORTING becomes ABORTED.
        Messages of aborted transactions become hidden. If a topic is settled, the rows of the transaction's entries in
        this topic are removed.

        Idempotency: a settled participant does not change, and a finished transaction is returned again.
        """
        return _settle_participants(connection, settlements, now_us=self._db.now_us(connection))

    @in_write_transaction("catalog.hand_over_transactions")
    def hand_over_to_own_workflows(
        self,
        connection: Connection,
        failures: Mapping[TransactionId, Mapping[Participant, str]],
        *,
        claim_by_transaction: Mapping[TransactionId, Claim],
    ) -> None:
        """Give each transaction to a workflow of its own, count an attempt, and store the error of each participant.

        The claims have no Temporal run id, because the workflows have not begun.
        """
        now = self._db.now_us(connection)
        _record_failures(
            connection, failures, {txn: build_claim_columns(claim, now) for txn, claim in claim_by_transaction.items()}
        )

    def list_handed_over_transactions(self, *, limit: int) -> list[TransactionId]:
        """Return transactions that were handed over and whose workflows have not begun, ascending."""
        is_handed_over = (_UNFINISHED, _T.state.in_(BROADCASTING_STATES), _T.claim_run == "")
        query = select(_T.tc_id, _T.sequence).where(*is_handed_over).order_by(_T.tc_id, _T.sequence).limit(limit)
        return [TransactionId(*row) for row in self._db.read(lambda connection: connection.execute(query).all())]

    @in_write_transaction("catalog.transaction_failed")
    def record_participant_errors(
        self, connection: Connection, txn: TransactionId, failures: Mapping[Participant, str]
    ) -> None:
        _record_failures(connection, {txn: failures}, {})

    @in_write_transaction("catalog.resolve_participant")
    def settle_untold_participant(
        self, connection: Connection, txn: TransactionId, participant: Participant, cause: AuditCause
    ) -> StoredTransaction:
        # The transaction is not locked here: its decision is final, and ledgers must be locked before transactions.
        """Settle a participant on behalf of an operator, with a row in the audit log. Idempotent.

        Raises:
            UnknownObject: The transaction or the participant does not exist.
            TransactionNotDecided: The transaction is open.
        """
        transaction = _require_transaction(connection, txn)
        stored = next((stored for stored in transaction.participants if stored.participant == participant), None)
        if stored is None:
            names = ", ".join(str(stored.participant) for stored in transaction.participants) or "no participants"
            raise UnknownObject("participant", expected=f"one of {names}", found=str(participant))
        if transaction.state is TransactionState.OPEN:
            raise TransactionNotDecided(str(txn))
        if stored.settled_us is None:
            now = self._db.now_us(connection)
            _settle_participants(connection, [(txn, participant, SettlementReason.RESOLVED)], now_us=now)
            detail = {"txn": str(txn), "participant": str(participant), "state": transaction.state.value}
            about: dict[str, Any] = {"topic_id": participant.topic_id, "topic": stored.topic, "detail": detail}
            insert_audit_row(connection, "resolve-participant", cause, at_us=now, **about)
        return _require_transaction(connection, txn)

    @in_write_transaction("catalog.forget_transactions")
    def remove_finished_transactions(self, connection: Connection, *, older_than_s: float, limit: int) -> int:
        before_us = self._db.now_us(connection) - round(older_than_s * 1_000_000)
        finished = rows.read_states_finished_before(connection, before_us, limit)
        store_outcomes_in_sequences(connection, finished)
        rows.remove_transactions(connection, finished)
        return len(finished)


def _settle_participants(
    connection: Connection, settlements: Sequence[tuple[TransactionId, Participant, SettlementReason]], *, now_us: int
) -> list[FinishedTransaction]:
    """Settle ranges, participants and transactions. Lock order: topics, ledgers, transactions."""
    changes = Counter(participant.topic_id for _, participant, _ in settlements)
    active = share_lock_and_filter_active_topics(connection, changes)  # a deleted topic needs no snapshot
    settle_buffer_ranges(connection, {(participant.topic_id, txn) for txn, participant, _ in settlements})
    if participants.settle_participants(connection, settlements, now_us=now_us):
        active_changes = {topic_id: count for topic_id, count in changes.items() if topic_id in active}
        add_settled_changes(connection, active_changes, now_us=now_us)
    return rows.finish_settled_transactions(connection, {txn for txn, _, _ in settlements}, now_us=now_us)


def _record_failures(
    connection: Connection,
    failures: Mapping[TransactionId, Mapping[Participant, str]],
    claims: Mapping[TransactionId, Mapping[str, Any]],
) -> None:
    """Store the errors of participants, then the errors of transactions. A settlement locks rows in the same order."""
    for txn, errors in sorted(failures.items()):
        participants.store_participant_errors(connection, txn, errors)
    for txn, errors in sorted(failures.items()):
        rows.record_transaction_failure(connection, txn, summarize_failures(errors), **claims.get(txn, {}))


def _require_transaction(connection: Connection, txn: TransactionId, *, lock: bool = False) -> StoredTransaction:
    query = select(t.transaction).where(*rows.match_transaction(txn))
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UnknownObject("txn", expected="a transaction of this catalog", found=str(txn))
    return rows.transactions_from_rows(connection, [row])[0]
