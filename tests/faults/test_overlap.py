"""Two attempts of one activity at the same time: the first only seemed dead, and goes on behind the second.

The second attempt runs to its end, in a process of its own, just before one call that the first one makes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tests.driver.activity_worker import ActivityWorker
from tests.driver.workflow_driver import AttemptEnding, AttemptScript
from tests.driver.workflow_executions import ActivityAttempt
from tests.faults.acquiring_owner import AcquiringTopicOwners
from tests.faults.auditor import AuditedIntent, find_violations_at_any_moment, find_violations_at_rest
from tests.faults.conftest import COURSE_NAMES, JobCourse
from tests.faults.main_job_operators import MainJobOperators
from tests.faults.simulated_world import World
from tests.faults.topic_plans import SHORT_PLANS
from tests.run_parts import RunPart
from workers.assembly.activities import WorkerActivities

pytestmark = pytest.mark.timeout(900)  # with --all-faults before every call, and each activity in a run of its own

_MOST_CALLS = 200
_CHUNK = "deletion.delete_chunk"
_STEP = 3  # before one in so many calls of a chunk; with --all-faults before each


class Counted(AttemptScript):
    """Counts the calls that the first attempt of each activity makes."""

    def __init__(self) -> None:
        """Nothing is attempted yet."""
        self.calls: Counter[str] = Counter()
        self._first: str | None = None  # activity whose first attempt is in hand

    def ending(self, attempt: ActivityAttempt) -> AttemptEnding:
        self._first = None if attempt.type in self.calls else attempt.type
        self.calls[attempt.type] += 0
        return AttemptEnding.ANSWERED

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
    """The first attempt of each of some activities is overtaken just before one of its calls, counted from 1."""

    def __init__(self, before: Mapping[str, int]) -> None:
        """Take which, by activity."""
        super().__init__()
        self._before = before
        self.operators: MainJobOperators
        self.overtaken: set[str] = set()
        self.seen: dict[int, AuditedIntent] = {}  # that had ended when the second attempt had

    def made(self, activity: str) -> None:
        if self.calls[activity] == self._before.get(activity):
            self._first = None
            world = self.operators.world
            with world.process() as log:
                owners = AcquiringTopicOwners(log.catalog.fences)
                if self.operators.driver.overtake(ActivityWorker(WorkerActivities(log, owners).all())):
                    self.overtaken.add(activity)
            self.seen = _ended(world)


def _ended(world: World) -> dict[int, AuditedIntent]:
    return {row: intent for row, intent in world.look().intents.items() if intent.state != "PENDING"}


def _gone(course: JobCourse, script: Counted) -> MainJobOperators:
    """Go a course so."""
    operators = course.start(script=script)
    operators.world.before_call = script.call
    if isinstance(script, Overtaken):
        script.operators = operators
    return course.go(operators)


def test_chunk_overtaken_by_its_retry_at_any_call_counts_once_and_keeps_outcomes(
    template: Path, fresh: Callable[[], Path], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """Two attempts may overlap, and what ended keeps its outcome (temporalio/sdk-python#1048, dust-tt/dust#4272)."""
    written = MainJobOperators(World(fresh(), template), SHORT_PLANS)
    written.drive(written.write)
    steps = range(1, _MOST_CALLS, 1 if pytestconfig.getoption("--all-faults") else _STEP)
    for before in run_part.select(_CHUNK, steps):
        script = Overtaken({_CHUNK: before})
        script.operators = written.fork(written.world.fork(fresh()), script=script)
        world = script.operators.world
        world.before_call = script.call
        script.operators.drive(script.operators.remove)
        if script.calls[_CHUNK] < before:
            return
        assert not find_violations_at_any_moment(world.look()), f"overtaken before call {before}"
        kept = {row: intent for row, intent in _ended(world).items() if row in script.seen}
        assert kept == script.seen, f"overtaken before call {before}: an outcome changed after it was final"
        assert not find_violations_at_rest(world.look(), script.operators.expected), f"overtaken before call {before}"
    raise AssertionError("the first attempt made more calls than this test tries")


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_attempt_of_any_activity_overtaken_by_its_retry_keeps_every_promise(
    name: str, courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """Each activity that no course before comes to: before its last call, and before one in the middle.

    All of them are overtaken in one run; alone are those that such a run does not come to, for others took their calls.
    """
    every = pytestconfig.getoption("--all-faults")
    before = COURSE_NAMES[: 0 if every else COURSE_NAMES.index(name)]
    counted = Counted()
    _gone(courses[name], counted)
    activities = sorted(courses[name].activities.difference(*(courses[other].activities for other in before)))
    most = {activity: counted.calls[activity] for activity in activities}
    if every:
        calls_alone = [(it, call) for it in activities for call in range(1, most[it] + 1)]
        _overtake_alone(courses[name], run_part.select(name, calls_alone))
        return
    for calls in ({it: -(-count // 2) for it, count in most.items()}, most):
        met = _overtake(courses[name], calls)
        _overtake_alone(courses[name], ((it, call) for it, call in calls.items() if it not in met))


def _overtake_alone(course: JobCourse, calls: Iterable[tuple[str, int]]) -> None:
    for activity, call in calls:
        assert _overtake(course, {activity: call}), f"{activity}, call {call}: nothing came in its place"


def _overtake(course: JobCourse, calls: Mapping[str, int]) -> set[str]:
    """Go the course so, and require every promise; which activities were overtaken."""
    script = Overtaken(calls)
    operators = _gone(course, script)
    wrong = find_violations_at_rest(operators.world.look(), operators.expected)
    assert not wrong, f"overtaken before call {calls}: {wrong}"
    return script.overtaken
