"""Cursors: what one subscription has acknowledged of a topic, in its row and in a snapshot beside it.

Everything up to and including `mark_delete` is acknowledged; beyond it, single entries are, kept as one
roaring bitmap per ledger so that any number of holes stays small and survives a restart.

Source: Pulsar's managed cursor (mark-delete position and individually deleted messages).

The whole is their union beyond the mark-delete position, which the row alone holds. A row without a snapshot
is the whole.

Source: Pulsar's cursor ledgers, which take what outgrows the metadata store.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyroaring import BitMap

from logstore.errors import AcknowledgementStale, CorruptData, InvalidInput, SnapshotNeeded
from logstore.positions import LedgerId, Position

RELEASES_PER_EPOCH: Final = 10**12
"""Releases of one subscription under one epoch of the catalog; a thousand a second take 31 years."""


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """A listed ledger and how many entries of it readers may see now."""

    ledger_id: LedgerId
    entries: int
    hidden: BitMap | None = None  # entries that no consumer sees: acknowledged for every subscription

    @property
    def last(self) -> Position:
        """Its last entry; entry -1 when it is empty."""
        return Position(self.ledger_id, self.entries - 1)


@dataclass(frozen=True, slots=True)
class CursorState:
    """One subscription's acknowledgements. Bitmaps hold entry ids beyond `mark_delete` only."""

    mark_delete: Position
    acknowledged: Mapping[LedgerId, BitMap] = field(default_factory=dict)

    def covers(self, position: Position) -> bool:
        """Whether the entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        return position.entry_id in self.acknowledged.get(position.ledger_id, ())


def acknowledge(state: CursorState, positions: Iterable[Position], spans: Sequence[LedgerSpan]) -> CursorState:
    """Acknowledge single entries, then advance over what became contiguous.

    An entry of a ledger that is no longer listed is acknowledged already; repeating is harmless.

    Args:
        state: The cursor before.
        positions: Entries in any order.
        spans: The topic's ledgers, ascending by id.

    Raises:
        InvalidInput: A position that no entry has had.
    """
    known = {span.ledger_id: span for span in spans}
    acks = dict(state.acknowledged)
    for position in positions:
        _check_reachable(position, known, spans)
        if position.ledger_id in known and not state.covers(position):
            acks[position.ledger_id] = acks.get(position.ledger_id, BitMap()) | BitMap([position.entry_id])
    return advance(CursorState(state.mark_delete, acks), spans)


def acknowledge_to(state: CursorState, position: Position, spans: Sequence[LedgerSpan]) -> CursorState:
    """Acknowledge everything up to and including `position`; a cursor never moves back by this.

    Raises:
        InvalidInput: The position lies beyond the last entry.
    """
    _check_reachable(position, {span.ledger_id: span for span in spans}, spans, lowest=-1)
    return advance(replace(state, mark_delete=max(state.mark_delete, position)), spans)


def acknowledged_by(
    state: CursorState, positions: Iterable[Position], up_to: Position | None, spans: Sequence[LedgerSpan]
) -> CursorState:
    """One request's acknowledgements: single entries, then everything up to one where it names one; raises as both."""
    found = acknowledge(state, positions, spans)
    return found if up_to is None else acknowledge_to(found, up_to, spans)


def require_current(
    subscription: str, state: CursorState, *, up_to: Position | None, expected: int, found: int | None
) -> None:
    """Refuse a cumulative acknowledgement that was read before entries were given back.

    What lies up to mark-delete is acknowledged already, and may be asked for again.

    Source: Pulsar's consumer epoch, PIP-84; apache/pulsar#10431 and apache/pulsar#14371 lose messages without it.

    Args:
        subscription: Its name.
        state: The cursor.
        up_to: The entry; None: the acknowledgement is not cumulative.
        expected: How often the subscription has given entries back.
        found: The same when `up_to` was read; None: as if it never had.

    Raises:
        AcknowledgementStale: The two differ.
    """
    if up_to is not None and up_to > state.mark_delete and expected != (found or 0):
        raise AcknowledgementStale(
            subscription,
            up_to=str(up_to),
            expected=f"releases {expected}",
            found="none" if found is None else f"{found}: messages were given back since that entry was read",
            advice="Read again and pass the releases of that read (--releases), or acknowledge single entries"
            " (--position).",
        )


def require_delivered(
    subscription: str,
    state: CursorState,
    spans: Sequence[LedgerSpan],
    *,
    up_to: Position,
    delayed: Iterable[tuple[LedgerId, range]],
) -> None:
    """Refuse a cumulative acknowledgement without releases of entries that may have a delivery time.

    Only a reader knows which of them it was handed out, and its releases go with that.

    Args:
        subscription: Its name.
        state: The cursor.
        spans: The topic's ledgers, as far as readers may see.
        up_to: The entry.
        delayed: Entries of segments with a delivery time, or that may have one, with the ledger of each segment.

    Raises:
        AcknowledgementStale: An entry of `delayed` up to there is visible and not acknowledged.
    """
    unacknowledged = unacknowledged_to(state, spans, up_to)
    for ledger_id, entries in delayed:
        if waiting := unacknowledged.get(ledger_id, BitMap()) & BitMap(entries):
            first, last = waiting.min(), waiting.max()
            raise AcknowledgementStale(
                subscription,
                up_to=str(up_to),
                expected="the releases of a read, because messages before it have a delivery time",
                found=f"none, and a segment with delayed messages at {ledger_id}:{first} to {ledger_id}:{last}",
                advice="Read and pass the releases of that read (--releases), or acknowledge single entries"
                " (--position).",
            )


def unacknowledged_to(state: CursorState, spans: Sequence[LedgerSpan], up_to: Position) -> dict[LedgerId, BitMap]:
    """Return the entries up to the position that consumers see and that are not acknowledged, by ledger."""
    mark, unacknowledged = state.mark_delete, dict[LedgerId, BitMap]()
    for span in spans:
        if not mark.ledger_id <= span.ledger_id <= up_to.ledger_id:
            continue
        first = mark.entry_id + 1 if span.ledger_id == mark.ledger_id else 0
        end = min(span.entries, up_to.entry_id + 1) if span.ledger_id == up_to.ledger_id else span.entries
        bits = BitMap(range(first, max(first, end))) - state.acknowledged.get(span.ledger_id, BitMap())
        bits -= span.hidden or BitMap()
        if bits:
            unacknowledged[span.ledger_id] = bits
    return unacknowledged


def first_releases(epoch: int) -> int:
    """Return the count at which subscriptions begin: above every count of an earlier epoch, 0 in the first.

    After a rebuild, rows may be older than what consumers have read, transactions that were open are aborted, and a
    subscription may have to be made again under the name that consumers know.
    """
    return (epoch - 1) * RELEASES_PER_EPOCH


def beginning(spans: Sequence[LedgerSpan], *, latest: bool) -> CursorState:
    """Where a new subscription begins: before the first listed entry, or behind the last one there is."""
    if not spans:
        return CursorState(Position(LedgerId(-1), -1))
    return advance(CursorState(spans[-1].last if latest else Position(spans[0].ledger_id, -1)), spans)


def seek(position: Position, spans: Sequence[LedgerSpan]) -> CursorState:
    """A cursor whose next entry is `position`; what was acknowledged before is forgotten.

    Raises:
        InvalidInput: The position lies more than one beyond the last entry of its ledger, or its ledger
            beyond the last one.
    """
    before = Position(position.ledger_id, position.entry_id - 1)
    try:
        _check_reachable(before, {span.ledger_id: span for span in spans}, spans, lowest=-1)
    except InvalidInput:
        expected = "an entry of a listed ledger or the one behind its last"
        expected += f", up to {spans[-1].ledger_id}:{spans[-1].entries}" if spans else ", of a topic with a ledger"
        raise InvalidInput("position", expected=expected, found=str(position)) from None
    return CursorState(before)


def advance(state: CursorState, spans: Sequence[LedgerSpan]) -> CursorState:
    """Move `mark_delete` over acknowledged entries and over ledgers that are no longer listed.

    A missing ledger never pins the frontier (apache/pulsar#18620).
    """
    mark = state.mark_delete
    for span in spans:
        if span.ledger_id < mark.ledger_id:
            continue
        start = mark.entry_id + 1 if span.ledger_id == mark.ledger_id else 0
        end = _first_gap(_passed(state.acknowledged.get(span.ledger_id), span), start, span.entries)
        if end > start:
            mark = Position(span.ledger_id, end - 1)
        if end < span.entries:
            break
    acks = {ledger: beyond(bits, ledger, mark) for ledger, bits in state.acknowledged.items()}
    listed = {span.ledger_id for span in spans}
    return CursorState(mark, {ledger: bits for ledger, bits in acks.items() if bits and ledger in listed})


def backlog(state: CursorState, spans: Sequence[LedgerSpan]) -> int:
    """How many entries that consumers may see the cursor has not acknowledged."""
    left, mark = 0, state.mark_delete
    for span in spans:
        if span.ledger_id < mark.ledger_id:
            continue
        first = mark.entry_id + 1 if span.ledger_id == mark.ledger_id else 0
        done = _passed(state.acknowledged.get(span.ledger_id), span)
        passed = len(done & BitMap(range(first, max(first, span.entries)))) if done else 0
        left += max(0, span.entries - first) - passed
    return left


def _passed(acknowledged: BitMap | None, span: LedgerSpan) -> BitMap | None:
    if acknowledged is None or span.hidden is None:
        return span.hidden if acknowledged is None else acknowledged
    return acknowledged | span.hidden


def _first_gap(bits: BitMap | None, start: int, end: int) -> int:
    """First entry id at or after `start` (at most `end`) that is not in `bits`, by bisection on rank."""
    if not bits or start not in bits:
        return start
    before = bits.rank(start - 1) if start else 0
    low, high = start + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bits.rank(middle - 1) - before == middle - start else (low, middle - 1)
    return low


def beyond(bits: BitMap, ledger_id: LedgerId, mark: Position) -> BitMap:
    """Those of a ledger's entries that lie behind the mark-delete position."""
    if ledger_id > mark.ledger_id:
        return bits
    return bits - BitMap(range(mark.entry_id + 1)) if ledger_id == mark.ledger_id else BitMap()


def _check_reachable(
    position: Position, known: Mapping[LedgerId, LedgerSpan], spans: Sequence[LedgerSpan], *, lowest: int = 0
) -> None:
    span = known.get(position.ledger_id)
    last = spans[-1].last if spans else Position(LedgerId(-1), -1)
    beyond = position.ledger_id > last.ledger_id or (span is not None and position.entry_id >= span.entries)
    if beyond or position.entry_id < lowest:
        limit = span.last if span else last
        raise InvalidInput("position", expected=f"an entry up to {limit}", found=str(position))


_HEAD = struct.Struct("<qI")


def pack_acknowledged(acknowledged: Mapping[LedgerId, BitMap]) -> bytes:
    """Bitmaps as bytes, ascending by ledger: id (int64), length (uint32), portable roaring."""
    parts = []
    for ledger_id in sorted(acknowledged):
        body = acknowledged[ledger_id].serialize()
        parts += [_HEAD.pack(ledger_id, len(body)), body]
    return b"".join(parts)


def unpack_acknowledged(packed: bytes) -> dict[LedgerId, BitMap]:
    """Read back `pack_acknowledged`.

    Raises:
        CorruptData: The bytes end early or hold no bitmap.
    """
    found: dict[LedgerId, BitMap] = {}
    at = 0
    try:
        while at < len(packed):
            ledger_id, length = _HEAD.unpack_from(packed, at)
            at += _HEAD.size
            body = packed[at : at + length]
            if len(body) != length:
                raise CorruptData(f"cursor: bitmap of ledger {ledger_id} ends after {len(body)} of {length} bytes")
            found[LedgerId(ledger_id)] = BitMap.deserialize(body)
            at += length
    except (struct.error, ValueError) as error:
        raise CorruptData(f"cursor: no acknowledgement bitmaps: {error}") from error
    return found


Acknowledged = Mapping[LedgerId, BitMap]
"""Entry ids by ledger; no bitmap is ever changed in place."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a cursor ledger holds: acknowledgements of the moment at which it was written."""

    ledger_id: LedgerId  # the cursor ledger's own id
    acknowledged: Acknowledged

    def bytes_beyond(self, mark: Position) -> int:
        """Size of the acknowledgements beyond `mark`, packed, in bytes."""
        later = sum(size for ledger_id, size in self._sizes.items() if ledger_id > mark.ledger_id)
        bits = beyond(self.acknowledged.get(mark.ledger_id, BitMap()), mark.ledger_id, mark)
        return later + (len(pack_acknowledged({mark.ledger_id: bits})) if bits else 0)

    @cached_property
    def _sizes(self) -> Mapping[LedgerId, int]:
        return {ledger_id: len(pack_acknowledged({ledger_id: bits})) for ledger_id, bits in self.acknowledged.items()}


def carried(subscription: str, snapshot: Snapshot | None, *, needed: LedgerId | None) -> Snapshot | None:
    """The snapshot that completes the row; None where the row is the whole, whatever a request carries.

    Raises:
        SnapshotNeeded: The request carries another one, or none.
    """
    if needed is None:
        return None
    found = None if snapshot is None else snapshot.ledger_id
    if found != needed:
        raise SnapshotNeeded(subscription, needed=needed, found=found)
    return snapshot


def whole(row: CursorState, snapshot: Snapshot | None) -> CursorState:
    """The cursor's state: what the row says, and of the snapshot what lies beyond the mark-delete position."""
    if snapshot is None:
        return row
    return joined(row, snapshot.acknowledged)


def joined(state: CursorState, more: Acknowledged) -> CursorState:
    """The state with more entries acknowledged; mark-delete stays, and of what lies up to it nothing is kept."""
    acks = dict(state.acknowledged)
    kept = {ledger_id: beyond(bits, ledger_id, state.mark_delete) for ledger_id, bits in more.items()}
    unite(acks, {ledger_id: bits for ledger_id, bits in kept.items() if bits})
    return CursorState(state.mark_delete, acks)


def unite(into: dict[LedgerId, BitMap], more: Acknowledged) -> None:
    """Add entries by ledger; bitmaps are replaced, and none is changed in place."""
    for ledger_id, bits in more.items():
        into[ledger_id] = into[ledger_id] | bits if ledger_id in into else bits


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
