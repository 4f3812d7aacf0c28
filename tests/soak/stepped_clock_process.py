"""Runs a module in a process whose clock port reads a step, in seconds, from a file: `clocked FILE MODULE ARGUMENT…`.

The machine's own clock stays as it is, so a step reaches exactly what asks the port, `logstore.retrying_clock.Clock`.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from logstore.retrying_clock import Clock


def make_stepped_clock(path: Path) -> Callable[[], int]:
    """Microseconds since 1970, moved by as many seconds as the file says; 0 where there is none."""
    file_time_and_step = [0, 0]  # when the file was written, and its step in microseconds

    def now_us() -> int:
        try:
            written = os.stat(path).st_mtime_ns  # noqa: PTH116 - asked for each look at the clock
            if written != file_time_and_step[0]:
                file_time_and_step[:] = [written, round(float(path.read_text(encoding="utf-8") or 0) * 1_000_000)]
        except (FileNotFoundError, ValueError):  # being written
            file_time_and_step[:] = [0, 0]
        return time.time_ns() // 1_000 + file_time_and_step[1]

    return now_us


def step_clocks(path: Path) -> None:
    """Let every clock that is made from now on be a stepped one."""
    defaults = Clock.__init__.__kwdefaults__
    assert defaults
    assert "now_us" in defaults
    defaults["now_us"] = make_stepped_clock(path)


if __name__ == "__main__":
    step_clocks(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
