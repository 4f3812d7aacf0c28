"""Two attempts of one activity at the same time: the first only seemed dead, and goes on behind the second.

The second attempt runs to its end, in a process of its own, just before one call that the first one makes.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.driver.driver import Ending, Script
from tests.driver.executions import Attempt
from tests.driver.worker import Worker
from tests.faults.auditor import Intent, wrong_at_any_moment, wrong_at_rest
from tests.faults.conftest import Course
from tests.faults.operators import Operators
from tests.faults.owning import OwnsWhatItMeets
from tests.faults.scene import SHORT
from tests.faults.world import World
from workers.assembly.activities import activities_over

_MOST_CALLS = 200
_CHUNK = "deletion.delete_chunk"


class Overtaken(Script):
    """The first attempt of one activity is overtaken just before one of its calls, counted from 1."""

    def __init__(self, activity: str, before: int) -> None:
        """Take which."""
        self._activity, self._before = activity, before
        self._watched: Attempt | None = None
        self._watching = False
        self.calls = 0
        self.operators: Operators
        self.seen: dict[int, Intent] = {}  # that had ended when the second attempt had

    def ending(self, attempt: Attempt) -> Ending:
        """See `Script`."""
        self._watching = self._watched is None and attempt.type == self._activity
        self._watched = attempt if self._watching else self._watched
        return Ending.ANSWERED

    def call(self) -> None:
        """The process is about to ask a store or the database."""
        if not self._watching:
            return
        self.calls += 1
        if self.calls == self._before:
            self._watching = False
            self._overtake()

    def _overtake(self) -> None:
        world = self.operators.world
        with world.process() as log:
            self.operators.driver.overtake(Worker(activities_over(log, OwnsWhatItMeets(log.catalog.fences)).all()))
        self.seen = _ended(world)


def _ended(world: World) -> dict[int, Intent]:
    return {row: intent for row, intent in world.look().intents.items() if intent.state != "PENDING"}


def _overtaken(
    start: Callable[..., Operators], activity: str, before: int, go: Callable[[Operators], object]
) -> Overtaken:
    """Go a course so, and require every promise; of what it comes to."""
    script = Overtaken(activity, before)
    script.operators = start(script=script)
    script.operators.world.before_call = script.call
    go(script.operators)
    return script


def test_chunk_overtaken_by_its_retry_at_any_call_counts_once_and_keeps_outcomes(
    template: Path, fresh: Callable[[], Path]
) -> None:
    """Two attempts may overlap, and what ended keeps its outcome (temporalio/sdk-python#1048, dust-tt/dust#4272)."""
    written = Operators(World(fresh(), template), SHORT)
    written.drive(written.write)
    for before in range(1, _MOST_CALLS):
        script = _overtaken(
            lambda **more: written.fork(written.world.fork(fresh()), **more),
            _CHUNK,
            before,
            lambda operators: operators.drive(operators.remove),
        )
        if script.calls < before:
            return
        world = script.operators.world
        assert not wrong_at_any_moment(world.look()), f"overtaken before call {before}"
        kept = {row: intent for row, intent in _ended(world).items() if row in script.seen}
        assert kept == script.seen, f"overtaken before call {before}: an outcome changed after it was final"
        assert not wrong_at_rest(world.look(), script.operators.expected), f"overtaken before call {before}"
    raise AssertionError("the first attempt made more calls than this test tries")


@pytest.mark.parametrize("name", ["short", "offload", "remove", "together", "delete", "clear"])
def test_attempt_of_any_activity_overtaken_by_its_retry_keeps_every_promise(
    name: str, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """Of each activity that no course before comes to: before its first call, its last one, and one in between."""
    every = pytestconfig.getoption("--all-faults")
    before = [course for other, course in courses.items() if other < name] if not every else []
    course = courses[name]
    for activity in sorted(course.activities.difference(*(other.activities for other in before))):
        counted = _overtaken(course.start, activity, 0, course.go).calls
        for call in range(1, counted + 1) if every else sorted({1, -(-counted // 2), counted}):
            operators = _overtaken(course.start, activity, call, course.go).operators
            wrong = wrong_at_rest(operators.world.look(), operators.expected)
            assert not wrong, f"{activity}, overtaken before call {call} of {counted}: {wrong}"
