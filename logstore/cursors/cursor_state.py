"""State of a cursor: the acknowledgements of one subscription, in the cursor's row and in a snapshot.

Single acknowledgements after `mark_delete` are one roaring bitmap per ledger, which stays small even with many gaps.

A row with many acknowledged entries has a snapshot in a cursor ledger. The complete state is the row's mark-delete
position, and all acknowledgements of row and snapshot after this position. A snapshot has no mark-delete position.

Source: Pulsar's managed cursor (mark-delete position and individually deleted messages), and its cursor ledgers.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from pyroaring import BitMap

from logstore.errors import AcknowledgementStale, CorruptData, InvalidInput, SnapshotNeeded
from logstore.positions import EARLIEST, LedgerId, Position

RELEASES_PER_EPOCH: Final = 10**12
"""Maximum releases of one subscription in one epoch of the catalog: 1,000 releases a second for 31 years."""


@dataclass(frozen=True, slots=True)
class VisibleLedgerSpan:
    """Listed ledger, with the number of entries that readers may see now."""

    ledger_id: LedgerId
    entries: int
    hidden: BitMap | None = None  # entries that no consumer sees; they count as acknowledged

    @property
    def last(self) -> Position:
        """Position of the last entry, or of entry -1 if the ledger is empty."""
        return Position(self.ledger_id, self.entries - 1)


@dataclass(frozen=True, slots=True)
class CursorState:
    """Acknowledgements of one subscription. Bitmaps contain only entries after `mark_delete`."""

    mark_delete: Position
    acknowledged: Mapping[LedgerId, BitMap] = field(default_factory=dict)

    def covers(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        return position.entry_id in self.acknowledged.get(position.ledger_id, ())


def acknowledge(state: CursorState, positions: Iterable[Position], spans: Sequence[VisibleLedgerSpan]) -> CursorState:
    """Acknowledge single entries in any order, then advance `mark_delete` over acknowledged entries. Idempotent.

    Positions in unlisted ledgers are ignored. `spans` must ascend by ledger id. Raise `InvalidInput` for a position
    after the end of its ledger or of the log.
    """
    span_by_ledger = {span.ledger_id: span for span in spans}
    acknowledged = dict(state.acknowledged)
    for position in positions:
        _require_not_after_end(position, span_by_ledger, spans)
        if position.ledger_id in span_by_ledger and not state.covers(position):
            bits = acknowledged.get(position.ledger_id, BitMap())
            acknowledged[position.ledger_id] = bits | BitMap([position.entry_id])
    return advance_mark_delete(CursorState(state.mark_delete, acknowledged), spans)


def acknowledge_to(state: CursorState, position: Position, spans: Sequence[VisibleLedgerSpan]) -> CursorState:
    """Acknowledge all entries up to `position`, inclusive. Raise `InvalidInput` if `position` is after the end."""
    _require_not_after_end(position, {span.ledger_id: span for span in spans}, spans, min_entry_id=-1)
    return advance_mark_delete(replace(state, mark_delete=max(state.mark_delete, position)), spans)


def apply_acknowledgement(
    state: CursorState, positions: Iterable[Position], up_to: Position | None, spans: Sequence[VisibleLedgerSpan]
) -> CursorState:
    """Acknowledge `positions`. If `up_to` is given, also acknowledge all entries up to `up_to`, inclusive."""
    acknowledged = acknowledge(state, positions, spans)
    return acknowledged if up_to is None else acknowledge_to(acknowledged, up_to, spans)


def require_current_releases(
    subscription: str,
    state: CursorState,
    *,
    up_to: Position | None,
    current_releases: int,
    releases_at_read: int | None,
) -> None:
    """Refuse an acknowledgement up to `up_to` if the subscription has given entries back since `up_to` was read.

    An `up_to` that is not after the mark-delete position is always accepted. `current_releases` are the subscription's
    present releases. `releases_at_read` are the releases when `up_to` was read; `None` means 0.

    Source: Pulsar's consumer epoch, PIP-84. Without this check, messages are lost (apache/pulsar#10431, #14371).
    """
    if up_to is not None and up_to > state.mark_delete and current_releases != (releases_at_read or 0):
        raise AcknowledgementStale(
            subscription,
            up_to=str(up_to),
            expected=f"releases {current_releases}",
            found="none"
            if releases_at_read is None
            else f"{releases_at_read}: messages were given back since that entry was read",
            advice="Read again and pass the releases of that read (--releases), or acknowledge single entries"
            " (--position).",
        )


class DelayedSegmentRange(NamedTuple):
    """Ids of all entries of one segment of the log. At least one of these entries is a delayed message."""

    ledger_id: LedgerId
    entries: range


def require_no_delayed_entries(
    subscription: str,
    state: CursorState,
    spans: Sequence[VisibleLedgerSpan],
    *,
    up_to: Position,
    delayed: Iterable[DelayedSegmentRange],
) -> None:
    """Refuse an acknowledgement up to `up_to` without releases if it covers entries that may have a delivery time.

    The catalog does not know whether the reader has these entries. A reader that has them passes releases.
    """
    unacknowledged = unacknowledged_entries(state, spans, up_to)
    for segment in delayed:
        if waiting := unacknowledged.get(segment.ledger_id, BitMap()) & BitMap(segment.entries):
            first, last = (f"{segment.ledger_id}:{entry_id}" for entry_id in (waiting.min(), waiting.max()))
            raise AcknowledgementStale(
                subscription,
                up_to=str(up_to),
                expected="the releases of a read, because messages before it may have a delivery time",
                found=f"none, and a segment with delayed messages at {first} to {last}",
                advice="Read and pass the releases of that read (--releases), or acknowledge single entries"
                " (--position).",
            )


def unacknowledged_entries(
    state: CursorState, spans: Sequence[VisibleLedgerSpan], up_to: Position
) -> dict[LedgerId, BitMap]:
    mark_delete, unacknowledged = state.mark_delete, dict[LedgerId, BitMap]()
    for span in spans:
        if not mark_delete.ledger_id <= span.ledger_id <= up_to.ledger_id:
            continue
        first = mark_delete.entry_id + 1 if span.ledger_id == mark_delete.ledger_id else 0
        end = min(span.entries, up_to.entry_id + 1) if span.ledger_id == up_to.ledger_id else span.entries
        bits = BitMap(range(first, max(first, end))) - state.acknowledged.get(span.ledger_id, BitMap())
        bits -= span.hidden or BitMap()
        if bits:
            unacknowledged[span.ledger_id] = bits
    return unacknowledged


def first_releases(epoch: int) -> int:
    """Return the releases of a new subscription. They are above all releases of earlier epochs (0 in the first epoch).

    A rebuild begins an epoch. The rebuild gives entries back if it restores an older cursor or aborts a transaction.
    """
    return (epoch - 1) * RELEASES_PER_EPOCH


def initial_state(spans: Sequence[VisibleLedgerSpan], *, latest: bool) -> CursorState:
    """Return the cursor of a new subscription: before the first listed entry, or after the last entry if `latest`."""
    if not spans:
        return CursorState(EARLIEST)
    return advance_mark_delete(CursorState(spans[-1].last if latest else Position(spans[0].ledger_id, -1)), spans)


def seek(position: Position, spans: Sequence[VisibleLedgerSpan]) -> CursorState:
    """Return a cursor whose next entry is `position`. All earlier acknowledgements are dropped.

    `position` may be at most one entry after the last entry of its ledger. Raise `InvalidInput` for a later position,
    and for a position in a ledger after the last listed ledger.
    """
    before = Position(position.ledger_id, position.entry_id - 1)
    try:
        _require_not_after_end(before, {span.ledger_id: span for span in spans}, spans, min_entry_id=-1)
    except InvalidInput:
        expected = "an entry of a listed ledger or the one behind its last"
        expected += f", up to {spans[-1].ledger_id}:{spans[-1].entries}" if spans else ", of a topic with a ledger"
        raise InvalidInput("position", expected=expected, found=str(position)) from None
    return CursorState(before)


def advance_mark_delete(state: CursorState, spans: Sequence[VisibleLedgerSpan]) -> CursorState:
    """Move `mark_delete` over acknowledged or hidden entries, and over ledgers not in `spans` (apache/pulsar#18620)."""
    mark_delete = state.mark_delete
    for span in spans:
        if span.ledger_id < mark_delete.ledger_id:
            continue
        start = mark_delete.entry_id + 1 if span.ledger_id == mark_delete.ledger_id else 0
        end = _find_first_gap(_done_entries(state.acknowledged.get(span.ledger_id), span), start, span.entries)
        if end > start:
            mark_delete = Position(span.ledger_id, end - 1)
        if end < span.entries:
            break
    listed = {span.ledger_id for span in spans}
    remaining = {
        ledger_id: entries_after(bits, ledger_id, mark_delete)
        for ledger_id, bits in state.acknowledged.items()
        if ledger_id in listed
    }
    return CursorState(mark_delete, {ledger_id: bits for ledger_id, bits in remaining.items() if bits})


def count_backlog(state: CursorState, spans: Sequence[VisibleLedgerSpan]) -> int:
    backlog, mark_delete = 0, state.mark_delete
    for span in spans:
        if span.ledger_id < mark_delete.ledger_id:
            continue
        first = mark_delete.entry_id + 1 if span.ledger_id == mark_delete.ledger_id else 0
        done = _done_entries(state.acknowledged.get(span.ledger_id), span)
        done_count = len(done & BitMap(range(first, max(first, span.entries)))) if done else 0
        backlog += max(0, span.entries - first) - done_count
    return backlog


def _done_entries(acknowledged: BitMap | None, span: VisibleLedgerSpan) -> BitMap | None:
    if acknowledged is None or span.hidden is None:
        return span.hidden if acknowledged is None else acknowledged
    return acknowledged | span.hidden


def _find_first_gap(bits: BitMap | None, start: int, end: int) -> int:
    """Return the first entry id from `start` on that is not in `bits`, or `end` if `bits` has all ids before `end`."""
    if not bits or start not in bits:
        return start
    before = bits.rank(start - 1) if start else 0
    low, high = start + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bits.rank(middle - 1) - before == middle - start else (low, middle - 1)
    return low


def entries_after(bits: BitMap, ledger_id: LedgerId, position: Position) -> BitMap:
    if ledger_id > position.ledger_id:
        return bits
    return bits - BitMap(range(position.entry_id + 1)) if ledger_id == position.ledger_id else BitMap()


def _require_not_after_end(
    position: Position,
    span_by_ledger: Mapping[LedgerId, VisibleLedgerSpan],
    spans: Sequence[VisibleLedgerSpan],
    *,
    min_entry_id: int = 0,
) -> None:
    span = span_by_ledger.get(position.ledger_id)
    last = spans[-1].last if spans else EARLIEST
    is_after_end = position.ledger_id > last.ledger_id or (span is not None and position.entry_id >= span.entries)
    if is_after_end or position.entry_id < min_entry_id:
        limit = span.last if span else last
        raise InvalidInput("position", expected=f"an entry up to {limit}", found=str(position))


_BITMAP_HEADER = struct.Struct("<qI")


def pack_acknowledged(acknowledged: Mapping[LedgerId, BitMap]) -> bytes:
    """Return bitmaps as bytes. For each ledger, ascending: id (int64), byte count (uint32), portable roaring bitmap."""
    parts = []
    for ledger_id in sorted(acknowledged):
        body = acknowledged[ledger_id].serialize()
        parts += [_BITMAP_HEADER.pack(ledger_id, len(body)), body]
    return b"".join(parts)


def unpack_acknowledged(packed: bytes) -> dict[LedgerId, BitMap]:
    """Return the bitmaps that `pack_acknowledged` packed. Raise `CorruptData` if the bytes are damaged."""
    acknowledged: dict[LedgerId, BitMap] = {}
    offset = 0
    try:
        while offset < len(packed):
            ledger_id, length = _BITMAP_HEADER.unpack_from(packed, offset)
            offset += _BITMAP_HEADER.size
            body = packed[offset : offset + length]
            if len(body) != length:
                raise CorruptData(f"cursor: bitmap of ledger {ledger_id} ends after {len(body)} of {length} bytes")
            acknowledged[LedgerId(ledger_id)] = BitMap.deserialize(body)
            offset += length
    except (struct.error, ValueError) as error:
        raise CorruptData(f"cursor: no acknowledgement bitmaps: {error}") from error
    return acknowledged


AcknowledgedEntries = Mapping[LedgerId, BitMap]
"""Entry ids by ledger. The bitmaps are never changed in place."""


@dataclass(frozen=True, kw_only=True)
class CursorSnapshot:
    """Content of a cursor ledger: the single acknowledgements that the cursor had when the ledger was written."""

    ledger_id: LedgerId  # the cursor ledger's own id
    acknowledged: AcknowledgedEntries

    def bytes_beyond(self, mark: Position) -> int:
        later_ledgers = sum(size for ledger_id, size in self._packed_bytes.items() if ledger_id > mark.ledger_id)
        bits = entries_after(self.acknowledged.get(mark.ledger_id, BitMap()), mark.ledger_id, mark)
        return later_ledgers + (len(pack_acknowledged({mark.ledger_id: bits})) if bits else 0)

    @cached_property
    def _packed_bytes(self) -> Mapping[LedgerId, int]:
        return {ledger_id: len(pack_acknowledged({ledger_id: bits})) for ledger_id, bits in self.acknowledged.items()}


def require_snapshot(
    subscription: str, snapshot: CursorSnapshot | None, *, needed: LedgerId | None
) -> CursorSnapshot | None:
    """Return `snapshot` if its ledger is `needed`, or `None` if none is needed. Otherwise raise `SnapshotNeeded`."""
    if needed is None:
        return None
    ledger_id = None if snapshot is None else snapshot.ledger_id
    if ledger_id != needed:
        raise SnapshotNeeded(subscription, needed=needed, found=ledger_id)
    return snapshot


def complete_state(row: CursorState, snapshot: CursorSnapshot | None) -> CursorState:
    return row if snapshot is None else add_acknowledged(row, snapshot.acknowledged)


def add_acknowledged(state: CursorState, entries: AcknowledgedEntries) -> CursorState:
    """Add those of `entries` after `mark_delete` to the acknowledged entries. `mark_delete` does not change."""
    acknowledged = dict(state.acknowledged)
    added = {ledger_id: entries_after(bits, ledger_id, state.mark_delete) for ledger_id, bits in entries.items()}
    unite_entries(acknowledged, {ledger_id: bits for ledger_id, bits in added.items() if bits})
    return CursorState(state.mark_delete, acknowledged)


def unite_entries(target: dict[LedgerId, BitMap], entries: AcknowledgedEntries) -> None:
    """Add `entries` to `target`. The bitmaps of `target` are replaced, never changed in place."""
    for ledger_id, bits in entries.items():
        target[ledger_id] = target[ledger_id] | bits if ledger_id in target else bits


def state_without_snapshot(state: CursorState, snapshot: CursorSnapshot | None) -> CursorState:
    """Return the part of a complete state that is not in the snapshot. The cursor's row must store this part."""
    if snapshot is None:
        return state
    stored = snapshot.acknowledged
    remaining = {
        ledger_id: bits - stored[ledger_id] if ledger_id in stored else bits
        for ledger_id, bits in state.acknowledged.items()
    }
    return CursorState(state.mark_delete, {ledger_id: bits for ledger_id, bits in remaining.items() if bits})


def select_ledgers(acknowledged: AcknowledgedEntries, listed: Collection[LedgerId]) -> AcknowledgedEntries:
    return {ledger_id: bits for ledger_id, bits in acknowledged.items() if ledger_id in listed}
