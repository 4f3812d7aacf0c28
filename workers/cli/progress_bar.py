"""Progress of commands: a bar on a terminal. Some commands write lines on stderr if there is no terminal."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workers.cli.answer_output import print_note, print_notes_above_bar

if TYPE_CHECKING:
    from rich.progress import Progress

_BAR_DELAY_S = 1.0
_TERMINALS_WITHOUT_BARS = {"dumb", "unknown"}  # Rich draws nothing in these before the end


class ProgressBar:
    def __init__(self, text: str) -> None:
        self._text = text
        self._done = 0
        self._total: int | None = None
        self._live: Progress | None = None
        self._lock = threading.Lock()
        self._opened = ExitStack()

    def update(self, text: str, done: int = 0, total: int | None = None) -> None:
        with self._lock:
            self._text, self._done, self._total = text, done, total
            if self._live is not None:
                self._live.update(self._live.task_ids[0], description=text, completed=done, total=total)

    def show(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - start-up time
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with self._lock:
            console = Console(file=sys.stderr, highlight=False)
            self._live = Progress(*columns, console=console, transient=True)
            self._live.add_task(self._text, total=self._total, completed=self._done)
            self._live.start()
            self._opened.enter_context(print_notes_above_bar(console))

    def hide(self) -> None:
        with self._lock:
            self._opened.close()
            if self._live is not None:
                self._live.stop()
                self._live = None


@contextmanager
def show_progress_bar(text: str, *, at_once: bool = False) -> Iterator[ProgressBar]:
    """If stderr is a terminal, show a bar during the block: after a second, or immediately with `at_once`."""
    bar = ProgressBar(text)
    timer = threading.Timer(_BAR_DELAY_S, bar.show)
    timer.daemon = True
    if sys.stderr.isatty():
        # With `at_once`, this thread shows the bar, so that imports in the block do not delay it.
        (bar.show if at_once else timer.start)()
    try:
        yield bar
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # the timer's thread may be drawing the bar for the first time
        bar.hide()


@contextmanager
def append_library_stderr_to_file(path: Path) -> Iterator[None]:
    """In the block, append stderr of libraries to a file, because their output would damage a progress bar."""
    if not sys.stderr.isatty():
        yield
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # continue, although output may damage the bar
        yield
        return
    sys.stderr.flush()
    terminal, stderr = os.dup(2), sys.stderr
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stderr = os.fdopen(terminal, "w", encoding=stderr.encoding, errors=stderr.errors, closefd=False)
    try:
        yield
    except Exception:
        print_note(f"what Spark and Temporal's core wrote is in {path}")
        raise
    finally:
        sys.stderr.flush()
        sys.stderr = stderr
        os.dup2(terminal, 2)
        os.close(terminal)


@contextmanager
def announce_steps(text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text: in a bar or, if there is no terminal, on a line of stderr."""
    if not sys.stderr.isatty() or os.environ.get("TERM") in _TERMINALS_WITHOUT_BARS:
        print_note(text)
        yield print_note
        return
    with show_progress_bar(text, at_once=True) as bar:
        yield bar.update
