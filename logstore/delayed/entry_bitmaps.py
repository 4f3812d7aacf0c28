"""Sets of entries. A set has one bitmap of entry ids for each ledger."""

from collections.abc import Mapping
from typing import Final

from pyroaring import BitMap

from logstore.cursors.cursor_state import entries_after
from logstore.positions import LedgerId, Position

Bitmaps = Mapping[LedgerId, BitMap]
"""Entry ids by ledger."""

_BITMAP_OVERHEAD_BYTES: Final = 160
"""Size of a roaring bitmap with one container, without the entries."""

_CONTAINER_SIZES: Final = ("n_bytes_array_containers", "n_bytes_run_containers", "n_bytes_bitset_containers")


def add_entries(target: dict[LedgerId, BitMap], entries: Bitmaps) -> None:
    """Add entries to `target` in place. If `target` lacks a ledger, the bitmap of the ledger is copied."""
    for ledger_id, bits in entries.items():
        if ledger_id in target:
            target[ledger_id] |= bits
        elif bits:
            target[ledger_id] = BitMap(bits)


def remove_entries(target: dict[LedgerId, BitMap], entries: Bitmaps) -> None:
    """Remove entries from `target` in place, and free the memory that they took."""
    for ledger_id, bits in entries.items():
        if ledger_id not in target:
            continue
        target[ledger_id] -= bits
        target[ledger_id].shrink_to_fit()
        if not target[ledger_id]:
            del target[ledger_id]


def intersect_entries(first: Bitmaps, second: Bitmaps) -> dict[LedgerId, BitMap]:
    """Return the entries that are in both sets, as new bitmaps."""
    common = {ledger_id: bits & second[ledger_id] for ledger_id, bits in first.items() if ledger_id in second}
    return {ledger_id: bits for ledger_id, bits in common.items() if bits}


def subtract_entries(entries: Bitmaps, removed: Bitmaps) -> dict[LedgerId, BitMap]:
    """Return the entries that are not in `removed`, as new bitmaps."""
    remaining = {ledger_id: bits - removed.get(ledger_id, BitMap()) for ledger_id, bits in entries.items()}
    return {ledger_id: bits for ledger_id, bits in remaining.items() if bits}


def select_changed_bitmaps(before: Bitmaps, after: Bitmaps) -> Bitmaps:
    """Return the bitmaps of `before` that are missing or different in `after`. The bitmaps are not copied."""
    return {ledger_id: bits for ledger_id, bits in before.items() if after.get(ledger_id) != bits}


def entries_behind(bitmaps: Bitmaps, position: Position) -> dict[LedgerId, BitMap]:
    remaining = {ledger_id: entries_after(bits, ledger_id, position) for ledger_id, bits in bitmaps.items()}
    return {ledger_id: bits for ledger_id, bits in remaining.items() if bits}


def entries_between(bitmaps: Bitmaps, first: Position, last: Position) -> dict[LedgerId, BitMap]:
    """Return the entries from `first` to `last`, both inclusive, as new bitmaps."""
    from_first = entries_behind(bitmaps, Position(first.ledger_id, first.entry_id - 1))
    return subtract_entries(from_first, entries_behind(from_first, last))


def count_entries(bitmaps: Bitmaps) -> int:
    return sum(len(bits) for bits in bitmaps.values())


def first_position(bitmaps: Bitmaps) -> Position | None:
    return min((Position(ledger_id, bits.min()) for ledger_id, bits in bitmaps.items() if bits), default=None)


def bitmaps_memory_bytes(bitmaps: Bitmaps) -> int:
    statistics = [bits.get_statistics() for bits in bitmaps.values()]
    return sum(_BITMAP_OVERHEAD_BYTES + sum(int(facts[size]) for size in _CONTAINER_SIZES) for facts in statistics)
