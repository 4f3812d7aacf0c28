"""Deletes that are confirmed per key: bulk requests, or single requests if the store refuses bulk requests."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.key_rules import find_keys_outside_xml, find_violated_rules
from infra.objects.request_retries import DeleteRate, RequestRetries
from infra.objects.s3_responses import (
    ABSENT_CODES,
    TEMPORARY_CODES,
    THROTTLE_CODES,
    error_code,
    error_status,
    is_throttle,
    translate_s3_errors,
)
from infra.objects.single_delete import DeleteOutcomes, SingleDelete
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.object_storage import DeleteReport
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)
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


class BulkDelete:
    """Deletes in one bucket. All threads share one rate and one memory of refusals. Thread-safe.

    If the store refuses bulk deletes, single requests delete the keys, several times slower. After at least 10 s, a
    bulk delete is tried again.

    Source: aws-sdk-java-v2 #5805 and barman #1146.
    """

    def __init__(self, client: "S3Client", bucket: str, *, retries: RequestRetries, rate: DeleteRate) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._rate = retries, rate
        self._single_delete = SingleDelete(client, bucket, retries=retries, rate=rate)
        self._bulk_refusal_backoff = _BulkRefusalBackoff(retries.clock.monotonic_s)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        distinct_keys = list(dict.fromkeys(keys))
        problem_by_key = find_violated_rules(distinct_keys)
        outcomes = DeleteOutcomes(
            failed={key: f"InvalidKey: expected {problem}" for key, problem in problem_by_key.items()}
        )
        valid_keys = [key for key in distinct_keys if key not in problem_by_key] if problem_by_key else distinct_keys
        # One key that XML cannot represent would make the request of a whole page invalid.
        single_keys = dict.fromkeys(find_keys_outside_xml(valid_keys))
        try:
            bulk_keys = [key for key in valid_keys if key not in single_keys] if single_keys else valid_keys
            self._delete_in_rounds(bulk_keys, outcomes)
            if single_keys:
                self._single_delete.delete(list(single_keys), outcomes)
        except SextonError as error:
            if not outcomes.deleted and not outcomes.failed:
                raise
            remaining = [key for key in valid_keys if key not in outcomes.deleted and key not in outcomes.failed]
            outcomes.failed.update(dict.fromkeys(remaining, f"{type(error).__name__}: {error}"))
            outcomes.unanswered.update(remaining)
        return outcomes.to_report()

    def _delete_in_rounds(self, keys: list[str], outcomes: DeleteOutcomes) -> None:
        rounds = 0
        while keys:
            error_by_retry_key: dict[str, str] = {}
            offset = 0
            while offset < len(keys):
                offset += self._delete_page_and_count_keys(keys, offset, outcomes, error_by_retry_key)
            rounds += 1
            if error_by_retry_key and rounds == self._retries.backoff.attempts:
                outcomes.failed.update(error_by_retry_key)
                return
            if error_by_retry_key:
                self._retries.pause(rounds)
            keys = list(error_by_retry_key)

    def _delete_page_and_count_keys(
        self, keys: list[str], offset: int, outcomes: DeleteOutcomes, error_by_retry_key: dict[str, str]
    ) -> int:
        raise_if_stopped()
        refusal: _BulkRefused | None = None
        if self._bulk_refusal_backoff.should_try:
            try:
                return self._retries.call(lambda: self._delete_page_in_bulk(keys, offset, outcomes, error_by_retry_key))
            except _BulkRefused as error:
                refusal = error
        page, deleted_before = keys[offset : offset + self._rate.keys_per_request], len(outcomes.deleted)
        self._single_delete.delete(page, outcomes)
        if refusal and refusal.is_general and len(outcomes.deleted) > deleted_before:
            period_s = self._bulk_refusal_backoff.record_refusal()
            _log.warning(
                "bucket %s refuses bulk deletes (%s): deleting one by one for %.0f s", self._bucket, refusal, period_s
            )
        return len(page)

    def _delete_page_in_bulk(
        self, keys: list[str], offset: int, outcomes: DeleteOutcomes, error_by_retry_key: dict[str, str]
    ) -> int:
        # Taken anew at each attempt, because a throttle may have reduced the keys per request.
        page = keys[offset : offset + self._rate.keys_per_request]
        start_s = self._rate.wait_for_turn(len(page))
        try:
            with translate_s3_errors(f"delete {len(page)} keys of {self._bucket}"):
                deleted, errors = self._send_bulk_delete(page)
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
            outcomes.deleted |= deleted
        else:
            error_by_retry_key.update(record_delete_results(page, deleted, errors, outcomes))
        return len(page)

    def _send_bulk_delete(self, page: list[str]) -> tuple[set[str], _ErrorByKey]:
        try:
            response = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": False}
            )
        except ClientError as error:
            refusal = self._parse_refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        errors = {
            failure.get("Key", ""): (failure.get("Code", ""), failure.get("Message", ""))
            for failure in response.get("Errors", ())
        }
        return {success.get("Key", "") for success in response.get("Deleted", ())}, errors

    def _parse_refusal(self, error: ClientError) -> _BulkRefused | None:
        """Return the refusal if single deletes may work, otherwise `None`.

        An ambiguous error code is a general refusal only if no bulk delete has ever succeeded.
        """
        code, status = error_code(error), error_status(error)
        is_certain = code in _NO_BULK_CODES or status in {405, 501}
        if not is_certain and code not in _PERHAPS_NO_BULK_CODES:
            return None
        return _BulkRefused(f"{status} {code}", is_general=is_certain or not self._bulk_refusal_backoff.is_proven)


def record_delete_results(
    page: Iterable[str], deleted: set[str], errors: _ErrorByKey, outcomes: DeleteOutcomes
) -> dict[str, str]:
    """Record deleted and failed keys. Keys that the response omits have failed. Return temporary errors by key."""
    error_by_retry_key = {}
    for key in page:
        code, message = errors.get(key, ("", ""))
        if code in ABSENT_CODES or (key in deleted and key not in errors):
            outcomes.deleted.add(key)
        elif code in TEMPORARY_CODES:
            error_by_retry_key[key] = f"{code}: {message}"
        else:
            outcomes.failed[key] = f"{code}: {message}" if key in errors else _UNCONFIRMED_TEXT
    return error_by_retry_key
