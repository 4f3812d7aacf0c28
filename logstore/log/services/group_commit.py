"""Group commit: one writer thread for each process commits all waiting writes in one transaction.

There is no timer. An idle writer commits at once. A batch contains the writes that were queued while the previous batch
was committed.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import Context, copy_context
from typing import Any, Final, NamedTuple, TypeVar, cast

from logstore.errors import CatalogBusy, OutcomeUnknown, SextonError, StoreUnavailable
from logstore.ports.catalog.log import GroupCommitResult, GroupCommitWrite, WriteWithResult

_LOG = logging.getLogger(__name__)
R = TypeVar("R")

_MAX_UNAVAILABLE_IN_A_ROW: Final = 2
"""Number of consecutive failures after which the catalog counts as unavailable. One failure may be a write's fault."""


class _QueuedWrite(NamedTuple):
    write: GroupCommitWrite
    future: "Future[Any]"
    context: Context  # of the submitting thread; a commit is part of the trace of its first write


CommitWrites = Callable[[Sequence[GroupCommitWrite]], Sequence[GroupCommitResult]]


class GroupCommitter:
    """Committer of the small writes of all threads, in shared transactions.

    `commit_writes` is `GroupCommits.commit_writes` of the catalog. Close the committer after use. A process can end
    without `close`, because the writer thread is a daemon. `capacity` is the maximum number of queued writes, and of
    writes in one transaction. If the queue is full, `submit` waits for at most `patience_s` seconds.
    """

    def __init__(self, commit_writes: CommitWrites, *, capacity: int = 4096, patience_s: float = 30.0) -> None:
        self._commit_writes = commit_writes
        self._capacity = capacity
        self._patience_s = patience_s
        self._waiting: deque[_QueuedWrite] = deque()
        self._changed = threading.Condition()
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run_writer, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, write: WriteWithResult[R]) -> "Future[R]":
        """Queue a write. The returned future gets the result or the error of the write.

        Raises:
            CatalogBusy: The queue was full for `patience_s`. The write was not queued.
            StoreUnavailable: The committer is closed or its thread died. The write was not queued.
        """
        item = _QueuedWrite(cast("GroupCommitWrite", write), Future(), copy_context())
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._refusal is not None or len(self._waiting) < self._capacity, timeout=self._patience_s
            )
            if self._refusal:
                raise StoreUnavailable(f"group commit: {self._refusal}")
            if not has_room:
                raise CatalogBusy(f"group commit: {self._capacity} writes wait and none ended in {self._patience_s} s")
            self._waiting.append(item)
            self._changed.notify_all()
        return item.future

    def commit_write(self, write: WriteWithResult[R], *, timeout_s: float | None = None) -> R:
        """Commit one write and wait for its result, at most `timeout_s`.

        Raises:
            CatalogBusy: The commit did not begin in time. The write was removed from the queue.
            OutcomeUnknown: The commit began, but did not end in time.
            SextonError: Errors of `commit_writes`.
        """
        future = self.submit(write)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.cancel():
                raise CatalogBusy(f"group commit: no turn within {timeout_s} s") from None
            raise OutcomeUnknown(f"group commit: no answer within {timeout_s} s") from None

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse new writes, commit waiting writes, and end the thread within `timeout_s`. Safe to repeat."""
        with self._changed:
            self._refusal = self._refusal or "this process's writer is closed"
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run_writer(self) -> None:
        items: list[_QueuedWrite] = []
        try:
            while items := self._take_writes_until_closed():
                self._commit_batch(items)
        except BaseException as death:  # noqa: BLE001 - after any error, no caller may wait for a dead thread
            self._fail_all_writes(items, death)

    def _take_writes_until_closed(self) -> list[_QueuedWrite]:
        """Wait for queued writes and return all of them, or an empty list if the committer is closed and idle."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._refusal)
                queued = list(self._waiting)
                self._waiting.clear()
                self._changed.notify_all()
                live = [item for item in queued if item.future.set_running_or_notify_cancel()]
                if live or not queued:
                    return live

    def _commit_batch(self, items: list[_QueuedWrite]) -> None:
        try:
            results = items[0].context.run(self._commit_writes, [item.write for item in items])
            if len(results) != len(items):
                raise OutcomeUnknown(f"group commit: {len(results)} answers to {len(items)} writes")  # noqa: TRY301
        except OutcomeUnknown as error:
            for item in items:
                item.future.set_exception(_make_outcome_unknown_error(error))
        except Exception as error:  # noqa: BLE001 - a faulty write may raise any error, and must not fail other writes
            self._commit_one_by_one(items, error)
        else:
            for item, result in zip(items, results, strict=True):
                if isinstance(result, SextonError):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(result)

    def _commit_one_by_one(self, items: list[_QueuedWrite], error: Exception) -> None:
        if len(items) == 1:
            items[0].future.set_exception(error)
            return
        if isinstance(error, CatalogBusy):  # a separate commit of each write would meet the same contention
            for item in items:
                item.future.set_exception(CatalogBusy(f"group commit: {error}"))
            return
        _LOG.warning("group commit: %d writes failed together, trying each alone: %s", len(items), error)
        unavailable_in_a_row = 0
        for item in items:
            if unavailable_in_a_row < _MAX_UNAVAILABLE_IN_A_ROW:
                self._commit_batch([item])
                unavailable_in_a_row = (
                    unavailable_in_a_row + 1 if isinstance(item.future.exception(), StoreUnavailable) else 0
                )
            else:
                item.future.set_exception(StoreUnavailable(f"group commit: not tried, the catalog is away: {error}"))

    def _fail_all_writes(self, items: list[_QueuedWrite], death: BaseException) -> None:
        _LOG.error("group commit: the writer died", exc_info=death)
        with self._changed:
            self._refusal = f"this process's writer died: {death!r}"
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for item in items:
            if not item.future.done():
                item.future.set_exception(_make_outcome_unknown_error(death) if isinstance(death, Exception) else death)
        for item in waiting:
            if item.future.set_running_or_notify_cancel():
                item.future.set_exception(StoreUnavailable(f"group commit: not tried: {self._refusal}"))


def _make_outcome_unknown_error(cause: BaseException) -> OutcomeUnknown:
    """Return a new error. If two threads raised one instance, they would overwrite its traceback."""
    error = OutcomeUnknown(f"group commit: {cause}")
    error.__cause__ = cause
    return error
