"""The contract of `ObjectStore`, over the fake and over a real SeaweedFS."""

import io
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest

from infra.objects.s3_store import S3ObjectStore
from logstore.errors import AlreadyExists, CorruptData, InvalidInput, OutcomeUnknown, ServiceRefused
from logstore.failpoints import SimulatedCrash
from logstore.ports.object_storage import ObjectStore, object_keys
from logstore.stop_checks import use_stop_check
from tests.contracts.objects.conftest import PART_BYTES
from tests.fakes.object_store import FakeObjectStore

LARGE = random.Random(7).randbytes(2 * PART_BYTES + 77)
ODD_KEYS = [
    "a b", " lead", "trail ", "a%b", "a%20b", "a%2Fb", "a~b", "a+b", "a&b", "a&amp;b", 'a"b', "a'b", "a<b>", "a?b=c",
    "a#b", "a;b,c", "a:b@c", "(a)[b]{c}", "a*|^`$!", "a\nb", "a\tb", "a\rb", "a\x7fb", "a\u2028b", "é", "e\u0301",
    "日本/語", "😀", "\uffee", "null", "0", "..x", "x..", "a.b.c", "-", "persistent%3A%2F%2Ft%2Fn%2Ftopic",
]  # fmt: skip
CONTROL_KEYS = ["a\x01b", "a\x1fb", "a\ufffeb"]  # XML cannot spell them
AMBIGUOUS_KEYS = ["a//b", "/a", "a/", "a/./b", "a/../b", ".", "..", "a\\b"]


def put(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put_if_absent(key, key.encode(), metadata={})


def test_put_if_absent_on_a_free_key_stores_body_and_metadata(store: ObjectStore) -> None:
    """What went in comes back: bytes, size and user metadata."""
    store.put_if_absent("a/b", b"\x00body\xff", metadata={"topic-id": "7", "application": "Sexton x=1"})
    stored = store.get("a/b")
    assert stored is not None
    assert (stored.key, stored.body) == ("a/b", b"\x00body\xff")
    assert stored.metadata == {"topic-id": "7", "application": "Sexton x=1"}
    found = store.head("a/b")
    assert found is not None
    assert (found[0].key, found[0].size_bytes) == ("a/b", 6)
    assert found[1] == stored.metadata


def test_put_if_absent_of_nothing_stores_an_empty_object(store: ObjectStore) -> None:
    """No bytes is a content like any other."""
    store.put_if_absent("empty", b"", metadata={})
    stored = store.get("empty")
    assert stored is not None
    assert stored.body == b""
    assert store.get_range("empty", 0, 10) == b""


@pytest.mark.parametrize(
    ("body", "metadata"), [(b"other", {"by": "a"}), (b"first", {"by": "b"}), (b"first", {}), (b"", {"by": "a"})]
)
def test_put_if_absent_on_a_key_with_another_object_changes_nothing(
    store: ObjectStore, body: bytes, metadata: dict[str, str]
) -> None:
    """Same length, same metadata or same content alone is not the same object."""
    store.put_if_absent("key", b"first", metadata={"by": "a"})
    with pytest.raises(AlreadyExists, match="key"):
        store.put_if_absent("key", body, metadata=metadata)
    stored = store.get("key")
    assert stored is not None
    assert (stored.body, stored.metadata) == (b"first", {"by": "a"})


def test_put_if_absent_of_the_very_same_object_counts_as_done(store: ObjectStore) -> None:
    """An upload whose answer was lost may be repeated."""
    store.put_if_absent("key", b"same", metadata={"by": "a"})
    store.put_if_absent("key", b"same", metadata={"by": "a"})


def test_put_if_absent_of_32_writers_at_once_has_exactly_one_winner(store: ObjectStore) -> None:
    """The conditional put decides races: one writer is told yes, and its bytes are the ones stored."""
    start = Barrier(32)

    def write(writer: int) -> int | None:
        start.wait()
        try:
            store.put_if_absent("contested", b"%02d" % writer, metadata={})
        except AlreadyExists:
            return None
        return writer

    with ThreadPoolExecutor(32) as threads:
        winners = [writer for writer in threads.map(write, range(32)) if writer is not None]
    stored = store.get("contested")
    assert stored is not None
    assert [stored.body] == [b"%02d" % writer for writer in winners]


@pytest.mark.parametrize("key", ["", "x" * 1025, "é" * 513, "a\0b", "a\ud800b", *AMBIGUOUS_KEYS])
def test_put_if_absent_under_a_key_that_some_store_confuses_is_refused(store: ObjectStore, key: str) -> None:
    """Field case 99: keys come back as they went in; those that cannot are refused before anything changes."""
    with pytest.raises(InvalidInput, match="object key"):
        store.put_if_absent(key, b"", metadata={})
    assert list(store.list("")) == []


@pytest.mark.parametrize("metadata", [{"Upper": "x"}, {"é": "x"}, {"": "x"}, {"a": ""}, {"a": " x"}, {"a": "é"},
                                      {"a": "x\ny"}, {"a": "x" * 2048}])  # fmt: skip
def test_put_if_absent_with_metadata_that_would_change_is_refused(store: ObjectStore, metadata: dict[str, str]) -> None:
    """Metadata names an object's owner: what does not come back as it went in is refused."""
    with pytest.raises(InvalidInput, match="metadata"):
        store.put_if_absent("key", b"", metadata=metadata)


def _put_file(
    store: ObjectStore, key: str, body: bytes, *, by: str = "a", proceed: Callable[[], None] = lambda: None
) -> None:
    store.put_file_if_absent(key, io.BytesIO(body), metadata={"by": by}, require_may_proceed=proceed)


@pytest.mark.parametrize("body", [b"", b"small", LARGE], ids=["empty", "small", "in parts"])
def test_put_file_stores_all_of_it_however_it_travels(store: ObjectStore, body: bytes) -> None:
    """One PUT or parts: bytes and metadata come back the same, wherever the file stood, and nothing is unfinished."""
    file = io.BytesIO(body)
    file.seek(len(body) // 2)
    store.put_file_if_absent("u-ledger-1", file, metadata={"by": "a"}, require_may_proceed=lambda: None)
    stored = store.get("u-ledger-1")
    assert stored is not None
    assert (stored.body == body, stored.metadata) == (True, {"by": "a"})
    assert store.list_open_uploads("") == []


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "in parts"])
def test_put_file_on_a_taken_key_changes_nothing_unless_it_is_the_same(store: ObjectStore, body: bytes) -> None:
    """An upload whose answer was lost may be repeated; another object stays, and no part of the loser does."""
    _put_file(store, "key", body)
    _put_file(store, "key", body)
    for other, by in ((body[:-1] + b"!", "a"), (body, "b"), (body[:-1], "a"), (body + b"!", "a")):
        with pytest.raises(AlreadyExists, match="key"):
            _put_file(store, "key", other, by=by)
    stored = store.get("key")
    assert stored is not None
    assert (stored.body == body, stored.metadata) == (True, {"by": "a"})
    assert store.list_open_uploads("") == []


@pytest.mark.parametrize(("body", "last"), [(b"small", 1), (LARGE, 1), (LARGE, 2)])
def test_put_file_that_may_not_proceed_leaves_nothing(store: ObjectStore, body: bytes, last: int) -> None:
    """An uploader past its deadline sends nothing more: no object appears, and no part of one is left."""
    asked: list[int] = []

    def proceed() -> None:
        asked.append(1)
        if len(asked) == last:
            raise OutcomeUnknown("too late")

    with pytest.raises(OutcomeUnknown, match="too late"):
        _put_file(store, "key", body, proceed=proceed)
    assert len(asked) == last
    assert (store.head("key"), store.list_open_uploads("")) == (None, [])


def test_abort_uploads_of_a_key_frees_its_parts_and_no_others(store: ObjectStore) -> None:
    """What a process that died in mid-upload has left is found by prefix and ended key by key, again if asked."""
    for key in ("u-ledger-1", "u-ledger-1-index", "u-ledger-12", "v"):
        _die_in_upload(store, key)
    _put_file(store, "u-ledger-1", b"beside it")
    found = [one.key for one in store.list_open_uploads("u-ledger-1")]
    assert found == ["u-ledger-1", "u-ledger-1-index", "u-ledger-12"]
    store.abort_uploads("u-ledger-1")
    store.abort_uploads("u-ledger-1")
    assert [one.key for one in store.list_open_uploads("")] == ["u-ledger-1-index", "u-ledger-12", "v"]
    assert store.head("u-ledger-1") is not None


def test_open_uploads_say_since_when_by_the_stores_clock(store: ObjectStore) -> None:
    """Field case 88: parts are abandoned by an age that means something on this store."""
    put(store, "now")
    _die_in_upload(store, "u")
    (found,), (now,) = store.list_open_uploads(""), store.list("now")
    assert found.started_us is not None
    assert now.modified_us is not None
    assert abs(found.started_us - now.modified_us) < 60_000_000


def _die_in_upload(store: ObjectStore, key: str) -> None:
    """As a process that is killed between two parts."""
    if isinstance(store, S3ObjectStore):
        store.client.create_multipart_upload(Bucket=store.bucket, Key=key)
        return
    calls = iter(range(3))

    def proceed() -> None:
        if next(calls):
            raise SimulatedCrash(key)

    with pytest.raises(SimulatedCrash):
        _put_file(store, key, LARGE, proceed=proceed)


def test_reads_of_an_absent_key_return_none(store: ObjectStore) -> None:
    """Absent is an answer, not an error."""
    assert store.get("absent") is None
    assert store.head("absent") is None
    assert store.get_range("absent", 0, 1) is None


def test_get_range_returns_what_overlaps_the_object(store: ObjectStore) -> None:
    """Fewer bytes at the end, none behind it; nonsense is refused."""
    store.put_if_absent("key", b"0123456789", metadata={})
    assert store.get_range("key", 0, 1) == b"0"
    assert store.get_range("key", 3, 4) == b"3456"
    assert store.get_range("key", 8, 100) == b"89"
    assert store.get_range("key", 10, 1) == b""
    for start, length in ((-1, 1), (0, 0)):
        with pytest.raises(InvalidInput, match="range"):
            store.get_range("key", start, length)


def test_head_modification_time_is_the_stores_clock(store: ObjectStore) -> None:
    """Field case 88: an age comes from a time that means something on this store; HEAD and LIST agree on it."""
    put(store, "key")
    found = store.head("key")
    (listed,) = store.list("key")
    assert found is not None
    assert found[0].modified_us is not None
    assert listed.modified_us is not None
    assert abs(listed.modified_us - found[0].modified_us) <= 1_000_000  # a HEAD tells whole seconds
    now_us = store.now_us if isinstance(store, FakeObjectStore) else time.time_ns() // 1000
    assert abs(found[0].modified_us - now_us) < 60_000_000


def test_list_returns_the_prefix_alone_in_key_order(store: ObjectStore) -> None:
    """Ascending by UTF-8 bytes, nothing of another prefix, sizes as stored."""
    put(store, "b", "b/2", "b/10", "b/1", "a/1", "c", "b/é", "b/😀", "b/\uffee")
    found = list(store.list("b/"))
    assert object_keys(found) == ["b/1", "b/10", "b/2", "b/é", "b/\uffee", "b/😀"]
    assert [each.size_bytes for each in found] == [len(each.key.encode()) for each in found]
    assert list(store.list("nothing/")) == []


def _level(store: ObjectStore, prefix: str) -> list[str]:
    """Names at the prefix, ascending; each once."""
    found = [one if isinstance(one, str) else one.key for one in store.list_folder(prefix)]
    assert len(found) == len(set(found))
    return sorted(found)


def test_level_shows_what_stands_directly_at_a_prefix(store: ObjectStore) -> None:
    """Objects with their facts, a folder for whatever lies below it, and nothing of another prefix."""
    put(store, "top", "ledgers/00/a/1", "ledgers/00/a/2", "ledgers/ff/b/1", "ledgers/readme", "ledgerz/1", "é/ü/1")
    assert _level(store, "") == ["ledgers/", "ledgerz/", "top", "é/"]
    assert _level(store, "ledgers/") == ["ledgers/00/", "ledgers/ff/", "ledgers/readme"]
    assert _level(store, "ledgers/00/a/") == ["ledgers/00/a/1", "ledgers/00/a/2"]
    assert _level(store, "ledger") == ["ledgers/", "ledgerz/"]
    assert _level(store, "nothing/") == []
    (stray,) = (one for one in store.list_folder("ledgers/") if not isinstance(one, str))
    (same,) = store.list("ledgers/readme")
    assert stray == same


def test_level_tells_objects_from_folders_of_nearly_their_name(store: ObjectStore) -> None:
    """Whatever a store's own order is: `x` is no folder, and `x.tmp/` is none of `x/`."""
    names = ["x", "x ", "x-1", "x.tmp/1", "x/1", "x/2/3", "x0", *(f"{key}/1" for key in ODD_KEYS if "/" not in key)]
    put(store, *names)
    top = {f"{name.split('/')[0]}/" if "/" in name else name for name in names}
    assert _level(store, "") == sorted(top)
    assert _level(store, "x") == ["x", "x ", "x-1", "x../", "x.tmp/", "x/", "x0"]
    assert _level(store, "x/") == ["x/1", "x/2/"]


def test_level_over_several_pages_is_complete(store: ObjectStore) -> None:
    """More folders and objects than fit in any page, each once, with most of the keys below."""
    folders, strays = [f"p/{number:04d}/" for number in range(600)], [f"p/{number:04d}.tmp" for number in range(600)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: put(store, key), [*(f"{folder}one" for folder in folders), *strays]))
    assert _level(store, "p/") == sorted([*folders, *strays])


def test_get_range_of_an_object_that_states_something_else_is_corrupt(store: ObjectStore) -> None:
    """A part has no digest: that it is of the right object, only the object's own metadata can say."""
    store.put_if_absent("key", b"content", metadata={"sha256": "abc", "topic": "t"})
    assert store.get_range("key", 1, 3, expected_metadata={"sha256": "abc"}) == b"ont"
    for other in ({"sha256": "abd"}, {"sha256": "abc", "absent": "x"}):
        with pytest.raises(CorruptData, match="key: expected an object of"):
            store.get_range("key", 1, 3, expected_metadata=other)
    assert store.get_range("absent", 1, 3, expected_metadata={"sha256": "abc"}) is None


def test_list_where_names_go_on_below_the_slash_is_in_key_order(store: ObjectStore) -> None:
    """A store that sorts by path puts `x/1` before `x-1`; the port's order is by bytes."""
    keys = ["x", "x ", "x!", "x-1", "x.tmp", "x/1", "x/2", "x/y.z", "x/y/1", "x0", "y"]
    put(store, *keys)
    assert object_keys(store.list("")) == keys
    assert object_keys(store.list("x")) == keys[:-1]


def test_list_after_any_key_returns_exactly_what_sorts_after_it(store: ObjectStore) -> None:
    """No key is lost or repeated wherever a listing is taken up: `x/1` follows `x-1` and `x` alike."""
    keys = ["w", "x", "x ", "x-1", "x.tmp", "x/1", "x/10.p", "x/2", "x/y.z", "x/y/1", "x0", "z/1", "z/1-", "z/1/2", "é"]
    put(store, *keys)
    for start in [*keys, "", "a", "x,", "x/", "x/0", "x/10", "zz", "日"]:
        assert object_keys(store.list("", start_after=start)) == [key for key in keys if key > start], start
        under = [key for key in keys if key > start and key.startswith("x/")]
        assert object_keys(store.list("x/", start_after=start)) == under, start


def test_list_over_several_pages_is_complete_and_ordered(store: ObjectStore) -> None:
    """A listing longer than any page holds every key once, and can be taken up anywhere."""
    keys = [f"ledgers/00/{ledger:016x}/{segment:08d}.parquet" for ledger in range(12) for segment in range(100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: put(store, key), keys))
    listed = object_keys(store.list("ledgers/"))
    assert listed == keys
    assert all(one < two for one, two in pairwise(listed))
    assert object_keys(store.list("ledgers/", start_after=keys[1049])) == keys[1050:]
    for ledger in (1, 8):  # behind a ledger, as listings begin that ledgers of a shard share
        for page in (1, 120, 1_000):
            behind = store.list("ledgers/00/", start_after=f"ledgers/00/{ledger:016x}1", first_page=page)
            assert object_keys(behind) == keys[100 * (ledger + 1) :], (ledger, page)
    report = store.delete(keys)
    assert (report.deleted, report.failed) == (set(keys), {})
    assert list(store.list("")) == []


def test_odd_keys_round_trip_through_put_list_get_and_bulk_delete(store: ObjectStore) -> None:
    """Field case 99: escaped or relative keys were reported as deleted and none were; here all four agree."""
    keys = sorted([f"k/{key}" for key in ODD_KEYS] + ["neighbour"])
    put(store, *keys)
    assert object_keys(store.list("")) == keys
    for key in keys:
        stored = store.get(key)
        assert stored is not None, key
        assert stored.body == key.encode()
        assert store.head(key) is not None
    doomed = [key for key in keys if key != "neighbour"]
    report = store.delete(doomed)
    assert (report.deleted, dict(report.failed)) == (set(doomed), {})
    assert object_keys(store.list("")) == ["neighbour"]


def test_delete_of_keys_that_xml_cannot_spell_spares_their_page(store: ObjectStore) -> None:
    """One such key makes a whole bulk request malformed: it goes alone, the others in bulk."""
    keys = [*CONTROL_KEYS, "plain", "x y"]
    put(store, *keys)
    assert store.delete(keys).deleted == frozenset(keys)
    assert [store.get(key) for key in keys] == [None] * len(keys)


def test_delete_counts_an_absent_key_as_deleted(store: ObjectStore) -> None:
    """Gone is gone; a key named twice is one key."""
    put(store, "here", "kept")
    report = store.delete(["here", "absent", "here"])
    assert (report.deleted, dict(report.failed)) == ({"here", "absent"}, {})
    assert object_keys(store.list("")) == ["kept"]


def test_delete_of_a_key_spares_the_keys_below_it(store: ObjectStore) -> None:
    """`x` is no folder: deleting it takes nothing of `x/`, and the other way round."""
    put(store, "x", "x/1", "x/2", "y", "y/1")
    assert store.delete(["x", "y/1"]).deleted == frozenset({"x", "y/1"})
    assert object_keys(store.list("")) == ["x/1", "x/2", "y"]


def test_delete_ends_between_pages(store: ObjectStore) -> None:
    """Who asked for it may end it: what was not reached stands."""
    asked = []

    def once() -> None:
        asked.append(True)
        if len(asked) > 1:
            raise InterruptedError

    absent = [f"absent/{number:04d}" for number in range(1_000)]
    put(store, "reached", "spared")
    with use_stop_check(once), pytest.raises(InterruptedError):
        store.delete(["reached", *absent, "spared"])
    assert object_keys(store.list("")) == ["spared"]


def test_delete_one_by_one_ends_before_a_key(store: ObjectStore) -> None:
    """Of keys that no bulk delete can name none is reached."""

    def end() -> None:
        raise InterruptedError

    put(store, *CONTROL_KEYS)
    with use_stop_check(end), pytest.raises(InterruptedError):
        store.delete(CONTROL_KEYS)
    assert sorted(object_keys(store.list(""))) == sorted(CONTROL_KEYS)


def test_delete_of_no_keys_reports_nothing(store: ObjectStore) -> None:
    """Nothing asked, nothing done."""
    report = store.delete([])
    assert (report.deleted, dict(report.failed)) == (set(), {})


@pytest.mark.parametrize("key", AMBIGUOUS_KEYS)
def test_delete_of_a_key_that_means_another_one_fails_and_spares_both(store: ObjectStore, key: str) -> None:
    """Promise 3: SeaweedFS takes `a//b` for `a/b`; deleting the one would take the other."""
    put(store, "a/b", "b")
    report = store.delete(["b", key])
    assert report.deleted == frozenset({"b"})
    assert list(report.failed) == [key]
    assert object_keys(store.list("")) == ["a/b"]


def test_one_instance_serves_many_threads_at_once(store: ObjectStore) -> None:
    """Puts, reads, listings and deletes of 16 threads do not disturb each other."""

    def work(thread: int) -> int:
        keys = [f"{thread:02d}/{n}" for n in range(10)]
        put(store, *keys)
        assert object_keys(store.list(f"{thread:02d}/")) == keys
        return len(store.delete(keys).deleted)

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(work, range(16))) == [10] * 16
    assert list(store.list("")) == []


@pytest.mark.external_service
def test_reads_lists_and_deletes_without_the_bucket_are_errors(s3_store: S3ObjectStore) -> None:
    """A missing bucket is no missing key: every answer but a definite NoSuchKey is an error."""
    lost = s3_store.for_bucket("no-such-bucket")
    for ask in (
        lambda: lost.get("key"),
        lambda: lost.head("key"),
        lambda: lost.get_range("key", 0, 1),
        lambda: list(lost.list("")),
        lambda: lost.delete(["a", "b"]),
    ):
        with pytest.raises(ServiceRefused, match=r"no-such-bucket.*NoSuchBucket"):
            ask()
