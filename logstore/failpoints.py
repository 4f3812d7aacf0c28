"""Named failpoints before and after every effect, so that a test can end the process between any two effects.

`with effect("detach.commit"):` has three points:

- `detach.commit.before`: the effect has not happened.
- `detach.commit.after`, for `kill` and `crash`: the effect has happened.
- `detach.commit.reported_failed`, for `fail`: the effect has happened, but the caller gets an error.

`SEXTON_FAILPOINTS=name=action[@nth],…` arms the points of a process. Actions are `kill` (SIGKILL of this process),
`crash` (raises `SimulatedCrash`) and `fail` (raises `StoreUnavailable`).
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logstore.errors import InvalidInput, StoreUnavailable

ENVIRONMENT_VARIABLE = "SEXTON_FAILPOINTS"


class SimulatedCrash(BaseException):
    """Simulated death of the process. Only the test that armed the point may catch it."""


@dataclass(slots=True)
class _ArmedPoint:
    action: str
    nth: int  # number of the one hit at which the point acts, from 1
    hits: int = 0


_armed_by_point: dict[str, _ArmedPoint] = {}
_hit_points: set[str] = set()
_lock = threading.Lock()


def arm(name: str, action: str, *, nth: int = 1) -> None:
    """Make failpoint `name` act at its `nth` hit. Raise `InvalidInput` if the action is unknown or `nth` below 1."""
    if action not in {"kill", "crash", "fail"} or nth < 1:
        raise InvalidInput(ENVIRONMENT_VARIABLE, expected="name=kill|crash|fail[@nth]", found=f"{name}={action}@{nth}")
    with _lock:
        _armed_by_point[name] = _ArmedPoint(action, nth)


def disarm_all_and_take_hits() -> set[str]:
    """Disarm every failpoint. Return the names of the failpoints that the process has reached since the last call."""
    with _lock:
        _armed_by_point.clear()
        hit_points = set(_hit_points)
        _hit_points.clear()
    return hit_points


def arm_from_environment(value: str | None) -> None:
    """Arm the failpoints in `value`, the text of `SEXTON_FAILPOINTS`. Raise `InvalidInput` if the text is malformed."""
    for part in filter(None, (value or "").split(",")):
        name, _, rest = part.partition("=")
        action, _, nth = rest.partition("@")
        arm(name, action, nth=int(nth) if nth.isdigit() else (1 if not nth else 0))


@contextmanager
def effect(name: str) -> Iterator[None]:
    if _armed_by_point:
        _count_hit_and_act(f"{name}.before")
    yield
    if _armed_by_point:
        _count_hit_and_act(f"{name}.after")
        _count_hit_and_act(f"{name}.reported_failed")


def _count_hit_and_act(point: str) -> None:
    with _lock:
        _hit_points.add(point)
        armed = _armed_by_point.get(point)
        if armed is None:
            return
        armed.hits += 1
        due = armed.hits == armed.nth
    if not due:
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "crash":
        raise SimulatedCrash(point)
    raise StoreUnavailable(f"failpoint {point}")
