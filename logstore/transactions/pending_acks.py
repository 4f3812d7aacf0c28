"""Pending acknowledgements. An open transaction *holds* the entries that it has acknowledged.

Source: Pulsar's PendingAckHandle.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain, takewhile
from operator import ge

from pyroaring import BitMap

from logstore.cursors.cursor_state import (
    CursorState,
    VisibleLedgerSpan,
    acknowledge,
    acknowledge_to,
    unacknowledged_entries,
    unite_entries,
)
from logstore.errors import AcknowledgementHeld
from logstore.positions import LedgerId, Position
from logstore.transactions.transaction_ids_and_states import TransactionId

Positions = Mapping[LedgerId, BitMap]
"""Entry ids by ledger. The bitmaps are never changed in place."""


def compute_held_after_acknowledgement(
    subscription: str,
    state: CursorState,
    spans: Sequence[VisibleLedgerSpan],
    held_by_txn: Mapping[TransactionId, Positions],
    txn: TransactionId,
    *,
    positions: Sequence[Position],
    up_to: Position | None,
) -> dict[LedgerId, BitMap]:
    """Return all entries that `txn` holds after it acknowledges `positions` and the entries up to `up_to`.

    `held_by_txn` has the held entries of each open transaction. `txn` may acknowledge again an entry that it
    already holds. Entries up to `up_to` that are already acknowledged are left out.

    Raises:
        InvalidInput: A position never had an entry, or `up_to` is after the last entry.
        AcknowledgementHeld: One of `positions` is already acknowledged, or another open transaction holds an entry.
    """
    acknowledge(state, positions, spans)  # raises `InvalidInput` for a position without an entry
    own = {ledger_id: bits.copy() for ledger_id, bits in held_by_txn.get(txn, {}).items()}
    newly_held = _select_unheld_positions(subscription, state, {span.ledger_id for span in spans}, own, positions)
    if up_to is not None:
        acknowledge_to(state, up_to, spans)
        unite_entries(newly_held, unacknowledged_entries(state, spans, up_to))
    for other_txn, other_held in held_by_txn.items():
        for ledger_id in other_held.keys() & newly_held.keys() if other_txn != txn else ():
            conflicts = other_held[ledger_id] & newly_held[ledger_id]
            if conflicts:
                position = str(Position(ledger_id, conflicts.min()))
                raise AcknowledgementHeld(subscription, position=position, found=f"it held by transaction {other_txn}")
    unite_entries(own, newly_held)
    return own


def _select_unheld_positions(
    subscription: str,
    state: CursorState,
    listed: Collection[LedgerId],
    own: Positions,
    positions: Sequence[Position],
) -> dict[LedgerId, BitMap]:
    """Return positions outside `own`. Raise `AcknowledgementHeld` for an acknowledged entry or an unlisted ledger."""
    newly_held: dict[LedgerId, BitMap] = {}
    for position in positions:
        if position.entry_id in own.get(position.ledger_id, ()):
            continue
        if state.covers(position) or position.ledger_id not in listed:
            raise AcknowledgementHeld(subscription, position=str(position), found="it acknowledged already")
        newly_held.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
    return newly_held


def require_entries_not_held(
    subscription: str,
    state: CursorState,
    held_by_txn: Mapping[TransactionId, Positions],
    *,
    positions: Sequence[Position],
    up_to: Position | None,
) -> None:
    """Refuse an acknowledgement outside transactions if an open transaction holds one of the entries.

    Raise `AcknowledgementHeld` with the first held entry and the transaction. Only the commit of this transaction may
    acknowledge the entry. Entries that are already acknowledged may be acknowledged again.
    """
    for txn, entries in held_by_txn.items():
        single = (
            position for position in sorted(positions) if position.entry_id in entries.get(position.ledger_id, ())
        )
        ordered = (Position(ledger_id, entry_id) for ledger_id in sorted(entries) for entry_id in entries[ledger_id])
        requested = single if up_to is None else chain(single, takewhile(partial(ge, up_to), ordered))
        first = next((position for position in requested if not state.covers(position)), None)
        if first is not None:
            found = f"it held by transaction {txn}; commit or abort that first"
            raise AcknowledgementHeld(subscription, position=str(first), found=found)


def hide_held(state: CursorState, held_by_txn: Mapping[TransactionId, Positions]) -> CursorState:
    """Return the state in which all held entries are acknowledged, so that consumers do not get held entries."""
    acknowledged = dict(state.acknowledged)
    for entries in held_by_txn.values():
        unite_entries(acknowledged, entries)
    return CursorState(state.mark_delete, acknowledged)
