"""SQLite files that this process has open, and by which of its two SQLite libraries.

Python's driver and that of Arrow each bring a SQLite of their own. POSIX frees every lock that a process has on a file
as soon as any part of it closes the file: each would free the other's, and another process could then empty the log
that is being read or written. So a process opens a file by one of the two at a time.

Source: https://www.sqlite.org/howtocorrupt.html, "multiple copies of SQLite linked into the same application".
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logstore.errors import PreconditionFailed

PYTHONS: Final = "Python's"
ARROWS: Final = "Arrow's"
_OTHER: Final = {PYTHONS: ARROWS, ARROWS: PYTHONS}

_lock = threading.Lock()
_open: Counter[tuple[str, str]] = Counter()


def hold(path: str, library: str) -> None:
    """Say that a connection to the file is about to be opened.

    Raises:
        PreconditionFailed: The other library has one open.
    """
    real = os.path.realpath(path)
    with _lock:
        if _open[real, _OTHER[library]]:
            raise PreconditionFailed(
                f"database: expected {path} opened by one SQLite library of this process, found it open by"
                f" {_OTHER[library]} as well; close that one first, or read in another process"
            )
        _open[real, library] += 1


@contextmanager
def held(path: str, library: str) -> Iterator[None]:
    """Hold it for as long as the block; raises as `hold`."""
    hold(path, library)
    try:
        yield
    finally:
        free(path, library)


def free(path: str, library: str) -> None:
    """Say that one is closed."""
    with _lock:
        _open[os.path.realpath(path), library] -= 1
