"""A scrub's look at one object: damage is read twice, and counts only while the catalog names the object."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.segment_format import DIGEST_FIELD, sha256_hex
from logstore.log.services.segment_reader import SegmentGone
from logstore.offload.tiered_copy import RowGroupEntries, TieredIndex, data_key, index_key
from logstore.ports.catalog.log import Segment
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.findings import FindingKind
from spark.reconciliation.scrub_ledgers import find_damage, require_undamaged_copy, require_undamaged_segment
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

_LEDGER = LedgerId(7)
_BODY = b"entries" * 10
_SEGMENT = Segment(
    ledger_id=_LEDGER, number=0, first_entry=0, entries=1, size_bytes=len(_BODY), sha256=sha256_hex(_BODY)
)
_KEY = segment_key(_LEDGER, 0)
_UUID = "0a1b"
_OWNER = LedgerOwner(
    application="sexton",
    component=Component.MANAGED_LEDGER,
    topic_id=TopicId(1),
    topic="persistent://shop/main/orders",
    keys={},
)
_INDEX = TieredIndex(
    statement=LedgerStatement(owner=_OWNER, ledger_id=_LEDGER, created_us=5, epoch=1),
    uuid=_UUID,
    entries=1,
    size_bytes=len(_BODY),
    sha256=sha256_hex(_BODY),
    row_groups=(RowGroupEntries(first_entry=0, entries=1),),
    footer="",
    chunks=(),
)


def _stored(body: bytes = _BODY, index: TieredIndex = _INDEX) -> FakeObjectStore:
    store = FakeObjectStore()
    store.put_if_absent(_KEY, body, metadata={DIGEST_FIELD: sha256_hex(_BODY)})
    store.put_if_absent(data_key(_UUID, _LEDGER), body, metadata={})
    store.put_if_absent(index_key(_UUID, _LEDGER), index.to_json(), metadata={})
    return store


def _segment(store: FakeObjectStore, spent: list[int] | None = None) -> Callable[[], None]:
    return lambda: require_undamaged_segment(store, _SEGMENT, (spent if spent is not None else []).append)


def _copy(store: FakeObjectStore, spent: list[int] | None = None) -> Callable[[], None]:
    return lambda: require_undamaged_copy(store, _UUID, _LEDGER, (spent if spent is not None else []).append)


@pytest.mark.parametrize("check", [_segment, _copy])
def test_object_as_it_was_stored_is_read_once_and_is_no_finding(check: Callable[..., Callable[[], None]]) -> None:
    spent: list[int] = []
    assert find_damage(check(_stored(), spent), _never) is None
    assert sum(spent) >= len(_BODY)
    assert spent.count(len(_BODY)) == 1


@pytest.mark.parametrize("check", [_segment, _copy])
@pytest.mark.parametrize("body", [b"Entries" + _BODY[7:], _BODY[:-1], b""])
def test_flipped_or_missing_bytes_are_read_twice_and_found(
    body: bytes, check: Callable[..., Callable[[], None]]
) -> None:
    found = find_damage(check(_stored(body)), lambda: True)
    assert found is not None
    assert found.kind is FindingKind.CORRUPT_DATA
    assert "expected" in found.detail
    assert found.detail.endswith("read twice")


@pytest.mark.parametrize("check", [_segment, _copy])
def test_damage_of_what_the_catalog_names_no_longer_is_no_finding(check: Callable[..., Callable[[], None]]) -> None:
    """It was deleted or trimmed while it was read."""
    assert find_damage(check(_stored(b"x")), lambda: False) is None
    assert find_damage(check(FakeObjectStore()), lambda: False) is None


def test_one_bad_read_is_no_finding() -> None:
    reads = [CorruptData("another digest"), None]

    def check() -> None:
        error = reads.pop(0)
        if error:
            raise error

    assert find_damage(check, _never) is None
    assert reads == []


@pytest.mark.parametrize("check", [_segment, _copy])
def test_absent_object_is_missing_data(check: Callable[..., Callable[[], None]]) -> None:
    found = find_damage(check(FakeObjectStore()), lambda: True)
    assert found is not None
    assert found.kind is FindingKind.MISSING_DATA


def test_copy_without_its_data_is_missing_data() -> None:
    store = _stored()
    store.delete([data_key(_UUID, _LEDGER)])
    with pytest.raises(SegmentGone, match=data_key(_UUID, _LEDGER)):
        _copy(store)()


def test_index_of_another_copy_is_corrupt() -> None:
    """Whole and valid, and not this copy's."""
    with pytest.raises(CorruptData, match=f"expected the index of copy {_UUID} of ledger 7, found that of other"):
        _copy(_stored(index=replace(_INDEX, uuid="other")))()


@pytest.mark.parametrize("check", [_segment, _copy])
def test_store_that_does_not_answer_says_nothing_of_the_data(check: Callable[..., Callable[[], None]]) -> None:
    store = _stored(b"x")
    store.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE, times=1_000))
    with pytest.raises(StoreUnavailable):
        find_damage(check(store), _never)


def _never() -> bool:
    raise AssertionError
