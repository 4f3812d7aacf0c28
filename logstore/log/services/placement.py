"""Placing one segment: which ledger, which number, uploaded and registered, while others append too."""

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from logstore.clock import Clock
from logstore.errors import AlreadyExists, CatalogBusy, LedgerFenced, StaleCatalog
from logstore.failpoints import effect
from logstore.log.ledgers import (
    EXTENT_FIELD,
    MAX_CONFIRMATION_GAP,
    UPLOAD_ID_FIELD,
    LedgerOwner,
    LedgerState,
    LedgerStatement,
    RegisteredExtent,
    SegmentUploadId,
    segment_key,
)
from logstore.log.producers import ProducerSequence
from logstore.log.services.registration import Registrar, report_abandoned_upload, upload_confirmation
from logstore.log.services.roll import Roller, RollPolicy
from logstore.log.services.segment_file import digest_metadata
from logstore.ports.catalog import (
    Ledger,
    Ledgers,
    ProducerAdvance,
    RegisterSegment,
    RegisterSegmentResult,
    Segment,
    Topic,
    TransactionEntries,
)
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId

STRIDE: Final = 16
"""How far ahead a loser looks at most, and twice as far with every further loss: many conditional puts on one
key are slow, and a large upload among quick small ones would otherwise lose for ever."""

_MAX_STRIDE: Final = 1 << 16
_MAX_NUMBER: Final = 99_999_999  # eight digits in a key
_PRODUCERS: Final = 10_000  # remembered for a topic at most


@dataclass(slots=True, kw_only=True)
class TopicHints:
    """What this process remembers of a topic; may be old, and is forgotten when the catalog disagrees."""

    ledger: Ledger | None = None
    shared: bool = False  # another process was last seen to append to the topic too: the hint is likely to be old
    epoch: int = 0
    sequences: dict[str, ProducerSequence] = field(default_factory=dict)

    def remember(self, sequences: Mapping[str, ProducerSequence]) -> None:
        """Add producers' registered sequence ids, within bounds."""
        if len(self.sequences) + len(sequences) > _PRODUCERS:
            self.sequences.clear()
        self.sequences.update(sequences)

    def forget(self) -> None:
        """Remember nothing."""
        self.ledger = None
        self.sequences.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBody:
    """An encoded segment on its way."""

    content: bytes
    entries: int
    sha256: str  # of the content, hexadecimal
    producers: tuple[ProducerAdvance, ...]
    transactions: tuple[TransactionEntries, ...] = ()
    markers: tuple[int, ...] = ()  # offsets
    delayed: int = 0  # entries with a delivery time


@dataclass(slots=True)
class AppendUploads:
    """The uploads of one append, made one after the other: each but the last was refused, or it had been answered."""

    append: str = field(default_factory=lambda: uuid.uuid4().hex)
    made: int = 0
    tried: dict[LedgerId, int] = field(default_factory=dict)  # highest number tried: a later upload has a higher one

    def next(self) -> SegmentUploadId:
        """The mark of one more upload; it names the same append after an encoding anew, a split or another ledger."""
        self.made += 1
        return SegmentUploadId(self.append, self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSegment:
    """Where a segment's entries begin."""

    ledger_id: LedgerId
    first_entry: int


@dataclass(slots=True)
class PlacementAttempts:
    """One segment's attempts so far."""

    deadline_s: float
    losses: int = 0
    tried: dict[LedgerId, int] = field(default_factory=dict)  # highest number tried
    fenced: set[LedgerId] = field(default_factory=set)

    def behind(self, ledger: Ledger) -> int:
        """The highest number that is of no use any more; -1: none."""
        return max(ledger.last_segment, self.tried.get(ledger.ledger_id, -1))

    def has_numbers(self, ledger: Ledger) -> bool:
        """Whether the ledger has a number left for whatever `next_number` draws, and for its confirmation."""
        return self.behind(ledger) <= _MAX_NUMBER - _MAX_STRIDE - MAX_CONFIRMATION_GAP

    def next_number(self, ledger: Ledger) -> int:
        """The number to try: the next one at first, then one at random ahead of what was lost to others."""
        if not self.losses or ledger.ledger_id not in self.tried:
            return self.behind(ledger) + 1
        reach = min(STRIDE << max(0, self.losses - 1), _MAX_STRIDE)
        return self.behind(ledger) + random.randint(1, reach)  # noqa: S311 - spreads writers


_LOSSES: Final = 24
"""Lost races of one segment before its writer gives up."""


class Placer:
    """Uploads segments and registers them."""

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        objects: ObjectStore,
        registrar: Registrar,
        roller: Roller,
        policy: RollPolicy,
        application: str,
        clock: Clock,
    ) -> None:
        """Register through `registrar` what was uploaded to the primary bucket `objects`."""
        self._ledgers = ledgers
        self._objects = objects
        self._registrar = registrar
        self._roller = roller
        self._policy = policy
        self._application = application
        self._clock = clock

    def place(
        self, topic: Topic, hints: TopicHints, body: SegmentBody, uploads: AppendUploads, *, deadline_s: float
    ) -> PlacedSegment:
        """Upload and register the segment, again under a later number or in another ledger as long as it loses.

        Raises:
            ProducerFenced: A producer's sequence moved on; encode again without what became a duplicate.
            TransactionNotOpen: A transaction was decided; encode again without its entries.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not registered; bounded retries were not enough.
            OutcomeUnknown: Perhaps registered, and the catalog could not be asked; or registered and not confirmed.
        """
        race = PlacementAttempts(deadline_s, tried=uploads.tried)
        while race.losses <= _LOSSES:
            ledger = self._ledger(topic, hints, race)
            number = race.tried[ledger.ledger_id] = race.next_number(ledger)
            write = _registration(topic, ledger, hints.epoch, number, body)
            metadata = self._metadata(topic, ledger, write.epoch, body, uploads.next())
            try:
                with report_abandoned_upload(self._ledgers, ledger.ledger_id, epoch=write.epoch, clock=self._clock):
                    self._upload(segment_key(write.ledger_id, write.number), body, metadata, race)
                    registered = self._registrar.register(write, deadline_s=race.deadline_s)
            except LedgerFenced:
                race.fenced.add(ledger.ledger_id)
                hints.ledger = None
            except StaleCatalog:
                hints.forget()
            except AlreadyExists:
                hints.ledger, hints.shared = None, True
            else:
                hints.ledger = _after(ledger, write, registered)
                if write.number > ledger.last_segment + 1:
                    said = RegisteredExtent(write.number, registered.first_entry + write.entries)
                    statement = self._statement(topic, ledger, write.epoch)
                    upload_confirmation(self._objects, statement, said, clock=self._clock, deadline_s=race.deadline_s)
                return PlacedSegment(ledger_id=ledger.ledger_id, first_entry=registered.first_entry)
            race.losses += 1
        raise CatalogBusy(f"topic {topic.name}: append lost {race.losses} races to other writers")

    def _ledger(self, topic: Topic, hints: TopicHints, race: PlacementAttempts) -> Ledger:
        """The ledger to write to; the hint if it will do, otherwise what the catalog says, rolled where needed.

        Where others append too the catalog is asked first: that costs less than an upload that is then refused.
        """
        known = hints.ledger
        if known and not hints.shared and self._takes(known, race):
            return known
        hints.epoch = self._clock.retry(self._ledgers.epoch, deadline_s=race.deadline_s)
        last = self._clock.retry(lambda: self._ledgers.last_ledger(topic.topic_id), deadline_s=race.deadline_s)
        if known:
            hints.shared = last is None or (last.ledger_id, last.last_segment) != (known.ledger_id, known.last_segment)
        for _ in range(_LOSSES):
            if last and self._takes(last, race):
                hints.ledger = last
                return last
            last = self._roller.next_ledger(topic.topic_id, last)
        raise CatalogBusy(f"topic {topic.name}: rolled {_LOSSES} times and found no ledger that takes segments")

    def _takes(self, ledger: Ledger, race: PlacementAttempts) -> bool:
        return (
            ledger.state is LedgerState.OPEN
            and ledger.ledger_id not in race.fenced
            and race.has_numbers(ledger)
            and not self._policy.is_due(ledger, now_us=self._clock.now_us())
        )

    def _metadata(
        self, topic: Topic, ledger: Ledger, epoch: int, body: SegmentBody, mark: SegmentUploadId
    ) -> dict[str, str]:
        """Of the object: whose it is, of which append, what is registered before it, and digests of its content."""
        said = {UPLOAD_ID_FIELD: str(mark), EXTENT_FIELD: str(RegisteredExtent(ledger.last_segment, ledger.entries))}
        return self._statement(topic, ledger, epoch).to_metadata() | said | digest_metadata(body.content, body.sha256)

    def _upload(self, key: str, body: SegmentBody, metadata: Mapping[str, str], race: PlacementAttempts) -> None:
        def put() -> None:
            with effect("append.put_segment"):
                self._objects.put_if_absent(key, body.content, metadata=metadata)

        try:
            self._clock.retry(put, deadline_s=race.deadline_s)
        except AlreadyExists:
            seen = self._objects.head(key)
            if seen is None or seen[1].get(UPLOAD_ID_FIELD) != metadata[UPLOAD_ID_FIELD]:
                raise  # it is not that an earlier try of this very upload landed and was reported as failed

    def _statement(self, topic: Topic, ledger: Ledger, epoch: int) -> LedgerStatement:
        owner = LedgerOwner(
            application=self._application,
            component=ledger.component,
            topic_id=topic.topic_id,
            topic=topic.name,
            keys={},
        )
        return LedgerStatement(owner=owner, ledger_id=ledger.ledger_id, created_us=ledger.created_us, epoch=epoch)


def _registration(topic: Topic, ledger: Ledger, epoch: int, number: int, body: SegmentBody) -> RegisterSegment:
    return RegisterSegment(
        topic_id=topic.topic_id,
        ledger_id=ledger.ledger_id,
        epoch=epoch,
        number=number,
        entries=body.entries,
        size_bytes=len(body.content),
        sha256=body.sha256,
        producers=body.producers,
        transactions=body.transactions,
        markers=body.markers,
        delayed=body.delayed,
    )


def _after(ledger: Ledger, write: RegisterSegment, registered: RegisterSegmentResult | Segment) -> Ledger | None:
    """The hint for the next append; none when the registration was found and not answered."""
    if isinstance(registered, Segment):
        return None
    return replace(
        ledger,
        entries=registered.ledger_entries,
        size_bytes=registered.ledger_size_bytes,
        last_segment=write.number,
    )
