"""The fault matrix in one process: the main job, interrupted at every effect, keeps promises 1, 2, 3 and 8.

A crash raises at the point and everything of the process is made anew; SQL and objects stay as they are. What the
auditor looks at right after a crash is what an operator would find if nothing ever came back.
"""

import random

import pytest

from tests.faults.auditor import wrong_at_rest
from tests.faults.conftest import SEED, Course
from tests.faults.effects import INTERRUPTIONS, Interruption, interruptions, named_in_source
from tests.faults.job import Job, again
from tests.faults.world import World

_SAMPLE = 1  # hits of one point in one course; all of them with --all-faults
_PARTS = 4  # of long tests, so that each stays short
_PAIRS = 4  # of interruptions, in each course and part
_WRITES = 16  # one in so many is the last that a process makes


def _survive(course: Course, *armed: Interruption) -> Job[World]:
    """Go the course with the interruptions armed, and require every promise."""
    job = course.start()
    for one in armed:
        one.arm()
    course.go(job)
    wrong = [*job.wrong, *wrong_at_rest(job.world.look(), job.expected)]
    assert not wrong, f"{', '.join(map(str, armed))}: {wrong}"
    return job


def _most(config: pytest.Config) -> int:
    return 1_000 if config.getoption("--all-faults") else _SAMPLE


def _where(effect: str, courses: dict[str, Course], config: pytest.Config) -> list[Course]:
    """The courses that come to the effect; the first of them will do, but with --all-faults."""
    found = [course for course in courses.values() if any(hit.rpartition(".")[0] == effect for hit in course.hits)]
    return found if config.getoption("--all-faults") else found[:1]


def test_main_job_undisturbed_keeps_every_promise(courses: dict[str, Course]) -> None:
    """The expectations themselves are met, so that what fails below fails for its interruption."""
    for course in courses.values():
        assert not _survive(course).crashes


def test_main_job_hits_every_effect_that_the_source_names(courses: dict[str, Course]) -> None:
    """An effect without a case here would be an effect nobody has died at."""
    hit = {point for course in courses.values() for point in course.hits}
    for effect, where in named_in_source().items():
        missing = {f"{effect}.{moment}" for moment, _ in INTERRUPTIONS} - hit
        assert not missing, f"{where}: the main job of these tests never comes to {sorted(missing)}"


@pytest.mark.parametrize(("moment", "action"), INTERRUPTIONS, ids=str)
@pytest.mark.parametrize("effect", sorted(named_in_source()))
def test_main_job_interrupted_at_an_effect_keeps_every_promise(
    effect: str, moment: str, action: str, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """At every crash point a ledger is referenced, newborn, intended or gone (apache/pulsar#13526, #16569, #350)."""
    done = 0
    for course in _where(effect, courses, pytestconfig):
        for one in interruptions(course.hits, effect, moment, action, most=_most(pytestconfig)):
            job = _survive(course, one)
            assert job.crashes == ([one.point] if action == "crash" else []), f"{one} did not happen"
            done += 1
    assert done


@pytest.mark.parametrize("part", range(_PARTS))
def test_main_job_killed_before_any_write_keeps_every_promise(
    part: int, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """Before every commit and every key put or deleted, failpoint or not: no effect hides two (apache/pulsar#13526)."""
    step = _PARTS * (1 if pytestconfig.getoption("--all-faults") else _WRITES)
    for course in courses.values():
        undisturbed = course.start()
        course.go(undisturbed)
        for fatal in range(1 + part, undisturbed.world.writes + 1, step):
            job = course.start()
            job.world.fatal = fatal
            course.go(job)
            assert job.crashes == [f"write {fatal}"]
            wrong = [*job.wrong, *wrong_at_rest(job.world.look(), job.expected)]
            assert not wrong, f"killed before write {fatal}: {wrong}"


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize(("moment", "action"), [("after", "crash"), ("reported_failed", "fail")])
def test_main_job_run_again_after_an_interruption_changes_nothing(
    part: int, moment: str, action: str, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """Running it twice equals running it once, in storage, in rows and in counters (PIP-186, idempotency)."""
    for effect in sorted(named_in_source())[part::_PARTS]:
        for course in _where(effect, courses, pytestconfig):
            for one in interruptions(course.hits, effect, moment, action, most=1):
                job = _survive(course, one)
                before = job.world.look()
                again(job)
                after = job.world.look()
                assert after.objects == before.objects, f"{one}: a second run changed storage"
                assert after.rows == before.rows, f"{one}: a second run changed rows"
                assert not wrong_at_rest(after, job.expected), one


@pytest.mark.timeout(900)  # twenty times as many programs with --all-faults
@pytest.mark.parametrize("part", range(_PARTS))
def test_main_job_interrupted_twice_keeps_every_promise(
    part: int, courses: dict[str, Course], pytestconfig: pytest.Config
) -> None:
    """A second crash may meet what the first one left behind (apache/pulsar#982)."""
    dice = random.Random(SEED + part)
    for name, course in courses.items():
        every = [
            one
            for effect in sorted(named_in_source())
            for moment, action in INTERRUPTIONS
            for one in interruptions(course.hits, effect, moment, action, most=1_000)
        ]
        assert len(every) > 100, f"{name}: too few interruptions to choose from"
        for _ in range(_PAIRS * (40 if pytestconfig.getoption("--all-faults") else 1)):
            first, second = sorted(dice.sample(every, 2))
            if first.point != second.point:  # a point is armed once
                _survive(course, first, second)
