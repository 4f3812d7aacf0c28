"""The last moment of a worker that was told to end comes whatever hangs in it."""

import subprocess
import sys

_FULL = """
import logging
import os
import time

from workers.hosting.worker_process import ForcedExitTimer
from workers.hosting.error_and_subject_interceptors import RunningActivityCounter

logging.basicConfig()
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
ForcedExitTimer(0.0, RunningActivityCounter(), delay_s=0.1).start()
time.sleep(60)
"""


def test_process_whose_log_takes_no_line_any_more_ends_all_the_same() -> None:
    """What reads it has stopped, and the pipe is full: to write, or to close the log, would wait without end."""
    with subprocess.Popen([sys.executable, "-c", _FULL], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(30) == 1
        finally:
            process.kill()
