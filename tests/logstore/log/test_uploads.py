"""What an upload says of itself: one append in all of its uploads, and what was registered before."""

from collections.abc import Callable

import pytest

from logstore.errors import AlreadyExists, LedgerFenced, SextonError, TransactionNotOpen
from logstore.log.entries import ProducedEntries
from logstore.log.ledger_object_keys import segment_number_from_key
from logstore.log.segment_format import EXTENT_FIELD, UPLOAD_ID_FIELD, RegisteredLedgerExtent, SegmentUploadId
from logstore.log.services.segment_placement import RememberedTopicState
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.fakes.catalog import Misfortune, Moment
from tests.logstore.log.world import World, numbered, once, plain


def _stored(world: World) -> dict[str, tuple[SegmentUploadId, RegisteredLedgerExtent]]:
    """By key, what each segment in storage says; confirmations are of no append."""
    found = {}
    for item in list(world.objects.list("ledgers/")):
        seen = world.objects.head(item.key)
        if segment_number_from_key(item.key) is not None and seen is not None:
            mark, behind = (
                SegmentUploadId.parse(seen[1].get(UPLOAD_ID_FIELD)),
                RegisteredLedgerExtent.parse(seen[1].get(EXTENT_FIELD)),
            )
            assert behind is not None
            if mark is not None:
                found[item.key] = (mark, behind)
    return found


def test_upload_says_what_its_writer_saw_registered(world: World) -> None:
    """Segment and entries of the moment before it: what stands in between can be told from them."""
    process = world.process()
    for payloads in ((b"1", b"2"), (b"3",), (b"4",)):
        process.append(world.topic, plain(*payloads))
    stored = _stored(world)
    assert [behind for _, behind in stored.values()] == [
        RegisteredLedgerExtent(-1, 0),
        RegisteredLedgerExtent(0, 2),
        RegisteredLedgerExtent(1, 3),
    ]
    assert len({mark.append_id for mark, _ in stored.values()}) == 3
    assert {mark.number for mark, _ in stored.values()} == {1}


@pytest.mark.parametrize("refused", [AlreadyExists, LedgerFenced])
def test_upload_again_is_of_the_same_append(world: World, refused: Callable[[str], SextonError]) -> None:
    """Under a later number, or in another ledger; the later one says so."""
    process = world.process()
    process.append(world.topic, plain(b"warm"))
    before = set(_stored(world))
    world.catalog.misfortunes.append(Misfortune(moment=Moment.BEFORE, error=lambda: refused("planned")))
    process.append(world.topic, plain(b"again"))
    marks = [mark for key, (mark, _) in _stored(world).items() if key not in before]
    assert len({mark.append_id for mark in marks}) == 1
    assert [mark.number for mark in marks] == [1, 2]


def test_upload_encoded_anew_without_duplicates_is_of_the_same_append(world: World) -> None:
    """Another process stored part of it first: what is left is uploaded as the second of that append."""
    one, two = world.process(), world.process()
    one.append(world.topic, numbered([0]))
    meanwhile = once(lambda: two.append(world.topic, numbered([1])))
    world.catalog.misfortunes.append(Misfortune(moment=Moment.BEFORE, error=lambda: None, action=meanwhile))
    one.append(world.topic, numbered([1, 2]))
    marks = [mark for mark, _ in _stored(world).values()]
    lost = [mark for mark in marks if mark.number < max(one.number for one in marks if one.append_id == mark.append_id)]
    assert len(marks) == len(set(marks))
    assert len(marks) - len(lost) == len(world.segments()) == 3, "the last upload of each append, and no other"
    assert world.payloads() == [b"p0", b"p1", b"p2"]


def test_upload_split_off_a_decided_transaction_is_of_the_same_append(world: World) -> None:
    """What stays of a batch when the entries of a transaction are taken out."""
    txn, process = TransactionId(0, 1), world.process()
    process.append(world.topic, plain(b"warm"))
    decided = Misfortune(
        moment=Moment.BEFORE, error=lambda: TransactionNotOpen(str(txn), doing="append", state="ABORTED")
    )
    world.catalog.misfortunes.append(decided)
    inside = ProducedEntries(entries=plain(b"inside").entries, txn=txn)
    answers = process._appender.append(
        world.topic, RememberedTopicState(), [plain(b"outside"), inside]
    )  # a batch, made by hand
    assert isinstance(answers[1], TransactionNotOpen)
    marks = [mark for mark, _ in _stored(world).values()][1:]
    assert [mark.append_id for mark in marks] == [marks[0].append_id] * 2
    assert marks[0].number < marks[1].number, "what a taken number refused was not stored, and counts too"


@pytest.mark.parametrize("text", [None, "", "1:2:3", "-2:0", "x:1", "1:-1"])
def test_behind_that_is_none_says_nothing(text: str | None) -> None:
    """Objects from before, and of others, are read too."""
    assert RegisteredLedgerExtent.parse(text) is None


@pytest.mark.parametrize("text", [None, "", "0" * 32, f"{'0' * 32}-0", f"{'g' * 32}-1", f"{'0' * 31}-1"])
def test_mark_that_is_none_says_nothing(text: str | None) -> None:
    """An upload without one is of an append of its own."""
    assert SegmentUploadId.parse(text) is None


def test_what_is_said_reads_back() -> None:
    """Both are texts in metadata."""
    mark, behind = SegmentUploadId("0a" * 16, 12), RegisteredLedgerExtent(99_999_999, 10**18 - 1)
    assert SegmentUploadId.parse(str(mark)) == mark
    assert RegisteredLedgerExtent.parse(str(behind)) == behind
