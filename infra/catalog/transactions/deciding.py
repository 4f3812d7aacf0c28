"""Begin and end of transactions in a group commit, and the timeout that stands for an abort.

`end` is where a transaction is decided: one SQL transaction sets its state, from which readers of every topic follow,
and turns what it holds of subscriptions into acknowledgements. What comes later tells the logs, and changes no answer.

Source: Pulsar's transaction coordinator; there the end is announced to each participant, and half of it is seen until
the last one has heard.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from infra.catalog.cursors.cursor_rows import LockedCursor, count_releases, lock_cursors, store
from infra.catalog.transactions.participant_rows import holding_in
from infra.catalog.transactions.transaction_rows import decide, insert_open, next_sequences
from logstore.cursors.state import add_acknowledged
from logstore.errors import SextonError, UnknownObject
from logstore.ports.catalog import (
    BeginTransaction,
    BeginTransactionResult,
    EndTransaction,
    EndTransactionResult,
    StoredParticipant,
    WriteResult,
)
from logstore.positions import TopicId
from logstore.transactions.transactions import TransactionId, TransactionState, decide_state

Locked = Mapping[TransactionId, Row[Any]]
"""Rows of `transaction` that this transaction of the database has locked."""


def begin_all(connection: Connection, writes: Sequence[BeginTransaction], *, now_us: int) -> list[WriteResult]:
    """Open transactions, each coordinator's in one statement."""
    taken: dict[int, Any] = {}
    for tc_id in sorted({write.tc_id for write in writes}):
        count = sum(write.tc_id == tc_id for write in writes)
        taken[tc_id] = iter(next_sequences(connection, tc_id, count))
    opened = [(TransactionId(one.tc_id, next(taken[one.tc_id])), round(one.timeout_s * 1_000_000)) for one in writes]
    if opened:
        insert_open(connection, opened, now_us=now_us)
    return [BeginTransactionResult(txn=txn) for txn, _ in opened]


def end_all(
    connection: Connection,
    writes: Sequence[EndTransaction],
    locked: Locked,
    states: dict[TransactionId, TransactionState],
    *,
    also: Collection[tuple[TopicId, str]],
    now_us: int,
) -> list[WriteResult]:
    """Decide transactions whose rows are locked, in order; the second of two verbs for one meets the first.

    Args:
        connection: In the transaction that holds those locks.
        writes: What is asked for.
        locked: The rows.
        states: Of these rows; they are changed with them.
        also: Cursors that the caller locks next: if any is locked here, these are locked with it, all in one order.
        now_us: The database's clock, read under the locks.
    """
    results: list[WriteResult] = []
    changed: dict[TransactionId, TransactionState] = {}
    for write in writes:
        state = _decided(write, locked, states, now_us)
        if isinstance(state, TransactionState) and state is not states[write.txn]:
            states[write.txn] = changed[write.txn] = state
        results.append(state if isinstance(state, SextonError) else EndTransactionResult(state=state))
    final = put_decisions(connection, changed, also=also, now_us=now_us)
    states.update(final)
    return [
        EndTransactionResult(state=final.get(write.txn, found.state))
        if isinstance(found, EndTransactionResult)
        else found
        for write, found in zip(writes, results, strict=True)
    ]


def _decided(
    write: EndTransaction, locked: Locked, states: Mapping[TransactionId, TransactionState], now_us: int
) -> TransactionState | SextonError:
    row = locked.get(write.txn)
    if row is None:
        return UnknownObject("txn", expected="a transaction of this catalog", found=str(write.txn))
    try:
        return decide_state(write.txn, states[write.txn], commit=write.commit, expired=row.deadline_us <= now_us)
    except SextonError as refused:
        return refused


def put_decisions(
    connection: Connection,
    changed: Mapping[TransactionId, TransactionState],
    *,
    also: Collection[tuple[TopicId, str]] = (),
    now_us: int,
    timed_out: bool = False,
) -> dict[TransactionId, TransactionState]:
    """Write what was decided of locked, open transactions: the state of each, final where no participant is to be told.

    `also` are cursors that the caller locks next; see `end_all`.
    """
    if not changed:
        return {}
    participating, held = holding_in(connection, list(changed))
    final = {True: TransactionState.COMMITTED, False: TransactionState.ABORTED}
    states = {txn: state if txn in participating else final[state.is_commit] for txn, state in changed.items()}
    decide(connection, states, now_us=now_us, timed_out=timed_out)
    committed = [participant for txn, participant in held if states[txn].is_commit]
    aborted = [participant for txn, participant in held if not states[txn].is_commit]
    settle_held(connection, committed, aborted, also)
    return states


def settle_held(
    connection: Connection,
    committed: Sequence[StoredParticipant],
    aborted: Sequence[StoredParticipant] = (),
    also: Collection[tuple[TopicId, str]] = (),
) -> None:
    """Let cursors have what committed transactions held of them, and count what aborted ones give back.

    Mark-delete moves with the next acknowledgement. A cursor that was sought, or whose ledgers were detached since,
    keeps only what still counts. Cumulative acknowledgements that were read before an abort are refused from here on.
    """
    joining = {(held.participant.topic_id, held.participant.subscription) for held in committed}
    releases = Counter((held.participant.topic_id, held.participant.subscription) for held in aborted)
    if not joining and not releases:
        return
    rows = lock_cursors(connection, joining.union(releases, also))
    cursors = {key: LockedCursor.of(row) for key, row in rows.items() if key in joining}
    for held in committed:
        cursor = cursors.get((held.participant.topic_id, held.participant.subscription))
        if cursor:
            cursor.state = add_acknowledged(cursor.state, held.positions)
    store(connection, list(cursors.values()))
    count_releases(connection, {rows[key].cursor_id: added for key, added in releases.items() if key in rows})
