"""Phase two of tiered copies: whose they are, whether they may go yet, and that they are gone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from logstore.deletion.intents import CopyVerdict, DeletionIntent, Outcome, StoredCopy, find_refusal
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.errors import CatalogMismatch, CorruptData, StoreUnavailable, UploadOpen
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement
from logstore.offload.tiered_copy import UPLOAD_GRACE_S, CopyLocation, data_key, index_key
from logstore.ports.object_storage import CopyRemovalResult, ObjectInfo
from logstore.positions import LedgerId, TopicId
from logstore.stop_checks import use_stop_check
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

UUID = "01234567-89ab-4cde-8f01-23456789abcd"
LEDGER = LedgerId(7)
DATA, INDEX = data_key(UUID, LEDGER), index_key(UUID, LEDGER)
NOW_US = 1_750_000_000_000_000
INTENT = DeletionIntent(
    row_id=1,
    batch_id="b",
    ledger_id=LEDGER,
    copy=CopyKind.OFFLOADED_LEDGER,
    generation=1,
    application="sexton",
    component="MANAGED_LEDGER",
    topic_id=TopicId(3),
    topic="persistent://a/b/topic",
    keys={},
    context={"uuid": UUID, "bucket": "cold"},
    segments=2,
    last_segment=1,
    ledger_created_us=5,
)
OWN = LedgerStatement(owner=INTENT.owner, ledger_id=LEDGER, created_us=5, epoch=1).to_metadata()


class Blind(FakeObjectStore):
    """A store whose listings leave out keys, as if that were all."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: set[str] = set()

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        yield from (
            one
            for one in super().list(prefix, start_after=start_after, first_page=first_page)
            if one.key not in self.hidden
        )


@pytest.fixture
def objects() -> Blind:
    """A bucket with another ledger's pair, whose id this one's begins."""
    made = Blind()
    put(made, data_key(UUID.replace("0", "f"), LEDGER), index_key(UUID.replace("0", "f"), LEDGER))
    return made


def put(objects: FakeObjectStore, *keys: str, metadata: Mapping[str, str] | None = None) -> None:
    for key in keys:
        objects.put_if_absent(key, b"12345", metadata=OWN if metadata is None else metadata)


def copies(objects: FakeObjectStore, *, now_us: int = NOW_US, bucket: str = "cold") -> TieredCopyStorage:
    return TieredCopyStorage({CopyLocation(bucket): objects}.__getitem__, now_us=lambda: now_us)


def inspect(objects: FakeObjectStore, intent: DeletionIntent = INTENT) -> StoredCopy:
    return copies(objects).inspect_copy(intent)


def remove(objects: FakeObjectStore, copy: StoredCopy) -> tuple[CopyRemovalResult, list[int]]:
    told: list[int] = []
    return copies(objects).remove_copies({1: copy}, on_progress=told.append)[1], told


def with_end(seconds: float) -> DeletionIntent:
    """An intent whose upload sends its last request so long from now."""
    return replace(INTENT, context={**INTENT.context, "until_us": str(NOW_US + round(seconds * 1_000_000))})


def test_pair_that_is_ours_is_removed_data_first(objects: Blind) -> None:
    """Two keys, confirmed one by one, the index last; a neighbour's stay (promise 3)."""
    put(objects, DATA, INDEX)
    found = inspect(objects)
    assert (found.verdict, found.data_keys, found.meta_keys, found.size_bytes) == (
        CopyVerdict.OWN,
        (DATA,),
        (INDEX,),
        10,
    )
    assert remove(objects, found) == (CopyRemovalResult(objects=2, size_bytes=10), [1, 1])
    assert [key for op, key in objects.calls if op is StoreOperation.DELETE] == [DATA, INDEX]
    assert inspect(objects).verdict is CopyVerdict.ABSENT
    assert len(objects.keys) == 2


@pytest.mark.parametrize("left", [DATA, INDEX])
def test_half_a_pair_is_still_ours(objects: Blind, left: str) -> None:
    """An upload that died after the data, a deletion that died after it: each says whose it is."""
    put(objects, left)
    found = inspect(objects)
    assert found.verdict is CopyVerdict.OWN
    assert remove(objects, found)[0] == CopyRemovalResult(objects=1, size_bytes=5)
    assert inspect(objects).verdict is CopyVerdict.ABSENT


def test_absence_needs_two_independent_reads(objects: Blind) -> None:
    """An empty listing alone proves nothing (apache/bookkeeper#870)."""
    put(objects, DATA, INDEX)
    objects.hidden = {DATA, INDEX}
    with pytest.raises(StoreUnavailable, match="LIST finds"):
        inspect(objects)
    objects.hidden = {INDEX}
    assert inspect(objects).meta_keys == (INDEX,)  # HEAD sees what a listing lacks


def test_listing_of_what_head_denies_is_asked_again(objects: Blind) -> None:
    """What cannot be asked whose it is is not deleted."""
    put(objects, DATA)
    objects.plan(Fault(operation=StoreOperation.HEAD, kind=FaultKind.CALL, action=objects._held.clear))
    with pytest.raises(StoreUnavailable, match="asking again"):
        inspect(objects)
    assert inspect(objects).verdict is CopyVerdict.ABSENT


@pytest.mark.parametrize("key", [DATA, INDEX])
@pytest.mark.parametrize(
    "change",
    [{"topic-id": "4"}, {"application": "other"}, {"ledger-id": "8"}, {"created-us": "6"}, {"component": "SCHEMA"}],
)
def test_object_that_states_another_owner_is_foreign(objects: Blind, key: str, change: dict[str, str]) -> None:
    """A forged or stale request must not delete someone else's copy (PIP-186): either object may say so."""
    put(objects, *({DATA, INDEX} - {key}))
    put(objects, key, metadata=OWN | change)
    found = inspect(objects)
    assert (found.verdict, key in found.detail) == (CopyVerdict.FOREIGN, True)


def test_object_without_a_statement_is_foreign(objects: Blind) -> None:
    """Nothing says that it is ours."""
    put(objects, DATA, metadata={"note": "mine"})
    assert inspect(objects).verdict is CopyVerdict.FOREIGN


@pytest.mark.parametrize("stranger", [f"{DATA}1", f"{DATA}-index2", f"{DATA}/part", f"{INDEX}.bak"])
def test_unknown_key_under_the_prefix_is_foreign(objects: Blind, stranger: str) -> None:
    """Two exact keys are ours and nothing else: neither ledger 71 nor another application's file."""
    put(objects, DATA, INDEX, stranger)
    found = inspect(objects)
    assert (found.verdict, stranger in found.detail) == (CopyVerdict.FOREIGN, True)


@pytest.mark.parametrize("seconds", [2_700, 0, 1 - UPLOAD_GRACE_S])
def test_copy_whose_upload_may_go_on_is_not_touched(objects: Blind, seconds: float) -> None:
    """What is deleted while an upload is open could come back; the error says when to ask again."""
    put(objects, DATA)
    with pytest.raises(UploadOpen, match=UUID) as raised:
        inspect(objects, with_end(seconds))
    assert raised.value.after_s == pytest.approx(seconds + UPLOAD_GRACE_S)
    assert [op for op, _ in objects.calls if op is not StoreOperation.PUT] == []


def test_copy_whose_upload_is_over_is_removed(objects: Blind) -> None:
    """A minute after the last request was sent."""
    put(objects, DATA)
    found = inspect(objects, with_end(-UPLOAD_GRACE_S))
    assert remove(objects, found)[0].error is None


def test_upload_end_that_cannot_be_read_keeps_everything(objects: Blind) -> None:
    """Every error but a definite absence means keep."""
    with pytest.raises(CorruptData, match="until_us"):
        inspect(objects, replace(INTENT, context={**INTENT.context, "until_us": "soon"}))


def test_parts_of_a_dead_upload_are_freed_with_its_copy(objects: Blind) -> None:
    """No listing shows them: a copy of which only parts are left is not gone."""
    objects.unfinished = {DATA, f"{DATA}9", "other"}
    found = inspect(objects, with_end(-UPLOAD_GRACE_S))
    assert (found.verdict, found.uploads) == (CopyVerdict.OWN, (DATA,))
    assert remove(objects, found)[0] == CopyRemovalResult()
    assert objects.unfinished == {f"{DATA}9", "other"}
    assert inspect(objects, with_end(-UPLOAD_GRACE_S)).verdict is CopyVerdict.ABSENT


def test_freeing_the_parts_of_dead_uploads_ends_between_two_of_them(objects: Blind) -> None:
    """A cancelled activity must not go through all of its page's uploads first."""
    objects.unfinished = {DATA, INDEX}
    found = inspect(objects, with_end(-UPLOAD_GRACE_S))

    def end() -> None:
        if any(operation is StoreOperation.ABORT for operation, _ in objects.calls):
            raise InterruptedError

    with use_stop_check(end), pytest.raises(InterruptedError):
        remove(objects, found)
    assert len(objects.unfinished) == 1


def test_published_copy_is_not_asked_for_parts(objects: Blind) -> None:
    """Its upload was finished: one request less for each ledger."""
    put(objects, DATA, INDEX)
    inspect(objects)
    assert StoreOperation.UPLOADS not in {op for op, _ in objects.calls}


def test_key_that_the_store_keeps_is_reported(objects: Blind) -> None:
    """The bulk remove stopped working and failed silently (apache/pulsar#14693): what counts is the key's result."""
    put(objects, DATA, INDEX)
    objects.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key == DATA)
    )
    removal, _ = remove(objects, inspect(objects))
    assert removal.error is not None
    assert DATA in removal.error
    assert set(objects.keys) >= {DATA, INDEX}  # the index stays as long as data does
    assert remove(objects, inspect(objects))[0].error is None


def test_copies_of_several_buckets_are_removed_each_where_it_stands() -> None:
    """The context of the intent names the location, whatever the settings say by now (apache/pulsar#16687)."""
    old, new = FakeObjectStore(), FakeObjectStore()
    there = CopyLocation("cold", "https://other.example:9000", "eu-1")
    storage = TieredCopyStorage({CopyLocation("cold"): old, there: new}.__getitem__, now_us=lambda: NOW_US)
    stated = {"endpoint": "https://other.example:9000/", "region": "eu-1", "driver": "aws-s3"}
    second = replace(INTENT, row_id=2, context={"uuid": UUID, "bucket": "cold", **stated})
    first = replace(INTENT, context={"uuid": UUID, "bucket": "cold"})
    for store in (old, new):
        put(store, DATA, INDEX)
    found = {row.row_id: storage.inspect_copy(row) for row in (first, second)}
    done = storage.remove_copies(found, on_progress=lambda _: None)
    assert {row: removal.objects for row, removal in done.items()} == {1: 2, 2: 2}
    assert (old.keys, new.keys) == ([], [])


def test_remove_of_nothing_asks_nothing(objects: Blind) -> None:
    """No copies, no requests."""
    before = len(objects.calls)
    assert copies(objects).remove_copies({}, on_progress=lambda _: None) == {}
    assert len(objects.calls) == before


def test_owner_of_the_intent_is_that_of_the_statement() -> None:
    """The digest covers application, component and all keys."""
    owner = LedgerOwner(
        application="sexton", component=Component.MANAGED_LEDGER, topic_id=TopicId(3), topic=INTENT.topic, keys={}
    )
    assert owner.digest == INTENT.owner.digest


def test_absence_is_doubted_in_each_bucket_that_is_not_the_catalogs() -> None:
    """Each bucket is asked once; a copy in a bucket that is ours is gone."""
    ours, theirs = FakeObjectStore(), FakeObjectStore()
    theirs.refusal = CatalogMismatch("bucket theirs", expected="ours", found="no marker", advice="look")
    storage = TieredCopyStorage(
        {CopyLocation("ours"): ours, CopyLocation("theirs"): theirs}.__getitem__, now_us=lambda: NOW_US
    )
    rows = [(1, "ours"), (2, "theirs"), (3, "theirs")]
    absent = [replace(INTENT, row_id=row, context={"uuid": UUID, "bucket": bucket}) for row, bucket in rows]
    assert storage.prove_absence(absent) == {2: theirs.refusal, 3: theirs.refusal}
    assert storage.prove_absence([]) == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bucket": "Odd Bucket!"}, "bucket"),
        ({"bucket": "arn:aws:s3:::b"}, "bucket"),
        ({"uuid": "a/../b"}, "uuid"),
        ({"uuid": "a\\b"}, "uuid"),
        ({"endpoint": "file:///etc"}, "endpoint"),
        ({"endpoint": "http://user:secret@host"}, "endpoint"),
        ({"region": "no region"}, "region"),
        ({"driver": "google-cloud-storage"}, "driver"),
    ],
)
def test_intent_whose_context_names_no_place_is_invalid_at_once(change: dict[str, str], told: str) -> None:
    """It was bad input that nobody retried to an end; storage is not asked, and a person reads which field it is."""
    outcome, why = find_refusal(replace(INTENT, context={**INTENT.context, **change})) or (None, "")
    assert outcome is Outcome.INVALID
    assert why.startswith(f"offload context: {told}: expected ")
    with pytest.raises(CorruptData, match=told):
        copies(FakeObjectStore()).inspect_copy(replace(INTENT, context={**INTENT.context, **change}))
