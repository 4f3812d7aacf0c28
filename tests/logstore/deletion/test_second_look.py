"""Stores that confirm a deletion and keep the object: what was confirmed is looked at again, by sample."""

from dataclasses import replace

import pytest

from logstore.deletion.intents import CopyVerdict, DeletionIntent
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.errors import PreconditionFailed
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import data_key, index_key
from logstore.ports.object_storage import CopyRemovalResult
from logstore.positions import LedgerId
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER, intent, statement

_UUID = "01234567-89ab-4cde-8f01-23456789abcd"


def _stored(objects: FakeObjectStore, ledgers: int, *, segments: int = 2) -> list[DeletionIntent]:
    """Ledgers in storage, and intents for them."""
    for number in range(ledgers):
        ledger_id = LedgerId(number)
        metadata = statement(ledger_id).to_metadata()
        objects.put_if_absent(meta_key(ledger_id, OWNER), b"meta", metadata=metadata)
        for segment in range(segments):
            objects.put_if_absent(segment_key(ledger_id, segment), b"data", metadata=metadata)
    return [replace(intent(number, segments=segments), row_id=number) for number in range(ledgers)]


def _remove(objects: FakeObjectStore, intents: list[DeletionIntent]) -> dict[int, CopyRemovalResult]:
    copies = PrimaryCopyStorage(objects)
    found = {row.row_id: copies.inspect_copy(row) for row in intents}
    objects.calls.clear()
    return dict(copies.remove_copies(found, on_progress=lambda _: None))


def _keeping(times: int = 1_000, *, of: str = "") -> Fault:
    return Fault(operation=StoreOperation.DELETE, kind=FaultKind.LOST, times=times, matches=lambda key: of in key)


def test_store_that_keeps_what_it_confirmed_deletes_no_statement_and_ends_no_row() -> None:
    """Each row is an error that names a key, and every `meta.json` still says whose the data is."""
    objects = FakeObjectStore()
    intents = _stored(objects, 20)
    before = objects.keys
    objects.plan(_keeping(of=".parquet"))
    removed = _remove(objects, intents)
    assert all("the store confirmed its deletion and still has it" in (one.error or "") for one in removed.values())
    assert {one.objects for one in removed.values()} == {0}
    assert all(one.answered for one in removed.values())
    assert objects.keys == before
    assert not [key for operation, key in objects.calls if operation is StoreOperation.DELETE and "meta" in key]


def test_store_that_keeps_statements_that_it_confirmed_ends_no_row() -> None:
    """The second look is at both kinds of objects."""
    objects = FakeObjectStore()
    intents = _stored(objects, 20)
    objects.plan(_keeping(of="meta.json"))
    removed = _remove(objects, intents)
    assert all("still has it" in (one.error or "") for one in removed.values())


def test_batch_gains_no_request_for_each_of_its_ledgers() -> None:
    """A sample of four keys of data and four statements is looked at, of any number of ledgers."""
    objects = FakeObjectStore()
    removed = _remove(objects, _stored(objects, 300))
    assert set(removed.values()) == {CopyRemovalResult(objects=3, size_bytes=12)}
    requests = [operation for operation, _ in objects.calls]
    assert requests.count(StoreOperation.GET_RANGE) == 8
    assert set(requests) == {StoreOperation.DELETE, StoreOperation.GET_RANGE}


def test_ledger_that_is_removed_alone_is_listed_again() -> None:
    """So one key of hundreds that was kept is seen, as it is of an orphan; a row that failed in a batch gets this."""
    objects = FakeObjectStore()
    intents = _stored(objects, 1, segments=300)
    kept = segment_key(LedgerId(0), 217)
    objects.plan(_keeping(1, of=kept))
    removed = _remove(objects, intents)
    assert kept in (removed[0].error or "")
    assert meta_key(LedgerId(0), OWNER) in objects.keys
    assert _remove(objects, intents)[0].error is None
    assert objects.keys == []


@pytest.mark.parametrize("part", [".parquet", "meta.json"])
def test_sample_that_gets_no_answer_takes_nothing_back_that_the_store_confirmed(part: str) -> None:
    """A retry would find the ledgers gone, and end their rows as if nothing had been deleted."""
    objects = FakeObjectStore()
    intents = _stored(objects, 3)
    unanswered = Fault(
        operation=StoreOperation.GET_RANGE, kind=FaultKind.BEFORE, times=1_000, matches=lambda key: key.endswith(part)
    )
    objects.plan(unanswered)
    assert set(_remove(objects, intents).values()) == {CopyRemovalResult(objects=3, size_bytes=12)}
    assert objects.keys == []


def test_key_that_stands_counts_though_the_rest_of_the_sample_gets_no_answer() -> None:
    """Each key of the sample is asked for, also behind one without an answer."""
    objects = FakeObjectStore()
    intents = _stored(objects, 2)
    standing = segment_key(LedgerId(1), 1)
    objects.plan(_keeping(of=standing))
    others = Fault(
        operation=StoreOperation.GET_RANGE, kind=FaultKind.BEFORE, times=1_000, matches=lambda key: key != standing
    )
    objects.plan(others)
    removed = _remove(objects, intents)
    assert all(standing in (removal.error or "") for removal in removed.values())
    assert {meta_key(LedgerId(number), OWNER) for number in range(2)} <= set(objects.keys)


def test_store_that_refuses_the_second_look_ends_no_row() -> None:
    """It has to be mended first, and every retry says so."""
    objects = FakeObjectStore()
    intents = _stored(objects, 3)
    refused = Fault(
        operation=StoreOperation.GET_RANGE, kind=FaultKind.BEFORE, error=lambda: PreconditionFailed("denied")
    )
    objects.plan(refused)
    with pytest.raises(PreconditionFailed, match="denied"):
        _remove(objects, intents)


def test_sample_is_drawn_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that keeps some keys is found out sooner or later."""
    drawn: list[list[str]] = []

    def sample(keys: list[str], count: int) -> list[str]:
        drawn.append(list(keys))
        return keys[-count:]

    monkeypatch.setattr("logstore.deletion.services.absence_proofs.random.sample", sample)
    objects = FakeObjectStore()
    intents = _stored(objects, 10)
    objects.plan(_keeping(of=segment_key(LedgerId(9), 1)))
    removed = _remove(objects, intents)
    assert all(one.error for one in removed.values())
    assert drawn == [sorted(segment_key(LedgerId(at), number) for at in range(10) for number in range(2))]


@pytest.mark.parametrize("part", ["", "-index"], ids=["data", "index"])
def test_tiered_copy_that_the_store_keeps_is_not_done(part: str) -> None:
    """Data goes first, and the index stays as long as data does."""
    objects = FakeObjectStore()
    row = replace(
        intent(7, segments=1), copy=CopyKind.OFFLOADED_LEDGER, context={"uuid": _UUID, "bucket": "cold"}, row_id=1
    )
    data, index = data_key(_UUID, LedgerId(7)), index_key(_UUID, LedgerId(7))
    for key in (data, index):
        objects.put_if_absent(key, b"x", metadata=statement(7).to_metadata())
    copies = TieredCopyStorage(lambda _: objects, now_us=lambda: 0)
    found = copies.inspect_copy(row)
    assert found.verdict is CopyVerdict.OWN
    objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.LOST, matches=lambda key: key == data + part))
    removed = copies.remove_copies({1: found}, on_progress=lambda _: None)
    assert "still has it" in (removed[1].error or "")
    assert objects.keys == ([index] if part else [data, index])
