"""Answers of commands: one JSON document on stdout, or Rich tables for people. Everything else goes to stderr.

An answer is written only when all its rows are known. After an error, stdout therefore has only the error's document.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from textwrap import indent
from typing import TYPE_CHECKING, Any, TextIO

from logstore.errors import SextonError
from workers.cli.exit_codes import ExitCode
from workers.human_readable_values import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_UNLIMITED_WIDTH = 100_000  # a drawing in a file or a pipe is not wrapped
_LINES_PER_BLOCK = 500  # tens of kilobytes, so that output starts early and needs little memory
_IN_MEMORY_BYTES = 4 * 1024 * 1024

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
    rows: SpooledRows
    convert: Callable[[dict[str, Any]], Row]

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
    text: str | None = None  # text for people
    draw: "Callable[[bool], RenderableType] | None" = None  # makes a drawing for people; its argument is `--wide`
    title: str | None = None
    empty: str = "nothing"  # text for people in place of a table without rows
    code: ExitCode = ExitCode.DONE
    columns_below: Sequence[str] = ()  # columns whose values are on extra lines below their row
    wide_display: Document | None = None  # values for people with `--wide`; default: the document's rows
    is_copyable: bool = False  # whether values are never cut without a terminal, so that scripts can use them
    sections: "Sequence[Answer]" = ()  # more answers, only for people

    def get_display(self, *, wide: bool) -> Document:
        if wide and self.wide_display is not None:
            return self.wide_display
        if self.display is None or (wide and not isinstance(self.document, Mapping)):
            return self.document
        return self.display

    def with_trace_id(self, trace_id: str | None) -> "Answer":
        """Return the answer with `trace_id` in its document. A list, or a document with a trace id, stays as it is."""
        if trace_id is None or not isinstance(self.document, Mapping):
            return self
        document = {**self.document, "trace_id": self.document.get("trace_id") or trace_id}
        return replace(self, display=self.get_display(wide=False), document=document)


def select_columns(rows: Iterable[Mapping[str, Any]], names: str) -> list[dict[str, Any]]:
    """Return the rows with only the columns `names`, in this order. Spaces separate the names."""
    return [{name: row[name] for name in names.split()} for row in rows]


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
