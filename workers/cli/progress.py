"""What work that takes long is at: a bar on a terminal, and for some work lines on stderr where there is none."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workers.cli.output import drawing_on, note

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_S = 1.0
_NO_BARS = {"dumb", "unknown"}  # terminals on which Rich draws nothing before the end


class ProgressBar:
    """A description of the work in hand; silent until it is shown."""

    def __init__(self, text: str) -> None:
        """Begin with a description."""
        self._text = text
        self._done = 0
        self._total: int | None = None
        self._live: Progress | None = None
        self._lock = threading.Lock()
        self._open = ExitStack()

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
            console = Console(file=sys.stderr, highlight=False)
            self._live = Progress(*columns, console=console, transient=True)
            self._live.add_task(self._text, total=self._total, completed=self._done)
            self._live.start()
            self._open.enter_context(drawing_on(console))

    def hide(self) -> None:
        """Stop drawing and leave no trace."""
        with self._lock:
            self._open.close()
            if self._live is not None:
                self._live.stop()
                self._live = None


@contextmanager
def watching(text: str, *, at_once: bool = False) -> Iterator[ProgressBar]:
    """Show a bar while the block runs, if stderr is a terminal and the block takes longer than a second.

    Args:
        text: What the block does.
        at_once: Whether the bar is drawn from the first moment on.
    """
    bar = ProgressBar(text)
    timer = threading.Timer(_PATIENCE_S, bar.show)
    timer.daemon = True
    if sys.stderr.isatty():
        (bar.show if at_once else timer.start)()  # in this thread, before the block's imports compete with Rich's
    try:
        yield bar
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be drawing its first frame
        bar.hide()


@contextmanager
def library_output_in(path: Path) -> Iterator[None]:
    """On a terminal, append what libraries write to descriptor 2 by themselves to a file, and keep it out of a bar.

    Spark's JVM and Temporal's core do so. `sys.stderr` still is the terminal. An error names the file.
    """
    if not sys.stderr.isatty():
        yield
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # to read it in the bar is better than not to do the work
        yield
        return
    sys.stderr.flush()
    terminal, stderr = os.dup(2), sys.stderr
    os.dup2(file, 2)
    os.close(file)
    sys.stderr = os.fdopen(terminal, "w", encoding=stderr.encoding, errors=stderr.errors, closefd=False)
    try:
        yield
    except Exception:
        note(f"what Spark and Temporal's core wrote is in {path}")
        raise
    finally:
        sys.stderr.flush()
        sys.stderr = stderr
        os.dup2(terminal, 2)
        os.close(terminal)


@contextmanager
def telling_steps(text: str) -> Iterator[Callable[[str], None]]:
    """Tell each step of a block that surely takes long as the step begins.

    On a terminal it is the text of a bar that is drawn at once, elsewhere a line on stderr.

    Args:
        text: The first step.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in _NO_BARS:
        note(text)
        yield note
        return
    with watching(text, at_once=True) as bar:
        yield bar.say
