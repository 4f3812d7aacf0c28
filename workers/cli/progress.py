"""A bar on stderr for work longer than a second, and only on a terminal."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_S = 1.0


class ProgressBar:
    """A description of the work in hand; silent until it has gone on for a second."""

    def __init__(self, text: str) -> None:
        """Begin with a description."""
        self._text = text
        self._done = 0
        self._total: int | None = None
        self._live: Progress | None = None
        self._lock = threading.Lock()

    def say(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Tell what is going on, how much of it is done, and of how much if that is known."""
        with self._lock:
            self._text, self._done, self._total = text, done, total
            if self._live is not None:
                self._live.update(self._live.task_ids[0], description=text, completed=done, total=total)

    def show(self) -> None:
        """Start drawing."""
        from rich.console import Console  # noqa: PLC0415 - start-up time
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with self._lock:
            self._live = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._live.add_task(self._text, total=self._total, completed=self._done)
            self._live.start()

    def hide(self) -> None:
        """Stop drawing and leave no trace."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None


@contextmanager
def watching(text: str) -> Iterator[ProgressBar]:
    """Show a bar while the block runs, if stderr is a terminal and the block takes longer than a second."""
    bar = ProgressBar(text)
    timer = threading.Timer(_PATIENCE_S, bar.show)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be drawing its first frame
        bar.hide()
