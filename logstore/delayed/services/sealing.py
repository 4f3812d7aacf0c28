"""Sealing: what of a topic's log lies behind its last bucket becomes buckets, and passed buckets are dropped.

Of the log the delivery times alone are read, and only of segments whose rows say that they have some. A seal ends at a
segment's end, and before the first message of an open transaction; it leaves out what no consumer sees and what is
due already, which the log itself hands out. Each bucket is one switch of the topic's list: a seal that dies between two
of them has done that much, and what it wrote and did not switch to is a newborn ledger, which a sweep takes away.

Source: PIP-195 (sealing the last mutable bucket); field case 57.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, cast

from logstore.delayed.bitmaps import Bitmaps
from logstore.delayed.buckets import BucketLimits, BucketList
from logstore.delayed.rows import DelayedRows
from logstore.delayed.sealing import BucketDraft, should_seal
from logstore.delayed.services.reading import DelayedLog, Wanted, end_of
from logstore.delayed.services.snapshots import BucketSnapshots
from logstore.delayed.snapshot_file import SnapshotWriter
from logstore.ports.catalog import (
    BucketSwitch,
    DelayedIndex,
    Frontier,
    Ledger,
    Segment,
    Transactions,
)
from logstore.positions import LedgerId, Position, TopicId

_PASSED: Final = "all its messages have been due, or were acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What a seal did."""

    buckets: int = 0  # new ones
    messages: int = 0  # in them
    dropped: int = 0  # buckets
    listed: int = 0  # buckets that the topic has now
    overtaken: bool = False  # another process changed the list meanwhile: the rest is left to the next seal


@contextmanager
def new_snapshot(
    folder: Path, topic_id: TopicId, first: Position, last: Position, *, known: Bitmaps | None = None
) -> Iterator[tuple[BinaryIO, SnapshotWriter]]:
    """A file without a name, and a writer into it: nothing of it is left, however the process ends.

    Args:
        folder: Where the file is; made if need be.
        topic_id: Whose messages they are.
        first: The first entry of the range that the bucket covers.
        last: The last one.
        known: See `SnapshotWriter`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as unnamed:
        file = cast("BinaryIO", unnamed)
        writer = SnapshotWriter(file, topic_id, first, last, entries=known)
        try:
            yield file, writer
        finally:
            writer.abandon()  # nothing, where it was closed


@dataclass
class _Course:
    """One seal of one topic."""

    topic_id: TopicId
    listed: BucketList
    frontier: Frontier
    now_ms: int  # the catalog's clock when it began
    idle_s: float | None  # since the newest message with a delivery time came
    force: bool
    gathering: BucketDraft | None = None
    delayed: int = 0  # entries with a delivery time in what is gathered, due or not
    done: Sealed = Sealed()

    def is_time(self, limits: BucketLimits, *, entries: int, ledgers: int) -> bool:
        return self.force or should_seal(limits, entries=entries, ledgers=ledgers, idle_s=self.idle_s)


class Sealer:
    """Seals topics. Threads share one."""

    def __init__(
        self,
        *,
        index: DelayedIndex,
        transactions: Transactions,
        log: DelayedLog,
        snapshots: BucketSnapshots,
        limits: BucketLimits,
        scratch: Path,
    ) -> None:
        """Work on a log.

        Args:
            index: The lists of buckets.
            transactions: Say what of the log consumers may see.
            log: Where delivery times are read.
            snapshots: Writes what is sealed.
            limits: When it is time, and how large buckets are.
            scratch: A folder for one file as large as a bucket.
        """
        self._index, self._transactions, self._log = index, transactions, log
        self._snapshots, self._limits, self._scratch = snapshots, limits, scratch

    def seal(self, topic_id: TopicId, *, force: bool = False) -> Sealed:
        """Drop what has passed, and seal what it is time for; with `force` all that consumers may see.

        Idempotency: what is sealed is not sealed again, and of two at once one is overtaken.

        Raises:
            MissingData, CorruptData: A listed ledger lacks an object, or one is not what its row says, in no copy.
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeating is fine.
        """
        dropped = self._drop(topic_id)
        course = self._begin(topic_id, force=force)
        if course:
            self._go(course)
        done = course.done if course else Sealed()
        return replace(done, dropped=dropped, listed=len(self._index.listed(topic_id).buckets))

    def _drop(self, topic_id: TopicId) -> int:
        """Retire buckets that no tracker needs; those of a list that changes meanwhile are left to the next seal."""
        listed = self._index.listed(topic_id)
        passed = self._index.passed(topic_id)
        if not passed:
            return 0
        drop = BucketSwitch(topic_id=topic_id, expected=listed.version, removed=tuple(passed), reason=_PASSED)
        return len(passed) if self._index.switch(drop) else 0

    def _begin(self, topic_id: TopicId, *, force: bool) -> _Course | None:
        """What there is to seal; None where there is nothing to see, or it is not time."""
        listed, behind = self._index.listed(topic_id), self._index.unsealed(topic_id)
        frontier = self._transactions.frontier(topic_id, from_ledger=max(0, listed.sealed_to.ledger_id))
        if frontier.last is None:
            return None
        now_ms = self._index.now_ms()
        course = _Course(
            topic_id=topic_id,
            listed=listed,
            frontier=frontier,
            now_ms=now_ms,
            idle_s=None if behind.changed_us is None else (now_ms * 1_000 - behind.changed_us) / 1_000_000,
            force=force,
        )
        if not course.is_time(self._limits, entries=behind.entries, ledgers=behind.ledgers):
            return None
        entries, ledgers = 0, set[LedgerId]()  # what is behind an open transaction waits with it
        for _, segment in self._behind(course):
            entries += segment.delayed or 0  # where they are not counted, there is nothing to hurry for
            ledgers.add(segment.ledger_id)
        return course if course.is_time(self._limits, entries=entries, ledgers=len(ledgers)) else None

    def _behind(self, course: _Course) -> Iterator[tuple[Ledger, Segment]]:
        """Segments behind the last bucket that consumers may see as a whole, in log order."""
        last = course.frontier.last or course.listed.sealed_to
        return self._log.segments(course.topic_id, behind=course.listed.sealed_to, last=last)

    def _go(self, course: _Course) -> None:
        """Read, and end a bucket wherever one is full; what is left becomes one if it is time for it, too."""
        wanted = Wanted(topic_id=course.topic_id, hidden=course.frontier.hidden, now_ms=course.now_ms)
        for segment, rows in self._log.rows(self._behind(course), wanted):
            course.gathering = course.gathering or BucketDraft(Position(segment.ledger_id, segment.first_entry))
            course.gathering.add(rows, last=end_of(segment))
            course.delayed += len(rows) if segment.delayed is None else segment.delayed
            if course.gathering.is_full(self._limits) and not self._end_bucket(course):
                return
        left = course.gathering
        if left and course.is_time(self._limits, entries=course.delayed, ledgers=len(left.ledgers)):
            self._end_bucket(course)

    def _end_bucket(self, course: _Course) -> bool:
        """Store what is gathered and switch to it; where nothing is, say that this much was looked through.

        Returns whether the list is as this seal has made it.
        """
        gathering = course.gathering
        assert gathering is not None and gathering.last is not None  # noqa: PT018 - one fact
        end, rows = gathering.last, gathering.rows()
        switch = BucketSwitch(topic_id=course.topic_id, expected=course.listed.version, sealed_to=end)
        switched = self._write(course, switch, gathering.first, end, rows) if len(rows) else self._index.switch(switch)
        course.listed = self._index.listed(course.topic_id)
        if not switched or course.listed.sealed_to != end:
            course.done = replace(course.done, overtaken=True)
            return False
        made = Sealed(buckets=course.done.buckets + bool(len(rows)), messages=course.done.messages + len(rows))
        course.done, course.gathering, course.delayed = made, None, 0
        return True

    def _write(self, course: _Course, switch: BucketSwitch, first: Position, last: Position, rows: DelayedRows) -> bool:
        with new_snapshot(self._scratch, course.topic_id, first, last) as (file, writer):
            writer.add(rows)
            footer = writer.close()
            return self._snapshots.write(file, footer, lambda born: self._index.switch(replace(switch, added=(born,))))
