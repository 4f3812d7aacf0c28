"""The primary copy of ledgers: found, verified, removed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from logstore.deletion.intents import CopyVerdict, DeletionIntent, StoredCopy
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.errors import CorruptData, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import Component, LedgerOwner
from logstore.ports.object_storage import CopyRemovalResult, ObjectInfo
from logstore.positions import LedgerId
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER, intent, statement

_L = LedgerId(7)
_META = meta_key(_L, OWNER)
_STRANGER = replace(OWNER, topic=OWNER.topic + "-other")


class _Blind(FakeObjectStore):
    """Leaves keys out of its first listings."""

    def __init__(self, hidden: set[str], listings: int = 1) -> None:
        super().__init__()
        self._hidden = hidden
        self._left = listings

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        hidden = self._hidden if self._left > 0 else set()
        self._left -= 1
        return (
            item
            for item in super().list(prefix, start_after=start_after, first_page=first_page)
            if item.key not in hidden
        )


def _store(
    *, segments: int = 3, owner: LedgerOwner = OWNER, meta: bool = True, into: FakeObjectStore | None = None
) -> FakeObjectStore:
    objects = into if into is not None else FakeObjectStore()
    metadata = statement(_L, owner).to_metadata()
    if meta:
        objects.put_if_absent(meta_key(_L, owner), b"0123456789", metadata=metadata)
    for number in range(segments):
        objects.put_if_absent(segment_key(_L, number), b"01234", metadata=metadata)
    return objects


def _inspect(objects: FakeObjectStore, *, segments: int = 3) -> StoredCopy:
    return PrimaryCopyStorage(objects).inspect_copy(intent(_L, segments=segments))


def _remove(objects: FakeObjectStore, copy: StoredCopy) -> tuple[CopyRemovalResult, list[int]]:
    progress: list[int] = []
    removed = PrimaryCopyStorage(objects).remove_copies({1: copy}, on_progress=progress.append)
    return removed[1], progress


@pytest.mark.parametrize("stored", [True, False])
def test_number_of_segments_that_no_ledger_has_is_refused_without_asking_for_each(*, stored: bool) -> None:
    """A damaged row would have billions of keys asked for, by a thread that nothing ends."""
    objects = _store() if stored else FakeObjectStore()
    calls = len(objects.calls)
    damaged = replace(intent(_L, segments=3), last_segment=2**62)
    with pytest.raises(CorruptData, match=r"at most 1,000,000 segments .*, found the number 4611686018427387904"):
        PrimaryCopyStorage(objects).inspect_copy(damaged)
    assert (StoreOperation.HEAD, segment_key(_L, 3)) not in objects.calls[calls:]


def test_primary_copy_of_its_own_ledger_is_found_by_one_list() -> None:
    """The digest in the statement's name verifies the owner: no GET, no HEAD."""
    objects = _store()
    calls = len(objects.calls)
    copy = _inspect(objects)
    assert copy == StoredCopy(
        verdict=CopyVerdict.OWN,
        data_keys=tuple(segment_key(_L, number) for number in range(3)),
        meta_keys=(_META,),
        size_bytes=25,
        objects=4,
    )
    assert objects.calls[calls:] == [(StoreOperation.LIST, ledger_prefix(_L))]


@pytest.mark.parametrize("ledger_id", [0, 2**63 - 1])
def test_primary_copy_of_a_boundary_id_is_found_and_removed_alone(ledger_id: int) -> None:
    """Ids 0 and the highest have prefixes as all others have, and empty ones prove absence (apache/bookkeeper#950)."""
    objects, own, others = FakeObjectStore(), LedgerId(ledger_id), (LedgerId(1), LedgerId(256), LedgerId(2**63 - 2))
    for one in (own, *others):
        metadata = statement(one).to_metadata()
        objects.put_if_absent(meta_key(one, OWNER), b"meta", metadata=metadata)
        objects.put_if_absent(segment_key(one, 0), b"data", metadata=metadata)
    copy = PrimaryCopyStorage(objects).inspect_copy(intent(own, segments=1))
    assert (copy.verdict, copy.objects) == (CopyVerdict.OWN, 2)
    assert _remove(objects, copy)[0] == CopyRemovalResult(objects=2, size_bytes=8)
    assert objects.keys == sorted(key for one in others for key in (meta_key(one, OWNER), segment_key(one, 0)))
    assert PrimaryCopyStorage(objects).inspect_copy(intent(own, segments=1)) == StoredCopy(verdict=CopyVerdict.ABSENT)


def test_primary_copy_absent_is_proved_by_independent_reads() -> None:
    """An empty listing alone proves nothing (apache/bookkeeper#870)."""
    objects = FakeObjectStore()
    assert _inspect(objects) == StoredCopy(verdict=CopyVerdict.ABSENT)
    assert [operation for operation, _ in objects.calls[:3]] == [
        StoreOperation.LIST,
        StoreOperation.HEAD,
        StoreOperation.LIST,
    ]
    asked = {key for operation, key in objects.calls[3:] if operation is StoreOperation.HEAD}
    assert asked == {segment_key(_L, number) for number in range(3)}
    assert len(objects.calls) == 6


def test_primary_copy_that_no_listing_shows_is_not_absent_while_a_registered_segment_stands() -> None:
    """Its `meta.json` went in an earlier attempt: no listing's word is taken for what the catalog registered."""
    objects = _Blind({segment_key(_L, 2)}, listings=99)
    _store(into=objects, meta=False)
    objects.delete([segment_key(_L, 0), segment_key(_L, 1)])
    with pytest.raises(StoreUnavailable, match="two LISTs do not"):
        _inspect(objects)
    objects.delete([segment_key(_L, 2)])
    assert _inspect(objects).verdict is CopyVerdict.ABSENT


def test_primary_copy_with_gaps_is_asked_for_every_number_that_may_be_registered() -> None:
    """Lost races leave gaps, so a count of segments tells nothing of which they are."""
    objects = _Blind({segment_key(_L, 1_900)}, listings=99)
    metadata = statement(_L).to_metadata()
    for key in (_META, segment_key(_L, 0), segment_key(_L, 1_900), segment_key(_L, 2_000)):
        objects.put_if_absent(key, b"01234", metadata=metadata)
    copy = PrimaryCopyStorage(objects).inspect_copy(replace(intent(_L, segments=3), last_segment=2_000))
    assert copy.data_keys == tuple(segment_key(_L, number) for number in (0, 1_900, 2_000))
    assert _remove(objects, copy)[0] == CopyRemovalResult(objects=4, size_bytes=20)
    assert objects.keys == []


def test_primary_copy_unlisted_segment_of_somebody_else_is_foreign() -> None:
    """What is asked for by name is judged by its own metadata, as what a listing shows (promise 3)."""
    objects = _Blind({segment_key(_L, 2)}, listings=99)
    _store(into=objects, segments=2)
    objects.put_if_absent(segment_key(_L, 2), b"theirs", metadata=statement(_L, _STRANGER).to_metadata())
    assert _inspect(objects).verdict is CopyVerdict.FOREIGN


def test_primary_copy_of_a_late_segment_alone_is_not_absent_for_one_empty_listing() -> None:
    """No `meta.json` contradicts the listing where a segment landed behind a deletion (apache/bookkeeper#870)."""
    key = segment_key(_L, 3)
    objects = _Blind({key})
    objects.put_if_absent(key, b"late", metadata=statement(_L).to_metadata())
    with pytest.raises(StoreUnavailable, match="second LIST finds it"):
        _inspect(objects)
    assert _inspect(objects).data_keys == (key,)


def test_silent_store_is_asked_for_no_segment_after_the_first_silence() -> None:
    """Only the requests in hand are made; a store that is down would else be asked for hundreds of keys in vain."""
    objects = _store(segments=0)
    silent = Fault(
        operation=StoreOperation.HEAD, kind=FaultKind.BEFORE, times=1_000, matches=lambda key: "parquet" in key
    )
    objects.plan(silent)
    with pytest.raises(StoreUnavailable):
        _inspect(objects, segments=200)
    asked = [key for operation, key in objects.calls if operation is StoreOperation.HEAD and "parquet" in key]
    assert 1 <= len(asked) <= 8


def test_primary_copy_listed_empty_but_seen_by_head_is_no_answer() -> None:
    """A suspiciously empty listing stops the deletion (apache/bookkeeper#870, #876)."""
    objects = _store(into=_Blind({_META, *(segment_key(_L, number) for number in range(3))}))
    with pytest.raises(StoreUnavailable, match="HEAD finds it"):
        _inspect(objects)


def test_primary_copy_listing_that_ends_early_is_no_answer() -> None:
    """Half a listing is an error of the store and never a small ledger (YahooArchive/bookkeeper#17)."""
    objects = _store()
    objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, after_objects=2))
    with pytest.raises(StoreUnavailable):
        _inspect(objects)


@pytest.mark.parametrize(
    "owner",
    [
        _STRANGER,
        replace(OWNER, application="other"),
        replace(OWNER, component=Component.MANAGED_CURSOR, keys={"cursor": "a"}),
    ],
)
@pytest.mark.parametrize("meta", [True, False])
def test_primary_copy_of_somebody_else_is_foreign(owner: LedgerOwner, meta: bool) -> None:
    """A forged or stale request deletes nobody's ledger, with `meta.json` and without (promise 3)."""
    copy = _inspect(_store(owner=owner, meta=meta))
    assert copy.verdict is CopyVerdict.FOREIGN
    assert str(_L) in copy.detail or owner.digest in copy.detail


def test_primary_copy_with_two_statements_is_foreign() -> None:
    """Ours beside another's: one of them is wrong, and nothing tells which."""
    objects = _store()
    objects.put_if_absent(meta_key(_L, _STRANGER), b"x", metadata=statement(_L, _STRANGER).to_metadata())
    assert _inspect(objects).verdict is CopyVerdict.FOREIGN


@pytest.mark.parametrize(
    "name", ["readme.txt", "00000001.parquet.tmp", "sub/00000001.parquet", f"sub/{OWNER.digest}.meta.json"]
)
def test_primary_copy_with_an_unknown_file_is_foreign_and_names_it(name: str) -> None:
    """Only kinds we know are deleted; foreign files are reported (apache/amoro#1959, lakeFS#8518)."""
    objects = _store()
    objects.put_if_absent(ledger_prefix(_L) + name, b"x", metadata={})
    copy = _inspect(objects)
    assert copy.verdict is CopyVerdict.FOREIGN
    assert name in copy.detail


def test_primary_copy_without_meta_is_judged_by_its_objects() -> None:
    """Data still says whose it is; a `meta.json` that the listing lacked is deleted with it, in case it stands."""
    copy = _inspect(_store(meta=False))
    assert (copy.verdict, copy.meta_keys, len(copy.data_keys)) == (CopyVerdict.OWN, (meta_key(_L, OWNER),), 3)


@pytest.mark.parametrize("stands", [False, True])
def test_meta_that_the_listing_lacks_counts_as_deleted_only_if_it_stood(stands: bool) -> None:
    """A store confirms the deletion of what was never there; a certificate counts objects."""
    objects = _store(meta=stands, into=_Blind({_META}))
    copy = _inspect(objects)
    removal, _ = _remove(objects, copy)
    assert (removal, objects.keys) == (CopyRemovalResult(objects=3 + stands, size_bytes=15 + 10 * stands), [])


def test_primary_copy_without_any_statement_is_foreign() -> None:
    """Objects that state no owner are kept."""
    objects = FakeObjectStore()
    objects.put_if_absent(segment_key(_L, 0), b"x", metadata={})
    copy = _inspect(objects)
    assert copy.verdict is CopyVerdict.FOREIGN
    assert "states no owner" in copy.detail


def test_primary_copy_without_meta_one_foreign_object_among_own_is_foreign() -> None:
    """Every object is asked, not the first alone."""
    objects = _store(meta=False, segments=2)
    objects.put_if_absent(segment_key(_L, 2), b"x", metadata=statement(8).to_metadata())
    assert _inspect(objects).verdict is CopyVerdict.FOREIGN


def test_primary_copy_object_that_goes_away_while_it_is_judged_harms_nothing() -> None:
    """A second deletion of the same ledger may run at the same time."""
    objects = _store(meta=False, segments=2)

    def delete_meanwhile() -> None:
        objects.delete([segment_key(_L, 0)])

    objects.plan(Fault(operation=StoreOperation.HEAD, kind=FaultKind.CALL, action=delete_meanwhile))
    assert _inspect(objects).verdict is CopyVerdict.OWN


@pytest.mark.parametrize(("registered", "short"), [(2, False), (3, False), (4, True)])
def test_primary_copy_with_fewer_segments_than_registered_is_short(registered: int, short: bool) -> None:
    """Unregistered segments beside registered ones are no shortage."""
    assert _inspect(_store(), segments=registered).is_incomplete == short


def test_primary_copy_removed_leaves_nothing_and_counts_what_storage_confirmed() -> None:
    """Counts are confirmations: segments and statement, with their bytes."""
    objects = _store()
    removal, progress = _remove(objects, _inspect(objects))
    assert removal == CopyRemovalResult(objects=4, size_bytes=25)
    assert objects.keys == []
    assert sum(progress) == 4


def test_primary_copy_meta_goes_last() -> None:
    """Until the last segment is gone the ledger says whose it is."""
    objects = _store()
    _remove(objects, _inspect(objects))
    deleted = [key for operation, key in objects.calls if operation is StoreOperation.DELETE]
    assert deleted[-1] == _META


def test_primary_copy_removed_twice_counts_the_same() -> None:
    """A worker that died before it could say so repeats it. Source: PIP-186, idempotency."""
    objects = _store()
    copy = _inspect(objects)
    assert _remove(objects, copy)[0] == _remove(objects, copy)[0]


def test_primary_copy_key_refused_keeps_meta_and_is_told() -> None:
    """An error for one key inside a good answer is an error (apache/pulsar#14693)."""
    objects = _store()
    bad = segment_key(_L, 1)
    objects.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key == bad)
    )
    removal, _ = _remove(objects, _inspect(objects))
    assert removal.error is not None
    assert bad in removal.error
    assert removal.objects == 2
    assert objects.keys == sorted([_META, bad])


def test_primary_copy_meta_refused_is_told() -> None:
    """The statement is an object like any other: kept means not done."""
    objects = _store()
    objects.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key == _META)
    )
    removal, _ = _remove(objects, _inspect(objects))
    assert removal.error is not None
    assert _META in removal.error


def test_primary_copy_one_ledgers_trouble_leaves_its_neighbours_alone() -> None:
    """One bad ledger of a page neither keeps the others nor ends the sweep (YahooArchive/bookkeeper#17)."""
    objects = _store()
    other = LedgerId(8)
    for key in (meta_key(other, OWNER), segment_key(other, 0)):
        objects.put_if_absent(key, b"x", metadata=statement(other).to_metadata())
    storage = PrimaryCopyStorage(objects)
    copies = {at: storage.inspect_copy(intent(ledger)) for at, ledger in enumerate([_L, other])}
    objects.plan(
        Fault(
            operation=StoreOperation.DELETE,
            kind=FaultKind.REPORT_KEY_FAILED,
            matches=lambda key: key == segment_key(_L, 0),
        )
    )
    removed = storage.remove_copies(copies, on_progress=lambda _count: None)
    assert removed[0].error is not None
    assert removed[1] == CopyRemovalResult(objects=2, size_bytes=2)
    assert not [key for key in objects.keys if key.startswith(ledger_prefix(other))]


@pytest.mark.parametrize("listings", [1, 2, 99])
def test_primary_copy_goes_whole_though_listings_lack_registered_segments(listings: int) -> None:
    """A listing that left out segments never turns them into orphans (ClickHouse#114194)."""
    objects = _store(into=_Blind({segment_key(_L, number) for number in range(3)}, listings))
    removal, _ = _remove(objects, _inspect(objects))
    assert removal == CopyRemovalResult(objects=4, size_bytes=25)
    assert objects.keys == []


def test_primary_copy_of_a_short_listing_is_looked_at_again_before_meta_goes() -> None:
    """What nobody registered can be found by a listing alone: so there is a second one (ClickHouse#114194)."""
    late = segment_key(_L, 3)
    objects = _store(into=_Blind({late, segment_key(_L, 2)}), segments=4)
    copy = _inspect(objects)
    assert copy.is_incomplete
    removal, _ = _remove(objects, copy)
    assert removal.error is not None
    assert late in removal.error
    assert objects.keys == sorted([_META, late])


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.MIDWAY])
def test_second_listing_without_an_answer_keeps_one_statement_and_no_neighbour(kind: FaultKind) -> None:
    """What is left of the ledger is unknown, so no number of keys counts as its progress."""
    objects, other = _store(into=_Blind({segment_key(_L, 2)})), LedgerId(8)
    for key in (meta_key(other, OWNER), segment_key(other, 0)):
        objects.put_if_absent(key, b"x", metadata=statement(other).to_metadata())
    storage = PrimaryCopyStorage(objects)
    copies = {0: storage.inspect_copy(intent(_L, segments=3)), 1: storage.inspect_copy(intent(other, segments=1))}
    assert [copy.is_incomplete for copy in copies.values()] == [True, False]
    objects.plan(Fault(operation=StoreOperation.LIST, kind=kind, matches=ledger_prefix(_L).__eq__))
    removals = storage.remove_copies(copies, on_progress=lambda _: None)
    assert (removals[0].objects, removals[0].answered) == (3, False)
    assert (removals[0].error or "").startswith("the second listing got no answer: ")
    assert removals[1] == CopyRemovalResult(objects=2, size_bytes=2)
    assert objects.keys == [_META]
    assert (
        storage.remove_copies({0: storage.inspect_copy(intent(_L, segments=3))}, on_progress=lambda _: None)[0].error
        is None
    )
    assert objects.keys == []


def test_primary_copy_short_for_good_goes_whole() -> None:
    """What was lost before is no reason to keep the rest for ever (apache/bookkeeper#3316, apache/pulsar#15992)."""
    objects = _store(segments=2)
    removal, _ = _remove(objects, _inspect(objects, segments=3))
    assert removal == CopyRemovalResult(objects=3, size_bytes=20)
    assert objects.keys == []


@pytest.mark.parametrize("point", ["delete_data.before", "delete_data.after", "delete_meta.before"])
def test_primary_copy_deletion_that_died_is_found_and_finished(point: str) -> None:
    """Between any two effects what is left is still ours, and one more pass ends it (apache/pulsar#16569)."""
    objects = _store()
    arm(f"storage.{point}", "crash")
    with pytest.raises(SimulatedCrash):
        _remove(objects, _inspect(objects))
    disarm_all_and_take_hits()
    copy = _inspect(objects)
    assert copy.verdict is CopyVerdict.OWN
    assert _remove(objects, copy)[0].error is None
    assert _inspect(objects).verdict is CopyVerdict.ABSENT


def test_primary_copy_half_deleted_by_key_is_still_own() -> None:
    """Any subset of the data with the statement is verified as ours."""
    objects = _store()
    objects.delete([segment_key(_L, 0), segment_key(_L, 2)])
    copy = _inspect(objects)
    assert (copy.verdict, copy.is_incomplete, len(copy.data_keys)) == (CopyVerdict.OWN, True, 1)


def test_primary_copy_nothing_to_remove_asks_nobody() -> None:
    """An empty batch sends no request."""
    objects = FakeObjectStore()
    assert PrimaryCopyStorage(objects).remove_copies({}, on_progress=lambda _count: None) == {}
    assert objects.calls == []


@pytest.mark.parametrize("hidden", [set(), {_META}])
def test_inspect_ledger_of_an_earlier_catalog_with_this_id_is_foreign(hidden: set[str]) -> None:
    """A catalog that starts anew on an old bucket never deletes what the old one wrote (promises 1 and 3)."""
    objects = _Blind(hidden)
    _store(into=objects)
    newborn = intent(_L, segments=0, ledger_created_us=6)
    assert PrimaryCopyStorage(objects).inspect_copy(newborn).verdict is CopyVerdict.FOREIGN


def test_inspect_segment_that_the_catalog_never_registered_is_asked_for_its_owner() -> None:
    """Another application's segment beside our own meta.json is not ours because of its name (promise 3)."""
    objects = _store()
    objects.put_if_absent(segment_key(_L, 9), b"theirs", metadata=statement(_L, _STRANGER).to_metadata())
    assert _inspect(objects).verdict is CopyVerdict.FOREIGN


def test_inspect_segment_of_a_lost_race_is_ours() -> None:
    """What an append uploaded and never registered goes with its ledger."""
    objects = _store(segments=4)
    found = _inspect(objects, segments=3)
    assert (found.verdict, len(found.data_keys), found.is_incomplete) == (CopyVerdict.OWN, 4, False)


@pytest.mark.parametrize("extra", ["debris", "duplicate"])
def test_inspect_short_listing_is_noticed_whatever_fills_the_count(extra: str) -> None:
    """Neither an unregistered upload nor a key listed twice makes a short listing look complete."""
    objects = _Doubled({segment_key(_L, 1)}) if extra == "duplicate" else _Blind({segment_key(_L, 1)})
    _store(into=objects, segments=3 if extra == "duplicate" else 4)
    found = _inspect(objects, segments=3)
    assert found.is_incomplete
    assert segment_key(_L, 1) in found.data_keys
    assert _remove(objects, found)[0].error is None
    assert objects.keys == []


class _Doubled(_Blind):
    """Lists every key twice."""

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        return (
            item
            for found in super().list(prefix, start_after=start_after, first_page=first_page)
            for item in (found, found)
        )


def test_primary_copy_statement_is_the_content_of_meta_json() -> None:
    """What storage itself says, word for word: read for people, whoever wrote it."""
    said = statement(_L)
    objects = FakeObjectStore()
    objects.put_if_absent(meta_key(_L, _STRANGER), b'{"application": "other", "n": 1}', metadata={})
    assert PrimaryCopyStorage(objects).read_statement(intent(_L)) == {"application": "other", "n": "1"}
    objects.put_if_absent(meta_key(_L, OWNER), said.to_json(), metadata={})
    assert PrimaryCopyStorage(objects).read_statement(intent(_L)) == said.to_metadata(), "ours comes first"


@pytest.mark.parametrize("body", [b"no json", b"[1]", b"\xff"])
def test_primary_copy_statement_that_is_no_object_is_shown_as_it_begins(body: bytes) -> None:
    """Somebody else's file is no reason to explain nothing."""
    objects = FakeObjectStore()
    objects.put_if_absent(meta_key(_L, OWNER), body, metadata={})
    said = PrimaryCopyStorage(objects).read_statement(intent(_L))
    assert said is not None
    assert list(said) == ["unreadable"]


def test_primary_copy_statement_without_meta_json_is_that_of_an_object() -> None:
    """A half-deleted ledger still says whose it is; of an absent one nothing says anything."""
    assert PrimaryCopyStorage(_store(meta=False)).read_statement(intent(_L)) == statement(_L).to_metadata()
    assert PrimaryCopyStorage(FakeObjectStore()).read_statement(intent(_L)) is None


_BUCKET = replace(OWNER, component=Component.DELAYED_INDEX)


def _bucket(**changes: Any) -> DeletionIntent:
    """The intent for a ledger of a bucket, which was never published."""
    return replace(intent(_L, component=Component.DELAYED_INDEX.value), **changes)


def test_parts_of_a_dead_upload_are_freed_with_the_ledger_of_a_bucket() -> None:
    """No listing shows them: a ledger of which only parts are left is not gone; what others upload stays."""
    objects, key, other = FakeObjectStore(), segment_key(_L, 0), segment_key(LedgerId(_L + 256), 0)
    objects.unfinished = {key, other}
    found = PrimaryCopyStorage(objects).inspect_copy(_bucket())
    assert (found.verdict, found.uploads) == (CopyVerdict.OWN, (key,))
    assert _remove(objects, found)[0] == CopyRemovalResult()
    assert objects.unfinished == {other}
    assert PrimaryCopyStorage(objects).inspect_copy(_bucket()).verdict is CopyVerdict.ABSENT


def test_parts_beside_the_statement_of_a_bucket_are_freed_before_it() -> None:
    """A creator that died in mid-upload leaves both."""
    objects, key = _store(segments=0, owner=_BUCKET), segment_key(_L, 0)
    objects.unfinished = {key}
    found = PrimaryCopyStorage(objects).inspect_copy(_bucket())
    assert (found.verdict, found.uploads, found.meta_keys) == (CopyVerdict.OWN, (key,), (meta_key(_L, _BUCKET),))
    assert _remove(objects, found)[0].objects == 1
    assert (objects.unfinished, objects.keys) == (set(), [])
    done = [operation for operation, _ in objects.calls]
    assert done.index(StoreOperation.ABORT) < done.index(StoreOperation.DELETE)


def test_published_ledgers_are_not_asked_for_parts() -> None:
    """Their upload was finished, and no other component uploads in parts: one request less for each ledger."""
    bucket, data = _store(segments=1, owner=_BUCKET), _store(segments=0)
    PrimaryCopyStorage(bucket).inspect_copy(_bucket(segments=1, last_segment=0))
    _inspect(data, segments=0)
    assert StoreOperation.UPLOADS not in {operation for operation, _ in (*bucket.calls, *data.calls)}
