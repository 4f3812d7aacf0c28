"""Single deletes, for stores and keys that do not support bulk deletes."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.request_retries import DeleteRate, RequestRetries
from infra.objects.s3_responses import ABSENT_CODES, BAD_REQUEST_CODES, error_code, is_throttle, translate_s3_errors
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.object_storage import DeleteReport
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SINGLE_KEY_CODES = BAD_REQUEST_CODES | {"AccessDenied"}  # a policy or a lock may concern only this key


@dataclass(slots=True)
class DeleteOutcomes:
    deleted: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # reason by key
    unanswered: set[str] = field(default_factory=set)  # failed keys for which the store gave no answer

    def to_report(self) -> DeleteReport:
        return DeleteReport(deleted=frozenset(self.deleted), failed=self.failed, unanswered=frozenset(self.unanswered))


class SingleDelete:
    """Single deletes in one bucket, up to `parallelism` at once. Thread-safe."""

    def __init__(
        self, client: "S3Client", bucket: str, *, retries: RequestRetries, rate: DeleteRate, parallelism: int = 8
    ) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._rate, self._parallelism = retries, rate, parallelism

    def delete(self, keys: Sequence[str], outcomes: DeleteOutcomes) -> None:
        """Delete each key by a separate request.

        If the store stops answering, the remaining keys get no request and no outcome.
        """
        store_failed = Event()
        with ThreadPoolExecutor(min(self._parallelism, len(keys))) as threads:
            futures = [  # each with a copy of the context, so that spans in the threads keep their parent
                (key, threads.submit(copy_context().run, self._delete_unless_store_failed, store_failed, key))
                for key in keys
            ]
        errors = [error for key, future in futures if (error := self._record_result(key, future, outcomes))]
        if errors:
            raise errors[0]

    def _delete_unless_store_failed(self, store_failed: Event, key: str) -> str | None:
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

    @staticmethod
    def _record_result(key: str, future: "Future[str | None]", outcomes: DeleteOutcomes) -> SextonError | None:
        try:
            problem = future.result()
        except SextonError as error:
            return error
        if problem is None:
            outcomes.deleted.add(key)
        else:
            outcomes.failed[key] = problem
        return None
