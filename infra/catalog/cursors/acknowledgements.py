"""Acknowledgements in a group commit: cursors are locked by id, changed in order, written once.

A cursor with a snapshot is changed as a whole, with the bitmaps that the write carries; its row then takes what
the snapshot does not hold. So the mark-delete position advances over both, and no object store is read here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from infra.catalog.cursors.cursor_rows import LockedCursor, lock_cursors, spans_of, store
from infra.catalog.transactions.holding import Holding
from logstore.cursors.state import LedgerSpan, acknowledged_by, carried, since, whole
from logstore.errors import TerminalError, UnknownObject
from logstore.ports.catalog import Acknowledge, Acknowledged, WriteResult
from logstore.positions import TopicId
from logstore.transactions.transactions import TransactionId, TransactionState

_Key = tuple[TopicId, str]


def acknowledge_all(
    connection: Connection, writes: Sequence[Acknowledge], transactions: Mapping[TransactionId, TransactionState]
) -> list[WriteResult]:
    """Apply acknowledgements in order; one that is refused leaves its cursor as it was.

    Those of a transaction, whose row is locked, are held for it and change no cursor.
    """
    if not writes:
        return []
    rows = lock_cursors(connection, {(write.topic_id, write.subscription) for write in writes})
    slowest: dict[TopicId, int] = {}  # what lies before it is acknowledged already
    for (topic_id, _), row in rows.items():
        slowest[topic_id] = min(slowest.get(topic_id, row.mark_ledger), row.mark_ledger)
    listed = spans_of(connection, slowest)
    holding = Holding(connection, writes, transactions)
    cursors = {key: LockedCursor.of(row) for key, row in rows.items()}
    before = {key: cursor.state for key, cursor in cursors.items()}
    results = [_apply(write, cursors, listed, holding) for write in writes]
    holding.put()
    store(connection, [cursors[key] for key in sorted(cursors) if cursors[key].state != before[key]])
    answers: list[WriteResult] = []
    for result, write in zip(results, writes, strict=True):
        if isinstance(result, Acknowledged):  # with what the row holds at the end of the batch
            cursor = cursors[write.topic_id, write.subscription]
            answers.append(replace(result, row_bytes=cursor.row_bytes, snapshot_ledger=cursor.snapshot_ledger))
        else:
            answers.append(result)
    return answers


def _apply(
    write: Acknowledge, cursors: dict[_Key, LockedCursor], listed: dict[TopicId, list[LedgerSpan]], holding: Holding
) -> WriteResult:
    cursor = cursors.get((write.topic_id, write.subscription))
    if cursor is None:
        return UnknownObject("subscription", expected="an existing subscription", found=write.subscription)
    try:
        snapshot = carried(write.subscription, write.snapshot, needed=cursor.snapshot_ledger)
        before = whole(cursor.state, snapshot)
        if write.txn is not None:
            holding.hold(write, write.txn, before, listed[write.topic_id])
            return Acknowledged(mark_delete=cursor.state.mark_delete)
        holding.require_free(write, before)
        state = acknowledged_by(before, write.positions, write.up_to, listed[write.topic_id])
    except TerminalError as error:
        return error
    cursor.state = since(state, snapshot)
    return Acknowledged(mark_delete=state.mark_delete)
