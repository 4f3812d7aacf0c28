"""Buckets are compared before their first use, adopted once with evidence, and asked again before absence counts."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO

import pytest

from logstore import failpoints
from logstore.deletion.intents import CopyVerdict, DeletionState, StoredCopy
from logstore.deletion.retention import RetentionPolicy
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.errors import CatalogMismatch, CatalogOutdated, StoreUnavailable, UploadUnproven
from logstore.failpoints import SimulatedCrash
from logstore.identity.bucket_markers import MARKER_KEY, BucketRole, MarkerState, NamedBucket, marker_content
from logstore.identity.services.marker_checked_buckets import (
    MAX_UNANSWERED_S,
    LostCatalogIdentity,
    MarkerCheckedBucket,
)
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import CopyKind, CopyState
from logstore.offload.tiered_copy import index_key
from logstore.ports.object_storage import StoredObject
from logstore.positions import LedgerId, TopicId
from logstore.records.manifest import manifest_key
from tests.all_topics import list_all_topics
from tests.fakes.catalog import Copy, FakeCatalog
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.eventually import assert_eventually

LOGS = NamedBucket(role=BucketRole.PRIMARY, bucket="logs", address="http://store")
COLD = NamedBucket(role=BucketRole.TIERED, bucket="cold", address="http://store")
RECORDS = NamedBucket(role=BucketRole.RECORDS, bucket="records", address="http://store")
UUID = "01234567-89ab-4cde-8f01-23456789abcd"
THEIRS = "ffffffff-0000-4000-8000-00000000000b"


@pytest.fixture
def catalog() -> FakeCatalog:
    """An empty catalog."""
    return FakeCatalog()


@pytest.fixture
def bucket() -> FakeObjectStore:
    """An empty bucket."""
    return FakeObjectStore()


def own(catalog: FakeCatalog, bucket: FakeObjectStore, named: NamedBucket = LOGS) -> MarkerCheckedBucket:
    """The bucket as a process of its own uses it."""
    return MarkerCheckedBucket(catalog.identities, named, lambda: bucket)


def ledger(catalog: FakeCatalog, *stores: FakeObjectStore, created_us: int | None = None) -> LedgerId:
    """A live ledger of a topic, with its statement in these buckets."""
    topics = list_all_topics(catalog.topics)
    topic = topics[0] if topics else catalog.topics.create_topic("persistent://a/b/topic", RetentionPolicy())
    made = catalog.ledgers.create_ledger(topic.topic_id, application="sexton")
    last = catalog.ledgers.last_ledger(topic.topic_id)
    assert catalog.ledgers.attach_ledger(made.ledger_id, after=last.ledger_id if last else None)
    facts = made.to_metadata() | ({} if created_us is None else {"created-us": str(created_us)})
    for store in stores:
        store.put_if_absent(meta_key(made.ledger_id, made.owner), made.to_json(), metadata=facts)
    return made.ledger_id


def offload(catalog: FakeCatalog, ledger_id: LedgerId, store: FakeObjectStore | None, *, cold: str = "cold") -> None:
    """A live tiered copy of it."""
    context = {"uuid": UUID, "bucket": cold}
    catalog.copies[ledger_id][CopyKind.OFFLOADED_LEDGER] = Copy(state=CopyState.LIVE, context=context)
    if store:
        facts = catalog.statements[ledger_id].to_metadata()
        store.put_if_absent(index_key(UUID, ledger_id), b"index", metadata=facts)


def marker(bucket: FakeObjectStore) -> bytes | None:
    """What the bucket carries."""
    found = bucket.get(MARKER_KEY)
    return found.body if found else None


def test_new_catalog_marks_its_empty_bucket_once_and_records_it(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """The first use adopts; the next ones send nothing more than they are asked for."""
    bucket.put_if_absent("readme.txt", b"somebody else's", metadata={})
    store = own(catalog, bucket)
    assert list(store.list("ledgers/")) == []
    assert marker(bucket) == marker_content(catalog.catalog_id)
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}
    calls = len(bucket.calls)
    store.head("x")
    assert bucket.calls[calls:] == [(StoreOperation.HEAD, "x")]


def cut_answers(bucket: FakeObjectStore, times: int, *, body: bytes | None = b'{"cata') -> None:
    """Let so many reads of the marker be cut off, or find nothing, though it is whole."""
    real, left = bucket.get, [times]

    def get(key: str) -> StoredObject | None:
        found = real(key)
        if key != MARKER_KEY or found is None or not left[0]:
            return found
        left[0] -= 1
        return None if body is None else replace(found, body=body)

    bucket.get = get  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "use", [lambda store: store.require_ownership_once(), lambda store: store.require_ownership_now()]
)
def test_marker_whose_answer_was_cut_off_is_read_again(
    use: Callable[[MarkerCheckedBucket], object], catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """One answer that a gateway chopped said that the bucket is another catalog's, and ended jobs for good."""
    own(catalog, bucket).require_ownership_once()
    cut_answers(bucket, 2)
    use(own(catalog, bucket))


@pytest.mark.parametrize("body", [b"", b'{"cata', None], ids=["empty", "cut", "absent"])
def test_marker_that_head_shows_otherwise_is_asked_for_later(
    body: bytes | None, catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Its length says that the answers are not the object: that may pass, and refuses no bucket."""
    own(catalog, bucket).require_ownership_once()
    cut_answers(bucket, 1_000, body=body)
    for use in (
        own(catalog, bucket).require_ownership_once,
        own(catalog, bucket).require_ownership_now,
        lambda: LostCatalogIdentity.read_from_bucket(LOGS, bucket),
    ):
        with pytest.raises(StoreUnavailable, match="expected answers that agree"):
            use()


def test_marker_that_is_damaged_in_storage_is_nobodys(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """All answers agree on it: a person must look, and a rebuild takes its first bytes for no catalog's id."""
    bucket.put_if_absent(MARKER_KEY, b'{"cata', metadata={})
    with pytest.raises(CatalogMismatch, match="unreadable"):
        own(catalog, bucket).require_ownership_once()
    with pytest.raises(CatalogMismatch, match="unreadable"):
        LostCatalogIdentity.read_from_bucket(LOGS, bucket)


def test_marker_that_was_answered_and_not_stored_is_not_recorded(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """Recorded, it would make the bucket a lost one for good; the next use puts it."""
    bucket.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST))
    with pytest.raises(UploadUnproven, match="not there"):
        own(catalog, bucket).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == frozenset()
    own(catalog, bucket).require_ownership_once()
    assert marker(bucket) == marker_content(catalog.catalog_id)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.put_if_absent("k", b"", metadata={}),
        lambda store: store.put_file_if_absent("k", None, metadata={}, require_may_proceed=lambda: None),
        lambda store: store.list_open_uploads("k"),
        lambda store: store.abort_uploads("k"),
        lambda store: store.get("k"),
        lambda store: store.get_range("k", 0, 1),
        lambda store: store.head("k"),
        lambda store: list(store.list("k")),
        lambda store: list(store.list_folder("k")),
        lambda store: store.delete(["k"]),
        lambda store: store.require_ownership_once(),
        lambda store: store.require_ownership_now(),
    ],
)
def test_bucket_of_another_catalog_is_refused_at_every_use(
    use: Callable[[MarkerCheckedBucket], object], catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """No request but that for the marker is sent, however often it is tried."""
    bucket.put_if_absent(MARKER_KEY, marker_content(THEIRS), metadata={})
    store, calls = own(catalog, bucket), len(bucket.calls)
    for _ in range(2):
        with pytest.raises(CatalogMismatch, match=f"expected the marker of catalog {catalog.catalog_id}.*{THEIRS}"):
            use(store)
    assert set(bucket.calls[calls:]) == {(StoreOperation.GET, MARKER_KEY)}
    assert catalog.identities.list_marked_buckets() == frozenset()


class _Catalog:
    """Whether a catalog is still the one, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = 0
        self.refuses: Exception | None = None

    def still_current(self) -> None:
        self.asked += 1
        if self.refuses:
            raise self.refuses

    def own(self, catalog: FakeCatalog, bucket: FakeObjectStore) -> MarkerCheckedBucket:
        return MarkerCheckedBucket(
            catalog.identities, LOGS, lambda: bucket, self.still_current, now_s=lambda: self.now_s
        )


@pytest.mark.parametrize("remove", [lambda store: store.delete(["k"]), lambda store: store.abort_uploads("k")])
@pytest.mark.parametrize("refuses", [CatalogOutdated("another"), StoreUnavailable("no answer")])
def test_nothing_is_removed_unless_the_catalog_is_the_one_at_that_moment(
    remove: Callable[[MarkerCheckedBucket], object], refuses: Exception, catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """A database was rebuilt while this process lived on; what gives no answer is no leave to remove anything."""
    asked = _Catalog()
    store = asked.own(catalog, bucket)
    store.put_if_absent("k", b"", metadata={})
    remove(store)
    asked.refuses, calls = refuses, len(bucket.calls)
    with pytest.raises(type(refuses)):
        remove(store)
    assert bucket.calls[calls:] == []


def test_each_removal_asks_once_whether_the_catalog_is_the_one(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """The first one of a process, too, which compares the bucket; and one that takes several requests."""
    asked = _Catalog()
    store = asked.own(catalog, bucket)
    store.delete(["k"])
    assert asked.asked == 1
    copy = StoredCopy(verdict=CopyVerdict.OWN, data_keys=("ledgers/00/1/a",), meta_keys=("ledgers/00/1/b",))
    PrimaryCopyStorage(store).remove_copies({1: copy}, on_progress=lambda _: None)
    assert asked.asked == 2
    store.begin_removal().delete(["k"])
    assert asked.asked == 3


def test_catalog_is_asked_again_from_time_to_time_whether_it_is_the_one(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Uses in between send nothing more; once it is not the one, no use is let through any more."""
    asked = _Catalog()
    store = asked.own(catalog, bucket)
    for _ in range(3):
        store.head("k")
    assert asked.asked == 1
    asked.refuses = CatalogOutdated("another")
    asked.now_s += 29
    store.head("k")
    asked.now_s += 1
    for _ in range(2):
        with pytest.raises(CatalogOutdated):
            store.put_if_absent("k", b"", metadata={})


def test_record_log_that_does_not_answer_stops_no_append(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """It is asked again half a minute later."""
    asked = _Catalog()
    store = asked.own(catalog, bucket)
    store.require_ownership_once()
    asked.refuses = StoreUnavailable("no answer")
    asked.now_s += 30
    for _ in range(3):
        store.head("k")
    assert asked.asked == 2
    asked.now_s += 30
    store.head("k")
    assert asked.asked == 3


def test_process_whose_questions_get_no_answer_writes_no_longer_than_a_rebuild_waits(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """It counts from the question that was answered, and reads go on. Each upload asks until there is an answer."""
    asked = _Catalog()
    store = asked.own(catalog, bucket)
    store.require_ownership_once()
    asked.refuses = StoreUnavailable("no answer")
    asked.now_s += MAX_UNANSWERED_S - 1
    store.put_if_absent("in time", b"", metadata={})
    asked.now_s += 1
    store.head("in time")
    questions = asked.asked
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="no answer"):
            store.put_if_absent("late", b"", metadata={})
        with pytest.raises(StoreUnavailable, match="no answer"):
            store.put_file_if_absent("late", BytesIO(b""), metadata={}, require_may_proceed=lambda: None)
    assert asked.asked == questions + 4
    assert "late" not in bucket.keys
    asked.refuses = None
    store.put_if_absent("late", b"", metadata={})
    assert "late" in bucket.keys


@pytest.mark.parametrize("refuses", [None, StoreUnavailable("no answer")])
def test_parallel_uploads_after_an_idle_minute_share_one_question(
    refuses: Exception | None, catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """A question takes a LIST and a GET or more, and where no answer comes, uploads do not wait one after the other."""
    asked, uploads, clock_reads = _Catalog(), 16, Counter[int]()

    def read_clock() -> float:
        clock_reads[threading.get_ident()] += 1
        return asked.now_s

    def ask_behind_all() -> None:
        """Answer once each upload has seen that the last answer is too old: at its second look at the clock."""
        if asked.asked:
            assert_eventually(lambda: len(clock_reads) == uploads and min(clock_reads.values()) > 1, within_s=60)
        asked.still_current()

    store = MarkerCheckedBucket(catalog.identities, LOGS, lambda: bucket, ask_behind_all, now_s=read_clock)
    store.require_ownership_once()
    clock_reads.clear()
    asked.now_s += MAX_UNANSWERED_S + 1
    asked.refuses = refuses
    with ThreadPoolExecutor(uploads) as pool:
        errors = list(pool.map(lambda number: _upload_error(store, f"k{number}"), range(uploads)))
    assert asked.asked == 2
    if refuses is None:
        assert errors == [None] * uploads
    else:
        assert all(isinstance(error, StoreUnavailable) and "no answer" in str(error) for error in errors)
        assert not any(key.startswith("k") for key in bucket.keys)


def _upload_error(store: MarkerCheckedBucket, key: str) -> Exception | None:
    try:
        store.put_if_absent(key, b"", metadata={})
    except StoreUnavailable as error:
        return error
    return None


def test_answer_that_came_late_counts_from_its_question(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """A rebuild may have put its manifest right behind the question."""
    asked = _Catalog()
    slow = MarkerCheckedBucket(
        catalog.identities, LOGS, lambda: bucket, lambda: _pass_and_ask(asked, 29), now_s=lambda: asked.now_s
    )
    slow.require_ownership_once()
    asked.refuses = CatalogOutdated("another")
    asked.now_s += 1
    with pytest.raises(CatalogOutdated):
        slow.put_if_absent("k", b"", metadata={})


def _pass_and_ask(asked: _Catalog, seconds: float) -> None:
    asked.now_s += seconds
    asked.still_current()


def test_another_empty_bucket_is_refused_by_name(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """A worker with a wrong setting, or at a wrong endpoint, never takes a new bucket for its own."""
    own(catalog, bucket).require_ownership_once()
    with pytest.raises(
        CatalogMismatch, match=r"bucket other at .*found no marker; this catalog's primary bucket is logs"
    ):
        own(
            catalog, FakeObjectStore(), NamedBucket(role=BucketRole.PRIMARY, bucket="other", address="http://store")
        ).require_ownership_once()
    with pytest.raises(CatalogMismatch, match=r"bucket logs at http://store.*another store answers at this address"):
        own(catalog, FakeObjectStore()).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


def test_bucket_that_moved_with_its_marker_is_accepted_and_recorded(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """A copy of the whole bucket is this catalog's wherever it stands."""
    own(catalog, bucket).require_ownership_once()
    moved = FakeObjectStore()
    moved.put_if_absent(MARKER_KEY, marker_content(catalog.catalog_id), metadata={})
    own(
        catalog, moved, NamedBucket(role=BucketRole.PRIMARY, bucket="new", address="http://new")
    ).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs"), (BucketRole.PRIMARY, "new")}


def test_bucket_of_another_role_is_refused_although_its_marker_is_ours(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Settings that name two buckets the wrong way round would have every ledger taken for gone."""
    cold = FakeObjectStore()
    own(catalog, bucket).require_ownership_once()
    own(catalog, cold, COLD).require_ownership_once()
    wrong = own(catalog, cold, NamedBucket(role=BucketRole.PRIMARY, bucket="cold", address="http://store"))
    with pytest.raises(CatalogMismatch, match=r"found the marker of its tiered bucket; .*primary bucket is logs"):
        list(wrong.list("ledgers/"))
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs"), (BucketRole.TIERED, "cold")}


@pytest.mark.parametrize("known", [True, False])
def test_bucket_that_a_process_of_ours_marks_and_fills_meanwhile_is_ours(
    known: bool, catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """The first append of another process is no ledger of others, though it was not known when the catalog was read."""
    first = ledger(catalog) if known else None

    def another() -> None:
        if first is None:
            own(catalog, bucket).require_ownership_once()
            ledger(catalog, bucket)
        else:
            bucket.put_if_absent(MARKER_KEY, marker_content(catalog.catalog_id), metadata={})

    operation = StoreOperation.HEAD if known else StoreOperation.LIST
    bucket.plan(Fault(operation=operation, kind=FaultKind.CALL, action=another))
    own(catalog, bucket).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


def test_upgrade_adopts_a_bucket_that_holds_what_the_catalog_wrote(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """One statement that is there is enough: a ledger that lost its objects keeps nobody out."""
    ledger(catalog, bucket)
    ledger(catalog)
    own(catalog, bucket).require_ownership_once()
    assert marker(bucket) == marker_content(catalog.catalog_id)


def test_upgrade_with_everything_on_its_way_out_adopts_by_what_is_left(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """A catalog without a live ledger has its intents for evidence."""
    gone = ledger(catalog, bucket)
    catalog.detach(TopicId(1), [gone])
    ((row_id, row),) = catalog.intent_rows.items()
    catalog.intent_rows[row_id] = replace(row, segments=2)
    with pytest.raises(CatalogMismatch, match="expected one of 1 ledgers that this catalog has there, found none"):
        own(catalog, FakeObjectStore()).require_ownership_once()
    own(catalog, bucket).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


def test_upgrade_with_nothing_but_dead_letters_adopts_by_what_is_left(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Their objects are no ledgers of others; what storage says of them may be another's, so none must be there."""
    dead = ledger(catalog, bucket)
    catalog.detach(TopicId(1), [dead])
    ((row_id, row),) = catalog.intent_rows.items()
    catalog.intent_rows[row_id] = replace(row, segments=2, state=DeletionState.DEAD_LETTERED)
    own(catalog, bucket).require_ownership_once()
    assert marker(bucket) == marker_content(catalog.catalog_id)
    catalog.markers.clear()
    own(catalog, FakeObjectStore()).require_ownership_once()


@pytest.mark.parametrize("context", [{}, {"uuid": UUID, "bucket": "cold", "until_us": "1"}])
def test_copies_that_may_never_have_been_stored_keep_no_bucket_out(
    context: dict[str, str], catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """A newborn whose creator died, an upload that died: an empty bucket may be theirs, one with ledgers is not."""
    named = COLD if context else LOGS
    catalog.detach(TopicId(1), [ledger(catalog)])
    ((row_id, row),) = catalog.intent_rows.items()
    kind = CopyKind.OFFLOADED_LEDGER if context else CopyKind.LEDGER
    catalog.intent_rows[row_id] = replace(row, copy=kind, context=context, segments=2 if context else 0)
    strange = FakeObjectStore()
    strange.put_if_absent("x-ledger-9" if context else "ledgers/00/x", b"", metadata={})
    with pytest.raises(CatalogMismatch, match="expected nothing yet"):
        own(catalog, strange, named).require_ownership_once()
    own(catalog, bucket, named).require_ownership_once()


def test_upgrade_refuses_a_bucket_that_lacks_all_live_ledgers(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """An empty bucket is the worst one to be taken for ours: everything would seem to be gone."""
    ledger(catalog)
    with pytest.raises(CatalogMismatch, match="expected one of 1 ledgers that this catalog has there, found none"):
        own(catalog, bucket).require_ownership_once()
    assert (marker(bucket), catalog.identities.list_marked_buckets()) == (None, frozenset())


def test_upgrade_refuses_a_bucket_whose_statement_contradicts_a_live_ledger(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Ids and names may be equal in another catalog; times of birth are not."""
    ledger(catalog, bucket)
    ledger(catalog, bucket, created_us=1)
    with pytest.raises(CatalogMismatch, match=r"expected what this catalog wrote, found that .* of another ledger"):
        own(catalog, bucket).require_ownership_once()
    assert marker(bucket) is None


def test_new_catalog_refuses_a_bucket_with_ledgers_of_others(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """A database that was lost and made anew does not take the old one's store."""
    bucket.put_if_absent("ledgers/00/0000000000000000/00000000.parquet", b"", metadata={})
    with pytest.raises(CatalogMismatch, match=r"expected nothing yet.*found 'ledgers/00/"):
        own(catalog, bucket).require_ownership_once()
    assert marker(bucket) is None


@pytest.mark.parametrize("strange", [segment_key(LedgerId(0), 0), segment_key(LedgerId(700), 3)])
def test_new_catalog_refuses_a_bucket_whose_first_listing_hides_ledgers_of_others(
    catalog: FakeCatalog, bucket: FakeObjectStore, strange: str
) -> None:
    """It is listed again."""
    bucket.put_if_absent(strange, b"", metadata={})
    bucket.unlisted = {"ledgers/": 1}
    with pytest.raises(CatalogMismatch, match=rf"expected nothing yet.*found '{strange}'"):
        own(catalog, bucket).require_ownership_once()
    assert marker(bucket) is None


@pytest.mark.parametrize(
    ("named", "first"),
    [(LOGS, segment_key(LedgerId(0), 0)), (RECORDS, "records/registers/begun"), (RECORDS, manifest_key(1))],
    ids=["primary", "records", "records of an earlier build"],
)
def test_new_catalog_refuses_a_bucket_that_holds_what_a_catalog_puts_first_though_no_listing_shows_it(
    catalog: FakeCatalog, bucket: FakeObjectStore, named: NamedBucket, first: str
) -> None:
    """It is asked for by HEAD."""
    bucket.put_if_absent(first, b"", metadata={})
    bucket.unlisted = {named.role.prefix: 1_000}
    with pytest.raises(CatalogMismatch, match=rf"expected nothing yet.*found '{first}'"):
        own(catalog, bucket, named).require_ownership_once()
    assert marker(bucket) is None


def test_new_catalog_refuses_a_record_log_of_an_earlier_build_whose_first_manifest_was_swept(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """It has no mark, and its manifests are listed."""
    bucket.put_if_absent(manifest_key(250), b"", metadata={})
    with pytest.raises(CatalogMismatch, match=rf"expected nothing yet.*found '{manifest_key(250)}'"):
        own(catalog, bucket, RECORDS).require_ownership_once()


def test_tiered_bucket_is_adopted_by_the_copies_whose_context_names_it(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """Copies of another bucket are no evidence; a bucket with pairs of others is refused."""
    one = ledger(catalog)
    offload(catalog, one, bucket)
    own(catalog, bucket, COLD).require_ownership_once()
    new = NamedBucket(role=BucketRole.TIERED, bucket="newer", address="http://store")
    own(catalog, FakeObjectStore(), new).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.TIERED, "cold"), (BucketRole.TIERED, "newer")}
    strange = FakeObjectStore()
    strange.put_if_absent(index_key(UUID, LedgerId(9)), b"", metadata={})
    with pytest.raises(CatalogMismatch, match="expected nothing yet"):
        own(
            catalog, strange, NamedBucket(role=BucketRole.TIERED, bucket="strange", address="")
        ).require_ownership_once()


def test_tiered_bucket_that_lacks_its_live_copies_is_refused(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """As the primary one."""
    offload(catalog, ledger(catalog), None)
    with pytest.raises(CatalogMismatch, match="tiered bucket cold"):
        own(catalog, bucket, COLD).require_ownership_once()


def test_process_that_dies_between_marker_and_row_leaves_a_bucket_that_names_its_catalog(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """The next one records it; another catalog is refused meanwhile."""
    for point in ("identity.put_marker.after", "identity.record_marker.before"):
        failpoints.arm(point, "crash")
        with pytest.raises(SimulatedCrash):
            own(catalog, bucket).require_ownership_once()
        failpoints.disarm_all_and_take_hits()
        assert (marker(bucket), catalog.identities.list_marked_buckets()) == (
            marker_content(catalog.catalog_id),
            frozenset(),
        )
    other = FakeCatalog()
    other.catalog_id = THEIRS
    with pytest.raises(CatalogMismatch):
        own(other, bucket).require_ownership_once()
    own(catalog, bucket).require_ownership_once()
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


@pytest.mark.parametrize("point", ["identity.put_marker.reported_failed", "identity.record_marker.reported_failed"])
def test_effect_that_is_reported_as_failed_is_found_done(
    point: str, catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """The comparison is made again at the next use, by the same process."""
    store = own(catalog, bucket)
    failpoints.arm(point, "fail")
    with pytest.raises(StoreUnavailable):
        store.head("x")
    assert store.head("x") is None
    assert marker(bucket) == marker_content(catalog.catalog_id)
    assert catalog.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


def test_two_catalogs_that_adopt_at_once_end_with_one(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """The marker is put with If-None-Match: the loser is refused by the winner's name."""
    other = FakeCatalog()
    other.catalog_id = THEIRS

    def first() -> None:
        own(other, bucket).require_ownership_once()

    race = Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, matches=lambda key: key == MARKER_KEY, action=first)
    bucket.plan(race)
    with pytest.raises(CatalogMismatch, match=THEIRS):
        own(catalog, bucket).require_ownership_once()
    assert not catalog.identities.list_marked_buckets()
    assert other.identities.list_marked_buckets() == {(BucketRole.PRIMARY, "logs")}


def test_processes_of_one_catalog_that_adopt_at_once_all_may_go_on(
    catalog: FakeCatalog, bucket: FakeObjectStore
) -> None:
    """The marker's content is the same for all of them."""
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: own(catalog, bucket).head("x"), range(32)))
    assert done == [None] * 32
    assert marker(bucket) == marker_content(catalog.catalog_id)


def test_confirm_reads_the_marker_again(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """What was seen at the start says nothing of a store that answers at the address now."""
    store = own(catalog, bucket)
    store.require_ownership_once()
    store.require_ownership_now()
    bucket.delete([MARKER_KEY])
    with pytest.raises(CatalogMismatch, match="found no marker; another store answers"):
        store.require_ownership_now()
    bucket.put_if_absent(MARKER_KEY, marker_content(THEIRS), metadata={})
    with pytest.raises(CatalogMismatch, match=THEIRS):
        store.require_ownership_now()


def test_look_tells_and_changes_nothing(catalog: FakeCatalog, bucket: FakeObjectStore) -> None:
    """For `status` and `doctor`."""
    store = MarkerCheckedBucket(catalog.identities, LOGS, lambda: bucket)
    assert store.require_ours_or_unmarked() is MarkerState.UNMARKED
    assert (marker(bucket), catalog.identities.list_marked_buckets()) == (None, frozenset())
    store.require_ownership_once()
    assert store.require_ours_or_unmarked() is MarkerState.OURS
    with pytest.raises(CatalogMismatch):
        MarkerCheckedBucket(catalog.identities, LOGS, FakeObjectStore).require_ours_or_unmarked()
