"""Place of a segment: open ledgers, uploads under free segment numbers, and registration.

*Roll.* A new ledger gets its row first, then its statement in storage, and then a place in the list. If another process
has opened a ledger first, the newborn ledger gets an intent instead of a place (apache/pulsar#350).

*Confirmation.* If the catalog is lost, storage must show where a segment was registered (ADR 19). So the metadata of a
segment states the part of the ledger that was registered before the upload.

- If the segment has the next number after this part, the metadata suffices: a registered segment begins at the end of
  this part.
- If the segment skips numbers, segments with lower numbers may have been registered after the upload. So a confirmation
  is uploaded after the registration and before the append returns.
"""

import logging
import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.errors import (
    AlreadyExists,
    CatalogBusy,
    LedgerFenced,
    OutcomeUnknown,
    ProducerFenced,
    RetryableError,
    SextonError,
    StaleCatalog,
    StoreUnavailable,
    TerminalError,
    TransactionNotOpen,
)
from logstore.failpoints import effect
from logstore.log.entries import HighestSequenceIds, ProducerSequenceRange
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import LedgerOwner, LedgerState, LedgerStatement
from logstore.log.segment_format import (
    EXTENT_FIELD,
    MAX_CONFIRMATION_GAP,
    MIN_CONFIRMATION_GAP,
    UPLOAD_ID_FIELD,
    RegisteredLedgerExtent,
    SegmentUploadId,
    encode_segment,
    sha256_hex,
)
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.segment_reader import build_digest_metadata
from logstore.ports.catalog.log import (
    Ledger,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Segment,
    Topic,
)
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.retrying_clock import Clock
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange

_MAX_REPORT_S: Final = 5.0
"""Maximum time for a report to the catalog. The time is short, because the report delays the caller's error."""

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def report_abandoned_upload(
    ledgers: MessageLedgers, ledger_id: LedgerId, *, epoch: int, clock: Clock
) -> Iterator[None]:
    """If the `with` block raises, report to the catalog that an upload to the ledger was abandoned. Raise the error.

    After a terminal error nothing is reported: storage has stored nothing, or the catalog has refused the upload.
    """
    try:
        yield
    except TerminalError:
        raise
    except Exception:
        deadline_s = clock.monotonic_s() + _MAX_REPORT_S
        try:  # if the catalog does not answer, reconciliation finds the upload
            clock.retry(lambda: ledgers.record_abandoned_upload(ledger_id, epoch=epoch), deadline_s=deadline_s)
        except Exception as error:  # noqa: BLE001 - the first error must not be hidden
            _LOG.warning("ledger %s: an upload was given up, and the catalog was not told: %s", ledger_id, error)
        raise


def upload_confirmation(
    objects: ObjectStore, statement: LedgerStatement, extent: RegisteredLedgerExtent, *, clock: Clock, deadline_s: float
) -> None:
    """Upload a confirmation. A crash before the upload loses nothing, because the append has not returned yet.

    `extent` has the number of the registered segment, and the number of entries of the ledger up to the end of this
    segment. No attempt starts after the monotonic time `deadline_s`.

    Raises:
        OutcomeUnknown: The segment is registered without a confirmation. If the catalog is lost, the segment's entries
            may get other positions.
    """
    content = encode_segment([], publish_ms=0)
    metadata = (
        statement.to_metadata() | {EXTENT_FIELD: str(extent)} | build_digest_metadata(content, sha256_hex(content))
    )

    def put_at_random_number() -> None:
        number = extent.last_segment + random.randint(MIN_CONFIRMATION_GAP, MAX_CONFIRMATION_GAP)  # noqa: S311 - spreads writers
        key = segment_key(statement.ledger_id, number)
        try:
            with effect("append.put_confirmation"):
                objects.put_if_absent(key, content, metadata=metadata)
        except AlreadyExists as error:
            raise StoreUnavailable(f"{key}: expected a free number for a confirmation") from error

    try:
        clock.retry(put_at_random_number, deadline_s=deadline_s)
    except SextonError as error:
        subject = f"ledger {statement.ledger_id}, segment {extent.last_segment}"
        raise OutcomeUnknown(f"{subject}: registered, and storage was not told: {error}") from error


_MAX_ATTEMPTS: Final = 5
"""Maximum number of attempts of one roll. An attempt fails if a trim detaches the newborn ledger before the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """Limits of a ledger. A roll is due when any limit is reached. The last segment may exceed a limit."""

    max_entries: int = 50_000
    max_size_bytes: int = 1 << 30
    max_age_s: float = 4 * 3600

    def is_due(self, ledger: Ledger, *, now_us: int) -> bool:
        """Return whether the next entries must go into a new ledger. A roll of an empty ledger is never due."""
        return ledger.entries > 0 and (
            ledger.entries >= self.max_entries
            or ledger.size_bytes >= self.max_size_bytes
            or now_us - ledger.created_us >= self.max_age_s * 1_000_000
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult:
    closed: LedgerId | None  # None: this call closed no ledger
    opened: LedgerId  # open ledger, whichever process opened it


class Roller:
    """Opener of ledgers. A roll repeats failed attempts for at most `patience_s` seconds."""

    def __init__(
        self, *, ledgers: MessageLedgers, objects: ObjectStore, application: str, clock: Clock, patience_s: float
    ) -> None:
        self._ledgers = ledgers
        self._objects = objects
        self._application = application
        self._clock = clock
        self._patience_s = patience_s

    def roll(self, topic_id: TopicId) -> RollResult:
        for _ in range(_MAX_ATTEMPTS):
            last = self._ledgers.last_ledger(topic_id)
            if last and last.state is LedgerState.OPEN and not last.entries:
                return RollResult(closed=None, opened=last.ledger_id)
            opened = self._open_ledger_after(topic_id, last)
            if opened is not None:
                was_open = last is not None and last.state is LedgerState.OPEN
                return RollResult(closed=last.ledger_id if last and was_open else None, opened=opened)
            winner = self._ledgers.last_ledger(topic_id)
            if winner and (last is None or winner.ledger_id != last.ledger_id):
                return RollResult(closed=None, opened=winner.ledger_id)
        raise CatalogBusy(f"topic {topic_id}: {_MAX_ATTEMPTS} new ledgers were taken away before they joined its list")

    def open_next_ledger(self, topic_id: TopicId, last: Ledger | None) -> Ledger | None:
        """Try to open a ledger after `last`. Return the topic's last ledger, whichever process opened it."""
        self._open_ledger_after(topic_id, last)
        return self._ledgers.last_ledger(topic_id)

    def _open_ledger_after(self, topic_id: TopicId, last: Ledger | None) -> LedgerId | None:
        """Return the opened ledger, or `None` if another process was faster or storage already has the new id."""
        deadline_s = self._clock.monotonic_s() + self._patience_s
        statement = self._clock.retry(lambda: self._create_row(topic_id), deadline_s=deadline_s)
        after = last.ledger_id if last else None
        try:
            with report_abandoned_upload(self._ledgers, statement.ledger_id, epoch=statement.epoch, clock=self._clock):
                self._clock.retry(lambda: self._put_statement(statement), deadline_s=deadline_s)
                attached = self._clock.retry(lambda: self._attach(statement.ledger_id, after), deadline_s=deadline_s)
        except AlreadyExists:
            _LOG.error("ledger %s: storage holds another one of that id; taking the next id", statement.ledger_id)
            return None
        return statement.ledger_id if attached else None

    def _create_row(self, topic_id: TopicId) -> LedgerStatement:
        with effect("roll.create_row"):
            return self._ledgers.create_ledger(topic_id, application=self._application)

    def _put_statement(self, statement: LedgerStatement) -> None:
        key, body = meta_key(statement.ledger_id, statement.owner), statement.to_json()
        with effect("roll.put_meta"):
            try:
                self._objects.put_if_absent(key, body, metadata=statement.to_metadata())
            except AlreadyExists:
                stored = self._objects.get(key)
                if stored is None or stored.body != body:  # the id was used twice
                    raise

    def _attach(self, ledger_id: LedgerId, after: LedgerId | None) -> bool:
        with effect("roll.attach"):
            return self._ledgers.attach_ledger(ledger_id, after=after)


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
        committer: GroupCommitter,
        roller: Roller,
        policy: RollPolicy,
        application: str,
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._objects = objects
        self._committer = committer
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
                    registered = self._register_segment(write, deadline_s=attempts.deadline_s)
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

    def _register_segment(self, write: RegisterSegmentWrite, *, deadline_s: float) -> RegisterSegmentResult | Segment:
        """Register a segment. The caller must be the only one that has uploaded an object with this segment number.

        If an earlier attempt has registered the segment, return the segment's row. No attempt starts after the
        monotonic time `deadline_s`.

        Raises:
            AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen: The registration was refused,
                and a retry cannot help.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The segment was not registered, after several attempts.
            OutcomeUnknown: The catalog does not answer, and the segment may be registered.
        """
        unclear_errors: list[Exception] = []
        try:
            return self._clock.retry(
                lambda: self._try_to_register(write, unclear_errors, deadline_s), deadline_s=deadline_s
            )
        except RetryableError as error:
            if any(isinstance(unclear, OutcomeUnknown) for unclear in unclear_errors):
                raise OutcomeUnknown(
                    f"ledger {write.ledger_id}, segment {write.number}: {unclear_errors[0]}"
                ) from error
            raise

    def _try_to_register(
        self, write: RegisterSegmentWrite, unclear_errors: list[Exception], deadline_s: float
    ) -> RegisterSegmentResult | Segment:
        remaining_s = deadline_s - self._clock.monotonic_s()
        try:
            if remaining_s <= 0:
                raise CatalogBusy(
                    f"ledger {write.ledger_id}, segment {write.number}: not registered in time, giving up"
                )
            with effect("append.register"):
                return self._committer.commit_write(write, timeout_s=remaining_s)
        except (OutcomeUnknown, RetryableError) as error:
            unclear_errors.append(error)
            registered = self._find_registered(write)
            if registered is None:
                raise
        except (AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen):
            registered = self._find_registered(write) if unclear_errors else None
            if registered is None:
                raise
        return registered

    def _find_registered(self, write: RegisterSegmentWrite) -> Segment | None:
        rows = self._ledgers.list_segments(write.ledger_id)
        own = (write.number, write.entries, write.size_bytes, write.sha256)
        return next((row for row in rows if (row.number, row.entries, row.size_bytes, row.sha256) == own), None)

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
