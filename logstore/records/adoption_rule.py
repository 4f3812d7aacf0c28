"""Rule of adoption: which uploads without a row become segments, and at which positions.

A rebuilt catalog has the ledgers of the last flush. Storage also has later uploads. Some of these uploads were
registered. Other uploads are from writers that lost a race, gave up or died. Entries of an append that returned must
come back at the same positions. Entries of any other append may come back. So an upload is left out only if it was
certainly not registered, which means in these cases:

- The upload has no entries: it is a confirmation.
- The upload is not the last upload of its append.
- The upload's epoch is before the catalog's epoch at the loaded flush.
- The upload names an epoch or a transaction that the catalog had not begun (`IssuedIdBounds`).
- The upload has entries of a transaction that was decided before the flush, or by an earlier transaction marker.
- All entries of the upload are stored already. The sequence ids of the producers show this.

Positions follow from the extents in uploads (`RegisteredLedgerExtent`). An extent names the last registered segment at
the time of the upload, and the number of registered entries up to that segment. The append of an upload can have
returned only in these cases:

- The upload has the next number after the segment in its extent. If registered, the upload begins right after the
  extent.
- The extent of another upload, such as a confirmation, names the upload.

So between two extents, only the appends of the first and the last upload can have returned. The entries of the
registered uploads must add up to the difference between the entries of the two extents. If several choices of uploads
add up, the choice with the lowest segment numbers is taken. This choice contains the first and the last upload if any
choice does. Uploads that are only in other choices are adopted at the end of the ledger. After the last extent, the
upload with the next number is adopted first. Appends of uploads with higher numbers did not return.

A rebuild stops before it adopts anything if too many ledgers have no objects in storage.

Source: ADR 19.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from logstore.errors import PreconditionFailed
from logstore.log.entries import HighestSequenceIds, ProducerSequenceRange, UploadedSegment
from logstore.log.segment_format import RegisteredLedgerExtent, SegmentUploadId
from logstore.positions import LedgerId
from logstore.reconciliation.plausibility_guards import MAX_ORPHAN_SHARE, check_fraction, round_up_share
from logstore.transactions.transaction_ids_and_states import TransactionId

_MAX_CHOICES: Final = 256
"""Maximum number of examined choices. If there are more, every upload counts as possibly registered."""


class UploadedMarker(NamedTuple):
    offset: int
    txn: TransactionId
    commits: bool
    subscription: str = ""  # empty: for the topic's messages
    positions: str = ""  # acknowledged positions, packed, in base64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredUpload(UploadedSegment):
    """Segment in storage without a row. The catalog stores these fields as JSON, under their names."""

    mark: SegmentUploadId | None = None  # `None`: the only upload of its append
    behind: RegisteredLedgerExtent | None = None
    numbered: int = 0  # entries with a sequence id
    markers: tuple[UploadedMarker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWithUploads:
    """Ledger that may have new segments, with its uploads after the last known segment."""

    ledger_id: LedgerId
    last_segment: int = -1  # uploads up to this number are ignored
    entries: int = 0
    uploads: tuple[UnregisteredUpload, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtFlush:
    epoch: int  # catalog epoch at the flush
    sequences: Mapping[str, HighestSequenceIds] = field(default_factory=dict)
    decided_transactions: Collection[TransactionId] = ()  # decided transactions that uploads name
    # number of each append's last upload, over all ledgers of the topic
    last_attempt_by_append: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdoptedSegment:
    ledger_id: LedgerId
    first_entry: int
    upload: UnregisteredUpload


def choose_adopted_uploads(ledgers: Sequence[LedgerWithUploads], topic: TopicAtFlush) -> list[AdoptedSegment]:
    """Return the adopted uploads of a topic's ledgers, in the order of the log.

    `ledgers` must ascend by ledger id. If the ledgers of a topic are passed in several calls, the `topic` of each call
    must include the uploads that earlier calls adopted.
    """
    all_uploads = (upload for ledger in ledgers for upload in ledger.uploads)
    last_attempts = dict(topic.last_attempt_by_append) | find_last_attempt_by_append(
        all_uploads, topic.last_attempt_by_append
    )
    adopted_so_far = _SequencesAndDecisions(dict(topic.sequences), set(topic.decided_transactions))
    adopted: list[AdoptedSegment] = []
    for ledger in ledgers:
        uploads = sorted(
            (upload for upload in ledger.uploads if upload.number > ledger.last_segment),
            key=lambda upload: upload.number,
        )
        candidates = [
            upload
            for upload in uploads
            if upload.entries
            and upload.epoch >= topic.epoch
            and (upload.mark is None or upload.mark.number >= last_attempts.get(upload.mark.append_id, 1))
            and adopted_so_far.is_open_to(upload)
        ]
        adopted += _place_uploads(
            ledger, candidates, _select_consistent_extents(ledger, uploads, topic.epoch), adopted_so_far
        )
    return adopted


def find_last_attempt_by_append(
    uploads: Iterable[UnregisteredUpload], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the number of each append's last upload, if this number is above 1 and above the number in `known`."""
    last_attempts: dict[str, int] = {}
    for mark in (upload.mark for upload in uploads):
        if mark and mark.number > max(last_attempts.get(mark.append_id, 1), (known or {}).get(mark.append_id, 1)):
            last_attempts[mark.append_id] = mark.number
    return last_attempts


@dataclass(slots=True)
class _SequencesAndDecisions:
    sequences: dict[str, HighestSequenceIds]
    decided_transactions: set[TransactionId]

    def is_open_to(self, upload: UnregisteredUpload) -> bool:
        """Return whether no transaction of the upload is decided. After a decision, the catalog refuses the upload."""
        return not any(span.txn in self.decided_transactions for span in upload.transactions)

    def has_all_entries(self, upload: UnregisteredUpload) -> bool:
        """Return whether all entries of the upload are stored, judged by their sequence ids."""
        return 0 < upload.numbered == upload.entries and all(
            sequences.last <= self._last_stored(sequences) for sequences in upload.producers
        )

    def _last_stored(self, sequences: ProducerSequenceRange) -> int:
        known = self.sequences.get(sequences.producer, HighestSequenceIds())
        return known.committed if known.refuses(sequences.txn) else known.last

    def refuses(self, upload: UnregisteredUpload) -> bool:
        return not self.is_open_to(upload) or any(
            sequences.first <= self._last_stored(sequences) for sequences in upload.producers
        )

    def record_adopted_upload(self, upload: UnregisteredUpload) -> None:
        for sequences in upload.producers:
            known = self.sequences.get(sequences.producer, HighestSequenceIds())
            last = max(sequences.last, known.last)
            self.sequences[sequences.producer] = known.advance(last, sequences.txn)
        self.decided_transactions.update(marker.txn for marker in upload.markers)


def _select_consistent_extents(
    ledger: LedgerWithUploads, uploads: Sequence[UnregisteredUpload], epoch: int
) -> list[RegisteredLedgerExtent]:
    """Return the extents of the uploads, ascending. Leave out each extent that contradicts an earlier extent."""
    extents = {upload.behind for upload in uploads if upload.behind and upload.epoch >= epoch}
    consistent: list[RegisteredLedgerExtent] = []
    for extent in sorted(extent for extent in extents if extent.last_segment > ledger.last_segment):
        previous = consistent[-1] if consistent else RegisteredLedgerExtent(ledger.last_segment, ledger.entries)
        if extent.last_segment > previous.last_segment and extent.entries >= previous.entries:
            consistent.append(extent)
    return consistent


def _place_uploads(
    ledger: LedgerWithUploads,
    candidates: Sequence[UnregisteredUpload],
    extents: Sequence[RegisteredLedgerExtent],
    adopted_so_far: _SequencesAndDecisions,
) -> Iterator[AdoptedSegment]:
    entries, last_segment, doubtful = ledger.entries, ledger.last_segment, list[UnregisteredUpload]()
    for extent in extents:
        between = [upload for upload in candidates if last_segment < upload.number <= extent.last_segment]
        registered, alternatives = _choose_registered(between, extent, extent.entries - entries, adopted_so_far)
        doubtful += alternatives
        for upload in registered:
            adopted_so_far.record_adopted_upload(upload)
            yield AdoptedSegment(ledger.ledger_id, entries, upload)
            entries += upload.entries
        last_segment, entries = extent.last_segment, max(entries, extent.entries)
    for upload in [*(upload for upload in candidates if upload.number > last_segment), *doubtful]:
        if adopted_so_far.is_open_to(upload) and not adopted_so_far.has_all_entries(upload):
            adopted_so_far.record_adopted_upload(upload)
            yield AdoptedSegment(ledger.ledger_id, entries, upload)
            entries += upload.entries


def _choose_registered(
    between: Sequence[UnregisteredUpload],
    extent: RegisteredLedgerExtent,
    entries: int,
    adopted_so_far: _SequencesAndDecisions,
) -> tuple[Sequence[UnregisteredUpload], Sequence[UnregisteredUpload]]:
    """Return the uploads that an extent counts as registered, and the uploads of alternative choices.

    The segment that the extent names is registered, except for a rare segment number that a reconciliation skipped.
    Choices that contradict sequence ids or decided transactions are avoided. Of the other choices, the choice with the
    lowest segment numbers is taken. An upload in no choice was never registered. If no choice adds up, all uploads are
    taken.
    """
    named = [upload for upload in between if upload.number == extent.last_segment]
    others = [upload for upload in between if upload.number != extent.last_segment]
    other_entries = entries - sum(upload.entries for upload in named)
    choices = [[*choice, *named] for choice in islice(_choices_that_add_up(others, other_entries), _MAX_CHOICES)]
    choices = choices or list(islice(_choices_that_add_up(others, entries), _MAX_CHOICES))
    if len(choices) < 2:
        return (choices[0] if choices else between), ()
    accepted = [choice for choice in choices if _accepts(adopted_so_far, choice)] or choices
    chosen_numbers = {upload.number for upload in accepted[0]}
    possible = between if len(choices) == _MAX_CHOICES else chain.from_iterable(accepted)
    alternative_numbers = {upload.number for upload in possible} - chosen_numbers
    return accepted[0], [upload for upload in between if upload.number in alternative_numbers]


def _accepts(adopted_so_far: _SequencesAndDecisions, uploads: Sequence[UnregisteredUpload]) -> bool:
    trial = _SequencesAndDecisions(dict(adopted_so_far.sequences), set(adopted_so_far.decided_transactions))
    for upload in uploads:
        if trial.refuses(upload):
            return False
        trial.record_adopted_upload(upload)
    return True


def _choices_that_add_up(uploads: Sequence[UnregisteredUpload], entries: int) -> Iterator[list[UnregisteredUpload]]:
    """Yield subsequences of `uploads` with `entries` entries in total, those with lower segment numbers first."""
    if entries < 0:
        return
    sums_from = [1]  # bit n of item i is set if a subset of `uploads[i:]` has n entries
    for upload in reversed(uploads):
        sums_from.append(sums_from[-1] | sums_from[-1] << upload.entries)
    sums_from.reverse()
    stack: list[tuple[int, int, list[UnregisteredUpload]]] = [(0, entries, [])]
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


MAX_ABSENT_SHARE: Final = MAX_ORPHAN_SHARE
"""Default maximum share of listed ledgers that have no objects."""


def require_small_absent_share(absent: int, ledgers: int, max_share: float) -> None:
    """Refuse a catalog if more than `max_share` of its listed ledgers have no object in any bucket."""
    check_fraction("max-absent-share", max_share)
    share = absent / ledgers if absent else 0.0
    if share > max_share:
        raise PreconditionFailed(
            f"absent share: expected at most {max_share:g} of all listed ledgers without objects, found {share:.3g}:"
            f" {absent:,} of {ledgers:,}; nothing was settled. See that the buckets and their endpoint are the right"
            " ones and hold what they should, then run the same command again, or give another database with"
            " --into if the old catalog has flushed since; if their data is lost for good, give"
            f" --max-absent-share {round_up_share(share)}"
        )
