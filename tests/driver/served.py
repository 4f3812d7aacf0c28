"""The driver's server beside programs and workers that run at the same time, as the real one is.

Workers attempt activities on threads while a test goes on. The clock runs, and skips what nobody does anything in.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.activity_result import Failure as Failed
from temporalio.testing import ActivityEnvironment

from tests.driver import failures
from tests.driver.executions import Attempt, Execution, Task
from tests.driver.server import Server
from tests.driver.worker import Worker

LOOK_S: Final = 0.001
_LONG_AFTER: Final = 30  # activations of a run, after which its history is found to be long


class SkippingTime:
    """The machine's clock, ahead by what was skipped."""

    def __init__(self) -> None:
        """Begin now."""
        self._ahead_ns = 0

    def now_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def skip_to(self, moment_ns: int) -> None:
        self._ahead_ns += max(0, moment_ns - self.now_ns())


@contextmanager
def aside() -> Iterator[None]:
    """Let a workflow's own loop run in the block, while that of the test stands still."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


class Served(Server):
    """See the module's text."""

    def __init__(self) -> None:
        """Begin with no worker."""
        super().__init__(SkippingTime(), long_after=_LONG_AFTER)
        self.runs: dict[str, Execution] = {}
        self.made: list[tuple[Attempt, int]] = []  # and when each was due
        self.workers: list[ServedWorker] = []
        self.in_hand: dict[Attempt, ActivityEnvironment] = {}

    def _begin(self, *args: Any, **more: Any) -> Execution:
        begun = super()._begin(*args, **more)
        self.runs[begun.run.start.run_id] = begun
        return begun

    def _do_request_cancel_activity(self, execution: Execution, command: Any) -> None:
        for attempt, environment in self.in_hand.items():
            if attempt.task is execution.tasks.get(command.seq):
                environment.cancel()
        super()._do_request_cancel_activity(execution, command)

    async def serve(self) -> None:
        """Hand out attempts, and skip time, for as long as there are workers."""
        while self.workers:
            with aside():
                self.fire()
                self._expire()
            ready = [(one, worker) for one in self.ready() if (worker := self._worker_of(one))]
            for task, worker in ready:
                self.made.append((Attempt(task=task, number=task.attempt), task.due_ns))
                worker.attempt(self.begin(task))
            await asyncio.sleep(0 if ready or self._skip_if_idle() else LOOK_S)

    def _worker_of(self, task: Task) -> "ServedWorker | None":
        queue = [one for one in self.workers if one.queue == task.command.task_queue]
        return next((one for one in queue if one.worker.serves(task.type)), queue[0] if queue else None)

    def _skip_if_idle(self) -> bool:
        """Go to the next moment at which anything happens; whether there is one."""
        if self.in_hand:
            return False
        moments = [moment for _, _, moment in self._timers()]
        for task in self._waiting(None):
            moments += [task.due_ns] if self._worker_of(task) else self._lies_until(task)
        if moments:
            self.time.skip_to(min(moments))
        return bool(moments)

    def _lies_until(self, task: Task) -> list[int]:
        patience_ns = task.command.schedule_to_start_timeout.ToNanoseconds()
        return [task.due_ns + patience_ns] if patience_ns else []

    def _expire(self) -> None:
        """End the tasks that nobody picked up in time."""
        for task in list(self._waiting(None)):
            if not self._worker_of(task) and any(until <= self.time.now_ns() for until in self._lies_until(task)):
                failure = Failure(message="activity ScheduleToStart timeout", source="Server")
                failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
                failed = failures.of_activity(task.command, failure, RetryState.RETRY_STATE_TIMEOUT)
                self._resolve(task, ActivityResolution(failed=Failed(failure=failed)))
                self._settle()


class ServedWorker:
    """A worker of one task queue, while its block runs."""

    def __init__(
        self, server: Served, queue: str, activities: Sequence[Callable[..., Any]], threads: ThreadPoolExecutor
    ) -> None:
        """Take the activities, as a worker of Temporal does."""
        self.server = server
        self.queue = queue
        self.worker = Worker(activities)
        self._threads = threads
        self._attempts: dict[Attempt, asyncio.Task[None]] = {}
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.server.workers.append(self)
        if len(self.server.workers) == 1:
            self._serving = asyncio.create_task(self.server.serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End as a process that is killed: what it has in hand is cancelled, and nothing is heard of it."""
        self.server.workers.remove(self)
        for attempt in self._attempts:
            self.server.in_hand[attempt].cancel()
            with aside():
                self.server.give_up(attempt)
        await asyncio.gather(*self._attempts.values())
        with aside():
            self.server.forget()
        if self._serving and not self.server.workers:
            await self._serving

    def attempt(self, attempt: Attempt) -> None:
        """Make it on a thread."""
        environment = self.server.in_hand[attempt] = ActivityEnvironment()
        self._attempts[attempt] = asyncio.create_task(self._make(attempt, environment))

    async def _make(self, attempt: Attempt, environment: ActivityEnvironment) -> None:
        loop = asyncio.get_running_loop()
        try:
            outcome = await loop.run_in_executor(self._threads, self.worker.attempt, attempt, environment)
        finally:
            del self.server.in_hand[attempt], self._attempts[attempt]
        with aside():
            self.server.end(attempt, outcome)
