"""Which uploads that no row speaks of had been registered, and at which entries: the rule of adoption.

A catalog that is rebuilt knows a ledger as it was at the last flush. Beyond that, storage holds uploads that were
registered since, and such that never were: of writers that lost a race, gave up or died. Every answered append must
come back, with its positions; an append that was never answered may. So an upload is left out only if it cannot have
been registered:

- it has no entries: it is a confirmation, there for what it says;
- it is not the last upload of its append;
- it speaks of an earlier epoch than the catalog had at the flush that was loaded;
- its epoch, or a transaction that it names, is none that the catalog had begun (`Issued`);
- it holds entries of a transaction that was decided before: at the flush, or by a marker that stands before it;
- all of it is stored already, as its producers' sequence ids say.

Where each stands follows from what uploads say of their moment (`RegisteredExtent`): which segment was registered
last, and how many entries were registered up to it. Answered is an upload only if

- its number is the next one after the segment that it names: if it was registered, it begins where it says; or
- another upload names it, as a confirmation does.

So between two such statements at most the first and the last upload were answered. The uploads there must add up; of
several ways the first is taken, which has both of them wherever one has, and what others have beyond it comes back at
the end of the ledger. Behind the last statement the upload of the next number comes first, and nothing else there was
answered.

Of objects from before there were confirmations any may have been answered. Of several ways to add up one is taken, and
behind the last statement one that was never registered may move others.

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

_CHOICES: Final = 256
"""Ways to add up that are looked at; with more of them nothing tells which one was the case."""


class Advance(NamedTuple):
    """One producer's sequence ids in an upload, in one transaction or in none; bounds are inclusive."""

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


class Run(NamedTuple):
    """Entries of an upload, one after the other, of one transaction."""

    txn: TransactionId
    offset: int  # in the upload
    entries: int


class FoundMarker(NamedTuple):
    """An entry that tells how a transaction ended: for the topic, or for one subscription of it."""

    offset: int
    txn: TransactionId
    commits: bool
    subscription: str = ""  # empty: for the topic's messages
    positions: str = ""  # what the transaction acknowledged of the subscription, packed, in base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A segment in storage that no row names, as its object and its columns tell."""

    number: int
    entries: int
    size_bytes: int
    sha256: str | None  # of the object, hexadecimal
    epoch: int  # of the catalog that its writer knew
    mark: SegmentUploadId | None = None  # None: it is of an append of its own
    behind: RegisteredExtent | None = None
    producers: tuple[Advance, ...] = ()
    numbered: int = 0  # entries with a sequence id
    transactions: tuple[Run, ...] = ()
    markers: tuple[FoundMarker, ...] = ()
    delayed: int = 0  # entries with a delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """A ledger that took segments at the flush or since, and its uploads behind what the catalog knows."""

    ledger_id: LedgerId
    last_segment: int = -1  # as the catalog knows; uploads of it and of lower numbers are not looked at
    entries: int = 0
    uploads: tuple[Upload, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtFlush:
    """What the catalog knows of a topic whose ledgers are looked at."""

    epoch: int  # that the catalog had, whichever rebuilds have begun since
    sequences: Mapping[str, ProducerSequence] = field(default_factory=dict)
    decided: Collection[TransactionId] = ()  # of those that uploads name
    repeated: Mapping[str, int] = field(default_factory=dict)  # see `repeated`; of uploads in other ledgers too


@dataclass(frozen=True, slots=True)
class AdoptedSegment:
    """An upload that is taken in, and the entry at which it begins."""

    ledger_id: LedgerId
    first_entry: int
    upload: Upload


def adopted(tails: Sequence[Tail], known: TopicAtFlush) -> list[AdoptedSegment]:
    """The uploads of a topic's ledgers that are taken in, in the order of the log.

    Ledgers may come page by page: what was taken in of a page is known for the next one.

    Args:
        tails: By ledger id.
        known: The topic as it was flushed, or up to the page before.
    """
    last = dict(known.repeated) | repeated((upload for tail in tails for upload in tail.uploads), known.repeated)
    log = _Log(dict(known.sequences), set(known.decided))
    found: list[AdoptedSegment] = []
    for tail in tails:
        uploads = sorted(
            (one for one in tail.uploads if one.number > tail.last_segment), key=lambda upload: upload.number
        )
        possible = [
            one
            for one in uploads
            if one.entries and one.epoch >= known.epoch and _is_last(one, last) and log.is_open_to(one)
        ]
        found += _of_ledger(tail, possible, _statements(tail, uploads, known.epoch), log)
    return found


def repeated(uploads: Iterable[Upload], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Of each append that was uploaded more than once the number of its last upload, as far as `known` says less.

    Those before that one were refused, or it had been answered.
    """
    last: dict[str, int] = {}
    for mark in (upload.mark for upload in uploads):
        if mark and mark.number > max(last.get(mark.append_id, 1), (known or {}).get(mark.append_id, 1)):
            last[mark.append_id] = mark.number
    return last


def _is_last(upload: Upload, last: Mapping[str, int]) -> bool:
    return upload.mark is None or upload.mark.number >= last.get(upload.mark.append_id, 1)


@dataclass(slots=True)
class _Log:
    """A topic's log as far as it has been taken in."""

    sequences: dict[str, ProducerSequence]
    decided: set[TransactionId]

    def copy(self) -> "_Log":
        return _Log(dict(self.sequences), set(self.decided))

    def is_open_to(self, upload: Upload) -> bool:
        """Whether no transaction of it is decided: otherwise its registration was refused as a whole."""
        return not any(one.txn in self.decided for one in upload.transactions)

    def holds(self, upload: Upload) -> bool:
        """Whether sequence ids say that all its entries are stored: if not, its registration may have been accepted."""
        return 0 < upload.numbered == upload.entries and all(one.last <= self._reached(one) for one in upload.producers)

    def _reached(self, advance: Advance) -> int:
        known = self.sequences.get(advance.producer, ProducerSequence())
        return known.committed if known.refuses(advance.txn) else known.last

    def refuses(self, upload: Upload) -> bool:
        """Whether the log would not have taken it."""
        return not self.is_open_to(upload) or any(one.first <= self._reached(one) for one in upload.producers)

    def take(self, upload: Upload) -> None:
        for one in upload.producers:
            known = self.sequences.get(one.producer, ProducerSequence())
            self.sequences[one.producer] = known.advance(max(one.last, known.last), one.txn)
        self.decided.update(one.txn for one in upload.markers)


def _statements(tail: Tail, uploads: Sequence[Upload], epoch: int) -> list[RegisteredExtent]:
    """What uploads say of their moments, also those that are left out; ascending, and none that contradicts."""
    said = {one.behind for one in uploads if one.behind and one.epoch >= epoch}
    beyond = sorted(one for one in said if one.last_segment > tail.last_segment)
    kept: list[RegisteredExtent] = []
    for one in beyond:
        before = kept[-1] if kept else RegisteredExtent(tail.last_segment, tail.entries)
        if one.last_segment > before.last_segment and one.entries >= before.entries:
            kept.append(one)
    return kept


def _of_ledger(
    tail: Tail, possible: Sequence[Upload], said: Sequence[RegisteredExtent], log: _Log
) -> Iterator[AdoptedSegment]:
    """Place the uploads of one ledger between the statements, then those behind them, then those without a place."""
    entries, after, doubtful = tail.entries, tail.last_segment, list[Upload]()
    for statement in said:
        between = [one for one in possible if after < one.number <= statement.last_segment]
        placed, others = _that_add_up(between, statement, statement.entries - entries, log)
        doubtful += others
        for upload in placed:
            log.take(upload)
            yield AdoptedSegment(tail.ledger_id, entries, upload)
            entries += upload.entries
        after, entries = statement.last_segment, max(entries, statement.entries)
    for upload in [*(one for one in possible if one.number > after), *doubtful]:
        if log.is_open_to(upload) and not log.holds(upload):
            log.take(upload)
            yield AdoptedSegment(tail.ledger_id, entries, upload)
            entries += upload.entries


def _that_add_up(
    between: Sequence[Upload], statement: RegisteredExtent, wanted: int, log: _Log
) -> tuple[Sequence[Upload], Sequence[Upload]]:
    """Which of the uploads were registered, by a statement that counts them; and which others may have been instead.

    The segment that the statement names is one of them: only reconciliation passes a number over, once in a while. Of
    several ways the first is taken, lower numbers first. What is in none of them was never registered; where none
    add up, all were.
    """
    named = [one for one in between if one.number == statement.last_segment]
    others = [one for one in between if one.number != statement.last_segment]
    ways = [[*way, *named] for way in islice(_ways(others, wanted - sum(one.entries for one in named)), _CHOICES)]
    ways = ways or list(islice(_ways(others, wanted), _CHOICES))
    if len(ways) < 2:
        return (ways[0] if ways else between), ()
    allowed = [way for way in ways if _allowed(way, log)] or ways
    chosen = {one.number for one in allowed[0]}
    perhaps = {one.number for one in (between if len(ways) == _CHOICES else chain.from_iterable(allowed))}
    return allowed[0], [one for one in between if one.number in perhaps - chosen]


def _allowed(way: Sequence[Upload], log: _Log) -> bool:
    trial = log.copy()
    for upload in way:
        if trial.refuses(upload):
            return False
        trial.take(upload)
    return True


def _ways(uploads: Sequence[Upload], wanted: int) -> Iterator[list[Upload]]:
    """Choices of the uploads, in their order, that have `wanted` entries together."""
    if wanted < 0:
        return
    reach = [1]  # of the last ones, more and more of them: a bit for each sum
    for upload in reversed(uploads):
        reach.append(reach[-1] | reach[-1] << upload.entries)
    reach.reverse()
    open_ways: list[tuple[int, int, list[Upload]]] = [(0, wanted, [])]
    while open_ways:
        at, left, chosen = open_ways.pop()
        if left < 0 or not reach[at] >> left & 1:
            continue
        if at == len(uploads):
            yield chosen
            continue
        open_ways += [(at + 1, left, chosen), (at + 1, left - uploads[at].entries, [*chosen, uploads[at]])]
