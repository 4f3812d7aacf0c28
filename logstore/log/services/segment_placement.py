"""Upload and registration of a segment in a topic's last ledger, under a number that no concurrent writer takes."""

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.errors import AlreadyExists, CatalogBusy, LedgerFenced, StaleCatalog
from logstore.failpoints import effect
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import LedgerOwner, LedgerState, LedgerStatement
from logstore.log.producer_sequences import HighestSequenceIds, ProducerSequenceRange
from logstore.log.segment_metadata import (
    EXTENT_FIELD,
    MAX_CONFIRMATION_GAP,
    UPLOAD_ID_FIELD,
    RegisteredLedgerExtent,
    SegmentUploadId,
)
from logstore.log.services.ledger_roll import Roller, RollPolicy
from logstore.log.services.segment_reader import build_digest_metadata
from logstore.log.services.segment_registration import SegmentRegistrar, report_abandoned_upload, upload_confirmation
from logstore.ports.catalog.log import (
    Ledger,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Segment,
    Topic,
)
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.retrying_clock import Clock
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange

FIRST_NUMBER_STRIDE: Final = 16
"""Maximum step to a higher segment number after one lost race. The maximum doubles with each further lost race."""

_MAX_STRIDE: Final = 1 << 16
_MAX_NUMBER: Final = 99_999_999  # eight digits in a key
_MAX_PRODUCERS_PER_TOPIC: Final = 10_000  # whose sequence ids a process remembers


@dataclass(slots=True, kw_only=True)
class RememberedTopicState:
    """State of a topic that a process remembers. When the catalog refuses a write, outdated state is forgotten."""

    ledger: Ledger | None = None
    has_other_writers: bool = (
        False  # whether another process also appends to the topic, so that `ledger` is probably outdated
    )
    epoch: int = 0
    sequences: dict[str, HighestSequenceIds] = field(default_factory=dict)

    def remember(self, sequences: Mapping[str, HighestSequenceIds]) -> None:
        if len(self.sequences) + len(sequences) > _MAX_PRODUCERS_PER_TOPIC:
            self.sequences.clear()
        self.sequences.update(sequences)

    def forget(self) -> None:
        self.ledger = None
        self.sequences.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSegment:
    content: bytes
    entries: int
    sha256: str  # of the content, hexadecimal
    producers: tuple[ProducerSequenceRange, ...]
    transactions: tuple[TransactionEntryRange, ...] = ()
    markers: tuple[int, ...] = ()  # offsets of transaction markers
    delayed: int = 0  # entries with a delivery time


@dataclass(slots=True)
class AppendUploads:
    """Consecutive uploads of one append. All uploads except the last were refused or failed."""

    append_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    count: int = 0
    highest_tried_number_by_ledger: dict[LedgerId, int] = field(default_factory=dict)

    def next_upload_id(self) -> SegmentUploadId:
        """Return the id of the next upload. All uploads have the same `append_id`, even in different ledgers."""
        self.count += 1
        return SegmentUploadId(self.append_id, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSegment:
    ledger_id: LedgerId
    first_entry: int


@dataclass(slots=True)
class PlacementAttempts:
    deadline_s: float
    lost_races: int = 0
    highest_tried_number_by_ledger: dict[LedgerId, int] = field(default_factory=dict)
    fenced_ledgers: set[LedgerId] = field(default_factory=set)

    def highest_used_number(self, ledger: Ledger) -> int:
        """Return the highest segment number that is registered or that this append has tried, or -1."""
        return max(ledger.last_segment, self.highest_tried_number_by_ledger.get(ledger.ledger_id, -1))

    def has_numbers(self, ledger: Ledger) -> bool:
        return self.highest_used_number(ledger) <= _MAX_NUMBER - _MAX_STRIDE - MAX_CONFIRMATION_GAP

    def next_number(self, ledger: Ledger) -> int:
        """Return the next segment number. After a lost race, return a random number above the highest used number."""
        if not self.lost_races or ledger.ledger_id not in self.highest_tried_number_by_ledger:
            return self.highest_used_number(ledger) + 1
        reach = min(FIRST_NUMBER_STRIDE << max(0, self.lost_races - 1), _MAX_STRIDE)
        return self.highest_used_number(ledger) + random.randint(1, reach)  # noqa: S311 - spreads writers


_MAX_LOST_RACES: Final = 24
"""Maximum number of races that one segment may lose. After one more lost race, the writer gives up."""


class SegmentPlacer:
    def __init__(
        self,
        *,
        ledgers: MessageLedgers,
        objects: ObjectStore,
        registrar: SegmentRegistrar,
        roller: Roller,
        policy: RollPolicy,
        application: str,
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._objects = objects
        self._registrar = registrar
        self._roller = roller
        self._policy = policy
        self._application = application
        self._clock = clock

    def place_segment(
        self,
        topic: Topic,
        hints: RememberedTopicState,
        encoded: EncodedSegment,
        uploads: AppendUploads,
        *,
        deadline_s: float,
    ) -> PlacedSegment:
        """Upload and register the segment. If another writer is faster, use a higher number or another ledger.

        Raises:
            ProducerFenced: The catalog has newer sequence ids of a producer. Remove duplicates and encode the segment
                again.
            TransactionNotOpen: A transaction was decided. Encode the segment again without entries of the transaction.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The segment was not registered, after several attempts.
            OutcomeUnknown: The segment may be registered, or is registered without its confirmation.
        """
        attempts = PlacementAttempts(deadline_s, highest_tried_number_by_ledger=uploads.highest_tried_number_by_ledger)
        while attempts.lost_races <= _MAX_LOST_RACES:
            ledger = self._choose_or_open_ledger(topic, hints, attempts)
            number = attempts.highest_tried_number_by_ledger[ledger.ledger_id] = attempts.next_number(ledger)
            write = _build_registration(topic, ledger, hints.epoch, number, encoded)
            metadata = self._build_metadata(topic, ledger, write.epoch, encoded, uploads.next_upload_id())
            try:
                with report_abandoned_upload(self._ledgers, ledger.ledger_id, epoch=write.epoch, clock=self._clock):
                    self._upload_segment(segment_key(write.ledger_id, write.number), encoded, metadata, attempts)
                    registered = self._registrar.register_segment(write, deadline_s=attempts.deadline_s)
            except LedgerFenced:
                attempts.fenced_ledgers.add(ledger.ledger_id)
                hints.ledger = None
            except StaleCatalog:
                hints.forget()
            except AlreadyExists:
                hints.ledger, hints.has_other_writers = None, True
            else:
                hints.ledger = _hint_after_registration(ledger, write, registered)
                if write.number > ledger.last_segment + 1:
                    extent = RegisteredLedgerExtent(write.number, registered.first_entry + write.entries)
                    statement = self._build_statement(topic, ledger, write.epoch)
                    upload_confirmation(
                        self._objects, statement, extent, clock=self._clock, deadline_s=attempts.deadline_s
                    )
                return PlacedSegment(ledger_id=ledger.ledger_id, first_entry=registered.first_entry)
            attempts.lost_races += 1
        raise CatalogBusy(f"topic {topic.name}: append lost {attempts.lost_races} races to other writers")

    def _choose_or_open_ledger(self, topic: Topic, hints: RememberedTopicState, attempts: PlacementAttempts) -> Ledger:
        """Return the ledger in `hints` if it accepts segments. Otherwise roll if due, and return the last ledger.

        If other processes also append to the topic, read the catalog instead of `hints`, because a refused upload costs
        more than a read.
        """
        hint = hints.ledger
        if hint and not hints.has_other_writers and self._accepts_segments(hint, attempts):
            return hint
        hints.epoch = self._clock.retry(self._ledgers.catalog_epoch, deadline_s=attempts.deadline_s)
        last = self._clock.retry(lambda: self._ledgers.last_ledger(topic.topic_id), deadline_s=attempts.deadline_s)
        if hint:
            hints.has_other_writers = last is None or (last.ledger_id, last.last_segment) != (
                hint.ledger_id,
                hint.last_segment,
            )
        for _ in range(_MAX_LOST_RACES):
            if last and self._accepts_segments(last, attempts):
                hints.ledger = last
                return last
            last = self._roller.open_next_ledger(topic.topic_id, last)
        raise CatalogBusy(f"topic {topic.name}: rolled {_MAX_LOST_RACES} times and found no ledger that takes segments")

    def _accepts_segments(self, ledger: Ledger, attempts: PlacementAttempts) -> bool:
        return (
            ledger.state is LedgerState.OPEN
            and ledger.ledger_id not in attempts.fenced_ledgers
            and attempts.has_numbers(ledger)
            and not self._policy.is_due(ledger, now_us=self._clock.now_us())
        )

    def _build_metadata(
        self, topic: Topic, ledger: Ledger, epoch: int, encoded: EncodedSegment, upload_id: SegmentUploadId
    ) -> dict[str, str]:
        upload_fields = {
            UPLOAD_ID_FIELD: str(upload_id),
            EXTENT_FIELD: str(RegisteredLedgerExtent(ledger.last_segment, ledger.entries)),
        }
        return (
            self._build_statement(topic, ledger, epoch).to_metadata()
            | upload_fields
            | build_digest_metadata(encoded.content, encoded.sha256)
        )

    def _upload_segment(
        self, key: str, encoded: EncodedSegment, metadata: Mapping[str, str], attempts: PlacementAttempts
    ) -> None:
        def put() -> None:
            with effect("append.put_segment"):
                self._objects.put_if_absent(key, encoded.content, metadata=metadata)

        try:
            self._clock.retry(put, deadline_s=attempts.deadline_s)
        except AlreadyExists:
            head = self._objects.head(key)
            if head is None or head[1].get(UPLOAD_ID_FIELD) != metadata[UPLOAD_ID_FIELD]:
                raise  # the stored object is not an earlier try of this upload

    def _build_statement(self, topic: Topic, ledger: Ledger, epoch: int) -> LedgerStatement:
        owner = LedgerOwner(
            application=self._application,
            component=ledger.component,
            topic_id=topic.topic_id,
            topic=topic.name,
            keys={},
        )
        return LedgerStatement(owner=owner, ledger_id=ledger.ledger_id, created_us=ledger.created_us, epoch=epoch)


def _build_registration(
    topic: Topic, ledger: Ledger, epoch: int, number: int, encoded: EncodedSegment
) -> RegisterSegmentWrite:
    return RegisterSegmentWrite(
        topic_id=topic.topic_id,
        ledger_id=ledger.ledger_id,
        epoch=epoch,
        number=number,
        entries=encoded.entries,
        size_bytes=len(encoded.content),
        sha256=encoded.sha256,
        producers=encoded.producers,
        transactions=encoded.transactions,
        markers=encoded.markers,
        delayed=encoded.delayed,
    )


def _hint_after_registration(
    ledger: Ledger, write: RegisterSegmentWrite, registered: RegisterSegmentResult | Segment
) -> Ledger | None:
    """Return `ledger` with the registered segment, or `None` if `registered` is the row of an earlier attempt."""
    if isinstance(registered, Segment):
        return None
    return replace(
        ledger,
        entries=registered.ledger_entries,
        size_bytes=registered.ledger_size_bytes,
        last_segment=write.number,
    )
