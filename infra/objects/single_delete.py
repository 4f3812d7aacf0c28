"""Deletes one key at a time, for stores and keys that bulk deletes cannot serve."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from infra.objects.answers import ABSENT, BAD_REQUEST, code_of, is_throttle, translated
from infra.objects.retries import DeleteRate, Retries
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.objects import DeleteReport
from logstore.units import between_units

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_OF_THIS_KEY = BAD_REQUEST | {"AccessDenied"}  # a policy or a lock may concern this key alone


@dataclass(slots=True)
class DeleteCounts:
    """What the store has said so far, key by key."""

    deleted: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)  # of those that failed

    def report(self) -> DeleteReport:
        """The counts as the port knows it."""
        return DeleteReport(deleted=frozenset(self.deleted), failed=self.failed, unanswered=frozenset(self.unanswered))


class SingleDelete:
    """Single deletes in one bucket, a few at a time; safe to share among threads."""

    def __init__(
        self, client: "S3Client", bucket: str, *, retries: Retries, rate: DeleteRate, parallelism: int = 8
    ) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._rate, self._parallelism = retries, rate, parallelism

    def delete(self, keys: Sequence[str], counts: DeleteCounts) -> None:
        """Delete each key by a request of its own and enter what the store says of it.

        A store that does not answer is not asked for the rest: those keys stay out of the counts.

        Raises:
            StoreUnavailable: The store stopped answering; keys may have been entered before.
            ServiceRefused: The store refuses such requests altogether, e.g. without the bucket.
        """
        hopeless = Event()
        with ThreadPoolExecutor(min(self._parallelism, len(keys))) as threads:
            asked = [
                (key, threads.submit(copy_context().run, self._unless, hopeless, key)) for key in keys
            ]  # a context each: spans in other threads keep their parent
        problems = [problem for key, answer in asked if (problem := self._enter(key, answer, counts))]
        if problems:
            raise problems[0]

    def _unless(self, hopeless: Event, key: str) -> str | None:
        """Delete one key, unless another met a store that does not work; returns why this key failed."""
        if hopeless.is_set():
            raise StoreUnavailable(f"delete {self._bucket}/{key}: not asked, the store had stopped answering")
        between_units()
        try:
            return self._retries.ask(lambda: self._one(key))
        except SextonError:
            hopeless.set()
            raise

    def _one(self, key: str) -> str | None:
        start = self._rate.wait_for_turn(1)
        try:
            with translated(f"delete {self._bucket}/{key}"):
                return self._request(key)
        except StoreUnavailable as error:
            if is_throttle(error):
                self._rate.throttled(start)
            raise

    def _request(self, key: str) -> str | None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if code_of(error) in ABSENT:
                return None
            if code_of(error) in _OF_THIS_KEY:
                return f"{code_of(error)}: {error.response['Error'].get('Message', '')}"
            raise
        self._rate.accepted(1)
        return None

    @staticmethod
    def _enter(key: str, answer: "Future[str | None]", counts: DeleteCounts) -> SextonError | None:
        try:
            why = answer.result()
        except SextonError as error:
            return error
        if why is None:
            counts.deleted.add(key)
        else:
            counts.failed[key] = why
        return None
