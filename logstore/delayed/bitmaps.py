"""Sets of entries as bitmaps by ledger: what a tracker does with them. Owners alone change theirs in place."""

from collections.abc import Mapping
from typing import Any, Final

from pyroaring import BitMap

from logstore.cursors.state import beyond
from logstore.positions import LedgerId, Position

Bitmaps = Mapping[LedgerId, BitMap]
"""Entry ids by ledger."""

_OBJECT_BYTES: Final = 160
"""Of a bitmap with one container beside its entries."""


def add_to(mine: dict[LedgerId, BitMap], more: Bitmaps) -> None:
    """Add entries in place; the other bitmaps are copied."""
    for ledger_id, bits in more.items():
        if ledger_id in mine:
            mine[ledger_id] |= bits
        elif bits:
            mine[ledger_id] = BitMap(bits)


def take_from(mine: dict[LedgerId, BitMap], less: Bitmaps) -> None:
    """Remove entries in place, and free what they took."""
    for ledger_id, bits in less.items():
        if ledger_id not in mine:
            continue
        mine[ledger_id] -= bits
        mine[ledger_id].shrink_to_fit()
        if not mine[ledger_id]:
            del mine[ledger_id]


def both(one: Bitmaps, other: Bitmaps) -> dict[LedgerId, BitMap]:
    """Entries that are in both."""
    found = {ledger_id: bits & other[ledger_id] for ledger_id, bits in one.items() if ledger_id in other}
    return {ledger_id: bits for ledger_id, bits in found.items() if bits}


def less(one: Bitmaps, other: Bitmaps) -> dict[LedgerId, BitMap]:
    """Entries of the one that are not in the other; the result owns its bitmaps."""
    found = {ledger_id: bits - other.get(ledger_id, BitMap()) for ledger_id, bits in one.items()}
    return {ledger_id: bits for ledger_id, bits in found.items() if bits}


def changed(one: Bitmaps, other: Bitmaps) -> Bitmaps:
    """The bitmaps of the one that are not the same in the other; they are not copied, because most are the same."""
    return {ledger_id: bits for ledger_id, bits in one.items() if other.get(ledger_id) != bits}


def behind(bitmaps: Bitmaps, position: Position) -> dict[LedgerId, BitMap]:
    """Entries that stand behind a position."""
    found = {ledger_id: beyond(bits, ledger_id, position) for ledger_id, bits in bitmaps.items()}
    return {ledger_id: bits for ledger_id, bits in found.items() if bits}


def count(bitmaps: Bitmaps) -> int:
    """How many entries there are."""
    return sum(len(bits) for bits in bitmaps.values())


def earliest(bitmaps: Bitmaps) -> Position | None:
    """The first entry of all; None where there is none."""
    return min((Position(ledger_id, bits.min()) for ledger_id, bits in bitmaps.items() if bits), default=None)


def memory_bytes(bitmaps: Bitmaps) -> int:
    """What they take in memory, about."""
    return sum(_OBJECT_BYTES + _bytes_of(bits.get_statistics()) for bits in bitmaps.values())


def _bytes_of(facts: Mapping[str, Any]) -> int:
    kinds = ("n_bytes_array_containers", "n_bytes_run_containers", "n_bytes_bitset_containers")
    return sum(int(facts[kind]) for kind in kinds)
