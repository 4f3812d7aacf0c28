"""Mend the surroundings of the process: descriptors that are closed, a locale that has ASCII alone."""

import codecs
import os
import sys
from contextlib import suppress
from typing import NoReturn


def make_fit() -> None:
    """Open what is closed, and begin again in UTF-8 where the locale is ASCII: names and paths hold any letter."""
    _open_what_is_closed()
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - ourselves
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_what_is_closed() -> None:
    """As read-only: what is written to a stdout that is closed is an error, and not lost without a word."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # takes the lowest number: this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def end(code: int) -> NoReturn:
    """End the process at once.

    Temporal's threads let go of Python objects a moment after they answered: an interpreter that is finalizing by then
    aborts under them ("PyGILState_Release", exit 134). And what could not be written would be tried, and told, again.
    By now every answer is printed, every file closed, and spans are flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
