"""What a Python process of an executor does before a task."""

import gc
import sys
from functools import cache


def spare_the_collector() -> None:
    """Leave what is loaded by now to no later collection of garbage: it lives as long as the process.

    Spark's processes collect after every task. To look through all that our modules consist of takes some 60 ms of CPU
    each time, more than most tasks. Source: `gc.collect` in pyspark's `daemon.py`, and `gc.freeze` in Python's manual.
    """
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:  # noqa: ARG001 - again when a task has loaded more
    gc.freeze()
