"""The port `Transactions` in SQL."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap
from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, tuple_

from infra.catalog import tables as t
from infra.catalog.audits import audit
from infra.catalog.deletion.runs import claim_columns
from infra.catalog.engine.database import OnDatabase, reads, writes
from infra.catalog.log.producer_rows import conclude_sequences
from infra.catalog.log.sums import read_frontier
from infra.catalog.log.topic_rows import share_lock_topics
from infra.catalog.transactions import participant_rows as participants
from infra.catalog.transactions import transaction_rows as rows
from infra.catalog.transactions.buffer_rows import settle_ranges
from infra.catalog.transactions.deciding import put_decisions
from infra.catalog.transactions.snapshots import count_changes
from logstore.errors import ClaimHeld, TransactionNotDecided, UnknownObject
from logstore.ports.catalog import (
    Cause,
    Claim,
    CoordinatorWork,
    Finished,
    Frontier,
    Settled,
    StoredTransaction,
    TransactionCounts,
)
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transactions import (
    BROADCASTING_STATES,
    Participant,
    TransactionId,
    TransactionState,
    summarize_failures,
)

_T = t.transaction.c
_UNFINISHED = _T.finished_us.is_(None)
_OPEN = (_T.tc_id == bindparam("tc"), _UNFINISHED, _T.state == TransactionState.OPEN.value)
_WORK = select(
    exists().where(_UNFINISHED, _T.state.in_(BROADCASTING_STATES), rows.unclaimed(bindparam("now"))).label("undone"),
    select(func.min(_T.deadline_us)).where(*_OPEN).scalar_subquery().label("deadline"),
)
"""Built once: a coordinator looks for work again and again."""


class SqlTransactions(OnDatabase):
    """The `Transactions` port."""

    def get(self, txn: TransactionId) -> StoredTransaction:
        return self._db.read(lambda connection: _existing(connection, txn))

    def many(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        query = select(t.transaction).where(_T.state.in_([one.value for one in states]) if states else _UNFINISHED)
        if after is not None:
            query = query.where(tuple_(_T.tc_id, _T.sequence) > (after.tc_id, after.sequence))
        ordered = query.order_by(_T.tc_id, _T.sequence).limit(limit)
        return self._db.read(lambda c: rows.with_participants(c, c.execute(ordered).all()))

    def states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        return self._db.read(lambda connection: rows.states_of(connection, txns))

    @reads
    def counts(self, connection: Connection) -> TransactionCounts:
        found = {TransactionState(row.state): row for row in rows.count_states(connection)}
        since = [found[state].since for state in map(TransactionState, BROADCASTING_STATES) if state in found]
        size = func.coalesce(func.sum(func.length(t.buffer_hidden.c.entries)), 0)
        return TransactionCounts(
            states={state: row.rows for state, row in found.items()},
            oldest_open_us=found[TransactionState.OPEN].since if TransactionState.OPEN in found else None,
            oldest_decided_us=min(since, default=None),
            hidden_bytes=int(connection.execute(select(size)).scalar_one()),
        )

    def frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        return self._db.read(lambda connection: read_frontier(connection, topic_id, from_ledger))

    def held(self, topic_id: TopicId, subscription: str) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        key = (topic_id, subscription)
        return self._db.read(lambda connection: participants.held(connection, [key])[key])

    @writes("catalog.expire_transactions")
    def expire(self, connection: Connection, tc_id: int, *, limit: int) -> int:
        now = self._db.now_us(connection)
        late = (_T.tc_id == tc_id, _T.state == TransactionState.OPEN.value, _T.deadline_us <= now, _UNFINISHED)
        query = select(_T.tc_id, _T.sequence).where(*late).order_by(_T.sequence).limit(limit)
        found = connection.execute(query.with_for_update(skip_locked=True)).all()
        states = {TransactionId(*row): TransactionState.ABORTING for row in found}
        return len(put_decisions(connection, states, now_us=now, timed_out=True))

    @reads
    def work_of(self, connection: Connection, tc_id: int) -> CoordinatorWork:
        now = self._db.now_us(connection)
        row = connection.execute(_WORK, {"now": now, "tc": tc_id}).one()
        return CoordinatorWork(undone=bool(row.undone), next_deadline_us=row.deadline, now_us=now)

    @reads
    def busy_coordinators(self, connection: Connection) -> list[int]:
        now = self._db.now_us(connection)
        free = _T.state.in_(BROADCASTING_STATES) & rows.unclaimed(now)
        late = (_T.state == TransactionState.OPEN.value) & (_T.deadline_us <= now)
        query = select(_T.tc_id).where(_UNFINISHED, or_(free, late)).distinct().order_by(_T.tc_id)
        return list(connection.execute(query).scalars())

    @writes("catalog.claim_transactions")
    def claim(self, connection: Connection, claim: Claim, *, limit: int) -> list[StoredTransaction]:
        now = self._db.now_us(connection)
        own = and_(_T.claim_workflow == claim.workflow_id, _T.claim_run == claim.run_id)
        free = or_(rows.unclaimed(now), own)
        mine = (_UNFINISHED, _T.state.in_(BROADCASTING_STATES), free)
        query = select(t.transaction).where(*mine).order_by(_T.tc_id, _T.sequence).limit(limit)
        found = connection.execute(query.with_for_update(skip_locked=True)).all()
        rows.put_claim(connection, [TransactionId(row.tc_id, row.sequence) for row in found], claim_columns(claim, now))
        return rows.with_participants(connection, found)

    @writes("catalog.claim_transaction")
    def claim_one(self, connection: Connection, txn: TransactionId, claim: Claim) -> StoredTransaction:
        found = _existing(connection, txn, lock=True)
        if found.state is TransactionState.OPEN:
            raise TransactionNotDecided(str(txn))
        if found.finished_us is not None:
            return found
        now = self._db.now_us(connection)
        if not rows.take(connection, txn, claim_columns(claim, now), workflow_id=claim.workflow_id, now_us=now):
            raise ClaimHeld(f"txn {txn}: expected no workflow at work on it, found {found.claim_workflow}")
        return found

    @writes("catalog.settle_transactions")
    def settle(
        self, connection: Connection, done: Sequence[tuple[TransactionId, Participant, Settled]]
    ) -> list[Finished]:
        return _settle(connection, done, now_us=self._db.now_us(connection))

    @writes("catalog.hand_over_transactions")
    def hand_over(
        self,
        connection: Connection,
        failures: Mapping[TransactionId, Mapping[Participant, str]],
        *,
        to: Mapping[TransactionId, Claim],
    ) -> None:
        now = self._db.now_us(connection)
        _tell_failures(connection, failures, {txn: claim_columns(claim, now) for txn, claim in to.items()})

    def handed_over(self, *, limit: int) -> list[TransactionId]:
        given = (_UNFINISHED, _T.state.in_(BROADCASTING_STATES), _T.claim_run == "")
        query = select(_T.tc_id, _T.sequence).where(*given).order_by(_T.tc_id, _T.sequence).limit(limit)
        return [TransactionId(*row) for row in self._db.read(lambda connection: connection.execute(query).all())]

    @writes("catalog.transaction_failed")
    def failed(self, connection: Connection, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
        _tell_failures(connection, {txn: failures}, {})

    @writes("catalog.resolve_participant")
    def resolve(
        self, connection: Connection, txn: TransactionId, participant: Participant, cause: Cause
    ) -> StoredTransaction:
        found = _existing(connection, txn)  # decided is decided: its row is locked behind the ledgers, by `finish`
        known = next((one for one in found.participants if one.participant == participant), None)
        if known is None:
            told = ", ".join(str(one.participant) for one in found.participants) or "no participants"
            raise UnknownObject("participant", expected=f"one of {told}", found=str(participant))
        if found.state is TransactionState.OPEN:
            raise TransactionNotDecided(str(txn))
        if known.settled_us is None:
            now = self._db.now_us(connection)
            _settle(connection, [(txn, participant, Settled.RESOLVED)], now_us=now)
            detail = {"txn": str(txn), "participant": str(participant), "state": found.state.value}
            about: dict[str, Any] = {"topic_id": participant.topic_id, "topic": known.topic, "detail": detail}
            audit(connection, "resolve-participant", cause, at_us=now, **about)
        return _existing(connection, txn)

    @writes("catalog.forget_transactions")
    def forget(self, connection: Connection, *, older_than_s: float, limit: int) -> int:
        before = self._db.now_us(connection) - round(older_than_s * 1_000_000)
        ended = rows.finished_before(connection, before, limit)
        conclude_sequences(connection, ended)
        rows.remove(connection, ended)
        return len(ended)


def _settle(
    connection: Connection, done: Sequence[tuple[TransactionId, Participant, Settled]], *, now_us: int
) -> list[Finished]:
    """Locks: topics, ledgers, transactions; a topic that is gone has nothing left to take a snapshot of."""
    changes = Counter(one.topic_id for _, one, _ in done)
    active = share_lock_topics(connection, changes)
    settle_ranges(connection, {(one.topic_id, txn) for txn, one, _ in done})
    if participants.settle_participants(connection, done, now_us=now_us):
        count_changes(connection, {one: count for one, count in changes.items() if one in active}, now_us=now_us)
    return rows.finish(connection, {txn for txn, _, _ in done}, now_us=now_us)


def _tell_failures(
    connection: Connection,
    failures: Mapping[TransactionId, Mapping[Participant, str]],
    claims: Mapping[TransactionId, Mapping[str, Any]],
) -> None:
    """Participants come before their transactions, as a settlement locks them."""
    for txn, mine in sorted(failures.items()):
        participants.put_errors(connection, txn, mine)
    for txn, mine in sorted(failures.items()):
        rows.tell_failure(connection, txn, summarize_failures(mine), **claims.get(txn, {}))


def _existing(connection: Connection, txn: TransactionId, *, lock: bool = False) -> StoredTransaction:
    query = select(t.transaction).where(*rows.one(txn))
    found = connection.execute(query.with_for_update() if lock else query).first()
    if found is None:
        raise UnknownObject("txn", expected="a transaction of this catalog", found=str(txn))
    return rows.with_participants(connection, [found])[0]
