"""Drives a server's workflows on one worker: which attempt comes next, and what becomes of it, says a script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from temporalio.api.common.v1 import Payload

from tests.driver.activity_worker import ActivityWorker
from tests.driver.simulated_server import SimulatedServer
from tests.driver.workflow_executions import ActivityAttempt, ActivityTask

_MAX_ATTEMPTS: Final = 5_000  # attempts after which nothing will ever end
_ATTEMPTS_BEFORE_LATE_ONE: Final = (
    3  # attempts of others before a late one goes on: its retry, and what the workflow does then
)


class AttemptEnding(Enum):
    """Of an attempt."""

    ANSWERED = "answered"
    UNHEARD = "done, and its answer is lost"
    LATE = "asleep until its retry has ended and the workflow has gone on"


class AttemptScript:
    """First come, first served, and every attempt is answered."""

    def choose(self, ready: Sequence[ActivityTask]) -> ActivityTask:
        """Which attempt is made next."""
        return ready[0]

    def ending(self, attempt: ActivityAttempt) -> AttemptEnding:
        """What becomes of it."""
        del attempt
        return AttemptEnding.ANSWERED

    def ended(self) -> None:
        """The attempt that was begun last is over."""


@dataclass(frozen=True, slots=True)
class _LateAttempt:
    attempt: ActivityAttempt
    wakes: int  # after so many attempts of all


class WorkflowDriver:
    """See the module's text."""

    def __init__(
        self, server: SimulatedServer, script: AttemptScript | None = None, *, replays_always: bool = False
    ) -> None:
        """Nothing is driven yet.

        Args:
            server: Whose workflows.
            script: What becomes of attempts.
            replays_always: Whether every activation is of a run that is replayed first, as with a cache of none.
        """
        self.server = server
        self.script = script or AttemptScript()
        self.made: list[ActivityAttempt] = []
        self.answered: list[ActivityAttempt] = []  # of these, whose answers count
        self._replays_always = replays_always
        self._late_attempts: list[_LateAttempt] = []
        self._open_attempts: list[ActivityAttempt] = []  # the last one was begun while the others are in hand

    def run(self, worker: ActivityWorker, *, until: Callable[[], bool] = lambda: False) -> None:
        """Make attempts until that is so or, by default, until there is nothing left to do.

        Raises:
            SimulatedCrash: The worker's process is dead; the server has noticed.
        """
        for _ in range(_MAX_ATTEMPTS):
            if until() or not self.step(worker):
                return
        raise AssertionError(f"this does not come to an end: {[one.workflow_id for one in self.server.running]}")

    def step(self, worker: ActivityWorker, *, root: str | None = None) -> bool:
        """Make one attempt, and let pass what time that needs; whether there was anything to do.

        Args:
            worker: Who makes it.
            root: Of this workflow, and of those that it started, alone.

        Raises:
            SimulatedCrash: The worker's process is dead; the server has noticed.
        """
        while True:
            self.server.fire()
            late_attempt, due_tasks = self._next_late_attempt(), self.server.ready(root)
            if late_attempt or due_tasks:
                break
            if not self.server.skip(root):
                return False
        try:
            if late_attempt:
                self._late_attempts.remove(late_attempt)
                worker.attempt(late_attempt.attempt)
            else:
                self._run_attempt(worker, self.server.begin(self.script.choose(due_tasks)))
        except BaseException:
            self.lose_worker()
            raise
        if self._replays_always:
            self.server.forget()
        return True

    def _next_late_attempt(self) -> _LateAttempt | None:
        """Who wakes now; once nothing else is left to do, everybody does."""
        is_all_done = not self.server.running
        return next(
            (
                late_attempt
                for late_attempt in self._late_attempts
                if is_all_done or len(self.made) >= late_attempt.wakes
            ),
            None,
        )

    def lose_worker(self) -> None:
        """Its process died, and whoever slept in it; runs that go on are replayed."""
        self._late_attempts.clear()
        self.server.forget()

    def _run_attempt(self, worker: ActivityWorker, attempt: ActivityAttempt) -> None:
        self.made.append(attempt)
        ending = self.script.ending(attempt)
        if ending is AttemptEnding.LATE:
            self._late_attempts.append(_LateAttempt(attempt, len(self.made) + _ATTEMPTS_BEFORE_LATE_ONE))
            self.server.give_up(attempt)
            return
        self._open_attempts.append(attempt)
        try:
            outcome = worker.attempt(attempt)
        except BaseException:
            self.server.give_up(attempt)
            raise
        finally:
            self._open_attempts.pop()
            self.script.ended()
        if ending is AttemptEnding.UNHEARD:
            self.server.give_up(attempt)
        elif self.server.end(attempt, outcome) and isinstance(outcome, Payload):
            self.answered.append(attempt)

    def overtake(self, worker: ActivityWorker) -> bool:
        """Take the attempt in hand for dead: what comes in its place runs to its end, on that worker; whether any does.

        That is its retry or, where the workflow is told instead, the task that the workflow sends elsewhere.
        """
        if not self._open_attempts:
            return False
        overtaken = self._open_attempts[-1]
        self.server.give_up(overtaken)
        tasks = [
            task for task in overtaken.task.execution.tasks.values() if task.type == overtaken.type and not task.in_hand
        ]
        replacement = (
            overtaken.task if overtaken.task in tasks else max(tasks, key=lambda task: task.number, default=None)
        )
        if replacement:
            self.server.time.skip_to(replacement.due_ns)
            self._run_attempt(worker, self.server.begin(replacement))
        return replacement is not None
