"""Ledgers that are gone already: proved together, as strictly as one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from logstore.deletion.intents import CopyVerdict, DeletionIntent
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.errors import CatalogMismatch, CorruptData, SextonError, StoreUnavailable
from logstore.log.ledger_object_keys import SHARDS, meta_key, segment_key
from logstore.ports.object_storage import ObjectInfo
from logstore.positions import LedgerId
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER, intent, statement

_SEGMENTS = 3
_IDS = [LedgerId(shard + SHARDS * number) for shard in range(2) for number in range(3)] + [LedgerId(900 * SHARDS)]
_INTENTS = [replace(intent(ledger_id, segments=_SEGMENTS), row_id=ledger_id) for ledger_id in _IDS]


class _Hiding(FakeObjectStore):
    """Leaves keys out of listings: of so many, or of all."""

    def __init__(self, *hidden: str, listings: int = 1_000) -> None:
        super().__init__()
        self._hidden, self._left = hidden, listings

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        hidden = self._hidden if self._left > 0 else ()
        self._left -= 1
        found = super().list(prefix, start_after=start_after, first_page=first_page)
        return (info for info in found if info.key not in hidden)


def _examined(objects: FakeObjectStore, intents: Sequence[DeletionIntent] = _INTENTS) -> dict[int, SextonError]:
    """Why the ledgers, of which the listing showed nothing, may stand."""
    copies = PrimaryCopyStorage(objects)
    inspect = copies.prepare_inspection(intents)
    assert {inspect(one).verdict for one in intents} == {CopyVerdict.ABSENT}
    return dict(copies.prove_absence(intents))


def test_ledgers_that_are_gone_are_proved_by_name_and_by_a_second_listing_that_they_share() -> None:
    """Each name is asked for once, and each shard is listed twice, whatever the number of its ledgers."""
    objects = FakeObjectStore()
    assert _examined(objects) == {}
    requests = [operation for operation, _ in objects.calls]
    asked = {key for operation, key in objects.calls if operation is StoreOperation.GET_RANGE}
    names = {segment_key(one, number) for one in _IDS for number in range(_SEGMENTS)}
    assert asked == names | {meta_key(one, OWNER) for one in _IDS}
    assert requests.count(StoreOperation.GET_RANGE) == len(_IDS) * (_SEGMENTS + 1)
    assert requests.count(StoreOperation.LIST) == 2 * 3  # two walks, and a ledger that stands apart
    assert set(requests) == {StoreOperation.LIST, StoreOperation.GET_RANGE}


@pytest.mark.parametrize("number", [None, 0, 2], ids=["meta", "first", "last"])
@pytest.mark.parametrize("ledger_id", [_IDS[1], _IDS[-1]])
def test_ledger_that_no_listing_shows_is_not_gone_while_one_name_stands(
    ledger_id: LedgerId, number: int | None
) -> None:
    """The others of its chunk are, and are not held up."""
    key = meta_key(ledger_id, OWNER) if number is None else segment_key(ledger_id, number)
    objects = _Hiding(key)
    objects.put_if_absent(key, b"", metadata=statement(ledger_id).to_metadata())
    doubts = _examined(objects)
    assert list(doubts) == [ledger_id]
    assert isinstance(doubts[ledger_id], StoreUnavailable)
    assert "two LISTs do not show it" in str(doubts[ledger_id])


@pytest.mark.parametrize("ledger_id", [_IDS[1], _IDS[-1]])
def test_ledger_that_the_second_listing_shows_is_not_gone(ledger_id: LedgerId) -> None:
    """What no row of the catalog names counts as well: a segment may have landed late (apache/bookkeeper#870)."""
    key = segment_key(ledger_id, _SEGMENTS + 5)
    objects = _Hiding(key, listings=3)
    objects.put_if_absent(key, b"late", metadata=statement(ledger_id).to_metadata())
    doubts = _examined(objects)
    assert list(doubts) == [ledger_id]
    assert "a second LIST finds it" in str(doubts[ledger_id])


@pytest.mark.parametrize("operation", [StoreOperation.LIST, StoreOperation.GET_RANGE])
def test_store_that_stops_answering_proves_nothing_and_is_not_asked_for_the_rest(operation: StoreOperation) -> None:
    """It would be asked for thousands of names in vain; what was proved before stays proved."""
    many = [replace(intent(shard, segments=400), row_id=shard) for shard in range(4)]
    objects = FakeObjectStore()
    copies = PrimaryCopyStorage(objects)
    inspect = copies.prepare_inspection(many)
    assert {inspect(one).verdict for one in many} == {CopyVerdict.ABSENT}
    begun = len(objects.calls)
    objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, times=100_000))
    doubts = copies.prove_absence(many)
    assert set(doubts) == {one.row_id for one in many}
    assert all("planned fault" in str(error) for error in doubts.values())
    silent = [one for one in objects.calls[begun:] if one[0] is operation]
    assert 1 <= len(silent) <= 8


def test_ledger_whose_highest_number_is_damaged_is_refused_alone() -> None:
    """It would be asked for billions of names."""
    objects = FakeObjectStore()
    damaged = replace(_INTENTS[2], last_segment=2**62)
    doubts = _examined(objects, [*_INTENTS[:2], damaged, *_INTENTS[3:]])
    assert list(doubts) == [damaged.row_id]
    assert isinstance(doubts[damaged.row_id], CorruptData)


def test_absence_from_another_bucket_says_nothing() -> None:
    """The marker is asked for behind all other requests."""
    objects = FakeObjectStore()
    objects.refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
    assert _examined(objects) == dict.fromkeys(_IDS, objects.refusal)
