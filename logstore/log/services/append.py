"""Appending: the object first, then the registration that makes its entries exist; concurrent appends share a segment.

What a crash leaves before the registration is an object that no row names: invisible, and found by
reconciliation. Nothing is answered as stored before its registration is known.

The first thread that finds a lane idle leads: it stores what has queued, its own append among it, and then
wakes the thread at the head of what queued meanwhile to lead next. No append waits for company: like group
commit, a batch is what came while the one before was being stored.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logstore.clock import Clock
from logstore.errors import InvalidInput, OutcomeUnknown, ProducerFenced, SequenceHeld, SextonError, TransactionNotOpen
from logstore.log.entries import ProducedEntries, encode_segment
from logstore.log.ledgers import sha256_hex
from logstore.log.producers import ProducerSequence
from logstore.log.services import duplicates
from logstore.log.services.placement import AppendUploads, PlacedSegment, Placer, SegmentBody, TopicHints
from logstore.ports.catalog import Ledgers, Topic, TransactionEntries
from logstore.positions import Position


def _refusals() -> tuple[type[Exception], ...]:
    """The errors that Arrow raises at values that no segment can hold."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    return (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Where an append went: `first` to `last` inclusive, one after the other in one ledger."""

    count: int  # entries stored
    first: Position | None  # None: all of them were duplicates
    last: Position | None
    duplicates: int = 0  # acknowledged, and not stored again


class _Target(NamedTuple):
    """Where an append goes, and its uploads so far."""

    topic: Topic
    hints: TopicHints
    uploads: AppendUploads


class Appender:
    """Stores batches of appends, each as one segment."""

    def __init__(self, *, ledgers: Ledgers, placer: Placer, clock: Clock, registration_timeout_s: float) -> None:
        """Read sequence ids from `ledgers`, place segments with `placer`.

        Args:
            ledgers: The catalog.
            placer: Uploads and registers.
            clock: Publish times and deadlines.
            registration_timeout_s: A batch that is not registered this long after it began gives up.
        """
        self._ledgers = ledgers
        self._placer = placer
        self._clock = clock
        self._timeout_s = registration_timeout_s

    def append(
        self, topic: Topic, hints: TopicHints, parts: Sequence[ProducedEntries]
    ) -> Sequence[AppendResult | SextonError]:
        """Store the parts as one segment and answer each in its place.

        A part that cannot be encoded is answered with `InvalidInput` alone, before anything is written.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not stored; bounded retries were not enough.
            OutcomeUnknown: Perhaps stored; only a producer with sequence ids can repeat it safely.
        """
        return self._append(_Target(topic, hints, AppendUploads()), parts)

    def _append(self, to: _Target, parts: Sequence[ProducedEntries]) -> Sequence[AppendResult | SextonError]:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            judged = self._without_duplicates(to.topic, to.hints, parts, deadline_s)
            kept = [one for one in judged if not isinstance(one, SequenceHeld)]
            if len(kept) < len(judged):
                return self._append_others(to, parts, judged)
            if not _entries(kept):
                return _results(parts, kept, None)
            try:
                body = self._encode(kept)
            except _refusals():
                # the rest is judged anew, as entries taken out make no duplicates
                return self._append_others(to, parts, [_unfit(part) for part in parts])
            try:
                placed = self._placer.place(to.topic, to.hints, body, to.uploads, deadline_s=deadline_s)
            except TransactionNotOpen as refused:
                return self._append_open(to, parts, refused)
            except ProducerFenced:  # another process stored entries of a producer: what is a duplicate has changed
                to.hints.sequences.clear()
            else:
                for moved in body.producers:
                    known = to.hints.sequences.get(moved.producer, ProducerSequence())
                    to.hints.sequences[moved.producer] = known.advance(moved.last, moved.txn)
                return _results(parts, kept, placed)

    def _append_others(
        self, to: _Target, parts: Sequence[ProducedEntries], judged: Sequence[object]
    ) -> Sequence[AppendResult | SextonError]:
        """Store the parts that are not judged by an error, and answer the others with theirs."""
        wanted = [part for part, one in zip(parts, judged, strict=True) if not isinstance(one, SextonError)]
        answers = iter(self._append(to, wanted) if wanted else ())
        return [one if isinstance(one, SextonError) else next(answers) for one in judged]

    def _append_open(
        self, to: _Target, parts: Sequence[ProducedEntries], refused: TransactionNotOpen
    ) -> Sequence[AppendResult | SextonError]:
        """Take out the parts of a transaction that is decided; nothing of any part was stored."""
        judged = [refused.again() if str(part.txn) == refused.txn else None for part in parts]
        return self._append_others(to, parts, judged)

    def _without_duplicates(
        self, topic: Topic, hints: TopicHints, parts: Sequence[ProducedEntries], deadline_s: float
    ) -> list[ProducedEntries | SequenceHeld]:
        """Drop duplicates; only if the catalog has them, as what is dropped is acknowledged without being stored.

        What this process remembers is enough to keep an entry: the registration checks it again.
        """
        wanted = duplicates.numbered_producers(parts)
        if wanted <= hints.sequences.keys():
            kept = duplicates.drop(parts, hints.sequences)
            if all(one is part for one, part in zip(kept, parts, strict=True)):
                return kept
        found = self._clock.retry(
            lambda: self._ledgers.producer_sequences(topic.topic_id, wanted), deadline_s=deadline_s
        )
        hints.remember({name: found.get(name, ProducerSequence()) for name in wanted})
        return duplicates.drop(parts, found)

    def _encode(self, kept: Sequence[ProducedEntries]) -> SegmentBody:
        content = encode_segment(kept, publish_ms=self._clock.now_us() // 1000)
        return SegmentBody(
            content=content,
            sha256=sha256_hex(content),
            entries=_entries(kept),
            producers=duplicates.advances(kept),
            **_transactional(kept),
            delayed=sum(entry.deliver_at_ms is not None for part in kept for entry in part.entries),
        )


def _transactional(parts: Sequence[ProducedEntries]) -> dict[str, Any]:
    """Which entries of the segment are of transactions, and which are markers."""
    transactions, markers, at = list[TransactionEntries](), list[int](), 0
    for part in parts:
        count = len(part.entries)
        if part.txn and count:
            transactions.append(TransactionEntries(part.txn, at, count))
        markers += range(at, at + len(part.marks))
        at += count
    return {"transactions": tuple(transactions), "markers": tuple(markers)}


def _entries(parts: Sequence[ProducedEntries]) -> int:
    return sum(len(part.entries) for part in parts)


def _unfit(part: ProducedEntries) -> InvalidInput | None:
    try:
        encode_segment([part], publish_ms=0)
    except _refusals() as error:
        refused = InvalidInput("entries", expected="values that a segment can hold", found=str(error))
        refused.__cause__ = error
        return refused
    return None


def _results(
    parts: Sequence[ProducedEntries], kept: Sequence[ProducedEntries], placed: PlacedSegment | None
) -> list[AppendResult]:
    results = []
    at = placed.first_entry if placed else 0
    for part, stored in zip(parts, kept, strict=True):
        count, dropped = len(stored.entries), len(part.entries) - len(stored.entries)
        first = Position(placed.ledger_id, at) if placed and count else None
        last = Position(placed.ledger_id, at + count - 1) if placed and count else None
        results.append(AppendResult(count=count, first=first, last=last, duplicates=dropped))
        at += count
    return results


_MAX_ENTRIES: Final = 50_000
_MAX_BYTES: Final = 32 << 20
"""A batch takes appends until it passes one of these; one append larger than that is a batch of its own."""

Answer = AppendResult | BaseException


class _Waiter:
    """One thread's append while it waits."""

    __slots__ = ("answer", "leads", "produced", "size_bytes", "woken")

    def __init__(self, produced: ProducedEntries) -> None:
        self.produced = produced
        self.size_bytes = sum(entry.size_bytes for entry in produced.entries)
        self.woken = threading.Event()
        self.leads = False
        self.answer: Answer | None = None


class AppendQueue:
    """The appends of one topic in this process."""

    def __init__(self, store: Callable[[Sequence[ProducedEntries]], Sequence[AppendResult | SextonError]]) -> None:
        """Merge into calls of `store`.

        Args:
            store: Stores the appends as one segment and answers each in its place; called by one thread at a
                time. What it raises is raised to every append of the batch.
        """
        self._store = store
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._led = False

    @property
    def idle(self) -> bool:
        """Whether no thread appends at this moment."""
        with self._lock:
            return not self._led

    def append(self, produced: ProducedEntries) -> AppendResult:
        """Store the append with whatever else queued, and answer where it went.

        Raises:
            SextonError: What `store` answered or raised.
            OutcomeUnknown: The thread that led the batch was interrupted.
        """
        waiter = _Waiter(produced)
        with self._lock:
            self._queue.append(waiter)
            waiter.leads, self._led = not self._led, True
        if not waiter.leads:
            self._wait(waiter)
        if waiter.leads:
            self._lead()
        if isinstance(waiter.answer, AppendResult):
            return waiter.answer
        raise waiter.answer or OutcomeUnknown("append: the thread that led its batch was interrupted")

    def _wait(self, waiter: _Waiter) -> None:
        try:
            waiter.woken.wait()
        except BaseException:  # interrupted: it must neither be stored later nor be asked to lead
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
                if waiter.leads:
                    self._hand_over()
            raise

    def _lead(self) -> None:
        batch: list[_Waiter] = []
        try:
            with self._lock:
                batch = self._take()
            answers = self._store([waiter.produced for waiter in batch])
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer = answer
        except Exception as error:  # noqa: BLE001 - answered to every append of the batch
            for waiter in batch:
                waiter.answer = waiter.answer or error
        finally:
            with self._lock:
                self._hand_over()
            for waiter in batch:
                waiter.woken.set()

    def _take(self) -> list[_Waiter]:
        """The head of the queue and what fits behind it. The leader's own append is the head."""
        batch = [self._queue.popleft()]
        entries, size = len(batch[0].produced.entries), batch[0].size_bytes
        while self._queue:
            entries += len(self._queue[0].produced.entries)
            size += self._queue[0].size_bytes
            if entries > _MAX_ENTRIES or size > _MAX_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch

    def _hand_over(self) -> None:
        self._led = bool(self._queue)
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].woken.set()
