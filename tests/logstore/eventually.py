"""Waiting for other threads without guessing how long they take."""

import time
from collections.abc import Callable


def assert_eventually(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Look again until the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.001)
