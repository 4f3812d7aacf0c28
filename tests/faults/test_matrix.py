"""The fault matrix in one process: the main job, interrupted at every effect, keeps promises 1, 2, 3 and 8.

A crash raises at the point and everything of the process is made anew; SQL, objects and what Temporal keeps stay as
they are. What the auditor looks at right after a crash is what an operator would find if nothing ever came back.
"""

import random
from collections.abc import Collection, Container
from typing import Any

import pytest
from temporalio import activity, workflow

from logstore import failpoints
from logstore.log.ledger_object_keys import shard_prefix
from tests.driver.workflow_driver import AttemptEnding
from tests.fakes.object_store import Fault, StoreOperation
from tests.fakes.owners import UnownedTopics
from tests.faults.attempt_scripts import FirstAttemptsScript, RandomScript
from tests.faults.auditor import find_violations_at_rest
from tests.faults.conftest import COURSE_NAMES, SEED, JobCourse
from tests.faults.failpoint_hits import MOMENTS_AND_ACTIONS, Interruption, find_effect_names, spread_interruptions
from tests.faults.main_job_operators import MainJobOperators
from tests.run_parts import RunPart
from workers.assembly.activities import WorkerActivities
from workers.hosting.temporal_workers import WORKFLOWS

pytestmark = pytest.mark.timeout(900)  # with --all-faults many times as many runs

_PAIRS = 160  # of interruptions, in each course with --all-faults; otherwise one
_WRITES = 40  # one in so many is the last that a process makes, all of these in one run; with --all-faults each alone
_EVERY = 1_000  # hits of one point, with --all-faults
_REBUILDING = {
    *(f"adoption.{step}" for step in ("stage", "settle", "conclude", "finish")),
    *(f"records.{step}" for step in ("load_rows", "name_database", "end_entry")),
}
_FOLLOWING = {"records.apply", "records.forget", "records.revoke"}
_MET_ALONE = {"bulk.publish", "append.put_confirmation"} | _REBUILDING | _FOLLOWING
"""Met by the tests of publication, for the courses have bulk jobs that publish without Spark; by those of races between
appends, for the courses append alone; by those of rebuilds, for no worker rebuilds a catalog that it works on;
and by those of replicas that follow, whose databases are none of a worker's either."""
_RUN_ALONE = {"rebuild-catalog", "follow-records"}  # by the workers of their commands, whose effects are these
_DONE_TWICE = ("after", "reported_failed")
"""Behind these the main job is run once more; behind the second with --all-faults, for the first says the same."""
_ALONE = {"records.sweep_blocks", "records.sweep_manifests"}
"""Whose failure costs a round of replication: the course has rounds for one, and its raid waits for the replica."""
_BEHIND_A_WALK = ("storage.delete_data", "storage.delete_meta", "catalog.finish")
_EFFECTS = sorted(find_effect_names().keys() - _MET_ALONE)


def _survive(course: JobCourse, *armed: Interruption, fatal: Container[int] = (), **more: Any) -> MainJobOperators:
    """Go the course with the interruptions armed, and require every promise."""
    operators = course.start(**more)
    operators.world.fatal = fatal
    for one in armed:
        one.arm()
    course.go(operators)
    wrong = [*operators.wrong, *find_violations_at_rest(operators.world.look(), operators.expected)]
    assert not wrong, f"{', '.join(map(str, armed))}: {wrong}"
    return operators


def _require_no_change_by_a_second_run(operators: MainJobOperators) -> None:
    """Running it twice equals running it once, in storage, in rows and in counters (PIP-186, idempotency)."""
    before = operators.world.look()
    operators.again()
    after = operators.world.look()
    assert after.objects == before.objects, "a second run changed storage"
    assert after.rows == before.rows, "a second run changed rows"
    assert not find_violations_at_rest(after, operators.expected)


def _where(effect: str, courses: dict[str, JobCourse], config: pytest.Config) -> list[str]:
    """Return the names of courses that come to the effect: the first, or with --all-faults all."""
    names = [name for name, course in courses.items() if any(hit.rpartition(".")[0] == effect for hit in course.hits)]
    return names if config.getoption("--all-faults") else names[:1]


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_main_job_undisturbed_keeps_every_promise(name: str, courses: dict[str, JobCourse]) -> None:
    """The expectations themselves are met, so that what fails below fails for its interruption."""
    operators = _survive(courses[name])
    assert not operators.crashes
    _require_no_change_by_a_second_run(operators)


def test_main_job_hits_every_effect_that_the_source_names(courses: dict[str, JobCourse]) -> None:
    """An effect without a case here would be an effect nobody has died at."""
    hit = {point for course in courses.values() for point in course.hits}
    for effect, where in find_effect_names().items():
        if effect in _MET_ALONE:
            continue
        missing = {f"{effect}.{moment}" for moment, _ in MOMENTS_AND_ACTIONS} - hit
        assert not missing, f"{where}: the main job of these tests never comes to {sorted(missing)}"


def test_main_job_runs_every_workflow_and_every_activity_that_a_worker_serves(courses: dict[str, JobCourse]) -> None:
    """One that is registered and that no course comes to would be one that no fault has met."""
    assert tuple(courses) == COURSE_NAMES
    served = {workflow._Definition.must_from_class(one).name for one in WORKFLOWS}
    assert served - _RUN_ALONE == {name for course in courses.values() for name in course.workflows}
    with courses["short"].start().world.process() as log:
        hosted = {
            activity._Definition.must_from_callable(one).name for one in WorkerActivities(log, UnownedTopics()).all()
        }
    assert hosted == {name for course in courses.values() for name in course.activities}


@pytest.mark.parametrize("action", ["crash", "fail"])
@pytest.mark.parametrize("effect", _EFFECTS)
def test_main_job_interrupted_at_an_effect_keeps_every_promise(
    effect: str, action: str, courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """At every crash point a ledger is referenced, newborn, intended or gone (apache/pulsar#13526, #16569, #350).

    Both crashes, or both failures, happen in one run: a job that one of them has stopped would not come to the other.
    What such a run does not come to has a run of its own, and with --all-faults every one has.
    """
    moments, done = [moment for moment, its in MOMENTS_AND_ACTIONS if its == action], 0
    for name in _where(effect, courses, pytestconfig):
        course = courses[name]
        armed = [one for moment in moments for one in _hits(course, effect, moment, action, pytestconfig)]
        every = pytestconfig.getoption("--all-faults")
        twice = _DONE_TWICE if every else _DONE_TWICE[:1]
        met = set() if every or effect in _ALONE else _interrupt(course, *armed, twice=twice)
        for one in run_part.select(name, armed):
            if one not in met:
                assert _interrupt(course, one, twice=twice), f"{one} did not happen"
        done += len(armed)
    assert done


def _interrupt(course: JobCourse, *armed: Interruption, twice: Collection[str]) -> set[Interruption]:
    """Go the course with them; which of them happened. Behind some of these moments the main job is run once more."""
    operators = _survive(course, *armed)
    met = {one for one in armed if one.happened}
    assert sorted(operators.crashes) == sorted(one.point for one in met if one.action == "crash")
    failpoints.disarm_all_and_take_hits()
    if any(one.point.rpartition(".")[2] in twice for one in met):
        _require_no_change_by_a_second_run(operators)
    return met


def _hits(course: JobCourse, effect: str, moment: str, action: str, config: pytest.Config) -> list[Interruption]:
    """Of a point that is met often, the first hit or the last one, by its name; all of them with --all-faults."""
    every = spread_interruptions(course.hits, effect, moment, action, max_count=_EVERY)
    if config.getoption("--all-faults"):
        return every
    return every[:1] if MOMENTS_AND_ACTIONS.index((moment, action)) % 2 else every[-1:]


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_main_job_killed_before_any_write_keeps_every_promise(
    name: str, courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """Before every commit and every key put or deleted, failpoint or not: no effect hides two (apache/pulsar#13526)."""
    every = pytestconfig.getoption("--all-faults")
    writes = range(1, courses[name].writes + 1) if every else range(_WRITES, courses[name].writes + 1, _WRITES)
    for fatal in run_part.select(name, [[one] for one in writes]) if every else [writes]:
        assert _survive(courses[name], fatal=fatal).crashes == [f"write {one}" for one in fatal]


@pytest.mark.parametrize(("moment", "action"), MOMENTS_AND_ACTIONS)
@pytest.mark.parametrize("effect", _BEHIND_A_WALK)
def test_chunk_that_shared_a_listing_interrupted_behind_it_keeps_every_promise(
    effect: str,
    moment: str,
    action: str,
    *,
    courses: dict[str, JobCourse],
    run_part: RunPart,
    pytestconfig: pytest.Config,
) -> None:
    """Between the walk and the deletes, between data and statements, and as the rows end: it is walked anew.

    Then some neighbours are half gone or gone, and those that ended are not asked for again.
    """
    most = _EVERY if pytestconfig.getoption("--all-faults") else 2
    every = spread_interruptions(courses["beside"].hits, effect, moment, action, max_count=most)
    assert len(every) > 1
    for one in run_part.select("beside", every):
        assert _interrupt(courses["beside"], one, twice=_DONE_TWICE) == {one}


def test_chunk_that_shared_a_listing_killed_before_any_delete_keeps_every_promise(
    courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a page: each key that is left is found by the next walk, or by its name."""
    undisturbed = courses["beside"].start()
    world, deletes = undisturbed.world, list[int]()
    meet = world.store._meet

    def counted(operation: StoreOperation, name: str) -> Fault | None:
        fault = meet(operation, name)
        if operation is StoreOperation.DELETE:
            deletes.append(world.writes)
        return fault

    monkeypatch.setattr(world.store, "_meet", counted)
    courses["beside"].go(undisturbed)
    walked = [call for call in world.store.calls if call == (StoreOperation.LIST, shard_prefix(0))]
    assert len(walked) >= 2
    assert len(deletes) > 12
    for one in run_part.select("delete", deletes if pytestconfig.getoption("--all-faults") else deletes[1::4]):
        assert _survive(courses["beside"], fatal=[one]).crashes == [f"write {one}"]


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_main_job_interrupted_twice_keeps_every_promise(
    name: str, courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """A second crash may meet what the first one left behind (apache/pulsar#982)."""
    dice = random.Random(f"{SEED} {name}")
    every = [
        one
        for effect in sorted(find_effect_names())
        for moment, action in MOMENTS_AND_ACTIONS
        for one in spread_interruptions(courses[name].hits, effect, moment, action, max_count=_EVERY)
    ]
    assert len(every) > 100, f"{name}: too few interruptions to choose from"
    draws = range(_PAIRS if pytestconfig.getoption("--all-faults") else 1)
    pairs = [sorted(dice.sample(every, 2)) for _ in draws]
    for first, second in (pairs[draw] for draw in run_part.select(name, draws)):
        if first.point != second.point:  # a point is armed once
            _survive(courses[name], first, second)


@pytest.mark.parametrize("ending", [AttemptEnding.UNHEARD, AttemptEnding.LATE], ids=lambda ending: ending.name.lower())
@pytest.mark.parametrize("name", COURSE_NAMES)
def test_attempt_of_each_activity_that_happens_twice_keeps_every_promise(
    ending: AttemptEnding, name: str, courses: dict[str, JobCourse]
) -> None:
    """Its answer is lost, or it is thought dead and goes on behind its retry (temporalio/sdk-python#1048)."""
    operators = _survive(courses[name], script=FirstAttemptsScript(ending))
    assert len(operators.driver.made) > len(courses[name].activities)
    _require_no_change_by_a_second_run(operators)


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_workflows_that_are_replayed_and_continued_as_often_as_can_be_keep_every_promise(
    name: str, courses: dict[str, JobCourse]
) -> None:
    """A worker that remembers no run, and a server that finds every history long."""
    _survive(courses[name], forgetful=True, long_history_after=4)


@pytest.mark.parametrize("name", COURSE_NAMES)
def test_workflows_whose_steps_come_in_any_order_keep_every_promise(
    name: str, courses: dict[str, JobCourse], run_part: RunPart, pytestconfig: pytest.Config
) -> None:
    """Runs that go on beside each other, and attempts that are lost or late, as chance has it (dust-tt/dust#4272)."""
    for seed in run_part.select(name, range(100 if pytestconfig.getoption("--all-faults") else 1)):
        _survive(courses[name], script=RandomScript(SEED + seed))
