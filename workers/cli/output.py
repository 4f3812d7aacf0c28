"""Output on the terminal: one JSON document on stdout, or Rich tables for people; all else on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from textwrap import indent
from typing import TYPE_CHECKING, TextIO

from logstore.errors import SextonError
from workers.cli.errors import ExitCode
from workers.cli.rows import ConvertedRows, SpooledRows
from workers.pages.texts import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_NO_WIDTH = 100_000  # what is drawn into a file or a pipe has lines as long as they are

_LINES_PER_BLOCK = 500  # tens of kilobytes: what is drawn appears at once, and memory does not grow with the rows

Document = Mapping[str, object] | Sequence[Mapping[str, object]] | SpooledRows | ConvertedRows
"""The value that `--json` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A command's answer, given once, at its end."""

    document: Document
    shown: Document | None = None  # what people see instead of the document
    text: str | None = None  # printed as it stands instead of a table
    draw: "Callable[[bool], RenderableType] | None" = None  # draws what stands instead of a table, or all of it
    title: str | None = None
    empty: str = "nothing"  # what people see instead of a table without rows
    code: ExitCode = ExitCode.DONE
    beneath: Sequence[str] = ()  # columns whose values stand on lines of their own
    wide: Document | None = None  # what people see of all there is; by default the rows of the document
    copied: bool = False  # its values are meant to be used again: where no terminal shows them, nothing is cut
    more: "Sequence[Answer]" = ()  # what people see after it, and only they

    @property
    def shown_or_document(self) -> Document:
        """The rows for people."""
        return self.document if self.shown is None else self.shown

    @property
    def whole(self) -> Document:
        """The rows for `--wide`."""
        if self.wide is not None:
            return self.wide
        return self.shown_or_document if isinstance(self.document, Mapping) else self.document

    def naming(self, trace_id: str | None) -> "Answer":
        """The same answer; a document of one thing names the trace, which people are told where they need it.

        A document that names a trace itself, as that of a transaction does, keeps it.
        """
        if trace_id is None or not isinstance(self.document, Mapping):
            return self
        named = self.document.get("trace_id") or trace_id
        return replace(self, shown=self.shown_or_document, document={**self.document, "trace_id": named})


class AnswerLost(SextonError):
    """The answer could not be written where it was to go."""


def emit(answer: Answer, *, as_json: bool, wide: bool = False, stdout: TextIO) -> None:
    """Print the answer: for people as wide as their terminal, or whole."""
    with writing(stdout):
        if as_json:
            stdout.writelines(_json_parts(answer.document))
        else:
            _show(answer, stdout, wide=wide)
            for part in answer.more:
                stdout.write("\n")
                _show(part, stdout, wide=wide)


def _json_parts(document: Document) -> Iterator[str]:
    """The document as `json.dumps` writes it with an indent of 2; of spooled rows one is in memory at a time."""
    if not isinstance(document, SpooledRows | ConvertedRows) or not document:
        rows = document if isinstance(document, Mapping) else [*document]
        yield json.dumps(rows, indent=2, allow_nan=False) + "\n"
        return
    before = "[\n"
    for row in document:
        yield before + indent(json.dumps(row, indent=2, allow_nan=False), "  ")
        before = ",\n"
    yield "\n]\n"


@contextmanager
def writing(stdout: TextIO) -> Iterator[None]:
    """See that what the block writes arrives; where its reader has heard enough, the block ends without a word.

    Raises:
        AnswerLost: It cannot be written.
    """
    try:
        try:
            yield
        finally:
            stdout.flush()
    except BrokenPipeError:
        _drop(stdout)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _drop(stdout)  # Rich ends the process with 1 where a reader is gone
    except OSError as fault:
        _drop(stdout)
        told = f"stdout cannot be written ({fault.strerror}): the command was done, its answer is lost"
        raise AnswerLost(told) from fault


def _drop(stdout: TextIO) -> None:
    """Let what is left in the buffer go nowhere: otherwise it is tried again, and fails again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())
    os.close(nowhere)


def _show(answer: Answer, stdout: TextIO, *, wide: bool) -> None:
    if answer.text is not None:
        stdout.write(answer.text)
        return
    from rich.text import Text  # noqa: PLC0415 - start-up time

    from workers.cli.tables import pairs, table_lines  # noqa: PLC0415

    if answer.draw is not None:
        _console(stdout, width=_NO_WIDTH if wide or not stdout.isatty() else None).print(answer.draw(wide))
        return
    console = _console(stdout)
    width = None if wide or (answer.copied and not stdout.isatty()) else console.width
    shown = answer.whole if wide else answer.shown_or_document
    if answer.title is not None:
        console.print(Text(answer.title, "italic"), soft_wrap=True)
    lines: Iterable[Text]
    if isinstance(shown, Mapping):
        lines = pairs(shown, width=width)
    elif shown:
        lines = table_lines(shown, width=width, beneath=answer.beneath)
    else:
        lines = [Text(f"({answer.empty})")]
    _print_lines(lines, console)


def _print_lines(lines: "Iterable[Text]", console: "Console") -> None:
    """Print the lines block by block: a call of Rich for each costs more than all that is in it."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    drawn = iter(lines)
    while block := list(islice(drawn, _LINES_PER_BLOCK)):
        if console.color_system is None:  # then Rich writes no style either
            console.file.write("".join(f"{line.plain}\n" for line in block))
        else:
            console.print(Text("\n").join(block), soft_wrap=True)


_bars: "list[Console]" = []  # consoles that draw a bar now


@contextmanager
def drawing_on(console: "Console") -> Iterator[None]:
    """Let notes go through a console that draws a bar: it puts them above the bar, another would write into it."""
    _bars.append(console)
    try:
        yield
    finally:
        _bars.remove(console)


def note(message: str, *, heading: str = "") -> None:
    """Tell people something beside the answer, in a line on stderr.

    Where no terminal shows it, it needs no Rich, whose import takes as long as Typer's.
    """
    with suppress(OSError):  # it is not the answer, and the exit code tells of an error too
        if not sys.stderr.isatty() and "FORCE_COLOR" not in os.environ:
            sys.stderr.write(f"{heading}{escape_unprintable(message)}\n")
            sys.stderr.flush()
            return
        from rich.text import Text  # noqa: PLC0415 - start-up time

        console = _bars[-1] if _bars else _console(sys.stderr)
        console.print(Text.assemble((heading, "bold red"), escape_unprintable(message)), soft_wrap=True)


def trace_line(trace_id: str | None) -> None:
    """Tell where the spans of a failure are, on stderr."""
    if trace_id is not None:
        note(f"see it: sexton trace {trace_id}")


def _console(file: TextIO, *, width: int | None = None) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(file=file, highlight=False, width=width)
