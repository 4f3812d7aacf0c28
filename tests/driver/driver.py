"""Drives a server's workflows on one worker: which attempt comes next, and what becomes of it, says a script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from temporalio.api.common.v1 import Payload

from tests.driver.executions import Attempt, Task
from tests.driver.server import Server
from tests.driver.worker import Worker

_NEVER: Final = 5_000  # attempts after which nothing will ever end
_SLEEPS: Final = 3  # attempts of others before a late one goes on: its retry, and what the workflow does then


class Ending(Enum):
    """Of an attempt."""

    ANSWERED = "answered"
    UNHEARD = "done, and its answer is lost"
    LATE = "asleep until its retry has ended and the workflow has gone on"


class Script:
    """First come, first served, and every attempt is answered."""

    def choose(self, ready: Sequence[Task]) -> Task:
        """Which attempt is made next."""
        return ready[0]

    def ending(self, attempt: Attempt) -> Ending:
        """What becomes of it."""
        del attempt
        return Ending.ANSWERED

    def ended(self) -> None:
        """The attempt that was begun last is over."""


@dataclass(frozen=True, slots=True)
class _Sleeper:
    attempt: Attempt
    wakes: int  # after so many attempts of all


class Driver:
    """See the module's text."""

    def __init__(self, server: Server, script: Script | None = None, *, forgetful: bool = False) -> None:
        """Nothing is driven yet.

        Args:
            server: Whose workflows.
            script: What becomes of attempts.
            forgetful: Whether every activation is of a run that is replayed first, as with a cache of none.
        """
        self.server = server
        self.script = script or Script()
        self.made: list[Attempt] = []
        self.answered: list[Attempt] = []  # of these, whose answers count
        self._forgetful = forgetful
        self._asleep: list[_Sleeper] = []
        self._in_hand: list[Attempt] = []  # the last one was begun while the others are in hand

    def run(self, worker: Worker, *, until: Callable[[], bool] = lambda: False) -> None:
        """Make attempts until that is so or, by default, until there is nothing left to do.

        Raises:
            SimulatedCrash: The worker's process is dead; the server has noticed.
        """
        for _ in range(_NEVER):
            if until() or not self.step(worker):
                return
        raise AssertionError(f"this does not come to an end: {[one.workflow_id for one in self.server.running]}")

    def step(self, worker: Worker, *, root: str | None = None) -> bool:
        """Make one attempt, and let pass what time that needs; whether there was anything to do.

        Args:
            worker: Who makes it.
            root: Of this workflow, and of those that it started, alone.

        Raises:
            SimulatedCrash: The worker's process is dead; the server has noticed.
        """
        while True:
            self.server.fire()
            late, ready = self._late(), self.server.ready(root)
            if late or ready:
                break
            if not self.server.skip(root):
                return False
        try:
            if late:
                self._asleep.remove(late)
                worker.attempt(late.attempt)
            else:
                self._make(worker, self.server.begin(self.script.choose(ready)))
        except BaseException:
            self.lose_worker()
            raise
        if self._forgetful:
            self.server.forget()
        return True

    def _late(self) -> _Sleeper | None:
        """Who wakes now; once nothing else is left to do, everybody does."""
        over = not self.server.running
        return next((one for one in self._asleep if over or len(self.made) >= one.wakes), None)

    def lose_worker(self) -> None:
        """Its process died, and whoever slept in it; runs that go on are replayed."""
        self._asleep.clear()
        self.server.forget()

    def _make(self, worker: Worker, attempt: Attempt) -> None:
        self.made.append(attempt)
        ending = self.script.ending(attempt)
        if ending is Ending.LATE:
            self._asleep.append(_Sleeper(attempt, len(self.made) + _SLEEPS))
            self.server.give_up(attempt)
            return
        self._in_hand.append(attempt)
        try:
            outcome = worker.attempt(attempt)
        except BaseException:
            self.server.give_up(attempt)
            raise
        finally:
            self._in_hand.pop()
            self.script.ended()
        if ending is Ending.UNHEARD:
            self.server.give_up(attempt)
        elif self.server.end(attempt, outcome) and isinstance(outcome, Payload):
            self.answered.append(attempt)

    def overtake(self, worker: Worker) -> bool:
        """Take the attempt in hand for dead: what comes in its place runs to its end, on that worker; whether any does.

        That is its retry or, where the workflow is told instead, the task that the workflow sends elsewhere.
        """
        if not self._in_hand:
            return False
        lost = self._in_hand[-1]
        self.server.give_up(lost)
        tasks = [one for one in lost.task.execution.tasks.values() if one.type == lost.type and not one.in_hand]
        again = lost.task if lost.task in tasks else max(tasks, key=lambda one: one.number, default=None)
        if again:
            self.server.time.skip_to(again.due_ns)
            self._make(worker, self.server.begin(again))
        return again is not None
