"""What reaches the terminal: one JSON document on stdout, or Rich tables for people; all else on stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO
from urllib.parse import unquote

from workers.cli.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Document = Mapping[str, object] | Sequence[Mapping[str, object]]
"""What `--json` prints."""

_PIPE_WIDTH = 10_000  # into a pipe nothing is wrapped or cut, so that `grep` finds whole names


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command has to say, once, at its end."""

    document: Document
    shown: Document | None = None  # what people see instead of the document
    text: str | None = None  # printed as it stands instead of a table
    title: str | None = None
    empty: str = "nothing"  # what people see instead of a table without rows
    code: ExitCode = ExitCode.DONE
    more: "Sequence[Answer]" = ()  # what people see after it, and only they


def topic_shown(encoded: str) -> str:
    """A topic's name as a person writes it, and as every command takes it."""
    return unquote(encoded)


def emit(answer: Answer, *, as_json: bool, stdout: TextIO) -> None:
    """Print the answer."""
    if as_json:
        stdout.write(json.dumps(answer.document, indent=2, allow_nan=False) + "\n")
    else:
        for part in (answer, *answer.more):
            _show(part, stdout)
    stdout.flush()


def _show(answer: Answer, stdout: TextIO) -> None:
    if answer.text is not None:
        stdout.write(answer.text)
    else:
        _console(stdout).print(_rendered(answer))


def note(message: str) -> None:
    """Tell people something beside the answer, on stderr."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    _console(sys.stderr).print(Text(harmless(message)))


def error_line(message: str) -> None:
    """Tell what went wrong, on stderr."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    _console(sys.stderr).print(Text.assemble(("error: ", "bold red"), harmless(message)), soft_wrap=True)


def _console(file: TextIO) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(file=file, highlight=False, width=None if file.isatty() else _PIPE_WIDTH)


def _rendered(answer: Answer) -> "RenderableType":
    shown = answer.document if answer.shown is None else answer.shown
    if isinstance(shown, Mapping):
        return _pairs(shown, answer.title)
    return _rows(shown, answer.title) if shown else f"({answer.empty})"


def _pairs(document: Mapping[str, object], title: str | None) -> "RenderableType":
    from rich.table import Table  # noqa: PLC0415 - start-up time

    table = Table(title=title, show_header=False, box=None, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in document.items():
        table.add_row(_words(name), _cell(value))
    return table


def _rows(rows: Sequence[Mapping[str, object]], title: str | None) -> "RenderableType":
    from rich import box  # noqa: PLC0415 - start-up time
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name, value in rows[0].items():
        number = isinstance(value, int) and not isinstance(value, bool)
        table.add_column(_words(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in rows[0]))
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - start-up time

    if isinstance(value, bool):
        return Text("yes", style="green") if value else Text("no", style="red")
    return Text(harmless(plain(value)))  # `Text` so that brackets in a name are no markup


def plain(value: object) -> str:
    """A value in a table: lists and objects on one line, large numbers with commas, nothing as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {plain(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(item) for item in value) or "-"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10**5 else str(value)


def harmless(text: str) -> str:
    """Escape what would steer a terminal: names and payloads may hold any character."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
