"""Merging: concurrent appends of one process to one topic become one segment.

The first thread that finds a lane idle leads: it stores what has queued, its own append among it, and then
wakes the thread at the head of what queued meanwhile to lead next. Nobody waits for company: like group
commit, a batch is what came while the one before was being stored.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from logstore.errors import OutcomeUnknown, SextonError
from logstore.log.entries import ProducedEntries
from logstore.log.services.append import AppendResult

_MAX_ENTRIES: Final = 50_000
_MAX_BYTES: Final = 32 << 20
"""A batch takes appends until it passes one of these; one append larger than that is a batch of its own."""

Answer = AppendResult | BaseException


class _Waiter:
    """One thread's append while it waits."""

    __slots__ = ("answer", "leads", "produced", "size_bytes", "woken")

    def __init__(self, produced: ProducedEntries) -> None:
        self.produced = produced
        self.size_bytes = sum(entry.size_bytes for entry in produced.entries)
        self.woken = threading.Event()
        self.leads = False
        self.answer: Answer | None = None


class AppendQueue:
    """The appends of one topic in this process."""

    def __init__(self, store: Callable[[Sequence[ProducedEntries]], Sequence[AppendResult | SextonError]]) -> None:
        """Merge into calls of `store`.

        Args:
            store: Stores the appends as one segment and answers each in its place; called by one thread at a
                time. What it raises is raised to every append of the batch.
        """
        self._store = store
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._led = False

    @property
    def idle(self) -> bool:
        """Whether nobody appends at this moment."""
        with self._lock:
            return not self._led

    def append(self, produced: ProducedEntries) -> AppendResult:
        """Store the append with whatever else queued, and answer where it went.

        Raises:
            SextonError: What `store` answered or raised.
            OutcomeUnknown: The thread that led the batch was interrupted.
        """
        waiter = _Waiter(produced)
        with self._lock:
            self._queue.append(waiter)
            waiter.leads, self._led = not self._led, True
        if not waiter.leads:
            self._wait(waiter)
        if waiter.leads:
            self._lead()
        if isinstance(waiter.answer, AppendResult):
            return waiter.answer
        raise waiter.answer or OutcomeUnknown("append: the thread that led its batch was interrupted")

    def _wait(self, waiter: _Waiter) -> None:
        try:
            waiter.woken.wait()
        except BaseException:  # interrupted: it must neither be stored later nor be asked to lead
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
                if waiter.leads:
                    self._hand_over()
            raise

    def _lead(self) -> None:
        batch: list[_Waiter] = []
        try:
            with self._lock:
                batch = self._take()
            answers = self._store([waiter.produced for waiter in batch])
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer = answer
        except Exception as error:  # noqa: BLE001 - answered to every append of the batch
            for waiter in batch:
                waiter.answer = waiter.answer or error
        finally:
            with self._lock:
                self._hand_over()
            for waiter in batch:
                waiter.woken.set()

    def _take(self) -> list[_Waiter]:
        """The head of the queue and what fits behind it. The leader's own append is the head."""
        batch = [self._queue.popleft()]
        entries, size = len(batch[0].produced.entries), batch[0].size_bytes
        while self._queue:
            entries += len(self._queue[0].produced.entries)
            size += self._queue[0].size_bytes
            if entries > _MAX_ENTRIES or size > _MAX_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch

    def _hand_over(self) -> None:
        self._led = bool(self._queue)
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].woken.set()
