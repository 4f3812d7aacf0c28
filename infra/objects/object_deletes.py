"""Deletes that are confirmed per key: bulk requests, or single requests if the store refuses bulk requests."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.key_rules import find_keys_outside_xml, find_violated_rules
from infra.objects.s3_responses import (
    ABSENT_CODES,
    BAD_REQUEST_CODES,
    TEMPORARY_CODES,
    THROTTLE_CODES,
    RequestRetries,
    error_code,
    error_status,
    is_throttle,
    translate_s3_errors,
)
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.object_storage import DeleteReport
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef

_log = logging.getLogger(__name__)

_UNLIMITED = math.inf
_MAX_KEYS_PER_REQUEST, _MIN_KEYS_PER_REQUEST = 1_000, 25
_MIN_KEYS_PER_S = 25.0
_KEYS_ADDED_PER_SUCCESS = 25  # to the next request, after a successful one
_RATE_GROWTH_PER_SUCCESS = 0.05  # share of the rate at the last cut that a successful request adds
_RATE_CUT_FACTOR = 0.7
_RATE_RELEASE_FACTOR = 10.0  # multiple of the rate at the last cut from which the rate is unlimited again
_FIRST_CUT_WINDOW_S = 0.1  # the first throttle sets the rate to one request in this time


class DeleteRate:
    """Adaptive limits for deletes: keys per request, and keys per second. Thread-safe.

    Both limits grow additively, and are cut multiplicatively if the store throttles. If several threads are throttled,
    only the first one cuts the limits: a throttled request has no effect if it started before the last cut.

    Source: Apache Iceberg #7127: a request with 1,000 keys counts as 1,000 writes, and so does its retry.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._keys_per_request = _MAX_KEYS_PER_REQUEST
        self._rate = self._rate_at_cut = _UNLIMITED  # keys per second of all requests together
        self._next_start_s = self._last_cut_s = -_UNLIMITED

    @property
    def keys_per_request(self) -> int:
        return self._keys_per_request

    def wait_for_turn(self, key_count: int) -> float:
        """Wait until a request with `key_count` keys may start. Return the start time for `record_throttle`."""
        with self._lock:
            now_s = self._clock()
            start_s = max(now_s, self._next_start_s)
            self._next_start_s = start_s + key_count / self._rate
        if start_s > now_s:
            self._sleep(start_s - now_s)
        return start_s

    def record_success(self, key_count: int) -> None:
        if self._keys_per_request == _MAX_KEYS_PER_REQUEST and self._rate == _UNLIMITED:
            return
        share = key_count / self._keys_per_request  # the limits grow by deleted keys, also with single deletes
        with self._lock:
            self._keys_per_request = min(
                _MAX_KEYS_PER_REQUEST, self._keys_per_request + math.ceil(_KEYS_ADDED_PER_SUCCESS * share)
            )
            self._rate += self._rate_at_cut * _RATE_GROWTH_PER_SUCCESS * share
            if self._rate > self._rate_at_cut * _RATE_RELEASE_FACTOR:
                self._rate = _UNLIMITED

    def record_throttle(self, start_s: float) -> None:
        """Halve the keys per request and cut the rate, unless the request started before the last cut."""
        with self._lock:
            if start_s <= self._last_cut_s:
                return
            self._last_cut_s = self._clock()
            self._keys_per_request = max(_MIN_KEYS_PER_REQUEST, self._keys_per_request // 2)
            cut = (
                self._keys_per_request / _FIRST_CUT_WINDOW_S
                if self._rate == _UNLIMITED
                else self._rate * _RATE_CUT_FACTOR
            )
            self._rate = self._rate_at_cut = max(_MIN_KEYS_PER_S, cut)


_SINGLE_KEY_CODES = BAD_REQUEST_CODES | {"AccessDenied"}  # a policy or a lock may concern only this key
_SINGLE_DELETE_THREADS = 8
_NO_BULK_CODES = frozenset({
    "MethodNotAllowed",
    "MissingContentMD5",
    "MissingRequiredHeader",
    "NotImplemented",
    "NotSupported",
    "UnsupportedOperation",
})  # fmt: skip
_PERHAPS_NO_BULK_CODES = frozenset({"InvalidArgument", "InvalidDigest", "InvalidRequest", "MalformedXML"})
_MIN_SINGLE_PERIOD_S, _MAX_SINGLE_PERIOD_S = 10.0, 600.0
"""Bounds of the period of single deletes after a refused bulk delete. Each further refusal doubles the period."""
_UNCONFIRMED_TEXT = "NotConfirmed: the answer names the key under neither Deleted nor Errors"

_ErrorByKey = Mapping[str, tuple[str, str]]


class _BulkRefused(Exception):
    """Refusal of one bulk request, or of all bulk requests if `is_general`. Single requests may still succeed."""

    def __init__(self, problem: str, *, is_general: bool) -> None:
        super().__init__(problem)
        self.is_general = is_general


class _BulkRefusalBackoff:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._single_period_s = 0.0
        self._retry_at_s = -math.inf
        self.is_proven = False  # a bulk delete has succeeded

    @property
    def should_try(self) -> bool:
        return self._clock() >= self._retry_at_s

    def record_success(self) -> None:
        self.is_proven, self._single_period_s = True, 0.0

    def record_refusal(self) -> float:
        """Record that single deletes replaced a refused bulk delete. Return the seconds until the next bulk delete."""
        self._single_period_s = min(_MAX_SINGLE_PERIOD_S, self._single_period_s * 2 or _MIN_SINGLE_PERIOD_S)
        self._retry_at_s = self._clock() + self._single_period_s
        return self._single_period_s


class ObjectDeletes:
    """Deletes in one bucket. All threads share one rate and one memory of refusals. Thread-safe.

    If the store refuses bulk deletes, single requests delete the keys, several times slower. After at least 10 s, a
    bulk delete is tried again.

    Source: aws-sdk-java-v2 #5805 and barman #1146.
    """

    def __init__(self, client: "S3Client", bucket: str, *, retries: RequestRetries) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._rate = retries, DeleteRate()
        self._bulk_refusal_backoff = _BulkRefusalBackoff(retries.clock.monotonic_s)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        distinct_keys = list(dict.fromkeys(keys))
        problem_by_key = find_violated_rules(distinct_keys)
        report = DeleteReport(
            failed={key: f"InvalidKey: expected {problem}" for key, problem in problem_by_key.items()}
        )
        valid_keys = [key for key in distinct_keys if key not in problem_by_key] if problem_by_key else distinct_keys
        # One key that XML cannot represent would make the request of a whole page invalid.
        single_keys = dict.fromkeys(find_keys_outside_xml(valid_keys))
        try:
            bulk_keys = [key for key in valid_keys if key not in single_keys] if single_keys else valid_keys
            self._delete_in_rounds(bulk_keys, report)
            if single_keys:
                self._delete_one_by_one(list(single_keys), report)
        except SextonError as error:
            if not report.deleted and not report.failed:
                raise
            remaining = [key for key in valid_keys if key not in report.deleted and key not in report.failed]
            report.failed.update(dict.fromkeys(remaining, f"{type(error).__name__}: {error}"))
            report.unanswered.update(remaining)
        return report

    def _delete_in_rounds(self, keys: list[str], report: DeleteReport) -> None:
        rounds = 0
        while keys:
            error_by_retry_key: dict[str, str] = {}
            offset = 0
            while offset < len(keys):
                offset += self._delete_page_and_count_keys(keys, offset, report, error_by_retry_key)
            rounds += 1
            if error_by_retry_key and rounds == self._retries.backoff.attempts:
                report.failed.update(error_by_retry_key)
                return
            if error_by_retry_key:
                self._retries.pause(rounds)
            keys = list(error_by_retry_key)

    def _delete_page_and_count_keys(
        self, keys: list[str], offset: int, report: DeleteReport, error_by_retry_key: dict[str, str]
    ) -> int:
        raise_if_stopped()
        refusal: _BulkRefused | None = None
        if self._bulk_refusal_backoff.should_try:
            try:
                return self._retries.call(lambda: self._delete_page_in_bulk(keys, offset, report, error_by_retry_key))
            except _BulkRefused as error:
                refusal = error
        page, deleted_before = keys[offset : offset + self._rate.keys_per_request], len(report.deleted)
        self._delete_one_by_one(page, report)
        if refusal and refusal.is_general and len(report.deleted) > deleted_before:
            period_s = self._bulk_refusal_backoff.record_refusal()
            _log.warning(
                "bucket %s refuses bulk deletes (%s): deleting one by one for %.0f s", self._bucket, refusal, period_s
            )
        return len(page)

    def _delete_page_in_bulk(
        self, keys: list[str], offset: int, report: DeleteReport, error_by_retry_key: dict[str, str]
    ) -> int:
        # Taken anew at each attempt, because a throttle may have reduced the keys per request.
        page = keys[offset : offset + self._rate.keys_per_request]
        start_s = self._rate.wait_for_turn(len(page))
        try:
            with translate_s3_errors(f"delete {len(page)} keys of {self._bucket}"):
                deleted, errors = parse_delete_response(self._send_bulk_delete(page))
        except StoreUnavailable as error:
            if is_throttle(error):
                self._rate.record_throttle(start_s)
            raise
        self._bulk_refusal_backoff.record_success()
        if any(code in THROTTLE_CODES for code, _ in errors.values()):
            self._rate.record_throttle(start_s)
        else:
            self._rate.record_success(len(page))
        if not errors and len(deleted) == len(page) and deleted.issuperset(page):
            report.deleted.update(deleted)
        else:
            error_by_retry_key.update(record_delete_results(page, deleted, errors, report))
        return len(page)

    def _send_bulk_delete(self, page: list[str]) -> "DeleteObjectsOutputTypeDef":
        """Send the request. Raise `_BulkRefused` if single deletes may work.

        An ambiguous error code is a general refusal only if no bulk delete has ever succeeded.
        """
        try:
            return self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": False}
            )
        except ClientError as error:
            code, status = error_code(error), error_status(error)
            is_certain = code in _NO_BULK_CODES or status in {405, 501}
            if not is_certain and code not in _PERHAPS_NO_BULK_CODES:
                raise
            is_general = is_certain or not self._bulk_refusal_backoff.is_proven
            raise _BulkRefused(f"{status} {code}", is_general=is_general) from error

    def _delete_one_by_one(self, keys: Sequence[str], report: DeleteReport) -> None:
        """Delete each key by a separate request, several at once.

        If the store stops answering, the remaining keys get no request and no outcome.
        """
        store_failed = threading.Event()
        with ThreadPoolExecutor(min(_SINGLE_DELETE_THREADS, len(keys))) as threads:
            futures = [  # each with a copy of the context, so that spans in the threads keep their parent
                (key, threads.submit(copy_context().run, self._delete_unless_store_failed, store_failed, key))
                for key in keys
            ]
        errors = []
        for key, future in futures:
            try:
                problem = future.result()
            except SextonError as error:
                errors.append(error)
                continue
            if problem is None:
                report.deleted.add(key)
            else:
                report.failed[key] = problem
        if errors:
            raise errors[0]

    def _delete_unless_store_failed(self, store_failed: threading.Event, key: str) -> str | None:
        """Return the reason if the store refuses this key. If `store_failed` is set, raise an error at once."""
        if store_failed.is_set():
            raise StoreUnavailable(f"delete {self._bucket}/{key}: not asked, the store had stopped answering")
        raise_if_stopped()
        try:
            return self._retries.call(lambda: self._delete_key_at_rate(key))
        except SextonError:
            store_failed.set()
            raise

    def _delete_key_at_rate(self, key: str) -> str | None:
        start_s = self._rate.wait_for_turn(1)
        try:
            with translate_s3_errors(f"delete {self._bucket}/{key}"):
                return self._send_delete(key)
        except StoreUnavailable as error:
            if is_throttle(error):
                self._rate.record_throttle(start_s)
            raise

    def _send_delete(self, key: str) -> str | None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error_code(error) in ABSENT_CODES:
                return None
            if error_code(error) in _SINGLE_KEY_CODES:
                return f"{error_code(error)}: {error.response['Error'].get('Message', '')}"
            raise
        self._rate.record_success(1)
        return None


def parse_delete_response(response: "DeleteObjectsOutputTypeDef") -> tuple[set[str], _ErrorByKey]:
    """Return the deleted keys, and code and message of each error by key."""
    errors = {
        failure.get("Key", ""): (failure.get("Code", ""), failure.get("Message", ""))
        for failure in response.get("Errors", ())
    }
    return {success.get("Key", "") for success in response.get("Deleted", ())}, errors


def record_delete_results(
    page: Iterable[str], deleted: set[str], errors: _ErrorByKey, report: DeleteReport
) -> dict[str, str]:
    """Record deleted and failed keys. Keys that the response omits have failed. Return temporary errors by key."""
    error_by_retry_key = {}
    for key in page:
        code, message = errors.get(key, ("", ""))
        if code in ABSENT_CODES or (key in deleted and key not in errors):
            report.deleted.add(key)
        elif code in TEMPORARY_CODES:
            error_by_retry_key[key] = f"{code}: {message}"
        else:
            report.failed[key] = f"{code}: {message}" if key in errors else _UNCONFIRMED_TEXT
    return error_by_retry_key
