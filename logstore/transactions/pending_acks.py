"""Acknowledgements that a transaction holds of a subscription until it is decided.

Source: Pulsar's PendingAckHandle: an entry that another transaction holds, or that is acknowledged, is a conflict.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain, takewhile
from operator import ge

from pyroaring import BitMap

from logstore.cursors.state import CursorState, LedgerSpan, acknowledge, acknowledge_to, unacknowledged_to, unite
from logstore.errors import AcknowledgementHeld
from logstore.positions import LedgerId, Position
from logstore.transactions.transactions import TransactionId

Positions = Mapping[LedgerId, BitMap]
"""Entry ids by ledger; no bitmap is ever changed in place."""


def taken(
    subscription: str,
    state: CursorState,
    spans: Sequence[LedgerSpan],
    held: Mapping[TransactionId, Positions],
    txn: TransactionId,
    *,
    positions: Sequence[Position],
    up_to: Position | None,
) -> dict[LedgerId, BitMap]:
    """What the transaction holds once it has acknowledged these too; what it holds already may be asked for again.

    Args:
        subscription: Its name.
        state: The whole cursor.
        spans: The topic's ledgers, as far as readers may see.
        held: What open transactions hold of the subscription.
        txn: Whose acknowledgement it is.
        positions: Single entries.
        up_to: Or everything up to and including this one that is neither acknowledged nor held by this transaction.

    Raises:
        InvalidInput: A position that no reader can have met.
        AcknowledgementHeld: An entry that is acknowledged, or that another open transaction holds.
    """
    acknowledge(state, positions, spans)  # refuses positions that no entry has
    own = {ledger_id: bits.copy() for ledger_id, bits in held.get(txn, {}).items()}
    wanted = _single(subscription, state, {span.ledger_id for span in spans}, own, positions)
    if up_to is not None:
        acknowledge_to(state, up_to, spans)
        unite(wanted, unacknowledged_to(state, spans, up_to))
    for other, theirs in held.items():
        for ledger_id in theirs.keys() & wanted.keys() if other != txn else ():
            both = theirs[ledger_id] & wanted[ledger_id]
            if both:
                position = str(Position(ledger_id, both.min()))
                raise AcknowledgementHeld(subscription, position=position, found=f"it held by transaction {other}")
    unite(own, wanted)
    return own


def _single(
    subscription: str,
    state: CursorState,
    listed: Collection[LedgerId],
    own: Positions,
    positions: Sequence[Position],
) -> dict[LedgerId, BitMap]:
    """Single entries, less those that are held already; of a ledger that is gone all are acknowledged."""
    wanted: dict[LedgerId, BitMap] = {}
    for position in positions:
        if position.entry_id in own.get(position.ledger_id, ()):
            continue
        if state.covers(position) or position.ledger_id not in listed:
            raise AcknowledgementHeld(subscription, position=str(position), found="it acknowledged already")
        wanted.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
    return wanted


def require_free(
    subscription: str,
    state: CursorState,
    held: Mapping[TransactionId, Positions],
    *,
    positions: Sequence[Position],
    up_to: Position | None,
) -> None:
    """Refuse a plain acknowledgement of what an open transaction holds: only its commit may acknowledge that.

    What is acknowledged already may be asked for again.

    Raises:
        AcknowledgementHeld: Names the first such entry and the transaction.
    """
    for other, theirs in held.items():
        single = (one for one in sorted(positions) if one.entry_id in theirs.get(one.ledger_id, ()))
        ordered = (Position(ledger_id, entry_id) for ledger_id in sorted(theirs) for entry_id in theirs[ledger_id])
        asked = single if up_to is None else chain(single, takewhile(partial(ge, up_to), ordered))
        if (first := next((one for one in asked if not state.covers(one)), None)) is not None:
            found = f"it held by transaction {other}; commit or abort that first"
            raise AcknowledgementHeld(subscription, position=str(first), found=found)


def without(state: CursorState, held: Mapping[TransactionId, Positions]) -> CursorState:
    """The cursor as consumers meet it: what an open transaction holds is delivered to no other consumer meanwhile."""
    acks = dict(state.acknowledged)
    for theirs in held.values():
        unite(acks, theirs)
    return CursorState(state.mark_delete, acks)
