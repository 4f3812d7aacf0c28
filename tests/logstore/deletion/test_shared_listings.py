"""Listings that small ledgers of one shard share."""

import random
from collections.abc import Iterator, Sequence

import pytest

from infra.objects.bucket_listing import lower_start_after_for_path_order
from logstore.deletion.services import shared_store_requests
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.deletion.services.shared_store_requests import SharedListings
from logstore.errors import StoreUnavailable, Unsupported
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key, shard_prefix
from logstore.ports.object_storage import ObjectInfo, object_keys
from logstore.positions import LedgerId
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER, intent, statement


def _store(ids: Sequence[int], *, segments: int = 2) -> FakeObjectStore:
    objects = FakeObjectStore()
    for number in ids:
        ledger_id = LedgerId(number)
        metadata = statement(ledger_id, OWNER).to_metadata()
        objects.put_if_absent(meta_key(ledger_id, OWNER), b"{}", metadata=metadata)
        for segment in range(segments):
            objects.put_if_absent(segment_key(ledger_id, segment), b"x", metadata=metadata)
    return objects


def _shown(objects: FakeObjectStore, ids: Sequence[int], *, segments: int = 2) -> dict[int, list[str]]:
    listings = SharedListings(objects, [intent(LedgerId(number), segments=segments) for number in ids])
    shown = {number: listings.list_with_neighbours(LedgerId(number)) for number in ids}
    return {number: object_keys(found) for number, found in shown.items() if found is not None}


def _alone(objects: FakeObjectStore, ids: Sequence[int]) -> dict[int, list[str]]:
    return {number: object_keys(objects.list(ledger_prefix(LedgerId(number)))) for number in ids}


def _listings(objects: FakeObjectStore) -> int:
    return sum(operation is StoreOperation.LIST for operation, _ in objects.calls)


def test_neighbours_of_a_shard_share_one_listing() -> None:
    """Each is shown as a listing of its own would show it, and nothing of the ledgers between them."""
    stand = [shard + SHARDS * number for shard in (0, 7) for number in range(6)]
    asked = [one for one in stand if one != 7 + SHARDS]
    objects = _store(stand)
    found = _shown(objects, asked)
    assert _listings(objects) == 2
    assert found == _alone(objects, asked)


def test_ledger_without_a_neighbour_is_left_to_a_listing_of_its_own() -> None:
    """It would show more keys than are asked for, and spare no request."""
    objects = _store([0, 1, 2])
    assert _shown(objects, [0, 1, 2]) == {}
    assert _listings(objects) == 0


def test_ledgers_far_from_each_other_share_nothing() -> None:
    """Too many others are expected between them."""
    objects = _store([0, 18 * SHARDS])
    assert _shown(objects, [0, 18 * SHARDS]) == {}  # 17 of 3 keys each may stand between them
    assert set(_shown(objects, [0, 17 * SHARDS])) == {0, 17 * SHARDS}


def test_walk_that_meets_too_many_others_shows_what_it_passed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was expected to be small was not; the rest is listed alone."""
    monkeypatch.setattr(shared_store_requests, "_MAX_FOREIGN_KEYS", 9)
    objects = _store([SHARDS * number for number in range(4)], segments=30)
    asked = [0, 2 * SHARDS, 3 * SHARDS]
    assert _shown(objects, asked, segments=1) == _alone(objects, [0])


@pytest.mark.parametrize("gone", [0, SHARDS, 2 * SHARDS])
def test_ledger_that_is_gone_is_shown_empty(gone: int) -> None:
    """At the beginning, in between and at the end of a walk."""
    ids = [0, SHARDS, 2 * SHARDS]
    objects = _store([one for one in ids if one != gone])
    assert _shown(objects, ids) == _alone(objects, ids)
    assert _shown(objects, ids)[gone] == []


def test_keys_beside_ledgers_are_no_ledgers() -> None:
    """Objects of nobody's at a shard, before, between and behind what is asked for."""
    objects = _store([0, SHARDS])
    for name in ("ledgers/00/0", "ledgers/00/0000000000000000.x", "ledgers/00/00000000000000000", "ledgers/00/zz"):
        objects.put_if_absent(name, b"", metadata={})
    assert _shown(objects, [0, SHARDS]) == _alone(objects, [0, SHARDS])


def test_random_shards_show_what_listings_alone_show() -> None:
    """Never another thing, whatever stands there, in whatever order it is asked for."""
    told = random.Random(7)
    for _ in range(50):
        stand = told.sample(range(4 * SHARDS), 60)
        asked = told.sample(range(4 * SHARDS), 80)
        objects = _store(stand, segments=told.randrange(4))
        found = _shown(objects, asked)
        assert found == _alone(objects, list(found))


def _failing(error: Exception) -> Fault:
    return Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, error=lambda: error, times=1)


def test_walk_that_fails_leaves_the_other_ledgers_to_listings_of_their_own() -> None:
    """No answer is an error of the ledger that was asked for, and no absence of any."""
    objects = _store([0, SHARDS, 2 * SHARDS])
    listings = SharedListings(objects, [intent(LedgerId(number * SHARDS), segments=2) for number in range(3)])
    objects.plan(_failing(StoreUnavailable("planned")))
    with pytest.raises(StoreUnavailable, match="planned"):
        listings.list_with_neighbours(LedgerId(SHARDS))
    assert [listings.list_with_neighbours(LedgerId(number * SHARDS)) for number in range(3)] == [None] * 3


def test_disorder_in_a_shard_leaves_its_ledgers_to_listings_of_their_own() -> None:
    """Keys of nobody's beside the ledgers, in an order of a store's own, keep no ledger."""
    objects = _store([0, SHARDS])
    objects.plan(_failing(Unsupported("planned")))
    assert _shown(objects, [0, SHARDS]) == {}


def test_second_intent_of_a_ledger_is_left_to_a_listing_of_its_own() -> None:
    """What was shown once is let go, so that a chunk holds the keys of one walk at a time."""
    listings = SharedListings(_store([0, SHARDS]), [intent(LedgerId(0)), intent(LedgerId(SHARDS))])
    assert listings.list_with_neighbours(LedgerId(0)) is not None
    assert listings.list_with_neighbours(LedgerId(0)) is None


@pytest.mark.parametrize(("places", "page"), [([0, 1, 2], 12), ([0, 2, 4], 18), (list(range(400)), 1_000)])
def test_walk_asks_for_as_many_keys_as_it_expects(places: list[int], page: int) -> None:
    """A shard holds millions; those of the ledgers, of what may stand between them and of the one behind are few."""
    asked: list[int] = []

    class Store(FakeObjectStore):
        def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
            asked.append(first_page)
            return super().list(prefix, start_after=start_after, first_page=first_page)

    listings = SharedListings(Store(), [intent(LedgerId(at * SHARDS), segments=2) for at in places])
    assert listings.list_with_neighbours(LedgerId(0)) == []
    assert asked == [page]


@pytest.mark.parametrize("number", [1, 0xFF00, 0x10000, 0x10001, 0x100000, 0x40000000, 0x40000010, 2**62])
def test_walk_begins_right_before_its_first_ledger(number: int) -> None:
    """Also of a store that must be asked for a little less, and where the ledger's number is round."""
    asked: list[str] = []

    class Store(FakeObjectStore):
        def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
            asked.append(start_after)
            return super().list(prefix, start_after=start_after, first_page=first_page)

    listings = SharedListings(Store(), [intent(LedgerId(number)), intent(LedgerId(number + SHARDS))])
    assert listings.list_with_neighbours(LedgerId(number)) == []
    shard, before = shard_prefix(number % SHARDS), number - SHARDS
    if before < 0:
        assert asked == [""]
        return
    last = segment_key(LedgerId(before), 99_999_999)
    assert last < lower_start_after_for_path_order(asked[0], shard) <= asked[0] < ledger_prefix(LedgerId(number))


def test_inspections_by_a_shared_listing_say_what_lone_ones_say() -> None:
    """Own, short, foreign and absent copies alike."""
    ids = [SHARDS * number for number in range(5)]
    objects = _store(ids[:4])
    objects.put_if_absent(ledger_prefix(LedgerId(ids[2])) + "stranger", b"", metadata={})
    asked = [intent(LedgerId(number), segments=2 + (number == ids[1])) for number in ids]
    copies = PrimaryCopyStorage(objects)
    inspect = copies.prepare_inspection(asked)
    assert [inspect(one) for one in asked] == [copies.inspect_copy(one) for one in asked]
