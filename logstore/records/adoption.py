"""Rule of adoption: which uploads without a row had been registered, and at which entries.

A rebuilt catalog knows a ledger as of the last flush. Storage also holds later uploads: registered ones, and uploads of
writers that lost a race, gave up or died. Every answered append must come back with its positions. An unanswered append
may come back. So an upload is left out only if it cannot have been registered. That is so if one of these holds:

- It has no entries: it is a confirmation.
- It is not the last upload of its append.
- Its epoch is before the catalog's epoch at the loaded flush.
- Its epoch, or a transaction that it names, is none that the catalog had begun (`IssuedIds`).
- It has entries of a transaction that was decided before: at the flush, or by an earlier marker.
- All of its entries are stored already, as its producers' sequence ids show.

The positions follow from statements of uploads (`RegisteredExtent`): the last registered segment when the upload was
written, and the number of registered entries up to it. An upload was answered only if one of these holds:

- Its number follows the segment that it names. If it was registered, it begins at the stated entry.
- Another upload, such as a confirmation, names it.

So between two statements only the first and the last upload can have been answered. The entries of the registered
uploads must add up to the difference. If several choices add up, the first is taken. It contains the first and the last
upload if any choice does. Uploads of the other choices come back at the end of the ledger. After the last statement the
upload with the next number comes first, and no other upload there was answered.

Uploads from before confirmations existed may all have been answered. One of several choices is taken, and after the
statement an unregistered upload may shift others.

Source: the rule of an append (registered numbers ascend), read backwards; ADR 19.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from logstore.log.ledgers import RegisteredExtent, SegmentUploadId
from logstore.log.producers import ProducerSequence
from logstore.positions import LedgerId
from logstore.transactions.transactions import TransactionId

_MAX_CHOICES: Final = 256
"""Choices that are examined. With more, nothing tells which one was registered."""


class UploadedSequences(NamedTuple):
    """Sequence ids of one producer in an upload, in one transaction or in none. Bounds are inclusive."""

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


class TransactionSpan(NamedTuple):
    """Consecutive entries of one transaction in an upload."""

    txn: TransactionId
    offset: int  # of the first entry in the upload
    entries: int


class UploadedMarker(NamedTuple):
    """Transaction marker in an upload: the end of a transaction for the topic or for one subscription."""

    offset: int
    txn: TransactionId
    commits: bool
    subscription: str = ""  # empty: for the topic's messages
    positions: str = ""  # acknowledged positions, packed, in base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Segment in storage without a row. Stored as JSON by the names of its fields."""

    number: int
    entries: int
    size_bytes: int
    sha256: str | None  # of the object, hexadecimal
    epoch: int  # catalog epoch of its writer
    mark: SegmentUploadId | None = None  # `None`: the only upload of its append
    behind: RegisteredExtent | None = None
    producers: tuple[UploadedSequences, ...] = ()
    numbered: int = 0  # entries with a sequence id
    transactions: tuple[TransactionSpan, ...] = ()
    markers: tuple[UploadedMarker, ...] = ()
    delayed: int = 0  # entries with a delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTail:
    """Ledger that can have new segments, with its uploads after the last known segment."""

    ledger_id: LedgerId
    last_segment: int = -1  # last known segment; uploads up to this number are ignored
    entries: int = 0
    uploads: tuple[Upload, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtFlush:
    """State of a topic at the loaded flush."""

    epoch: int  # catalog epoch at the flush
    sequences: Mapping[str, ProducerSequence] = field(default_factory=dict)
    decided_transactions: Collection[TransactionId] = ()  # of the transactions that uploads name
    last_attempt_by_append: Mapping[str, int] = field(default_factory=dict)  # of uploads in all ledgers of the topic


@dataclass(frozen=True, slots=True)
class AdoptedSegment:
    """Adopted upload with its first entry."""

    ledger_id: LedgerId
    first_entry: int
    upload: Upload


def adopt_uploads(tails: Sequence[LedgerTail], topic: TopicAtFlush) -> list[AdoptedSegment]:
    """Return the adopted uploads of a topic's ledgers, in the order of the log.

    Ledgers may come in pages. `topic` then includes the uploads adopted from earlier pages.

    Args:
        tails: Ledgers, ascending by id.
        topic: State of the topic at the flush, or after the previous page.
    """
    all_uploads = (upload for tail in tails for upload in tail.uploads)
    last_attempts = dict(topic.last_attempt_by_append) | find_last_attempts(all_uploads, topic.last_attempt_by_append)
    log = _Log(dict(topic.sequences), set(topic.decided_transactions))
    adopted: list[AdoptedSegment] = []
    for tail in tails:
        uploads = sorted(
            (upload for upload in tail.uploads if upload.number > tail.last_segment), key=lambda upload: upload.number
        )
        candidates = [
            upload
            for upload in uploads
            if upload.entries
            and upload.epoch >= topic.epoch
            and (upload.mark is None or upload.mark.number >= last_attempts.get(upload.mark.append_id, 1))
            and log.is_open_to(upload)
        ]
        adopted += _place_uploads(tail, candidates, _consistent_statements(tail, uploads, topic.epoch), log)
    return adopted


def find_last_attempts(uploads: Iterable[Upload], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the number of the last upload of each append with several uploads, if it is above the number in `known`.

    Earlier uploads of the append were refused, or the append had been answered.
    """
    last_attempts: dict[str, int] = {}
    for mark in (upload.mark for upload in uploads):
        if mark and mark.number > max(last_attempts.get(mark.append_id, 1), (known or {}).get(mark.append_id, 1)):
            last_attempts[mark.append_id] = mark.number
    return last_attempts


@dataclass(slots=True)
class _Log:
    """State of a topic's log with the uploads adopted so far."""

    sequences: dict[str, ProducerSequence]
    decided_transactions: set[TransactionId]

    def is_open_to(self, upload: Upload) -> bool:
        """Return whether none of its transactions is decided. Otherwise its registration was refused as a whole."""
        return not any(span.txn in self.decided_transactions for span in upload.transactions)

    def has_all_entries(self, upload: Upload) -> bool:
        """Return whether all its entries are stored, by their sequence ids."""
        return 0 < upload.numbered == upload.entries and all(
            sequences.last <= self._last_stored(sequences) for sequences in upload.producers
        )

    def _last_stored(self, sequences: UploadedSequences) -> int:
        known = self.sequences.get(sequences.producer, ProducerSequence())
        return known.committed if known.refuses(sequences.txn) else known.last

    def refuses(self, upload: Upload) -> bool:
        """Return whether the log would have refused the registration."""
        return not self.is_open_to(upload) or any(
            sequences.first <= self._last_stored(sequences) for sequences in upload.producers
        )

    def take(self, upload: Upload) -> None:
        for sequences in upload.producers:
            known = self.sequences.get(sequences.producer, ProducerSequence())
            last = max(sequences.last, known.last)
            self.sequences[sequences.producer] = known.advance(last, sequences.txn)
        self.decided_transactions.update(marker.txn for marker in upload.markers)


def _consistent_statements(tail: LedgerTail, uploads: Sequence[Upload], epoch: int) -> list[RegisteredExtent]:
    """Return the statements of all uploads, ascending, without those that contradict an earlier one."""
    statements = {upload.behind for upload in uploads if upload.behind and upload.epoch >= epoch}
    consistent: list[RegisteredExtent] = []
    for statement in sorted(statement for statement in statements if statement.last_segment > tail.last_segment):
        previous = consistent[-1] if consistent else RegisteredExtent(tail.last_segment, tail.entries)
        if statement.last_segment > previous.last_segment and statement.entries >= previous.entries:
            consistent.append(statement)
    return consistent


def _place_uploads(
    tail: LedgerTail, candidates: Sequence[Upload], statements: Sequence[RegisteredExtent], log: _Log
) -> Iterator[AdoptedSegment]:
    """Place uploads between the statements, then uploads after them, then doubtful ones."""
    entries, last_segment, doubtful = tail.entries, tail.last_segment, list[Upload]()
    for statement in statements:
        between = [upload for upload in candidates if last_segment < upload.number <= statement.last_segment]
        registered, alternatives = _choose_registered(between, statement, statement.entries - entries, log)
        doubtful += alternatives
        for upload in registered:
            log.take(upload)
            yield AdoptedSegment(tail.ledger_id, entries, upload)
            entries += upload.entries
        last_segment, entries = statement.last_segment, max(entries, statement.entries)
    for upload in [*(upload for upload in candidates if upload.number > last_segment), *doubtful]:
        if log.is_open_to(upload) and not log.has_all_entries(upload):
            log.take(upload)
            yield AdoptedSegment(tail.ledger_id, entries, upload)
            entries += upload.entries


def _choose_registered(
    between: Sequence[Upload], statement: RegisteredExtent, entries: int, log: _Log
) -> tuple[Sequence[Upload], Sequence[Upload]]:
    """Return the uploads that were registered by a statement's count of entries, and those of alternative choices.

    The segment that the statement names is one of them. Only a reconciliation skips a number, which is rare. Of several
    choices the first is taken, lower numbers first. Uploads in no choice were never registered. If no choice adds up,
    all uploads count as registered.
    """
    named = [upload for upload in between if upload.number == statement.last_segment]
    others = [upload for upload in between if upload.number != statement.last_segment]
    other_entries = entries - sum(upload.entries for upload in named)
    choices = [[*choice, *named] for choice in islice(_choices_that_add_up(others, other_entries), _MAX_CHOICES)]
    choices = choices or list(islice(_choices_that_add_up(others, entries), _MAX_CHOICES))
    if len(choices) < 2:
        return (choices[0] if choices else between), ()
    accepted = [choice for choice in choices if _accepts(log, choice)] or choices
    chosen_numbers = {upload.number for upload in accepted[0]}
    possible = between if len(choices) == _MAX_CHOICES else chain.from_iterable(accepted)
    alternative_numbers = {upload.number for upload in possible} - chosen_numbers
    return accepted[0], [upload for upload in between if upload.number in alternative_numbers]


def _accepts(log: _Log, uploads: Sequence[Upload]) -> bool:
    trial = _Log(dict(log.sequences), set(log.decided_transactions))
    for upload in uploads:
        if trial.refuses(upload):
            return False
        trial.take(upload)
    return True


def _choices_that_add_up(uploads: Sequence[Upload], entries: int) -> Iterator[list[Upload]]:
    """Yield the subsequences of the uploads with this total number of entries, lower numbers first."""
    if entries < 0:
        return
    sums_from = [1]  # by position: bit n is set if later uploads can have n entries together
    for upload in reversed(uploads):
        sums_from.append(sums_from[-1] | sums_from[-1] << upload.entries)
    sums_from.reverse()
    stack: list[tuple[int, int, list[Upload]]] = [(0, entries, [])]
    while stack:
        position, missing_entries, choice = stack.pop()
        if missing_entries < 0 or not sums_from[position] >> missing_entries & 1:
            continue
        if position == len(uploads):
            yield choice
            continue
        upload = uploads[position]
        stack += [
            (position + 1, missing_entries, choice),
            (position + 1, missing_entries - upload.entries, [*choice, upload]),
        ]
