"""A cursor's state in two parts: bitmaps in a ledger that never changes, and what came since in the cursor's row.

The whole is their union beyond the mark-delete position, which the row alone holds. A row without a snapshot
is the whole.

Source: Pulsar's cursor ledgers, which take what outgrows the metadata store.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from pyroaring import BitMap

from logstore.cursors.state import CursorState, beyond, pack_acknowledged
from logstore.positions import LedgerId, Position

Acknowledged = Mapping[LedgerId, BitMap]
"""Entry ids by ledger; no bitmap is ever changed in place."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a cursor ledger holds: acknowledgements of the moment at which it was written."""

    ledger_id: LedgerId  # the cursor ledger's own id
    acknowledged: Acknowledged

    def bytes_beyond(self, mark: Position) -> int:
        """How much of it still counts once the cursor stands at `mark`, packed."""
        later = sum(size for ledger_id, size in self._sizes.items() if ledger_id > mark.ledger_id)
        bits = beyond(self.acknowledged.get(mark.ledger_id, BitMap()), mark.ledger_id, mark)
        return later + (len(pack_acknowledged({mark.ledger_id: bits})) if bits else 0)

    @cached_property
    def _sizes(self) -> Mapping[LedgerId, int]:
        return {ledger_id: len(pack_acknowledged({ledger_id: bits})) for ledger_id, bits in self.acknowledged.items()}


def whole(row: CursorState, snapshot: Snapshot | None) -> CursorState:
    """The cursor's state: what the row says, and of the snapshot what lies beyond the mark-delete position."""
    if snapshot is None:
        return row
    acks = _beyond_mark(snapshot.acknowledged, row.mark_delete)
    for ledger_id, bits in row.acknowledged.items():
        acks[ledger_id] = acks[ledger_id] | bits if ledger_id in acks else bits
    return CursorState(row.mark_delete, acks)


def since(state: CursorState, snapshot: Snapshot | None) -> CursorState:
    """What of the whole state the row must hold: everything that the snapshot does not."""
    if snapshot is None:
        return state
    held = snapshot.acknowledged
    acks = {ledger: bits - held[ledger] if ledger in held else bits for ledger, bits in state.acknowledged.items()}
    return CursorState(state.mark_delete, {ledger: bits for ledger, bits in acks.items() if bits})


def of_ledgers(acknowledged: Acknowledged, listed: Collection[LedgerId]) -> Acknowledged:
    """Without what speaks of ledgers that are gone: those ids never come back."""
    return {ledger_id: bits for ledger_id, bits in acknowledged.items() if ledger_id in listed}


def _beyond_mark(acknowledged: Acknowledged, mark: Position) -> dict[LedgerId, BitMap]:
    kept = {ledger_id: beyond(bits, ledger_id, mark) for ledger_id, bits in acknowledged.items()}
    return {ledger_id: bits for ledger_id, bits in kept.items() if bits}
