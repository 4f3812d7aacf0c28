"""The rule of adoption against a race of writers of which the truth is known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.log.entries import HighestSequenceIds, ProducerSequenceRange
from logstore.log.segment_format import RegisteredLedgerExtent, SegmentUploadId
from logstore.positions import LedgerId
from logstore.records.adoption_rule import (
    LedgerWithUploads,
    TopicAtFlush,
    UnregisteredUpload,
    UploadedMarker,
    choose_adopted_uploads,
)
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange, TransactionId

_LEDGER = LedgerId(7)
_TXN = TransactionId(0, 5)
_FAR = 1_000  # above its segment a confirmation stands


def _upload(
    number: int, entries: int = 1, *, behind: tuple[int, int] | None = None, **facts: object
) -> UnregisteredUpload:
    said = RegisteredLedgerExtent(*behind) if behind else None
    plain = UnregisteredUpload(number=number, entries=entries, size_bytes=1, sha256=None, epoch=1, behind=said)
    return replace(plain, **facts)  # type: ignore[arg-type]


def _mark(append: int, nth: int) -> SegmentUploadId:
    return SegmentUploadId(f"{append:032x}", nth)


def _placed(uploads: Sequence[UnregisteredUpload], known: TopicAtFlush | None = None, **tail: int) -> dict[int, int]:
    """Number → first entry."""
    found = choose_adopted_uploads(
        [LedgerWithUploads(ledger_id=_LEDGER, uploads=tuple(uploads), **tail)], known or TopicAtFlush(epoch=1)
    )
    return {one.upload.number: one.first_entry for one in found}


def test_uploads_are_taken_in_by_number_where_nothing_is_said() -> None:
    """As those from before there were marks: in the order in which they can have been registered."""
    assert _placed([_upload(4, 2), _upload(9), _upload(5, 3)], last_segment=3, entries=10) == {4: 10, 5: 12, 9: 15}


def test_upload_that_is_registered_is_not_taken_in_again() -> None:
    """Numbers at or below the known one are reconciliation's business."""
    assert _placed([_upload(2), _upload(3), _upload(4)], last_segment=3, entries=1) == {4: 1}


def test_upload_that_was_made_again_is_left_out() -> None:
    """Of an append the last upload counts, wherever in the topic it stands."""
    again = [_upload(0, 5, mark=_mark(1, 1)), _upload(1, 5, mark=_mark(1, 2)), _upload(2, 1, mark=_mark(2, 1))]
    assert _placed(again) == {1: 0, 2: 5}
    elsewhere = LedgerWithUploads(ledger_id=LedgerId(8), uploads=(_upload(0, 5, mark=_mark(2, 3)),))
    found = choose_adopted_uploads(
        [LedgerWithUploads(ledger_id=_LEDGER, uploads=tuple(again)), elsewhere], TopicAtFlush(epoch=1)
    )
    assert [(one.ledger_id, one.upload.number) for one in found] == [(7, 1), (8, 0)]


def test_upload_of_an_earlier_epoch_is_left_out_with_what_it_says() -> None:
    """Its registration was refused: the catalog had another one."""
    uploads = [_upload(0), _upload(1, epoch=2, behind=(-1, 0)), _upload(2, behind=(1, 9))]
    assert _placed(uploads, TopicAtFlush(epoch=2)) == {1: 0}


def test_statement_of_a_later_upload_tells_who_was_registered() -> None:
    """Also if that upload itself never was."""
    uploads = [_upload(0, 2), _upload(1, 3), _upload(2, 4, behind=(1, 3))]
    assert _placed(uploads) == {1: 0, 2: 3}
    uploads[2] = replace(uploads[2], mark=_mark(1, 1))
    assert _placed([*uploads, _upload(5, 4, behind=(1, 3), mark=_mark(1, 2))]) == {1: 0, 5: 3}


def test_upload_without_a_place_comes_back_at_the_end() -> None:
    """It was never registered, or one that looks like it was not; neither can be told, and neither is lost."""
    uploads = [_upload(0), _upload(1), _upload(2, behind=None), _upload(3, behind=(2, 2))]
    assert _placed(uploads) == {0: 0, 2: 1, 3: 2, 1: 3}


def test_number_that_was_passed_over_needs_no_upload() -> None:
    """Reconciliation has raised the number of the ledger, and deleted the object, or is about to."""
    assert _placed([_upload(0), _upload(9, behind=(7, 1))]) == {0: 0, 9: 1}
    assert _placed([_upload(0), _upload(7, 2), _upload(9, behind=(7, 1))]) == {0: 0, 9: 1}


@pytest.mark.parametrize("known", [{}, {"p": HighestSequenceIds.without_transaction(2)}])
def test_duplicates_of_a_producer_are_left_out(known: dict[str, HighestSequenceIds]) -> None:
    """What was stored at the flush, or by an upload before."""
    parts = [ProducerSequenceRange("p", 3, 5), ProducerSequenceRange("p", 3, 4), ProducerSequenceRange("p", 5, 7)]
    uploads = [
        _upload(at, one.last - one.first + 1, producers=(one,), numbered=one.last - one.first + 1)
        for at, one in enumerate(parts)
    ]
    assert _placed(uploads, TopicAtFlush(epoch=1, sequences=known)) == {0: 0, 2: 3}, "part of it may be new"
    mixed = replace(uploads[1], numbered=1)
    assert _placed([uploads[0], mixed]) == {0: 0, 1: 3}, "an entry without an id is no duplicate"


def test_duplicate_in_a_transaction_that_may_be_aborted_is_kept() -> None:
    """Entries outside it were taken after its end, so those inside were never stored."""
    held = TopicAtFlush(epoch=1, sequences={"p": HighestSequenceIds(2, 5, _TXN)})
    assert _placed([_upload(0, producers=(ProducerSequenceRange("p", 4, 4),), numbered=1)], held) == {0: 0}
    assert _placed([_upload(0, producers=(ProducerSequenceRange("p", 2, 2),), numbered=1)], held) == {}
    assert _placed([_upload(0, producers=(ProducerSequenceRange("p", 4, 4, _TXN),), numbered=1)], held) == {}


def test_entries_of_a_decided_transaction_are_left_out() -> None:
    """Decided at the flush, or by a marker before them; those before the marker are its messages."""
    inside = [_upload(at, transactions=(TransactionEntryRange(_TXN, 0, 1),)) for at in (0, 2)]
    assert _placed(inside, TopicAtFlush(epoch=1, decided_transactions={_TXN})) == {}
    marker = _upload(1, markers=(UploadedMarker(0, _TXN, commits=True),))
    assert _placed([inside[0], marker, inside[1]]) == {0: 0, 1: 1}


def test_way_that_the_log_would_have_refused_is_not_taken() -> None:
    """Two uploads of which one was registered: the second one holds what the first one holds already."""
    one = _upload(1, producers=(ProducerSequenceRange("p", 1, 1),), numbered=1)
    uploads = [
        _upload(0, producers=(ProducerSequenceRange("p", 1, 1),), numbered=1),
        one,
        _upload(2),
        _upload(3, behind=(2, 2)),
    ]
    known = TopicAtFlush(epoch=1, sequences={"p": HighestSequenceIds.without_transaction(0)})
    assert _placed(uploads, known) == {0: 0, 2: 1, 3: 2}


def test_many_uploads_between_two_statements_are_no_search_without_end() -> None:
    """Thousands of ways to add up: the first one is taken, and nothing is lost."""
    uploads = [_upload(at) for at in range(2_000)]
    placed = _placed([*uploads, _upload(2_000, behind=(1_999, 1_000))])
    assert len(placed) == 2_001
    assert sorted(placed.values()) == list(range(2_001))
    assert placed[1_999] == 999
    assert placed[2_000] == 1_000


@dataclass
class _Race:
    """Writers of one ledger; the catalog's side is the truth."""

    registered: dict[int, int] = field(default_factory=dict)  # number → first entry
    answered: dict[int, int] = field(default_factory=dict)  # of these, what its writer was told
    uploads: dict[int, UnregisteredUpload] = field(default_factory=dict)
    last: int = -1
    entries: int = 0
    flushed: tuple[int, int] = (-1, 0)
    appends: Iterator[int] = field(default_factory=count)

    def append(self, entries: int, hint: tuple[int, int], ahead: int, ends: str, meanwhile: int) -> None:
        """Upload, and perhaps lose to others that register meanwhile, and perhaps go on until it is registered."""
        append, nth, tried = next(self.appends), 0, -1
        while True:
            nth += 1
            number = max(hint[0], tried) + (1 if nth == 1 else ahead)
            if number not in self.uploads:
                mark = _mark(append, nth)
                self.uploads[number] = _upload(number, entries, behind=hint, mark=mark)
                for _ in range(meanwhile):
                    self.append(1, (self.last, self.entries), 1, "answered", 0)
                meanwhile = 0
                if ends in {"died", "is passed over"}:
                    self._give_up(number, is_passed=ends != "died")
                    return
                if number > self.last:
                    self._register(number, entries, is_next=number == hint[0] + 1, ends=ends)
                    return
            if ends == "gives up" and nth > 1:
                return
            tried, hint = max(tried, number), (self.last, self.entries)

    def _give_up(self, number: int, *, is_passed: bool) -> None:
        """Reconciliation makes sure that it is never registered, and deletes it."""
        if is_passed:
            self.last = max(self.last, number)
            del self.uploads[number]

    def _register(self, number: int, entries: int, *, is_next: bool, ends: str) -> None:
        """Register an upload, and answer it, confirmed if it left numbers free."""
        first, self.registered[number] = self.entries, self.entries
        self.last, self.entries = number, self.entries + entries
        if not is_next and ends == "dies registered":
            return
        self.answered[number] = first
        if not is_next:
            self.uploads[number + _FAR] = _upload(number + _FAR, 0, behind=(number, self.entries))

    def tail(self) -> LedgerWithUploads:
        uploads = tuple(self.uploads.values())
        return LedgerWithUploads(
            ledger_id=_LEDGER, last_segment=self.flushed[0], entries=self.flushed[1], uploads=uploads
        )

    def behind_the_flush(self, numbers: Mapping[int, int]) -> dict[int, int]:
        return {number: first for number, first in numbers.items() if number > self.flushed[0]}


_APPENDS = st.tuples(
    st.integers(1, 3),  # entries
    st.integers(0, 3),  # how old what its writer knows is
    st.integers(1, 4),  # how far ahead a loser looks
    st.sampled_from(["answered", "answered", "answered", "died", "dies registered", "gives up", "is passed over"]),
    st.sampled_from([0, 0, 1, 2]),  # others that register between its upload and its registration
)


@st.composite
def _races(draw: st.DrawFn) -> _Race:
    race, moments = _Race(), [(-1, 0)]
    appends = draw(st.lists(_APPENDS, min_size=1, max_size=8))
    flush = draw(st.integers(0, len(appends)))
    for at, (entries, age, ahead, ends, meanwhile) in enumerate(appends):
        if at == flush:
            race.flushed = (race.last, race.entries)
        race.append(entries, moments[max(0, len(moments) - 1 - age)], ahead, ends, meanwhile)
        moments.append((race.last, race.entries))
    return race


@given(_races())
def test_every_answered_append_is_taken_in_where_it_was_answered_and_nothing_overlaps(race: _Race) -> None:
    """However writers lost, died or gave up; and what was registered and not answered is there as well."""
    placed = _placed(race.tail().uploads, last_segment=race.flushed[0], entries=race.flushed[1])
    answered = race.behind_the_flush(race.answered)
    assert {number: placed.get(number) for number in answered} == answered
    assert race.behind_the_flush(race.registered).keys() <= placed.keys()
    reached = race.flushed[1]
    for number, first in sorted(placed.items(), key=lambda one: one[1]):
        assert first == reached
        reached += race.uploads[number].entries


def test_confirmation_tells_an_answered_append_from_one_that_it_overtook() -> None:
    """Two uploads behind one segment: the second registered first and was answered; the first was not told so yet."""
    overtaken = [_upload(4, 2, behind=(3, 10)), _upload(9, 3, behind=(3, 10))]

    def placed(*confirmations: UnregisteredUpload) -> dict[int, int]:
        return _placed([*overtaken, *confirmations], last_segment=3, entries=10)

    assert placed() == {4: 10, 9: 12}, "the order of numbers is all there is"
    assert placed(_upload(9 + _FAR, 0, behind=(9, 13))) == {9: 10}
    assert placed(_upload(9 + _FAR, 0, behind=(9, 15))) == {4: 10, 9: 12}


def test_uploads_from_before_confirmations_all_come_back() -> None:
    """Any of them may have been answered, so none is left out; what is proved stands where it stood."""
    old = [_upload(0), _upload(3, 2, behind=(0, 1)), _upload(5, behind=(0, 1)), _upload(6, behind=(5, 2))]
    assert _placed(old) == {0: 0, 5: 1, 6: 2}
    assert sorted(_placed([*old, _upload(9), _upload(8)]).items()) == [(0, 0), (5, 1), (6, 2), (8, 3), (9, 4)]
