"""Which messages of a topic wait for their time, and which of them are due.

A tracker is a cache of one process that all subscriptions of a topic share: any process can build another one from the
list of buckets and from the log behind it. Of each bucket it holds bitmaps and at most one segment; what readers find
in the log and no bucket has is added to it. Storage may answer late, so it is asked beside a tracker: `unopened` and
`to_read` say what is to be read, and `load` and `put` take it over.

What is tracked is what `tracked` says: each such message comes out of `take_due` once its time has come, and is not
tracked any more. A reader leaves out what is tracked; what is not tracked it lets pass when it is due, and adds when it
is not. So a message that no tracker knows is read in the log, and nothing is lost with a bucket.

Source: PIP-195 (BucketDelayedDeliveryTracker); field cases 57, 58, 62, 64, 65 and 71.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

from pyroaring import BitMap

from logstore.delayed import bitmaps
from logstore.delayed.bitmaps import Bitmaps
from logstore.delayed.buckets import Bucket, BucketList
from logstore.delayed.rows import DelayedRows
from logstore.delayed.sources import AddedRows, BucketRows, Segments, SnapshotGone, Source, draw
from logstore.errors import CorruptData
from logstore.positions import LedgerId, Position

__all__ = ["Segments", "SnapshotGone", "Tracker", "open_buckets"]

_AT_ONCE: Final = 8
"""Footers that are read at the same time."""


def open_buckets(buckets: Sequence[Bucket], segments: Segments) -> dict[LedgerId, BucketRows | None]:
    """Read footers, several at once, because each takes a request to the store; None of a bucket that cannot be read.

    Raises:
        StoreUnavailable: Storage did not answer.
    """

    def opened(bucket: Bucket) -> BucketRows | None:
        try:
            return BucketRows(bucket, segments)
        except (SnapshotGone, CorruptData):
            return None

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return dict(zip((bucket.bucket_id for bucket in buckets), threads.map(opened, buckets), strict=True))


class Tracker:
    """The delayed messages of one topic. Not for several threads at once."""

    def __init__(self, segments: Segments) -> None:
        """Begin with nothing: `load` comes next."""
        self._segments = segments
        self._listed = BucketList()
        self._buckets: dict[LedgerId, BucketRows] = {}
        self._added = AddedRows()
        self._tracked: dict[LedgerId, BitMap] = {}
        self._added_bits: dict[LedgerId, BitMap] = {}  # those of the tracked ones that no bucket holds
        self._taken: dict[LedgerId, BitMap] = {}  # of them a bucket may speak yet
        self._now_ms: int | None = None
        self._lost: dict[LedgerId, Bucket] = {}
        self._rewinds: list[Position] = []

    @property
    def listed(self) -> BucketList:
        """The list that was loaded last."""
        return self._listed

    @property
    def lost(self) -> tuple[Bucket, ...]:
        """Buckets that could not be read since the last loading; to be looked at after `load`, `put` and `take_due`.

        The list is then to be read again. Where it changed, `load` it; where it did not, this is an alarm: the bucket's
        messages are not tracked, and readers find them in the log.
        """
        return tuple(self._lost.values())

    @property
    def messages(self) -> int:
        """How many messages are tracked."""
        return bitmaps.count(self._tracked)

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory, about: loaded segments, added messages and bitmaps."""
        loaded = self._added.memory_bytes + sum(rows.memory_bytes for rows in self._buckets.values())
        held = (self._tracked, self._added_bits, self._taken, *(rows.bitmaps for rows in self._buckets.values()))
        return loaded + sum(bitmaps.memory_bytes(one) for one in held)

    def tracked(self) -> Mapping[LedgerId, BitMap]:
        """The entries that are tracked, by ledger: a live view; copy it to keep it."""
        return MappingProxyType(self._tracked)

    def contains(self, position: Position) -> bool:
        """Whether the message is tracked."""
        return position.entry_id in self._tracked.get(position.ledger_id, ())

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        """Track a message of the log; whether it is tracked now, so that its reader leaves it out.

        Adding again changes nothing. False: by the clock of the last `take_due` it is due, and its reader lets it pass.
        """
        if self.contains(position):
            return True
        if self._now_ms is not None and deliver_at_ms <= self._now_ms:
            return False
        entry = {position.ledger_id: BitMap([position.entry_id])}
        bitmaps.add_to(self._tracked, entry)
        bitmaps.add_to(self._added_bits, entry)
        bitmaps.take_from(self._taken, entry)
        self._added.add((deliver_at_ms, position.ledger_id, position.entry_id))
        return True

    def next_ms(self) -> int | None:
        """No message is due before this time, in milliseconds since 1970; None where there is none."""
        times = [self._added.next_ms, *(rows.next_ms for rows in self._buckets.values())]
        return min((time for time in times if time is not None), default=None)

    def unopened(self, listed: BucketList) -> list[Bucket]:
        """Buckets of a list whose footers `load` needs: new ones, and such as were lost."""
        return [bucket for bucket in listed.buckets if bucket.bucket_id not in self._buckets]

    def load(self, listed: BucketList, opened: Mapping[LedgerId, BucketRows | None] | None = None) -> list[Position]:
        """Track what these buckets hold, and no bucket that was left out of the list: at first, and at each change.

        Footers are read, and no segment. What was taken once is not tracked again. A bucket that cannot be read is
        `lost`; one that was is tried again.

        Args:
            listed: The list.
            opened: What `open_buckets` has found of those that were `unopened`. None: it is read here.

        Returns positions from which readers must read again: something was tracked and is not any more.

        Raises:
            StoreUnavailable: Storage did not answer; nothing changed.
        """
        found, lost = dict[LedgerId, BucketRows](), dict[LedgerId, Bucket]()
        new = open_buckets(self.unopened(listed), self._segments) if opened is None else opened
        for bucket in listed.buckets:
            rows = self._buckets.get(bucket.bucket_id) or new.get(bucket.bucket_id)  # it may be lost since it was read
            if rows:
                found[bucket.bucket_id] = rows
            else:
                lost[bucket.bucket_id] = bucket
        before, held = self._tracked, self._held_by(found)
        self._listed, self._buckets, self._lost, self._tracked = listed, found, lost, held
        if twice := bitmaps.both(self._added_bits, held):
            self._added.drop(twice)
            bitmaps.take_from(self._added_bits, twice)
        bitmaps.add_to(self._tracked, self._added_bits)
        self._forget_taken()
        self._read_again(bitmaps.less(before, self._tracked))
        return self.rewinds()

    def rewinds(self) -> list[Position]:
        """Positions from which readers must read again, since this was asked last."""
        found, self._rewinds = self._rewinds, []
        return found

    def take_due(self, now_ms: int, limit: int) -> DelayedRows:
        """Take messages whose time has come and that are in memory, in order: they are not tracked any more.

        Fewer than asked for: nothing more is due, or a segment is `to_read` first.

        Args:
            now_ms: The clock; no message that is due later is taken.
            limit: How many, at most.
        """
        self._now_ms = now_ms
        parts: list[DelayedRows] = []
        while limit > 0 and (sources := self._due_sources(now_ms)) and len(part := draw(sources, now_ms, limit)):
            self._hand(part)
            parts.append(part)
            limit -= len(part)
        return DelayedRows.joined(parts)

    def to_read(self, now_ms: int) -> BucketRows | None:
        """The bucket of which a segment is to be read before anything else that is due is taken; None: there is none.

        Read it, and `put` what was read.
        """
        waiting = [one for one in self._due_sources(now_ms) if isinstance(one, BucketRows) and not one.is_loaded]
        return min(waiting, key=lambda one: one.next_ms or 0, default=None)

    def put(self, rows: BucketRows, segment: DelayedRows | None) -> None:
        """Go on with a segment that was read of this bucket; nothing where the list has lost the bucket meanwhile.

        None: it cannot be read. The bucket is left out and `lost`, and `rewinds` then says from where its messages are
        to be read.
        """
        if self._buckets.get(rows.bucket.bucket_id) is not rows:
            return
        if segment is None:
            self._lose(rows)
        else:
            rows.put(segment)

    def _held_by(self, found: Mapping[LedgerId, BucketRows]) -> dict[LedgerId, BitMap]:
        """What buckets hold together. Of a new one, what was taken before, or another one holds, is left out."""
        held: dict[LedgerId, BitMap] = {}
        for bucket_id, rows in found.items():
            if bucket_id in self._buckets:
                bitmaps.add_to(held, self._left_of(rows))
                continue
            elsewhere = bitmaps.both(rows.bitmaps, self._taken)
            bitmaps.add_to(elsewhere, bitmaps.both(rows.bitmaps, held))
            rows.left_out = elsewhere
            bitmaps.add_to(held, bitmaps.less(rows.bitmaps, elsewhere))
        return held

    def _left_of(self, rows: BucketRows) -> dict[LedgerId, BitMap]:
        """What of a loaded bucket is still tracked for its sake."""
        return bitmaps.less(bitmaps.both(rows.bitmaps, self._tracked), self._added_bits)

    def _forget_taken(self) -> None:
        """Keep of what was taken what a bucket has, and what may come into the next one."""
        kept = bitmaps.behind(self._taken, self._listed.sealed_to)
        for rows in self._buckets.values():
            bitmaps.add_to(kept, bitmaps.both(rows.bitmaps, self._taken))
        self._taken = kept

    def _read_again(self, untracked: Bitmaps) -> None:
        if first := bitmaps.earliest(untracked):
            self._rewinds.append(first)

    def _due_sources(self, now_ms: int) -> list[Source]:
        sources = [*self._buckets.values(), *self._added.sources(now_ms)]
        return [source for source in sources if source.next_ms is not None and source.next_ms <= now_ms]

    def _hand(self, part: DelayedRows) -> None:
        bits = part.bitmaps()
        bitmaps.take_from(self._tracked, bits)
        bitmaps.take_from(self._added_bits, bits)
        bitmaps.add_to(self._taken, bits)
        for rows in [rows for rows in self._buckets.values() if rows.next_ms is None and not rows.is_spent]:
            rows.is_spent = True
            if self._left_of(rows):
                self._lose(rows)

    def _lose(self, rows: BucketRows) -> None:
        """Leave a bucket out: what is left of it is read in the log."""
        left = self._left_of(rows)
        del self._buckets[rows.bucket.bucket_id]
        self._lost[rows.bucket.bucket_id] = rows.bucket
        bitmaps.take_from(self._tracked, left)
        self._read_again(left)
