"""Waiting for other threads without guessing how long they take."""

import time
from collections.abc import Callable
from typing import Final

_LONGEST_PAUSE_S: Final = 0.02  # to look costs CPU, which what is awaited needs as well


def assert_eventually(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Look again until the condition holds, less and less often; fail when it does not in time."""
    deadline, pause_s = time.monotonic() + within_s, 0.001
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
