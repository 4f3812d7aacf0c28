"""Acknowledgements in a group commit: cursors are locked by id, changed in order, written once.

Those of a transaction are held in the row of a participant until the transaction is decided.

A cursor with a snapshot is changed as a whole, with the bitmaps that the write carries; its row then takes what
the snapshot does not hold. So the mark-delete position advances over both, and no object store is read here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap
from sqlalchemy import Connection, select, tuple_

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import LockedCursor, lock_cursors, spans_of, store
from infra.catalog.engine.dialects import among
from infra.catalog.transactions.participant_rows import held, hold, join
from logstore.cursors.state import (
    CursorState,
    DelayedRange,
    LedgerSpan,
    apply_acknowledgement,
    complete_state,
    require_current_releases,
    require_no_delayed_entries,
    require_snapshot,
    state_without_snapshot,
)
from logstore.errors import TerminalError, TransactionNotOpen, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog import Acknowledge, AcknowledgeResult, WriteResult
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.pending_acks import hold_entries, require_not_held
from logstore.transactions.transactions import Participant, TransactionId, TransactionState

_Key = tuple[TopicId, str]


class Holding:
    """Entries that transactions hold of the subscriptions of a batch of acknowledgements; cursors are locked."""

    def __init__(
        self,
        connection: Connection,
        writes: Sequence[Acknowledge],
        transactions: Mapping[TransactionId, TransactionState],
    ) -> None:
        """Read what is held of subscriptions of which entries are acknowledged; rows of the transactions are locked."""
        self._connection, self._transactions = connection, transactions
        some = [write for write in writes if write.txn is not None or write.positions or write.up_to is not None]
        keys = {(write.topic_id, write.subscription) for write in some}
        self._held = held(connection, keys)
        self._changed: dict[tuple[TransactionId, Participant], dict[LedgerId, BitMap]] = {}

    def hold(self, write: Acknowledge, txn: TransactionId, state: CursorState, spans: Sequence[LedgerSpan]) -> None:
        """Hold what the write asks for.

        Raises:
            UnknownObject, TransactionNotOpen: The transaction does not exist, or is decided.
            InvalidInput, AcknowledgementHeld: See `taken`.
        """
        found = self._transactions.get(txn)
        if found is None:
            raise UnknownObject("txn", expected="a transaction of this catalog", found=str(txn))
        if found is not TransactionState.OPEN:
            raise TransactionNotOpen(str(txn), doing="acknowledge", state=found.value)
        mine = self._held[write.topic_id, write.subscription]
        mine[txn] = hold_entries(
            write.subscription, state, spans, mine, txn, positions=write.positions, up_to=write.up_to
        )
        self._changed[txn, Participant(write.topic_id, write.subscription)] = mine[txn]

    def require_free(self, write: Acknowledge, state: CursorState) -> None:
        """Refuse a plain acknowledgement of what is held.

        Raises:
            AcknowledgementHeld: See `pending_acks.require_free`.
        """
        mine = self._held.get((write.topic_id, write.subscription), {})
        require_not_held(write.subscription, state, mine, positions=write.positions, up_to=write.up_to)

    def put(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        ids = {participant.topic_id for _, participant in self._changed}
        query = select(t.topic.c.topic_id, t.topic.c.name).where(among(self._connection, t.topic.c.topic_id, ids))
        names = {TopicId(row.topic_id): row.name for row in self._connection.execute(query)}
        join(self._connection, [(txn, one, names.get(one.topic_id, "")) for txn, one in self._changed])
        for (txn, one), positions in self._changed.items():
            hold(self._connection, txn, one, positions)


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
    results = [_apply(connection, write, cursors, listed, holding) for write in writes]
    holding.put()
    store(connection, [cursors[key] for key in sorted(cursors) if cursors[key].state != before[key]])
    answers: list[WriteResult] = []
    for result, write in zip(results, writes, strict=True):
        if isinstance(result, AcknowledgeResult):  # with what the row holds at the end of the batch
            cursor = cursors[write.topic_id, write.subscription]
            answers.append(replace(result, row_bytes=cursor.row_bytes, snapshot_ledger=cursor.snapshot_ledger))
        else:
            answers.append(result)
    return answers


def _apply(
    connection: Connection,
    write: Acknowledge,
    cursors: dict[_Key, LockedCursor],
    listed: dict[TopicId, list[LedgerSpan]],
    holding: Holding,
) -> WriteResult:
    cursor = cursors.get((write.topic_id, write.subscription))
    if cursor is None:
        return UnknownObject("subscription", expected="an existing subscription", found=write.subscription)
    try:
        snapshot = require_snapshot(write.subscription, write.snapshot, needed=cursor.snapshot_ledger)
        before = complete_state(cursor.state, snapshot)
        require_current_releases(
            write.subscription, before, up_to=write.up_to, expected=cursor.releases, found=write.releases
        )
        if write.up_to is not None and write.releases is None and write.up_to > before.mark_delete:
            spans, delayed = listed[write.topic_id], _delayed_ranges(connection, write, before.mark_delete)
            require_no_delayed_entries(write.subscription, before, spans, up_to=write.up_to, delayed=delayed)
        if write.txn is not None:
            holding.hold(write, write.txn, before, listed[write.topic_id])
            return AcknowledgeResult(mark_delete=cursor.state.mark_delete)
        holding.require_free(write, before)
        state = apply_acknowledgement(before, write.positions, write.up_to, listed[write.topic_id])
    except TerminalError as error:
        return error
    cursor.state = state_without_snapshot(state, snapshot)
    return AcknowledgeResult(mark_delete=state.mark_delete)


def _delayed_ranges(connection: Connection, write: Acknowledge, mark_delete: Position) -> Iterator[DelayedRange]:
    """Yield the segments between mark-delete and `up_to` that hold delayed messages, in order."""
    assert write.up_to is not None
    ledger, lists, segment = t.ledger.c, t.ledger_list.c, t.segment.c
    after = tuple_(segment.ledger_id, segment.first_entry + segment.entries) > (
        mark_delete.ledger_id,
        mark_delete.entry_id + 1,
    )
    before = tuple_(segment.ledger_id, segment.first_entry) <= (write.up_to.ledger_id, write.up_to.entry_id)
    query = (
        select(segment.ledger_id, segment.first_entry, segment.entries)
        .select_from(
            t.segment.join(t.ledger, segment.ledger_id == ledger.ledger_id).join(
                t.ledger_list, ledger.list_id == lists.list_id
            )
        )
        .where(
            lists.topic_id == write.topic_id,
            lists.component == Component.MANAGED_LEDGER.value,
            ledger.place.between(mark_delete.ledger_id, write.up_to.ledger_id),
            segment.delayed > 0,
            after,
            before,
        )
        .order_by(segment.ledger_id, segment.first_entry)
    )
    for ledger_id, first, entries in connection.execute(query):
        yield DelayedRange(LedgerId(ledger_id), range(first, first + entries))
