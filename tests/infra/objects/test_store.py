"""The S3 adapter before a peer that misbehaves on purpose."""

import io
from collections.abc import Callable

import pytest

from infra.objects.s3_responses import RequestRetries
from infra.objects.s3_store import S3ObjectStore, create_s3_client
from logstore.errors import AlreadyExists, InvalidInput, ServiceRefused, StoreUnavailable, Unsupported
from logstore.ports.object_storage import DeleteReport, object_keys
from logstore.retrying_clock import Backoff, Clock
from logstore.stop_checks import use_stop_check
from tests.infra.objects.peer import Answer, Peer, Request, fault, listing, scripted

NO_WAITS = RequestRetries(backoff=Backoff(attempts=4), clock=Clock(sleep=lambda _s: None))
OK = Answer(200, headers={"ETag": '"e"'})
REFUSALS = [fault(403, "AccessDenied"), fault(404, "NoSuchBucket"), fault(403, "InvalidAccessKeyId"),
            fault(403, "SignatureDoesNotMatch"), fault(301, "PermanentRedirect"),
            fault(404, "SomethingElse"), fault(418, "WhateverElse")]  # fmt: skip
PASSING = [fault(400, "ExpiredToken"), fault(403, "RequestTimeTooSkewed"), fault(307, "TemporaryRedirect"),
           fault(501, "NotImplemented")]  # fmt: skip
FOREIGN = [Answer(200, b"<html>sign in</html>", {"Content-Type": "text/html"}), Answer(200), Answer(201), Answer(204),
           Answer(202, b"{}"), Answer(200, b"<html xmlns='http://www.w3.org/1999/xhtml'><body/></html>"),
           Answer(404, b"<html>nginx</html>"), Answer(403, b"Forbidden"), Answer(400), Answer(302), Answer(401),
           Answer(416), Answer(412, b"<html>")]  # fmt: skip
"""What stands between us and the store answers so to anything, GET and PUT alike."""


def store_at(peer: Peer, retries: RequestRetries = NO_WAITS) -> S3ObjectStore:
    return S3ObjectStore(create_s3_client(peer.endpoint, "us-east-1", "access", "secret"), "bucket", retries=retries)


def parting(store: S3ObjectStore) -> S3ObjectStore:
    """The same store, which sends files of more than 5 bytes in parts."""
    return S3ObjectStore(store.client, store.bucket, retries=NO_WAITS, part_bytes=5)


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    """Each answer once, then the last one for ever."""
    left = list(answers)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


def found(body: bytes, status: int = 200, **metadata: str) -> Answer:
    head = {f"x-amz-meta-{name}": value for name, value in metadata.items()} | {"ETag": '"e"'}
    return Answer(
        status, body, head | ({"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"} if status == 206 else {})
    )


@pytest.mark.parametrize("hiccup", [fault(503, "SlowDown"), fault(500, "InternalError"), Answer(0),
                                    Answer(502, b"<html>"),
                                    fault(409, "ConditionalRequestConflict"), fault(400, "RequestTimeout"),
                                    fault(429, "TooManyRequests")])  # fmt: skip
def test_put_after_a_temporary_answer_is_asked_again(hiccup: Answer) -> None:
    """A conflict, a fault of the store and a lost connection pass: the same conditional put is sent again."""
    with scripted(in_turn(hiccup, hiccup, OK)) as peer:
        store_at(peer).put_if_absent("key", b"body", metadata={"a": "b"})
    assert [(r.method, r.key, r.body, r.headers["if-none-match"]) for r in peer.requests] == [
        ("PUT", "key", b"body", "*")
    ] * 3


@pytest.mark.parametrize("hiccup", [fault(503, "SlowDown"), fault(500, "InternalError"), Answer(0)])
def test_every_operation_on_a_store_that_stays_down_raises_store_unavailable_after_bounded_attempts(
    hiccup: Answer,
) -> None:
    """Attempts are counted, not endless, and botocore adds none of its own."""
    with scripted(in_turn(hiccup)) as peer:
        store = store_at(peer)
        for ask in (
            lambda: store.put_if_absent("key", b"", metadata={}),
            lambda: store.get("key"),
            lambda: store.get_range("key", 0, 1),
            lambda: store.head("key"),
            lambda: list(store.list("")),
            lambda: list(store.list_folder("")),
            lambda: store.delete(["a", "b"]),
        ):
            before = len(peer.requests)
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            assert len(peer.requests) - before == NO_WAITS.backoff.attempts
            assert caught.value.__cause__ is not None


def test_a_store_that_is_not_there_raises_store_unavailable() -> None:
    """A refused connection is an unavailable store."""
    with scripted(in_turn(OK)) as peer:
        pass
    with pytest.raises(StoreUnavailable, match="get bucket/key"):
        store_at(peer).get("key")


def test_a_store_that_keeps_silent_raises_store_unavailable_by_the_read_timeout() -> None:
    """No answer is bounded by the read timeout."""
    quiet = Answer(200, b"", {"ETag": '"e"', "Content-Length": "10"})
    with scripted(in_turn(quiet)) as peer:
        client = create_s3_client(peer.endpoint, "us-east-1", "a", "s", read_timeout_s=0.1)
        store = S3ObjectStore(client, "bucket", retries=NO_WAITS)
        with pytest.raises(StoreUnavailable, match="get bucket/key"):
            store.get("key")


def every_call(store: S3ObjectStore) -> list[Callable[[], object]]:
    """All that the port can ask, but the delete of a key."""
    return [
        lambda: store.put_if_absent("key", b"body", metadata={}),
        lambda: store.put_file_if_absent("key", io.BytesIO(b"body"), metadata={}, require_may_proceed=lambda: None),
        lambda: store.put_file_if_absent("key", io.BytesIO(b"12345678"), metadata={}, require_may_proceed=lambda: None),
        lambda: store.list_open_uploads("key"),
        lambda: store.get("key"),
        lambda: store.get_range("key", 0, 1),
        lambda: store.head("key"),
        lambda: list(store.list("")),
        lambda: list(store.list_folder("")),
        lambda: store.delete(["a", "b"]),
    ]


@pytest.mark.parametrize("answer", FOREIGN, ids=lambda one: f"{one.status} {one.body[:6].decode()}")
def test_no_call_takes_an_answer_that_is_not_the_stores_own(answer: Answer) -> None:
    """A gateway's page, or nothing, said with 200: an acknowledged append was lost for good by it."""
    with scripted(in_turn(answer)) as peer:
        store = parting(store_at(peer))
        for ask in every_call(store):
            before = len(peer.requests)
            with pytest.raises(StoreUnavailable):
                ask()
            assert len(peer.requests) - before >= NO_WAITS.backoff.attempts


def test_no_single_delete_and_no_abort_takes_an_answer_that_is_not_the_stores_own() -> None:
    """S3 answers both with 204 and nothing else; a page in its place has deleted nothing."""
    for answer in (Answer(200, b"<html>"), Answer(200), Answer(202)):
        with scripted(lambda r, a=answer: fault(501, "NotImplemented") if r.is_bulk_delete else a) as peer:  # type: ignore[misc]
            with pytest.raises(StoreUnavailable):
                store_at(peer).delete(["a"])
            with pytest.raises(StoreUnavailable):
                store_at(peer)._multipart.abort_upload("key", "u-1")


def test_an_answer_of_the_store_after_foreign_ones_counts() -> None:
    """The request is sent again: the append is stored once, and only then acknowledged."""
    with scripted(in_turn(Answer(200, b"<html>"), Answer(200), OK)) as peer:
        store_at(peer).put_if_absent("key", b"body", metadata={})
    assert [(r.method, r.body) for r in peer.requests] == [("PUT", b"body")] * 3


def test_get_range_answered_with_another_range_is_asked_again() -> None:
    """Bytes from elsewhere in the object, of the right number, are not those that were asked for."""
    other = Answer(206, b"xyz", {"ETag": '"e"', "Content-Range": "bytes 0-2/9"})
    right = Answer(206, b"abc", {"ETag": '"e"', "Content-Range": "bytes 5-7/9"})
    with scripted(in_turn(other, right)) as peer:
        assert store_at(peer).get_range("key", 5, 3) == b"abc"


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_refusal_names_the_service_and_what_to_try_and_is_asked_once(answer: Answer) -> None:
    """Only 404 NoSuchKey means absent; any other refusal is the store's, and neither a guard's nor bad input."""
    with scripted(in_turn(answer)) as peer:
        store = parting(store_at(peer))
        with pytest.raises(ServiceRefused, match=r"^S3: get bucket/key: \d+ \w+: scripted; \w+") as caught:
            store.get("key")
        assert caught.value.code in answer.body.decode()
        for ask in every_call(store):
            with pytest.raises(ServiceRefused):
                ask()
        gets = [r for r in peer.requests if r.method == "GET" and r.key == "key" and "range" not in r.headers]
        assert len(gets) == 2


@pytest.mark.parametrize("answer", PASSING)
def test_a_refusal_that_may_pass_by_itself_is_asked_again(answer: Answer) -> None:
    """A renewed token, a fresh signature: the append goes on; a refusal that stays names the service."""
    with scripted(in_turn(answer, answer, OK)) as peer:
        store_at(peer).put_if_absent("key", b"body", metadata={})
    with scripted(in_turn(answer)) as peer, pytest.raises(ServiceRefused):
        store_at(peer).put_if_absent("key", b"body", metadata={})


@pytest.mark.parametrize("code", ["InvalidRequest", "InvalidArgument"])
def test_a_request_that_the_store_calls_invalid_is_no_bad_input_of_the_caller(code: str) -> None:
    """What such an answer means the store alone knows; only a bad key of the request itself is the caller's input."""
    with scripted(in_turn(fault(400, code))) as peer:
        *asking, delete = every_call(parting(store_at(peer)))
        for ask in asking:
            with pytest.raises(ServiceRefused):
                ask()
        report = delete()
        assert isinstance(report, DeleteReport)
        assert dict(report.failed) == dict.fromkeys("ab", f"{code}: scripted")


def test_redirects_that_lead_to_redirects_end() -> None:
    """Botocore asks HEAD of the bucket for its region at each redirect, and so for ever where that is redirected."""
    with scripted(in_turn(Answer(302))) as peer, pytest.raises(StoreUnavailable):
        store_at(peer).get("key")
    assert len(peer.requests) == NO_WAITS.backoff.attempts


@pytest.mark.parametrize("bucket", ["Odd_Bucket!", "a b", "arn:aws:s3"])
def test_a_bucket_that_no_store_can_have_is_no_bad_input(bucket: str) -> None:
    """A context may name one: whoever retries bad input without an end would retry its deletion so."""
    with scripted(in_turn(OK)) as peer:
        for ask in every_call(store_at(peer).for_bucket(bucket)):
            with pytest.raises(ServiceRefused):
                ask()
        assert peer.requests == []


def test_a_key_that_the_store_calls_too_long_is_invalid_input() -> None:
    """A store may be narrower than S3: its refusal is the caller's input, not its own fault."""
    with scripted(in_turn(fault(400, "KeyTooLongError"))) as peer, pytest.raises(InvalidInput, match="KeyTooLong"):
        store_at(peer).put_if_absent("key", b"", metadata={})


def test_put_whose_answer_was_lost_is_recognised_as_done() -> None:
    """Done but reported as failed: the repeat meets 412, and the stored object is this very one."""

    def script(request: Request) -> Answer:
        if request.method == "PUT":
            return Answer(0) if len(peer.requests) == 1 else fault(412, "PreconditionFailed")
        return found(b"body", a="b")

    with scripted(script) as peer:
        store_at(peer).put_if_absent("key", b"body", metadata={"a": "b"})
    assert [r.method for r in peer.requests] == ["PUT", "PUT", "HEAD", "GET"]


@pytest.mark.parametrize(
    "there", [found(b"b0dy", a="b"), found(b"body", a="c"), found(b"body"), found(b"bodies", a="b")]
)
def test_put_refused_for_another_object_raises_already_exists(there: Answer) -> None:
    """Length, metadata and content must all be the same: any difference is someone else's object."""
    with (
        scripted(lambda r: fault(412, "PreconditionFailed") if r.method == "PUT" else there) as peer,
        pytest.raises(AlreadyExists, match="bucket/key"),
    ):
        store_at(peer).put_if_absent("key", b"body", metadata={"a": "b"})
    assert sum(r.method == "PUT" for r in peer.requests) == 1


def test_head_of_a_missing_bucket_is_an_error_though_head_has_no_body() -> None:
    """A HEAD says 404 for the key and for the bucket alike: a GET of one byte says which."""
    with scripted(in_turn(Answer(404), fault(404, "NoSuchKey"))) as peer:
        assert store_at(peer).head("key") is None
    with scripted(in_turn(Answer(404), fault(404, "NoSuchBucket"))) as peer, pytest.raises(ServiceRefused):
        store_at(peer).head("key")
    with scripted(in_turn(Answer(404), found(b"x", 206), found(b"xyz"))) as peer:
        info = store_at(peer).head("key")
        assert info is not None
        assert info[0].size_bytes == 3


def test_get_of_a_body_cut_short_is_asked_again() -> None:
    """Fewer bytes than announced are never handed on as the object."""
    cut = Answer(200, b"half", {"ETag": '"e"', "Content-Length": "8", "Connection": "close"})
    with scripted(in_turn(cut, found(b"complete"))) as peer:
        client = create_s3_client(peer.endpoint, "us-east-1", "a", "s", read_timeout_s=0.2)
        store = S3ObjectStore(client, "bucket", retries=NO_WAITS)
        stored = store.get("key")
    assert stored is not None
    assert stored.body == b"complete"


def test_get_of_a_body_with_another_checksum_is_asked_again() -> None:
    """A checksum that the store sends along is checked; a damaged body is not handed on."""
    damaged = Answer(200, b"complete", {"ETag": '"e"', "x-amz-checksum-crc32": "AAAAAA=="})
    with scripted(in_turn(damaged, found(b"complete"))) as peer:
        stored = store_at(peer).get("key")
    assert len(peer.requests) == 2
    assert stored is not None


def test_get_range_of_a_store_that_ignores_ranges_returns_the_range() -> None:
    """Status 200 means the whole object: the range is cut here."""
    with scripted(in_turn(found(b"0123456789"))) as peer:
        assert store_at(peer).get_range("key", 2, 3) == b"234"


@pytest.mark.parametrize("rest", [listing("a", "b", truncated=True), Answer(200, b"<ListBucketResult/>"),
                                  Answer(200, b"<html>"),
                                  Answer(200, b""), fault(500, "InternalError"), Answer(0)])  # fmt: skip
def test_list_that_cannot_be_completed_raises(rest: Answer) -> None:
    """Truncated without a token, an answer that is no listing, an error midway: never a shorter listing."""
    with scripted(in_turn(listing("0", truncated=True, token="t"), rest)) as peer:
        objects = store_at(peer).list("")
        assert next(objects).key == "0"
        with pytest.raises(StoreUnavailable):
            list(objects)


def test_level_asks_for_no_key_below_and_takes_each_folder_once() -> None:
    """A store may open a page with the folder that ended the one before."""
    pages = (
        listing("p/x", folders=["p/a/", "p/b/"], truncated=True, token="t"),
        listing("p/y", folders=["p/b/", "p/c/"]),
    )
    with scripted(in_turn(*pages)) as peer:
        found = [one if isinstance(one, str) else one.key for one in store_at(peer).list_folder("p/")]
        assert {r.query.get("delimiter") for r in peer.requests} == {"/"}
    assert sorted(found) == ["p/a/", "p/b/", "p/c/", "p/x", "p/y"]


@pytest.mark.parametrize("rest", [listing("p/y", truncated=True), Answer(200, b"<ListBucketResult/>"),
                                  fault(500, "InternalError"), Answer(0)])  # fmt: skip
def test_level_that_cannot_be_completed_raises(rest: Answer) -> None:
    """As a listing: never a shorter one."""
    with scripted(in_turn(listing("p/x", truncated=True, token="t"), rest)) as peer, pytest.raises(StoreUnavailable):
        list(store_at(peer).list_folder("p/"))


@pytest.mark.parametrize("odd", [listing("p/a/1"), listing("q"), listing(folders=["q/"]), listing(folders=["p/a/b/"]),
                                 listing(folders=["p/a"])])  # fmt: skip
def test_level_with_what_is_not_directly_there_raises(odd: Answer) -> None:
    """A store that knows no delimiter shows keys below: what it calls a level is none."""
    with scripted(in_turn(odd)) as peer, pytest.raises(StoreUnavailable, match="not directly there"):
        list(store_at(peer).list_folder("p/"))


def test_list_whose_token_leads_back_to_itself_raises() -> None:
    """A page that names itself as its rest would go on for ever."""
    with scripted(in_turn(listing(truncated=True, token="t"))) as peer, pytest.raises(StoreUnavailable):
        list(store_at(peer).list(""))
    assert len(peer.requests) == 2


def test_list_ends_between_pages() -> None:
    """Who asked for it may end it."""

    def end() -> None:
        raise InterruptedError

    pages = in_turn(listing("a", truncated=True, token="t"), listing("b"))
    with scripted(pages) as peer, use_stop_check(end), pytest.raises(InterruptedError):
        list(store_at(peer).list(""))
    assert len(peer.requests) == 1


def test_list_page_that_failed_is_asked_again_with_the_same_token() -> None:
    """A retry goes on where the listing stood."""
    script = in_turn(listing("a", truncated=True, token="t"), fault(503, "SlowDown"), Answer(0), listing("b"))
    with scripted(script) as peer:
        assert object_keys(store_at(peer).list("")) == ["a", "b"]
    assert [r.query.get("continuation-token") for r in peer.requests] == [None, "t", "t", "t"]


def test_list_asks_for_a_short_first_page_and_for_whole_ones_behind_it() -> None:
    """Of many keys few are wanted; where they were not enough, no more requests follow than there must."""
    with scripted(in_turn(listing("a", truncated=True, token="t"), listing("b"), listing("a"))) as peer:
        assert object_keys(store_at(peer).list("", first_page=7)) == ["a", "b"]
        assert object_keys(store_at(peer).list("")) == ["a"]
    assert [r.query.get("max-keys") for r in peer.requests] == ["7", None, None]


def test_list_in_another_order_over_pages_raises_unsupported() -> None:
    """Put in order within a page; over pages an error, for who merges two sorted streams would lose keys."""
    with scripted(in_turn(listing("b", "a", truncated=True, token="t"), listing("c"))) as peer:
        assert object_keys(store_at(peer).list("")) == ["a", "b", "c"]
    script = in_turn(listing("a", "c", truncated=True, token="t"), listing("b"))
    with scripted(script) as peer, pytest.raises(Unsupported, match="'b' after 'c'"):
        list(store_at(peer).list(""))


def test_list_with_keys_of_another_prefix_raises() -> None:
    """A store that ignores the prefix would have us judge, and delete, what we did not ask for."""
    with scripted(in_turn(listing("a/1", "b/1"))) as peer, pytest.raises(StoreUnavailable, match="prefix"):
        list(store_at(peer).list("a/"))


def test_one_client_serves_several_buckets() -> None:
    """Buckets of one store share its connections."""
    with scripted(in_turn(fault(404, "NoSuchKey"))) as peer:
        store = store_at(peer)
        assert store.get("k") is None
        assert store.for_bucket("other").get("k") is None
        assert [r.key for r in peer.requests] == ["k", "other/k"]


def test_put_asks_for_no_checksum_that_older_stores_do_not_know() -> None:
    """Field case 102: checksums of new SDKs are refused by compatible stores; the signature covers the body."""
    with scripted(in_turn(OK)) as peer:
        store_at(peer).put_if_absent("key", b"body", metadata={})
    (request,) = peer.requests
    assert not [name for name in request.headers if name.startswith("x-amz-checksum")]
    assert len(request.headers["x-amz-content-sha256"]) == 64
