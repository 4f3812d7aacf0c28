"""Named failpoints before and after every effect, so that tests can die between any two of them.

An effect is written `with effect("detach.commit"):` and so has three points: `detach.commit.before`
(nothing has happened), `detach.commit.after` (it has happened, the process dies) and
`detach.commit.reported_failed` (it has happened and the caller is told that it failed).

With nothing armed the cost is one truth test. `SEXTON_FAILPOINTS=name=action[@nth],…` arms a process;
actions are `kill` (SIGKILL of this process), `crash` (raises `SimulatedCrash`) and `fail` (raises
`StoreUnavailable`).
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logstore.errors import InvalidInput, StoreUnavailable

VARIABLE = "SEXTON_FAILPOINTS"


class SimulatedCrash(BaseException):
    """The process is to be taken for dead: nothing may handle this but the test that armed it."""


@dataclass(slots=True)
class _Armed:
    action: str
    nth: int  # acts at this hit, counted from 1, and only then
    hits: int = 0


_armed: dict[str, _Armed] = {}
_seen: set[str] = set()
_lock = threading.Lock()


def arm(name: str, action: str, *, nth: int = 1) -> None:
    """Let the named point act at its nth hit.

    Raises:
        InvalidInput: An action that does not exist, or an nth below 1.
    """
    if action not in {"kill", "crash", "fail"} or nth < 1:
        raise InvalidInput(VARIABLE, expected="name=kill|crash|fail[@nth]", found=f"{name}={action}@{nth}")
    with _lock:
        _armed[name] = _Armed(action, nth)


def disarm() -> set[str]:
    """Forget every armed point and return the names hit since the last call."""
    with _lock:
        _armed.clear()
        seen = set(_seen)
        _seen.clear()
    return seen


def arm_from_environment(value: str | None) -> None:
    """Arm what `SEXTON_FAILPOINTS` names; absent or empty arms nothing.

    Raises:
        InvalidInput: The text is not of the form above.
    """
    for part in filter(None, (value or "").split(",")):
        name, _, rest = part.partition("=")
        action, _, nth = rest.partition("@")
        arm(name, action, nth=int(nth) if nth.isdigit() else (1 if not nth else 0))


@contextmanager
def effect(name: str) -> Iterator[None]:
    """Mark one effect; see the module's text."""
    if _armed:
        _hit(f"{name}.before")
    yield
    if _armed:
        _hit(f"{name}.after")
        _hit(f"{name}.reported_failed")


def _hit(point: str) -> None:
    with _lock:
        _seen.add(point)
        armed = _armed.get(point)
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
