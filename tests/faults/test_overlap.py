"""Two attempts of one activity at the same time: the first only seemed dead, and goes on behind the second.

The second attempt runs to its end, in a process of its own, just before one call that the first one makes.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.driver.driver import Ending, Script
from tests.driver.executions import Attempt
from tests.driver.worker import Worker
from tests.faults.auditor import Intent, wrong_at_any_moment, wrong_at_rest
from tests.faults.conftest import COURSES, Course
from tests.faults.operators import Operators
from tests.faults.owning import OwnsWhatItMeets
from tests.faults.scene import SHORT
from tests.faults.world import World
from workers.assembly.activities import activities_over

pytestmark = pytest.mark.timeout(900)  # with --all-faults before every call, and not before two

_MOST_CALLS = 200
_CHUNK = "deletion.delete_chunk"


class Counted(Script):
    """Counts the calls that the first attempt of each activity makes."""

    def __init__(self) -> None:
        """Nothing is attempted yet."""
        self.calls: Counter[str] = Counter()
        self._first: str | None = None  # activity whose first attempt is in hand

    def ending(self, attempt: Attempt) -> Ending:
        self._first = None if attempt.type in self.calls else attempt.type
        self.calls[attempt.type] += 0
        return Ending.ANSWERED

    def ended(self) -> None:
        self._first = None  # what is called until the next attempt is nobody's

    def call(self) -> None:
        """The process is about to ask a store or the database."""
        if self._first:
            self.calls[self._first] += 1
            self.made(self._first)

    def made(self, activity: str) -> None:
        """It is about to make a call."""


class Overtaken(Counted):
    """The first attempt of one activity is overtaken just before one of its calls, counted from 1."""

    def __init__(self, activity: str, before: int) -> None:
        """Take which."""
        super().__init__()
        self._activity, self._before = activity, before
        self.operators: Operators
        self.overtaken = False
        self.seen: dict[int, Intent] = {}  # that had ended when the second attempt had

    def made(self, activity: str) -> None:
        if (activity, self.calls[activity]) == (self._activity, self._before):
            self._first = None
            world = self.operators.world
            with world.process() as log:
                owners = OwnsWhatItMeets(log.catalog.fences)
                self.overtaken = self.operators.driver.overtake(Worker(activities_over(log, owners).all()))
            self.seen = _ended(world)


def _ended(world: World) -> dict[int, Intent]:
    return {row: intent for row, intent in world.look().intents.items() if intent.state != "PENDING"}


def _gone(course: Course, script: Counted) -> Operators:
    """Go a course so."""
    operators = course.start(script=script)
    operators.world.before_call = script.call
    if isinstance(script, Overtaken):
        script.operators = operators
    return course.go(operators)


def test_chunk_overtaken_by_its_retry_at_any_call_counts_once_and_keeps_outcomes(
    template: Path, fresh: Callable[[], Path]
) -> None:
    """Two attempts may overlap, and what ended keeps its outcome (temporalio/sdk-python#1048, dust-tt/dust#4272)."""
    written = Operators(World(fresh(), template), SHORT)
    written.drive(written.write)
    for before in range(1, _MOST_CALLS):
        script = Overtaken(_CHUNK, before)
        script.operators = written.fork(written.world.fork(fresh()), script=script)
        world = script.operators.world
        world.before_call = script.call
        script.operators.drive(script.operators.remove)
        if script.calls[_CHUNK] < before:
            return
        assert not wrong_at_any_moment(world.look()), f"overtaken before call {before}"
        kept = {row: intent for row, intent in _ended(world).items() if row in script.seen}
        assert kept == script.seen, f"overtaken before call {before}: an outcome changed after it was final"
        assert not wrong_at_rest(world.look(), script.operators.expected), f"overtaken before call {before}"
    raise AssertionError("the first attempt made more calls than this test tries")


@pytest.mark.parametrize("name", COURSES)
def test_attempt_of_any_activity_overtaken_by_its_retry_keeps_every_promise(
    name: str, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """Of each activity that no course before comes to: before its last call, and before one in the middle."""
    every = pytestconfig.getoption("--all-faults")
    before = COURSES[: 0 if every else COURSES.index(name)]
    counted = Counted()
    _gone(courses[name], counted)
    for activity in sorted(courses[name].activities.difference(*(courses[other].activities for other in before))):
        most = counted.calls[activity]
        for call in range(1, most + 1) if every else sorted({-(-most // 2), most}):
            script = Overtaken(activity, call)
            operators = _gone(courses[name], script)
            assert script.overtaken, f"{activity}, call {call} of {most}: nothing came in its place"
            wrong = wrong_at_rest(operators.world.look(), operators.expected)
            assert not wrong, f"{activity}, overtaken before call {call} of {most}: {wrong}"
