"""Begin and end of transactions in a group commit, and the abort of expired transactions.

One SQL transaction sets the state of a transaction, and all readers follow the state at once. For a commit, the
SQL transaction also acknowledges the entries that the transaction holds. The later broadcast does not change the
visible entries. In Pulsar, readers see only a part of a transaction until the last participant has been told.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row

from logstore.catalog.cursors.cursor_rows import add_releases, lock_cursors, store_cursors, stored_cursor_from_row
from logstore.catalog.transactions.participant_rows import find_participating_txns_and_holders
from logstore.catalog.transactions.transaction_rows import (
    insert_open_transactions,
    store_decided_states,
    take_next_sequences,
)
from logstore.cursors.cursor_state import add_acknowledged
from logstore.errors import SextonError, UnknownObject
from logstore.ports.catalog.log import (
    BeginTransactionResult,
    BeginTransactionWrite,
    EndTransactionResult,
    EndTransactionWrite,
    GroupCommitResult,
)
from logstore.ports.catalog.transactions import StoredParticipant
from logstore.positions import TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState, decide_transaction_state

LockedTransactions = Mapping[TransactionId, Row[Any]]
"""Rows of `transaction` that the current SQL transaction has locked."""


def begin_transactions(
    connection: Connection, writes: Sequence[BeginTransactionWrite], *, now_us: int
) -> list[GroupCommitResult]:
    sequences: dict[int, Any] = {}
    for tc_id in sorted({write.tc_id for write in writes}):
        count = sum(write.tc_id == tc_id for write in writes)
        sequences[tc_id] = iter(take_next_sequences(connection, tc_id, count))
    opened = [
        (TransactionId(write.tc_id, next(sequences[write.tc_id])), round(write.timeout_s * 1_000_000))
        for write in writes
    ]
    if opened:
        insert_open_transactions(connection, opened, now_us=now_us)
    return [BeginTransactionResult(txn=txn) for txn, _ in opened]


def end_transactions(
    connection: Connection,
    writes: Sequence[EndTransactionWrite],
    locked: LockedTransactions,
    states: dict[TransactionId, TransactionState],
    *,
    cursors_to_lock_next: Collection[tuple[TopicId, str]],
    now_us: int,
) -> list[GroupCommitResult]:
    """Decide locked transactions in the order of `writes`. A repeated request gets the first decision.

    `states` is updated. If this call locks cursors, it also locks `cursors_to_lock_next`, the cursors that the caller
    changes afterwards. So all cursors are locked in one order.
    """
    results: list[GroupCommitResult] = []
    new_state_by_txn: dict[TransactionId, TransactionState] = {}
    for write in writes:
        state = _decide_transaction(write, locked, states, now_us)
        if isinstance(state, TransactionState) and state is not states[write.txn]:
            states[write.txn] = new_state_by_txn[write.txn] = state
        results.append(state if isinstance(state, SextonError) else EndTransactionResult(state=state))
    stored_states = store_transaction_decisions(
        connection, new_state_by_txn, cursors_to_lock_next=cursors_to_lock_next, now_us=now_us
    )
    states.update(stored_states)
    return [
        EndTransactionResult(state=stored_states.get(write.txn, result.state))
        if isinstance(result, EndTransactionResult)
        else result
        for write, result in zip(writes, results, strict=True)
    ]


def _decide_transaction(
    write: EndTransactionWrite,
    locked: LockedTransactions,
    states: Mapping[TransactionId, TransactionState],
    now_us: int,
) -> TransactionState | SextonError:
    row = locked.get(write.txn)
    if row is None:
        return UnknownObject("txn", expected="a transaction of this catalog", found=str(write.txn))
    try:
        return decide_transaction_state(
            write.txn, states[write.txn], commit=write.commit, expired=row.deadline_us <= now_us
        )
    except SextonError as error:
        return error


def store_transaction_decisions(
    connection: Connection,
    state_by_txn: Mapping[TransactionId, TransactionState],
    *,
    cursors_to_lock_next: Collection[tuple[TopicId, str]] = (),
    now_us: int,
    timed_out: bool = False,
) -> dict[TransactionId, TransactionState]:
    """Store the decisions of locked, open transactions. Return the new states.

    The state of a transaction without participants is final.
    """
    if not state_by_txn:
        return {}
    participating, holders = find_participating_txns_and_holders(connection, list(state_by_txn))
    final_state = {True: TransactionState.COMMITTED, False: TransactionState.ABORTED}
    states = {
        txn: state if txn in participating else final_state[state.is_commit] for txn, state in state_by_txn.items()
    }
    store_decided_states(connection, states, now_us=now_us, timed_out=timed_out)
    committed = [holder for txn, holder in holders if states[txn].is_commit]
    aborted = [holder for txn, holder in holders if not states[txn].is_commit]
    apply_decisions_to_cursors(connection, committed, aborted, cursors_to_lock_next)
    return states


def apply_decisions_to_cursors(
    connection: Connection,
    committed: Sequence[StoredParticipant],
    aborted: Sequence[StoredParticipant] = (),
    cursors_to_lock_next: Collection[tuple[TopicId, str]] = (),
) -> None:
    """Acknowledge the entries that committed transactions held, and count the releases of aborted transactions.

    Each aborted transaction adds one release to each of its cursors. Entries up to a cursor's
    mark-delete position are acknowledged already, and are not stored.
    """
    committed_keys = {(holder.participant.topic_id, holder.participant.subscription) for holder in committed}
    releases = Counter((holder.participant.topic_id, holder.participant.subscription) for holder in aborted)
    if not committed_keys and not releases:
        return
    rows = lock_cursors(connection, committed_keys.union(releases, cursors_to_lock_next))
    cursors = {key: stored_cursor_from_row(row) for key, row in rows.items() if key in committed_keys}
    for holder in committed:
        key = (holder.participant.topic_id, holder.participant.subscription)
        if key in cursors:
            state = add_acknowledged(cursors[key].state, holder.positions)
            cursors[key] = replace(cursors[key], state=state)
    store_cursors(connection, {rows[key].cursor_id: cursor for key, cursor in cursors.items()})
    add_releases(connection, {rows[key].cursor_id: count for key, count in releases.items() if key in rows})
