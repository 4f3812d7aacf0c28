"""Output of commands: answers on stdout or in files, and notes and progress on stderr.

An answer is one JSON document, or Rich tables for people. It is written only when all its rows are known. After an
error, stdout therefore has only the error's document.
"""

import json
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final, TextIO

from logstore.errors import InvalidInput, SextonError
from workers.cli.command_errors import ExitCode
from workers.human_readable_values import escape_unprintable, select_fields

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress


_UNLIMITED_WIDTH = 100_000  # a drawing in a file or a pipe is not wrapped
_LINES_PER_BLOCK = 500  # tens of kilobytes, so that output starts early and needs little memory
_IN_MEMORY_BYTES = 4 * 1024 * 1024
MAX_FAILURES = 100
"""Maximum length of the list `failed` of an answer. Counts of outcomes include all rows."""

Row = Mapping[str, object]


class SpooledRows:
    """Rows in the order of insertion, as JSON. Above 4 MiB the rows are in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - see `__del__`
        self._count = 0

    def __del__(self) -> None:
        self._file.close()

    @staticmethod
    def from_rows(rows: Iterable[Row]) -> "SpooledRows":
        spooled = SpooledRows()
        try:
            for row in rows:
                spooled._file.write(json.dumps(row).encode() + b"\n")
                spooled._count += 1
        except BaseException:
            spooled._file.close()  # closed here, because the error's traceback keeps a reference to `spooled`
            raise
        return spooled

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Read the rows from the start. Only one iteration may be active."""
        self._file.seek(0)
        return map(json.loads, self._file)


@dataclass(frozen=True, slots=True)
class ConvertedRows:
    rows: "Sequence[Any] | SpooledRows | ConvertedRows"
    convert: Callable[[Any], Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self.convert, self.rows)


Document = Row | Sequence[Row] | SpooledRows | ConvertedRows
"""Values that `--json` can print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a command. People see the document unless another attribute replaces it."""

    document: Document
    display: Document | None = None  # values for people
    columns: str = ""  # names of the values for people, as `select_fields` takes them
    text: str | None = None  # text for people
    draw: "Callable[[bool], RenderableType] | None" = None  # makes a drawing for people; its argument is `--wide`
    title: str | None = None
    empty: str = "nothing"  # text for people in place of a table without rows
    code: ExitCode = ExitCode.DONE
    columns_below: Sequence[str] = ()  # columns whose values are on extra lines below their row
    wide_display: Document | None = None  # values for people with `--wide`; default: the document's rows
    is_copyable: bool = False  # whether values are never cut without a terminal, so that scripts can use them
    sections: "Sequence[Answer]" = ()  # more answers, only for people
    footer: str = ""  # text for people below everything else

    def get_display(self, *, wide: bool) -> Document:
        if wide and self.wide_display is not None:
            return self.wide_display
        if wide and not isinstance(self.document, Mapping):
            return self.document
        if self.display is not None or not self.columns:
            return self.document if self.display is None else self.display
        if isinstance(self.document, Mapping):
            return select_fields(self.document, self.columns)
        return ConvertedRows(self.document, partial(select_fields, names=self.columns))

    def with_trace_id(self, trace_id: str | None) -> "Answer":
        """Return the answer with `trace_id` in its document. A list, or a document with a trace id, stays as it is."""
        if trace_id is None or not isinstance(self.document, Mapping):
            return self
        document = {**self.document, "trace_id": self.document.get("trace_id") or trace_id}
        return replace(self, display=self.get_display(wide=False), document=document)


def sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(name): int(count) for name, count in sorted(counts.items())}


def answer_partial_failure_if_any(document: Row, failures: Sequence[Row]) -> Answer:
    """Answer with at most 100 failures and exit code `PARTIAL`, or with the document alone if there are no failures."""
    return answer_partial_failure(document, failures) if failures else Answer(document=document)


def answer_partial_failure(document: Row, failures: Sequence[Row]) -> Answer:
    """Answer with exit code `PARTIAL` and at most 100 failures. People see the failures as a table."""
    rows = list(failures[:MAX_FAILURES])
    table = Answer(document=rows, title="failed", columns_below=("error",))
    return Answer(
        document={**document, "failed": rows},
        display={name: value for name, value in document.items() if name != "failed"},
        sections=[table] if rows else [],
        code=ExitCode.PARTIAL,
    )


class AnswerLost(SextonError):
    """Failure to write the answer to stdout."""


def write_answer(answer: Answer, *, as_json: bool, wide: bool = False, stdout: TextIO) -> None:
    """Print the answer as JSON or for people. With `wide`, lines may be wider than the terminal."""
    with flush_and_report_lost_output(stdout):
        if as_json:
            stdout.writelines(_iterate_json(answer.document))
            return
        _print_answer(answer, stdout, wide=wide)
        for section in answer.sections:
            stdout.write("\n")
            _print_answer(section, stdout, wide=wide)
        if answer.footer:
            stdout.write(f"\n{answer.footer}")


def _iterate_json(document: Document) -> Iterator[str]:
    """Yield the document as JSON with an indent of 2. Only one row of `SpooledRows` is in memory at a time."""
    if not isinstance(document, SpooledRows | ConvertedRows) or not document:
        rows = document if isinstance(document, Mapping) else [*document]
        yield json.dumps(rows, indent=2, allow_nan=False) + "\n"
        return
    separator = "[\n"
    for row in document:
        yield separator + indent(json.dumps(row, indent=2, allow_nan=False), "  ")
        separator = ",\n"
    yield "\n]\n"


@contextmanager
def flush_and_report_lost_output(stdout: TextIO) -> Iterator[None]:
    """Flush `stdout` after the block. A closed pipe ends the block without error. Other failures raise `AnswerLost`."""
    try:
        try:
            yield
        finally:
            stdout.flush()
    except BrokenPipeError:
        _discard_output(stdout)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _discard_output(stdout)  # if the pipe is closed, Rich ends the process with exit code 1
    except OSError as fault:
        _discard_output(stdout)
        message = f"stdout cannot be written ({fault.strerror}): the command was done, its answer is lost"
        raise AnswerLost(message) from fault


def _discard_output(stdout: TextIO) -> None:
    """Discard the buffered output. Otherwise Python tries to write this output again at exit."""
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_descriptor, stdout.fileno())
    os.close(null_descriptor)


def _print_answer(answer: Answer, stdout: TextIO, *, wide: bool) -> None:
    if answer.text is not None:
        stdout.write(answer.text)
        return
    from rich.text import Text  # noqa: PLC0415 - start-up time

    from workers.cli.tables import draw_fields, draw_table  # noqa: PLC0415

    if answer.draw is not None:
        width = _UNLIMITED_WIDTH if wide or not stdout.isatty() else None
        _make_console(stdout, width=width).print(answer.draw(wide))
        return
    console = _make_console(stdout)
    width = None if wide or (answer.is_copyable and not stdout.isatty()) else console.width
    display = answer.get_display(wide=wide)
    if answer.title is not None:
        console.print(Text(answer.title, "italic"), soft_wrap=True)
    lines: Iterable[Text]
    if isinstance(display, Mapping):
        lines = draw_fields(display, width=width)
    elif display:
        lines = draw_table(display, width=width, columns_below=answer.columns_below)
    else:
        lines = [Text(f"({answer.empty})")]
    remaining_lines = iter(lines)
    while block := list(islice(remaining_lines, _LINES_PER_BLOCK)):  # one call of Rich per line would be slow
        if console.color_system is None:  # without colours, Rich writes no styles
            console.file.write("".join(f"{line.plain}\n" for line in block))
        else:
            console.print(Text("\n").join(block), soft_wrap=True)


_consoles_with_bar: "list[Console]" = []


@contextmanager
def print_notes_above_bar(console: "Console") -> Iterator[None]:
    """During the block, print notes through the bar's console. Output of another console would damage the bar."""
    _consoles_with_bar.append(console)
    try:
        yield
    finally:
        _consoles_with_bar.remove(console)


def print_note(message: str, *, heading: str = "") -> None:
    """Write a message for people on a line of stderr. Rich, which is slow to import, is used only for a terminal."""
    with suppress(OSError):  # a lost note is acceptable, because the exit code also shows an error
        if not sys.stderr.isatty() and "FORCE_COLOR" not in os.environ:
            sys.stderr.write(f"{heading}{escape_unprintable(message)}\n")
            sys.stderr.flush()
            return
        from rich.text import Text  # noqa: PLC0415 - start-up time

        console = _consoles_with_bar[-1] if _consoles_with_bar else _make_console(sys.stderr)
        console.print(Text.assemble((heading, "bold red"), escape_unprintable(message)), soft_wrap=True)


def print_trace_note(trace_id: str | None) -> None:
    if trace_id is not None:
        print_note(f"see it: sexton trace {trace_id}")


def _make_console(file: TextIO, *, width: int | None = None) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(file=file, highlight=False, width=width)


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
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with self._lock:
            console = _make_console(sys.stderr)
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


_EXPECTED: Final = "a file in a folder that exists, a FIFO or a character device"


def write_result_file(field: str, name: str | Path, parts: Iterable[str]) -> Path:
    """Write the parts into a file, and return the file's absolute path. Raise `InvalidInput` if that fails.

    A failed write leaves the file as it was. If the path is a link, the target of the link is replaced. A replaced file
    keeps its mode. FIFOs and character devices are written to directly.
    """
    from logstore.atomic_files import replace_atomically  # noqa: PLC0415 - start-up time

    path = Path(name).absolute()
    try:
        target = _resolve_target_of_atomic_write(field, str(name), path)
        if target is None:
            with path.open("w", encoding="utf-8", errors="xmlcharrefreplace") as stream:
                stream.writelines(parts)
            return path
        with replace_atomically(target) as new:
            with new.open("w", encoding="utf-8", errors="xmlcharrefreplace") as file:
                file.writelines(parts)
            if target.exists():
                new.chmod(stat.S_IMODE(target.stat().st_mode))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidInput(field, expected=f"{_EXPECTED} ({error.strerror})", found=str(name)) from error
    return path


def check_result_file(field: str, name: str | Path) -> None:
    """Raise `InvalidInput` if a result cannot be written to the file. Call this before the command does its work."""
    try:
        _resolve_target_of_atomic_write(field, str(name), Path(name).absolute())
    except OSError as error:
        raise InvalidInput(field, expected=_EXPECTED, found=str(name)) from error


def _resolve_target_of_atomic_write(field: str, name: str, path: Path) -> Path | None:
    """Follow links and return the regular file to replace. Return `None` for a path that is written to directly."""
    if not name or not name.isprintable():
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    try:
        status = path.stat()
    except FileNotFoundError:
        target = path.resolve()  # the target of a link may not exist yet
        if not target.parent.is_dir() or name.endswith("/"):
            raise InvalidInput(field, expected=_EXPECTED, found=name) from None
        return target
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    return None if _is_stdout_or_stderr(status) else path.resolve()


def _is_stdout_or_stderr(status: os.stat_result) -> bool:
    """Return whether stdout or stderr is redirected to the file. Such a file must not be replaced."""
    for descriptor in (1, 2):
        try:
            if os.path.samestat(status, os.fstat(descriptor)):
                return True
        except OSError:  # the descriptor is closed
            continue
    return False
