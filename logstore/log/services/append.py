"""Appending: the object first, then the registration that makes its entries exist.

What a crash leaves before the registration is an object that no row names: invisible, and found by
reconciliation. Nothing is answered as stored before its registration is known.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from logstore.clock import Clock
from logstore.errors import InvalidInput, ProducerFenced, SextonError
from logstore.log.entries import ProducedEntries, encode_segment
from logstore.log.ledgers import digest_of
from logstore.log.services import duplicates
from logstore.log.services.placement import PlacedSegment, Placer, SegmentBody, TopicHints
from logstore.ports.catalog import Ledgers, Topic
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
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            kept = self._without_duplicates(topic, hints, parts, deadline_s)
            if not _entries(kept):
                return _results(parts, kept, None)
            try:
                body = self._encode(kept)
            except _refusals():
                return self._append_fit(topic, hints, parts)
            try:
                placed = self._placer.place(topic, hints, body, deadline_s=deadline_s)
            except ProducerFenced:  # another process stored entries of a producer: what is a duplicate has changed
                hints.sequences.clear()
            else:
                hints.sequences.update({advance.producer: advance.last for advance in body.producers})
                return _results(parts, kept, placed)

    def _append_fit(
        self, topic: Topic, hints: TopicHints, parts: Sequence[ProducedEntries]
    ) -> Sequence[AppendResult | SextonError]:
        """Take out what cannot be encoded; the rest is judged anew, as entries taken out make no duplicates."""
        unfit = {at: error for at, part in enumerate(parts) if (error := _unfit(part))}
        fit = [part for at, part in enumerate(parts) if at not in unfit]
        answers = iter(self.append(topic, hints, fit) if fit else ())
        return [unfit[at] if at in unfit else next(answers) for at in range(len(parts))]

    def _without_duplicates(
        self, topic: Topic, hints: TopicHints, parts: Sequence[ProducedEntries], deadline_s: float
    ) -> list[ProducedEntries]:
        """Drop duplicates; on the catalog's word alone, as what is dropped is acknowledged without being stored.

        What this process remembers is enough to keep an entry: the registration checks it again.
        """
        wanted = duplicates.numbered_producers(parts)
        if wanted <= hints.sequences.keys():
            kept = duplicates.drop(parts, hints.sequences)
            if _entries(kept) == _entries(parts):
                return kept
        found = self._clock.patiently(
            lambda: self._ledgers.producer_sequences(topic.topic_id, wanted), deadline_s=deadline_s
        )
        hints.remember({name: found.get(name, -1) for name in wanted})
        return duplicates.drop(parts, found)

    def _encode(self, kept: Sequence[ProducedEntries]) -> SegmentBody:
        content = encode_segment(kept, publish_ms=self._clock.now_us() // 1000)
        return SegmentBody(
            content=content,
            sha256=digest_of(content),
            entries=_entries(kept),
            producers=duplicates.advances(kept),
            upload=uuid.uuid4().hex,
        )


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
