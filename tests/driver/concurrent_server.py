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

from tests.driver import temporal_failures
from tests.driver.activity_worker import ActivityWorker
from tests.driver.simulated_server import SimulatedServer
from tests.driver.workflow_executions import ActivityAttempt, ActivityTask, Execution

POLL_INTERVAL_S: Final = 0.001
_LONG_HISTORY_AFTER: Final = 30  # activations of a run, after which its history is found to be long


class SkippingClock:
    """The machine's clock, ahead by what was skipped."""

    def __init__(self) -> None:
        """Begin now."""
        self._ahead_ns = 0

    def now_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def skip_to(self, moment_ns: int) -> None:
        self._ahead_ns += max(0, moment_ns - self.now_ns())


@contextmanager
def suspend_running_loop() -> Iterator[None]:
    """Let a workflow's own loop run in the block, while that of the test stands still."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


class ConcurrentServer(SimulatedServer):
    """See the module's text."""

    def __init__(self) -> None:
        """Begin with no worker."""
        super().__init__(SkippingClock(), long_history_after=_LONG_HISTORY_AFTER)
        self.runs: dict[str, Execution] = {}
        self.made: list[tuple[ActivityAttempt, int]] = []  # and when each was due
        self.workers: list[ServedWorker] = []
        self.in_hand: dict[ActivityAttempt, ActivityEnvironment] = {}

    def _begin(self, *args: Any, **options: Any) -> Execution:
        execution = super()._begin(*args, **options)
        self.runs[execution.run.start.run_id] = execution
        return execution

    def _do_request_cancel_activity(self, execution: Execution, command: Any) -> None:
        for attempt, environment in self.in_hand.items():
            if attempt.task is execution.tasks.get(command.seq):
                environment.cancel()
        super()._do_request_cancel_activity(execution, command)

    async def serve(self) -> None:
        """Hand out attempts, and skip time, for as long as there are workers."""
        while self.workers:
            with suspend_running_loop():
                self.fire()
                self._time_out_unpicked_tasks()
            ready = [(due_task, worker) for due_task in self.ready() if (worker := self._find_worker(due_task))]
            for task, worker in ready:
                self.made.append((ActivityAttempt(task=task, number=task.attempt), task.due_ns))
                worker.attempt(self.begin(task))
            await asyncio.sleep(0 if ready or self._skip_if_idle() else POLL_INTERVAL_S)

    def _find_worker(self, task: ActivityTask) -> "ServedWorker | None":
        workers_of_queue = [worker for worker in self.workers if worker.queue == task.command.task_queue]
        return next(
            (worker for worker in workers_of_queue if worker.worker.serves(task.type)),
            workers_of_queue[0] if workers_of_queue else None,
        )

    def _skip_if_idle(self) -> bool:
        """Go to the next moment at which anything happens; whether there is one."""
        if self.in_hand:
            return False
        moments = [moment for _, _, moment in self._pending_timers()]
        for task in self._waiting(None):
            moments += [task.due_ns] if self._find_worker(task) else self._schedule_to_start_deadlines(task)
        if moments:
            self.time.skip_to(min(moments))
        return bool(moments)

    def _schedule_to_start_deadlines(self, task: ActivityTask) -> list[int]:
        patience_ns = task.command.schedule_to_start_timeout.ToNanoseconds()
        return [task.due_ns + patience_ns] if patience_ns else []

    def _time_out_unpicked_tasks(self) -> None:
        """End the tasks that nobody picked up in time."""
        for task in list(self._waiting(None)):
            if not self._find_worker(task) and any(
                until <= self.time.now_ns() for until in self._schedule_to_start_deadlines(task)
            ):
                failure = Failure(message="activity ScheduleToStart timeout", source="Server")
                failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
                failed = temporal_failures.activity_failure(task.command, failure, RetryState.RETRY_STATE_TIMEOUT)
                self._resolve_task(task, ActivityResolution(failed=Failed(failure=failed)))
                self._settle()


class ServedWorker:
    """A worker of one task queue, while its block runs."""

    def __init__(
        self,
        server: ConcurrentServer,
        queue: str,
        activities: Sequence[Callable[..., Any]],
        threads: ThreadPoolExecutor,
    ) -> None:
        """Take the activities, as a worker of Temporal does."""
        self.server = server
        self.queue = queue
        self.worker = ActivityWorker(activities)
        self._threads = threads
        self._attempts: dict[ActivityAttempt, asyncio.Task[None]] = {}
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
            with suspend_running_loop():
                self.server.give_up(attempt)
        await asyncio.gather(*self._attempts.values())
        with suspend_running_loop():
            self.server.forget()
        if self._serving and not self.server.workers:
            await self._serving

    def attempt(self, attempt: ActivityAttempt) -> None:
        """Make it on a thread."""
        environment = self.server.in_hand[attempt] = ActivityEnvironment()
        self._attempts[attempt] = asyncio.create_task(self._run_attempt(attempt, environment))

    async def _run_attempt(self, attempt: ActivityAttempt, environment: ActivityEnvironment) -> None:
        loop = asyncio.get_running_loop()
        try:
            outcome = await loop.run_in_executor(self._threads, self.worker.attempt, attempt, environment)
        finally:
            del self.server.in_hand[attempt], self._attempts[attempt]
        with suspend_running_loop():
            self.server.end(attempt, outcome)
