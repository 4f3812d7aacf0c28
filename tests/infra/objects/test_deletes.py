"""Deletes before a peer that throttles, refuses and forgets on purpose."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.objects.s3_responses import RequestRetries
from logstore.errors import ServiceRefused, StoreUnavailable
from logstore.retrying_clock import Backoff, Clock
from tests.infra.objects.peer import Answer, Request, deleted, fault, scripted
from tests.infra.objects.test_store import NO_WAITS, in_turn, store_at

GONE = Answer(204)


def confirm_all(request: Request) -> Answer:
    return deleted(*request.bulk_keys) if request.is_bulk_delete else GONE


def no_bulk_and_then(answer: Answer) -> Callable[[Request], Answer]:
    return lambda request: fault(501, "NotImplemented") if request.is_bulk_delete else answer


def keys(count: int) -> list[str]:
    return [f"ledgers/00/{n:08d}.parquet" for n in range(count)]


def test_delete_of_many_keys_goes_in_pages_of_a_thousand() -> None:
    """Field case 92: bulk calls, and not one more than needed."""
    with scripted(confirm_all) as peer:
        report = store_at(peer).delete(keys(2500))
    assert report.deleted == frozenset(keys(2500))
    assert [len(r.bulk_keys) for r in peer.requests] == [1000, 1000, 500]


def test_delete_with_errors_inside_a_200_answer_reports_each_by_key() -> None:
    """Field case 27: a delete counts only when the per-key result says so."""
    answer = deleted("b", errors={"a": "AccessDenied", "d": "NoSuchKey"})
    with scripted(in_turn(answer)) as peer:
        report = store_at(peer).delete(["a", "b", "c", "d"])
    assert report.deleted == frozenset({"b", "d"})
    assert report.failed["a"] == "AccessDenied: scripted"
    assert report.failed["c"].startswith("NotConfirmed")
    assert len(peer.requests) == 1


def test_delete_of_a_key_both_confirmed_and_refused_counts_as_failed() -> None:
    """Where the answer contradicts itself, the key may still be there."""
    with scripted(in_turn(deleted("a", errors={"a": "AccessDenied"}))) as peer:
        assert dict(store_at(peer).delete(["a"]).failed) == {"a": "AccessDenied: scripted"}


def test_delete_answered_with_keys_never_asked_for_confirms_nothing() -> None:
    """Field case 99: an answer with escaped keys says nothing of the keys themselves."""
    with scripted(in_turn(deleted("a%20b", "x"))) as peer:
        report = store_at(peer).delete(["a b", "c"])
    assert report.deleted == frozenset()
    assert set(report.failed) == {"a b", "c"}


def test_delete_with_temporary_errors_asks_again_for_those_keys_alone() -> None:
    """Retried while the store calls it temporary, and only those keys."""
    temporary = {"b": "InternalError", "c": "SlowDown"}
    with scripted(
        in_turn(deleted("a", errors=temporary), deleted("b", errors={"c": "SlowDown"}), deleted("c"))
    ) as peer:
        report = store_at(peer).delete(["a", "b", "c"])
    assert (report.deleted, dict(report.failed)) == (set("abc"), {})
    assert [r.bulk_keys for r in peer.requests] == [["a", "b", "c"], ["b", "c"], ["c"]]


def test_delete_with_a_temporary_error_that_stays_reports_the_key_as_failed() -> None:
    """Bounded: a key that keeps failing is the caller's to try later."""

    def script(request: Request) -> Answer:
        rest = [key for key in request.bulk_keys if key != "stuck"]
        return deleted(*rest, errors={"stuck": "InternalError"})

    with scripted(script) as peer:
        report = store_at(peer).delete(["a", "stuck", "z"])
    assert (report.deleted, dict(report.failed)) == (set("az"), {"stuck": "InternalError: scripted"})
    assert len(peer.requests) == NO_WAITS.backoff.attempts


def test_delete_that_breaks_off_reports_what_was_confirmed() -> None:
    """Raises only when nothing could be asked: what is known of earlier pages is not thrown away."""
    with scripted(lambda r: confirm_all(r) if len(peer.requests) == 1 else fault(500, "InternalError")) as peer:
        report = store_at(peer).delete(keys(1500))
    assert report.deleted == frozenset(keys(1000))
    assert set(report.failed) == set(keys(1500)[1000:])
    assert all(why.startswith("StoreUnavailable: ") for why in report.failed.values())


REFUSALS = [(501, "NotImplemented"), (400, "MissingContentMD5"), (400, "InvalidRequest"), (400, "MalformedXML"),
            (405, "MethodNotAllowed"), (400, "InvalidDigest")]  # fmt: skip


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_delete_where_bulk_is_refused_goes_one_by_one_and_remembers(
    status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Field case 102: a store that wants Content-MD5, or has no bulk delete, is asked once and then spared."""
    with scripted(lambda r: fault(status, code) if r.is_bulk_delete else GONE) as peer:
        store = store_at(peer)
        for _ in range(2):
            assert store.delete(["a b", "b%", "c"]).deleted == frozenset({"a b", "b%", "c"})
    asked = Counter(r.method for r in peer.requests)
    assert asked == {"POST": 1, "DELETE": 6}
    assert Counter(r.key for r in peer.requests if r.method == "DELETE") == {"a b": 2, "b%": 2, "c": 2}
    assert caplog.text.count("one by one") == 1


def test_delete_in_bulk_is_tried_again_a_while_after_a_refusal_and_later_each_time_it_is_refused() -> None:
    """One single 501 of a gateway that was being exchanged had a worker delete one by one for life."""
    now, answers = [0.0], [fault(501, "NotImplemented")] * 2
    retries = RequestRetries(
        backoff=Backoff(attempts=4), clock=Clock(sleep=lambda _s: None, monotonic_s=lambda: now[0])
    )

    def script(request: Request) -> Answer:
        return answers.pop() if request.is_bulk_delete and answers else confirm_all(request)

    def methods(at_s: float) -> set[str]:
        now[0], before = at_s, len(peer.requests)
        assert store.delete(["a", "b"]).deleted == frozenset({"a", "b"})
        return {r.method for r in peer.requests[before:]}

    with scripted(script) as peer:
        store = store_at(peer, retries)
        assert methods(0) == {"POST", "DELETE"}
        assert methods(9) == {"DELETE"}
        assert methods(11) == {"POST", "DELETE"}
        assert methods(30) == {"DELETE"}
        assert methods(32) == {"POST"}
        assert methods(33) == {"POST"}


def test_delete_refused_in_bulk_and_one_by_one_alike_says_nothing_of_bulk() -> None:
    """A gateway that implements nothing for a moment refuses both: the store itself never spoke."""
    refusing = [True]

    def script(request: Request) -> Answer:
        return fault(501, "NotImplemented") if refusing[0] else confirm_all(request)

    with scripted(script) as peer:
        store = store_at(peer)
        with pytest.raises(ServiceRefused):
            store.delete(["a"])
        refusing[0] = False
        before = len(peer.requests)
        assert store.delete(["a"]).deleted == frozenset({"a"})
        assert [r.method for r in peer.requests[before:]] == ["POST"]


def test_delete_one_by_one_of_a_key_that_the_store_does_not_take_fails_that_key_alone() -> None:
    """An odd key stands in the way of no other."""

    def script(request: Request) -> Answer:
        if request.is_bulk_delete:
            return fault(501, "NotImplemented")
        return fault(400, "InvalidArgument") if request.key == "odd" else GONE

    with scripted(script) as peer:
        report = store_at(peer).delete(["a", "odd", "b"])
    assert report.deleted == frozenset({"a", "b"})
    assert dict(report.failed) == {"odd": "InvalidArgument: scripted"}


def test_delete_with_one_page_refused_by_a_store_that_took_others_goes_on_in_bulk() -> None:
    """One odd page says nothing of the store: it goes one by one, the next in bulk again."""

    def script(request: Request) -> Answer:
        if request.is_bulk_delete and "odd" in request.bulk_keys:
            return fault(400, "MalformedXML")
        return confirm_all(request)

    with scripted(script) as peer:
        store = store_at(peer)
        for batch in (["a", "b"], ["odd", "c"], ["d"]):
            assert store.delete(batch).deleted == frozenset(batch)
    assert Counter(r.method for r in peer.requests) == {"POST": 3, "DELETE": 2}
    assert peer.requests[-1].is_bulk_delete


def test_delete_of_a_key_that_xml_cannot_spell_spoils_no_page() -> None:
    """Such a key goes alone: in a bulk request it would have the whole page refused as malformed."""
    with scripted(confirm_all) as peer:
        report = store_at(peer).delete(["a", "b\x01", "c"])
    assert report.deleted == frozenset({"a", "b\x01", "c"})
    assert [(r.bulk_keys, r.key) for r in peer.requests] == [(["a", "c"], ""), ([], "b\x01")]


def test_delete_one_by_one_reports_each_key() -> None:
    """Absent is gone, denied is that key's failure, and temporary answers are retried."""
    seen: Counter[str] = Counter()

    def script(request: Request) -> Answer:
        seen[request.key] += 1
        if request.is_bulk_delete:
            return fault(501, "NotImplemented")
        if request.key == "denied":
            return fault(403, "AccessDenied")
        if request.key == "absent":
            return fault(404, "NoSuchKey")
        return fault(503, "SlowDown") if request.key == "slow" and seen["slow"] < 3 else GONE

    with scripted(script) as peer:
        report = store_at(peer).delete(["a", "denied", "absent", "slow"])
    assert report.deleted == frozenset({"a", "absent", "slow"})
    assert dict(report.failed) == {"denied": "AccessDenied: scripted"}


def test_delete_one_by_one_on_a_store_that_went_down_asks_few_and_raises() -> None:
    """A dead store is not asked for every key: the first key that uses up its retries spares it the rest."""
    with scripted(no_bulk_and_then(Answer(0))) as peer, pytest.raises(StoreUnavailable):
        store_at(peer).delete(keys(300))
    assert len(peer.requests) < 100


def test_delete_one_by_one_without_the_bucket_raises() -> None:
    """No bucket is not an absent key."""
    script = no_bulk_and_then(fault(404, "NoSuchBucket"))
    with scripted(script) as peer, pytest.raises(ServiceRefused, match="NoSuchBucket"):
        store_at(peer).delete(["a"])


def test_throttled_page_is_halved_for_the_next_attempt_and_grows_back() -> None:
    """Field case 104: page size adapts on 503."""
    with scripted(lambda r: fault(503, "SlowDown") if len(r.bulk_keys) > 300 else confirm_all(r)) as peer:
        report = store_at(peer).delete(keys(2000))
    assert report.deleted == frozenset(keys(2000))
    pages = [len(r.bulk_keys) for r in peer.requests]
    assert pages[:5] == [1000, 500, 250, 275, 300]
    assert max(pages[2:]) <= 325


class Budget:
    """A store that affords so many key writes a second, and charges for what it refuses, as S3 does."""

    def __init__(self, keys_per_s: float, burst: float) -> None:
        self._rate, self._burst = keys_per_s, burst
        self._left, self._at = burst, time.monotonic()
        self._lock = threading.Lock()
        self.served = self.refused = 0

    def __call__(self, request: Request) -> Answer:
        """Confirm, or throttle."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
            cost = len(request.bulk_keys)
            if cost > self._left:
                self.refused += 1
                self._left -= min(self._left, cost * 0.05)
                return fault(503, "SlowDown")
            self._left -= cost
            self.served += 1
        return deleted(*request.bulk_keys)


def test_deletes_of_eight_threads_on_a_throttling_store_finish_without_a_storm() -> None:
    """Field case 104: page and rate adapt: goodput stays near what the store affords, refusals stay few."""
    budget = Budget(keys_per_s=4000, burst=800)
    retries = RequestRetries(backoff=Backoff(attempts=12, first_s=0.02, longest_s=0.3))
    with scripted(budget) as peer:
        store = store_at(peer, retries)
        with ThreadPoolExecutor(8) as threads:
            reports = list(threads.map(store.delete, [[f"{t}/{n}" for n in range(1000)] for t in range(8)]))
    assert sum(len(r.deleted) for r in reports) == 8000
    assert budget.refused <= budget.served
    assert budget.served <= 160, "pages became small, and stayed so"
