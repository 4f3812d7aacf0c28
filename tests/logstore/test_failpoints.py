"""Failpoints."""

import signal
import subprocess
import sys

import pytest

from logstore.errors import InvalidInput, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, arm_from_environment, disarm_all_and_take_hits, effect


def _run(times: int = 1) -> int:
    done = 0
    for _ in range(times):
        with effect("thing.do"):
            done += 1
    return done


def test_failpoint_unarmed_does_nothing_and_sees_nothing() -> None:
    """In production the points cost a truth test."""
    assert _run() == 1
    assert disarm_all_and_take_hits() == set()


@pytest.mark.parametrize(("point", "done"), [("before", 0), ("after", 1), ("reported_failed", 1)])
def test_failpoint_acts_at_its_moment(point: str, done: int) -> None:
    """Before: nothing has happened. After and reported-failed: it has."""
    effects = []
    arm(f"thing.do.{point}", "fail")
    with pytest.raises(StoreUnavailable, match=f"thing.do.{point}"), effect("thing.do"):
        effects.append(1)
    assert len(effects) == done


def test_failpoint_acts_once_at_its_nth_hit() -> None:
    """A test reaches the third upload without counting the first two."""
    arm("thing.do.before", "crash", nth=3)
    assert _run(2) == 2
    with pytest.raises(SimulatedCrash):
        _run()
    assert _run(5) == 5


def test_failpoint_simulated_crash_is_caught_by_no_handler_of_errors() -> None:
    """A dead process handles nothing."""
    assert not issubclass(SimulatedCrash, Exception)


def test_failpoint_names_hit_are_told() -> None:
    """A test can prove that it went through every point."""
    arm("other.before", "fail")
    _run()
    assert disarm_all_and_take_hits() == {"thing.do.before", "thing.do.after", "thing.do.reported_failed"}


def test_failpoint_error_inside_the_effect_passes_the_points_by() -> None:
    """An effect that failed has no after."""
    arm("thing.do.after", "crash")
    with pytest.raises(ZeroDivisionError), effect("thing.do"):
        raise ZeroDivisionError


@pytest.mark.parametrize("text", ["a=explode", "a", "a=fail@0", "a=fail@x", "a=fail@-1", "=", "a=fail,b"])
def test_failpoint_variable_of_another_form_is_refused(text: str) -> None:
    """A mistyped point would test nothing."""
    with pytest.raises(InvalidInput, match="SEXTON_FAILPOINTS"):
        arm_from_environment(text)


@pytest.mark.parametrize("text", [None, ""])
def test_failpoint_variable_absent_arms_nothing(text: str | None) -> None:
    """The ordinary case."""
    arm_from_environment(text)
    assert _run() == 1


def test_failpoint_variable_arms_several() -> None:
    """As a test arms a worker process."""
    arm_from_environment("x=crash,thing.do.after=fail@2")
    assert _run() == 1
    with pytest.raises(StoreUnavailable):
        _run()


def test_failpoint_kill_ends_the_process_at_once() -> None:
    """Nothing is flushed, closed or caught: what the fault suite relies on."""
    program = (
        "from logstore.failpoints import arm, effect\n"
        "arm('x.before', 'kill')\n"
        "try:\n"
        "    with effect('x'): pass\n"
        "finally:\n"
        "    print('alive')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
