"""Append: upload an object, then register it. Concurrent appends share a segment.

Entries exist once their segment is registered. A crash before the registration leaves an object without a row, which
reconciliation finds.

If the queue of a topic has no leader, the thread of the next append becomes the leader. The leader stores its own
append and all queued appends as one batch. Then the thread of the first append that was queued meanwhile becomes the
leader. There is no timer: a batch contains the appends that were queued while the previous batch was stored.

An entry is a duplicate if its sequence id is not above the producer's highest registered id. A duplicate is
acknowledged and not stored again. Entries without a sequence id are never duplicates.

Source: Pulsar's message deduplication (highest sequence id persisted per producer).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.errors import InvalidInput, OutcomeUnknown, ProducerFenced, SequenceHeld, SextonError, TransactionNotOpen
from logstore.log.entries import HighestSequenceIds, NewEntry, ProducedEntries, ProducerSequenceRange
from logstore.log.segment_format import encode_segment, sha256_hex
from logstore.log.services.segment_placement import (
    AppendUploads,
    EncodedSegment,
    PlacedSegment,
    RememberedTopicState,
    SegmentPlacer,
)
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from logstore.retrying_clock import Clock
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange, TransactionId

_MAX_SEQUENCE = 2**63 - 1
_NO_SEQUENCE = HighestSequenceIds()


def require_valid_produced_entries(produced: ProducedEntries) -> None:
    """Raise `InvalidInput` if there are no entries or a sequence id is invalid.

    Entries with sequence ids need a producer. Sequence ids are 0 to 2**63 - 1 and ascend within `produced`.
    """
    if not produced.entries:
        raise InvalidInput("entries", expected="at least one", found=produced.entries)
    if produced.producer is not None and not (0 < len(produced.producer) <= 200 and produced.producer.isprintable()):
        raise InvalidInput("producer", expected="1 to 200 printable characters", found=produced.producer)
    previous_id = -1
    for number, entry in enumerate(produced.entries):
        sequence_id = entry.sequence_id
        if sequence_id is None:
            continue
        if not produced.producer:
            raise InvalidInput(f"entry {number}: sequence_id", expected="a producer beside it", found=produced.producer)
        if not previous_id < sequence_id <= _MAX_SEQUENCE:
            raise InvalidInput(f"entry {number}: sequence_id", expected=f"an id above {previous_id}", found=sequence_id)
        previous_id = sequence_id


def _producers_with_sequence_ids(parts: Iterable[ProducedEntries]) -> set[str]:
    return {part.producer for part in parts if part.producer and any(_has_sequence_id(part))}


def _drop_known_entries(
    parts: Sequence[ProducedEntries], registered: Mapping[str, HighestSequenceIds]
) -> list[ProducedEntries | SequenceHeld]:
    """Return the parts without duplicates, in order. A part may become empty.

    A part with new sequence ids is replaced by a `SequenceHeld` if another transaction of its producer is open. A part
    is also compared with earlier parts of the same producer.
    """
    sequence_by_producer = dict(registered)
    return [_drop_duplicates_of_part(part, sequence_by_producer) for part in parts]


def _drop_duplicates_of_part(
    part: ProducedEntries, sequence_by_producer: dict[str, HighestSequenceIds]
) -> ProducedEntries | SequenceHeld:
    if not part.producer:
        return part
    registered = sequence_by_producer.get(part.producer, _NO_SEQUENCE)
    last_stored_id = registered.committed if registered.refuses(part.txn) else registered.last
    unique_entries = [
        entry for entry in part.entries if entry.sequence_id is None or entry.sequence_id > last_stored_id
    ]
    new_ids = list(_sequence_ids(unique_entries))
    if new_ids and registered.refuses(part.txn):
        return SequenceHeld(part.producer, txn=str(registered.txn))
    if new_ids:
        sequence_by_producer[part.producer] = registered.advance(new_ids[-1], part.txn)
    return part if len(unique_entries) == len(part.entries) else replace(part, entries=unique_entries)


def _producer_advances(parts: Iterable[ProducedEntries]) -> tuple[ProducerSequenceRange, ...]:
    """Return the ranges of sequence ids that a segment with these parts registers, ordered by producer."""
    ids_by_key: dict[tuple[str, TransactionId | None], list[int]] = {}
    for part in parts:
        if part.producer and any(_has_sequence_id(part)):
            ids_by_key.setdefault((part.producer, part.txn), []).extend(_sequence_ids(part.entries))
    advances = [
        ProducerSequenceRange(producer=key[0], first=sequence_ids[0], last=sequence_ids[-1], txn=key[1])
        for key, sequence_ids in ids_by_key.items()
    ]
    return tuple(sorted(advances, key=attrgetter("producer")))


def _has_sequence_id(part: ProducedEntries) -> Iterable[bool]:
    return (entry.sequence_id is not None for entry in part.entries)


def _sequence_ids(entries: Iterable[NewEntry]) -> list[int]:
    return [entry.sequence_id for entry in entries if entry.sequence_id is not None]


def _encoding_errors() -> tuple[type[Exception], ...]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    return (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Result of an append. The stored entries are contiguous in one ledger, from `first` to `last` inclusive."""

    count: int  # number of stored entries
    first: Position | None  # None if all entries were duplicates
    last: Position | None
    duplicates: int = 0  # entries that were acknowledged but not stored again


class _TopicAppendContext(NamedTuple):
    topic: Topic
    hints: RememberedTopicState
    uploads: AppendUploads


class Appender:
    """Writer of appends. Each batch of appends is stored as one segment.

    A batch that is not registered within `registration_timeout_s` fails.
    """

    def __init__(
        self, *, ledgers: MessageLedgers, placer: SegmentPlacer, clock: Clock, registration_timeout_s: float
    ) -> None:
        self._ledgers = ledgers
        self._placer = placer
        self._clock = clock
        self._timeout_s = registration_timeout_s

    def append(
        self, topic: Topic, hints: RememberedTopicState, parts: Sequence[ProducedEntries]
    ) -> Sequence[AppendResult | SextonError]:
        """Store all parts as one segment. A part is one append of one producer. Return a result or an error per part.

        The result for a part that cannot be encoded is `InvalidInput`. Nothing of this part is written.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The parts were not stored, after several attempts.
            OutcomeUnknown: The parts may be stored. Only producers with sequence ids can safely repeat the call.
        """
        return self._deduplicate_and_store_parts(_TopicAppendContext(topic, hints, AppendUploads()), parts)

    def _deduplicate_and_store_parts(
        self, target: _TopicAppendContext, parts: Sequence[ProducedEntries]
    ) -> Sequence[AppendResult | SextonError]:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            checked_parts = self._drop_duplicates(target.topic, target.hints, parts, deadline_s)
            accepted_parts = [part for part in checked_parts if not isinstance(part, SequenceHeld)]
            if len(accepted_parts) < len(checked_parts):
                return self._store_accepted_parts(target, parts, checked_parts)
            if not _count_entries(accepted_parts):
                return _to_results(parts, accepted_parts, None)
            try:
                encoded = self._encode_segment(accepted_parts)
            except _encoding_errors():
                # Check the other parts again, because entries of a refused part must not make other entries duplicates.
                return self._store_accepted_parts(target, parts, [_find_encoding_error(part) for part in parts])
            try:
                placed = self._placer.place_segment(
                    target.topic, target.hints, encoded, target.uploads, deadline_s=deadline_s
                )
            except TransactionNotOpen as refused:
                # None of `parts` is stored yet. Store all parts except those of the refused transaction.
                verdicts = [refused.again() if str(part.txn) == refused.txn else None for part in parts]
                return self._store_accepted_parts(target, parts, verdicts)
            except ProducerFenced:  # another process stored entries of a producer
                target.hints.sequences.clear()
            else:
                for moved in encoded.producers:
                    sequence = target.hints.sequences.get(moved.producer, HighestSequenceIds())
                    target.hints.sequences[moved.producer] = sequence.advance(moved.last, moved.txn)
                return _to_results(parts, accepted_parts, placed)

    def _store_accepted_parts(
        self, target: _TopicAppendContext, parts: Sequence[ProducedEntries], verdicts: Sequence[object]
    ) -> Sequence[AppendResult | SextonError]:
        """Store each part whose verdict is not an error. Return a result or an error for each part, in order."""
        accepted_parts = [
            part for part, verdict in zip(parts, verdicts, strict=True) if not isinstance(verdict, SextonError)
        ]
        answers = iter(self._deduplicate_and_store_parts(target, accepted_parts) if accepted_parts else ())
        return [verdict if isinstance(verdict, SextonError) else next(answers) for verdict in verdicts]

    def _drop_duplicates(
        self, topic: Topic, hints: RememberedTopicState, parts: Sequence[ProducedEntries], deadline_s: float
    ) -> list[ProducedEntries | SequenceHeld]:
        """Remove duplicates, by sequence ids in `hints` or in the catalog. A duplicate is acknowledged but not stored.

        If all entries are new according to `hints`, the catalog is not read. The registration checks the entries again.
        """
        producers = _producers_with_sequence_ids(parts)
        if producers <= hints.sequences.keys():
            unique_parts = _drop_known_entries(parts, hints.sequences)
            if all(unique_part is part for unique_part, part in zip(unique_parts, parts, strict=True)):
                return unique_parts
        sequences = self._clock.retry(
            lambda: self._ledgers.producer_sequences(topic.topic_id, producers), deadline_s=deadline_s
        )
        hints.remember({name: sequences.get(name, HighestSequenceIds()) for name in producers})
        return _drop_known_entries(parts, sequences)

    def _encode_segment(self, unique_parts: Sequence[ProducedEntries]) -> EncodedSegment:
        content = encode_segment(unique_parts, publish_ms=self._clock.now_us() // 1000)
        return EncodedSegment(
            content=content,
            sha256=sha256_hex(content),
            entries=_count_entries(unique_parts),
            producers=_producer_advances(unique_parts),
            **_collect_transactions_and_markers(unique_parts),
            delayed=sum(entry.deliver_at_ms is not None for part in unique_parts for entry in part.entries),
        )


def _collect_transactions_and_markers(parts: Sequence[ProducedEntries]) -> dict[str, Any]:
    transactions, markers, offset = list[TransactionEntryRange](), list[int](), 0
    for part in parts:
        count = len(part.entries)
        if part.txn and count:
            transactions.append(TransactionEntryRange(part.txn, offset, count))
        markers += range(offset, offset + len(part.marks))
        offset += count
    return {"transactions": tuple(transactions), "markers": tuple(markers)}


def _count_entries(parts: Sequence[ProducedEntries]) -> int:
    return sum(len(part.entries) for part in parts)


def _find_encoding_error(part: ProducedEntries) -> InvalidInput | None:
    try:
        encode_segment([part], publish_ms=0)
    except _encoding_errors() as error:
        invalid = InvalidInput("entries", expected="values that a segment can hold", found=str(error))
        invalid.__cause__ = error
        return invalid
    return None


def _to_results(
    parts: Sequence[ProducedEntries], unique_parts: Sequence[ProducedEntries], placed: PlacedSegment | None
) -> list[AppendResult]:
    results = []
    next_entry = placed.first_entry if placed else 0
    for part, unique_part in zip(parts, unique_parts, strict=True):
        count, duplicate_count = len(unique_part.entries), len(part.entries) - len(unique_part.entries)
        first = Position(placed.ledger_id, next_entry) if placed and count else None
        last = Position(placed.ledger_id, next_entry + count - 1) if placed and count else None
        results.append(AppendResult(count=count, first=first, last=last, duplicates=duplicate_count))
        next_entry += count
    return results


_MAX_BATCH_ENTRIES: Final = 50_000
_MAX_BATCH_BYTES: Final = 32 << 20
"""Limits of a batch with several appends. An append that exceeds a limit is stored as a batch of its own."""

AppendAnswer = AppendResult | BaseException


class _QueuedAppend:
    __slots__ = ("answer", "leads", "produced", "size_bytes", "woken")

    def __init__(self, produced: ProducedEntries) -> None:
        self.produced = produced
        self.size_bytes = sum(entry.size_bytes for entry in produced.entries)
        self.woken = threading.Event()
        self.leads = False
        self.answer: AppendAnswer | None = None


class AppendQueue:
    """Queue of the appends of one topic in this process.

    `store` returns a result or an error for each append. Only one thread at a time calls `store`. If `store` raises,
    every append of the batch raises the error.
    """

    def __init__(self, store: Callable[[Sequence[ProducedEntries]], Sequence[AppendResult | SextonError]]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._queue: deque[_QueuedAppend] = deque()
        self._has_leader = False

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._has_leader

    def append(self, produced: ProducedEntries) -> AppendResult:
        """Store the append together with other queued appends. Raise `OutcomeUnknown` if the leader was interrupted."""
        waiter = _QueuedAppend(produced)
        with self._lock:
            self._queue.append(waiter)
            waiter.leads, self._has_leader = not self._has_leader, True
        if not waiter.leads:
            self._wait_for_answer(waiter)
        if waiter.leads:
            self._store_batch_as_leader()
        if isinstance(waiter.answer, AppendResult):
            return waiter.answer
        raise waiter.answer or OutcomeUnknown("append: the thread that led its batch was interrupted")

    def _wait_for_answer(self, waiter: _QueuedAppend) -> None:
        try:
            waiter.woken.wait()
        except BaseException:  # after an interruption, the append must not be stored and this thread must not lead
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
                if waiter.leads:
                    self._choose_next_leader()
            raise

    def _store_batch_as_leader(self) -> None:
        batch: list[_QueuedAppend] = []
        try:
            with self._lock:
                batch = self._take_batch()
            answers = self._store([waiter.produced for waiter in batch])
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer = answer
        except Exception as error:  # noqa: BLE001 - answered to every append of the batch
            for waiter in batch:
                waiter.answer = waiter.answer or error
        finally:
            with self._lock:
                self._choose_next_leader()
            for waiter in batch:
                waiter.woken.set()

    def _take_batch(self) -> list[_QueuedAppend]:
        """Remove the next batch from the queue and return it. The first append of the batch is the leader's own."""
        batch = [self._queue.popleft()]
        entries, size_bytes = len(batch[0].produced.entries), batch[0].size_bytes
        while self._queue:
            entries += len(self._queue[0].produced.entries)
            size_bytes += self._queue[0].size_bytes
            if entries > _MAX_BATCH_ENTRIES or size_bytes > _MAX_BATCH_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch

    def _choose_next_leader(self) -> None:
        self._has_leader = bool(self._queue)
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].woken.set()
