"""Waiting for what the cluster does in its own time."""

import time
from collections.abc import Callable
from typing import Final

_TIMEOUT_S: Final = 120.0


def wait_until(condition: Callable[[], object], subject: str, timeout_s: float = _TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"expected {subject} within {timeout_s:.0f} s")
        time.sleep(0.1)
