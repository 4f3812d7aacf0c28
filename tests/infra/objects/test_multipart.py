"""Uploads in parts before a peer that misbehaves on purpose."""

import inspect
import io
from collections.abc import Callable

import pytest

from infra.objects.multipart_uploads import PART_BYTES
from infra.objects.s3_store import S3ObjectStore, create_s3_client
from logstore.errors import AlreadyExists, OutcomeUnknown, StoreUnavailable, UploadTimedOut
from logstore.offload.tiered_copy import UPLOAD_GRACE_S
from tests.infra.objects.peer import Answer, Peer, Request, fault, scripted
from tests.infra.objects.test_store import NO_WAITS

BODY = b"one two three"
BEGUN = Answer(200, b"<R><UploadId>u-1</UploadId></R>")
DONE = Answer(200, b"<R><ETag>e</ETag></R>")


def kind(request: Request) -> str:
    """Which call it is."""
    if request.method == "POST":
        return "begin" if "uploads" in request.query else "complete"
    if request.method == "PUT":
        return f"part {request.query['partNumber']}"
    return request.method.lower()


def playing(**changes: Callable[[int], Answer]) -> Callable[[Request], Answer]:
    """A store that takes everything, but for the calls named, which get the number of times they were met."""
    met: dict[str, int] = {}

    def answer(request: Request) -> Answer:
        name = kind(request).partition(" ")[0]
        met[name] = met.get(name, 0) + 1
        if name in changes:
            return changes[name](met[name])
        return {"begin": BEGUN, "complete": DONE, "part": Answer(200, b"", {"ETag": "e"})}.get(name, Answer(204))

    return answer


def put(peer: Peer, proceed: Callable[[], None] = lambda: None) -> None:
    client = create_s3_client(peer.endpoint, "us-east-1", "access", "secret")
    store = S3ObjectStore(client, "bucket", retries=NO_WAITS, part_bytes=5)
    store.put_file_if_absent("key", io.BytesIO(BODY), metadata={"a": "b"}, require_may_proceed=proceed)


def calls(peer: Peer) -> list[str]:
    return [kind(request) for request in peer.requests]


def test_upload_past_its_deadline_is_not_even_begun() -> None:
    """Parts of an upload that began after everybody had stopped waiting for it would be found by nobody."""

    def too_late() -> None:
        raise UploadTimedOut("too late")

    with scripted(playing()) as peer, pytest.raises(UploadTimedOut):
        put(peer, too_late)
    assert calls(peer) == []


def test_one_request_ends_within_the_grace_that_deletion_gives_it() -> None:
    """Connecting, sending one part on a slow line, waiting for the answer: nothing of it lands later."""
    limits = inspect.signature(create_s3_client).parameters
    slow_bytes_per_s = 500_000
    longest_s = limits["connect_timeout_s"].default + PART_BYTES / slow_bytes_per_s + limits["read_timeout_s"].default
    assert longest_s < UPLOAD_GRACE_S


def test_parts_are_sent_in_order_one_at_a_time_and_completed_if_absent() -> None:
    """Every byte once; the condition stands at the completion, which alone makes the object."""
    with scripted(playing()) as peer:
        put(peer)
    assert calls(peer) == ["begin", "part 1", "part 2", "part 3", "complete"]
    assert b"".join(each.body for each in peer.requests[1:4]) == BODY
    assert peer.requests[0].headers["x-amz-meta-a"] == "b"
    assert peer.requests[-1].headers["if-none-match"] == "*"


def test_part_after_a_temporary_answer_is_asked_again() -> None:
    """Only that part is repeated."""
    with scripted(
        playing(part=lambda n: fault(503, "SlowDown") if n == 2 else Answer(200, b"", {"ETag": "e"}))
    ) as peer:
        put(peer)
    assert calls(peer) == ["begin", "part 1", "part 2", "part 2", "part 3", "complete"]


def test_upload_whose_store_stays_down_is_aborted() -> None:
    """No part is left behind by an uploader that lives."""
    with scripted(playing(part=lambda _: fault(500, "InternalError"))) as peer, pytest.raises(StoreUnavailable):
        put(peer)
    assert calls(peer)[-1] == "delete"


def test_upload_whose_completion_answers_nothing_of_use_is_asked_again() -> None:
    """S3 may answer 200 and then say that it failed: an answer without an ETag is none."""
    broken = Answer(200, b"<Error><Code>InternalError</Code></Error>")
    with scripted(playing(complete=lambda n: broken if n == 1 else DONE)) as peer:
        put(peer)
    assert calls(peer)[-2:] == ["complete", "complete"]


def test_upload_that_was_completed_and_reported_as_failed_counts_as_done() -> None:
    """The store knows the upload no longer: the object decides, by size, metadata and content."""
    told = {"ETag": "e", "x-amz-meta-a": "b", "Content-Range": "bytes 0-4/5"}
    holds = {"head": lambda _: Answer(200, b"", {**told, "Content-Length": str(len(BODY))})}
    holds["get"] = lambda _: Answer(206, BODY, told)
    answers = [fault(500, "InternalError"), fault(404, "NoSuchUpload")]
    with scripted(playing(complete=lambda n: answers[n - 1], **holds)) as peer:
        put(peer)
    holds["get"] = lambda _: Answer(206, BODY[:-1] + b"!", told)
    with scripted(playing(complete=lambda n: answers[n - 1], **holds)) as peer, pytest.raises(AlreadyExists):
        put(peer)


def test_upload_that_somebody_else_ended_is_no_success() -> None:
    """A deletion that outwaited the upload aborts it; what is sent then is refused, and no object is taken for ours."""
    with (
        scripted(playing(part=lambda _: fault(404, "NoSuchUpload"))) as peer,
        pytest.raises(OutcomeUnknown, match="key"),
    ):
        put(peer)
    gone = {"head": lambda _: Answer(404), "get": lambda _: fault(404, "NoSuchKey")}
    with (
        scripted(playing(complete=lambda _: fault(404, "NoSuchUpload"), **gone)) as peer,
        pytest.raises(StoreUnavailable, match="no object is there"),
    ):
        put(peer)
