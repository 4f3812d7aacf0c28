"""Tables for people, as wide as the terminal or, with `--wide`, as wide as their content."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.text import Span, Text

from workers.human_readable_values import escape_unprintable, format_table_cell

_GAP = 2
_MIN_COLUMN_WIDTH = 8  # minimum width, as long as other columns can still be narrowed
_FIRST_COLUMN_WIDTH = 40
_INDENT = 4
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}):[0-9]{2}(?:\.[0-9]+)?Z")
_STATE_HEADINGS = frozenset({"state", "status", "outcome", "session state"})
_ID_HEADINGS = frozenset({"id", "ledger", "no", "closed", "opened"})
_GOOD, _GOING, _BAD = "green", "yellow", "red"
_COLOURS = {
    **dict.fromkeys(("ACTIVE", "DELETED", "ALREADY_GONE", "LIVE", "ALIVE", "Completed"), _GOOD),
    **dict.fromkeys(("PENDING", "RETRYING", "DELETING", "CREATING", "WRITING", "UNLISTED", "Running"), _GOING),
    **dict.fromkeys(("DEAD_LETTERED", "INVALID", "STILL_IN_USE", "METADATA_MISMATCH", "GONE"), _BAD),
    **dict.fromkeys(("STALE_CATALOG", "Failed", "Terminated", "TimedOut", "Canceled"), _BAD),
}
Row = Mapping[str, object]


class RereadableRows(Protocol):
    def __iter__(self) -> Iterator[Row]: ...


class _Cell(NamedTuple):
    text: str
    style: str = ""

    @property
    def width(self) -> int:
        return len(self.text) if self.text.isascii() else cell_len(self.text)


@dataclass(slots=True)
class _Column:
    name: str
    width: int = 0
    has_commas: bool = False  # whether the column has a number with commas; then all its numbers get commas
    is_numeric: bool = True
    is_temporal: bool = True

    @property
    def heading(self) -> str:
        return self.name.replace("_", " ")

    @property
    def is_rigid(self) -> bool:
        return self.is_numeric or self.is_temporal or self.heading in _STATE_HEADINGS

    def update_type_by_value(self, value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_time = isinstance(value, str) and _TIME.fullmatch(value) is not None
        self.has_commas = self.has_commas or (isinstance(value, int) and "," in format_table_cell(value))
        self.is_numeric = self.is_numeric and (value is None or is_number)
        self.is_temporal = self.is_temporal and (value is None or is_time)

    def make_cell(self, value: object, *, cuts_times: bool) -> _Cell:
        heading = self.heading
        if isinstance(value, bool):
            return _Cell("yes", _GOOD) if value else _Cell("no", _BAD)
        if isinstance(value, int):
            is_id = heading in _ID_HEADINGS or heading.endswith(" id")  # ids have no commas, because users type them
            text = str(value) if is_id else f"{value:,}" if self.has_commas else format_table_cell(value)
        else:
            text = escape_unprintable(format_table_cell(value)).replace("\n", " ")
        if cuts_times and (time := _TIME.fullmatch(text)):
            text = f"{time[1]} {time[2]}"
        return _Cell(text, _COLOURS.get(text, "") if heading in _STATE_HEADINGS else "")


def draw_table(rows: RereadableRows, *, width: int | None, columns_below: Sequence[str] = ()) -> Iterator[Text]:
    """Draw rows under their headings. Rows are read three times, with only one row in memory at a time.

    If `width` is `None`, no value is cut. Otherwise values of `columns_below` are on extra lines below their row.
    """
    names = [name for name in next(iter(rows)) if width is None or name not in columns_below]
    columns = [_Column(name) for name in names]
    for row in rows:
        for column in columns:
            column.update_type_by_value(row.get(column.name))

    def make_cells(row: Row) -> list[_Cell]:
        return [column.make_cell(row.get(column.name), cuts_times=width is not None) for column in columns]

    headings = [_Cell(column.heading, "bold") for column in columns]
    for column, heading in zip(columns, headings, strict=True):
        column.width = heading.width
    for row in rows:
        for column, cell in zip(columns, make_cells(row), strict=True):
            column.width = max(column.width, cell.width)
    if width is not None:
        _narrow_columns(columns, width - 1 - _GAP * (len(columns) - 1))
    yield from _draw_row_lines(headings, columns)
    yield Text(" " + "─" * (sum(column.width for column in columns) + _GAP * (len(columns) - 1)), "dim")
    for row in rows:
        yield from _draw_row_lines(make_cells(row), columns)
        for name in columns_below if width is not None else ():
            yield from _draw_below(row.get(name), width or 0)


def _draw_below(value: object, width: int) -> Iterator[Text]:
    text = escape_unprintable(format_table_cell(value))
    if text != "-":
        for line in _wrap(Text(text, "dim"), max(width - _INDENT, _MIN_COLUMN_WIDTH)):
            yield Text.assemble(" " * _INDENT, line)


def draw_fields(document: Row, *, width: int | None) -> Iterator[Text]:
    """Draw one value per line. Lists of objects are tables below the other values."""
    tables = {
        name: value
        for name, value in document.items()
        if value and isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)
    }
    columns = [_Column(name) for name in document if name not in tables]
    label_width = max((cell_len(column.heading) for column in columns), default=0)
    for column in columns:
        text = Text(*column.make_cell(document[column.name], cuts_times=False))
        lines = [text] if width is None else _wrap(text, max(width - 1 - label_width - _GAP, _MIN_COLUMN_WIDTH))
        for label, line in zip([column.heading, *[""] * (len(lines) - 1)], lines, strict=True):
            yield Text.assemble(" ", (label, "bold"), " " * (label_width - cell_len(label) + _GAP), line)
    for name, rows in tables.items():
        yield from (Text(), Text(f" {_Column(name).heading}", "bold"))
        yield from draw_table(rows, width=width)


def _narrow_columns(columns: Sequence[_Column], room: int) -> None:
    floors = [
        column.width if column.is_rigid else min(column.width, max(_MIN_COLUMN_WIDTH, cell_len(column.heading)))
        for column in columns
    ]
    first = min(columns[0].width, _FIRST_COLUMN_WIDTH)  # wide, because users type the values of the first column
    for min_widths in ([max(floors[0], first), *floors[1:]], floors, [1] * len(columns)):
        while sum(column.width for column in columns) > room:
            elastic = [
                column for column, min_width in zip(columns, min_widths, strict=True) if column.width > min_width
            ]
            if not elastic:
                break
            max(elastic, key=lambda column: column.width).width -= 1


def _draw_row_lines(cells: Sequence[_Cell], columns: Sequence[_Column]) -> Iterator[Text]:
    if all(cell.width <= column.width for cell, column in zip(cells, columns, strict=True)):
        yield _draw_fitting_row(cells, columns)
        return
    texts = [_wrap_or_cut_cell(cell, column.width) for cell, column in zip(cells, columns, strict=True)]
    for index in range(max(map(len, texts))):
        line = Text(" ")
        for number, (lines, column) in enumerate(zip(texts, columns, strict=True)):
            text = lines[index] if index < len(lines) else Text()
            padding = " " * (column.width - cell_len(text.plain))
            parts = (padding, text) if column.is_numeric else (text, padding)
            line.append_text(Text.assemble(" " * (_GAP if number else 0), *parts))
        line.rstrip()
        yield line


def _draw_fitting_row(cells: Sequence[_Cell], columns: Sequence[_Column]) -> Text:
    parts, spans, position = [" "], list[Span](), 1
    for number, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        padding = column.width - cell.width
        before = " " * ((_GAP if number else 0) + (padding if column.is_numeric else 0))
        start = position + len(before)
        position = start + len(cell.text)
        parts += [before, cell.text]
        if cell.style:
            spans.append(Span(start, position, cell.style))
        if not column.is_numeric:
            parts.append(" " * padding)
            position += padding
    return Text("".join(parts).rstrip(), spans=spans)


def _wrap_or_cut_cell(cell: _Cell, width: int) -> list[Text]:
    text = Text(*cell)
    if cell.width <= width:
        return [text]
    if " " in cell.text:
        return _wrap(text, width)
    head = _longest_prefix_within_width(cell.text, (width - 1) // 2)
    tail = _longest_prefix_within_width(cell.text[::-1], width - 1 - cell_len(head))[::-1]
    return [Text(f"{head}…{tail}", text.style)]


def _longest_prefix_within_width(text: str, width: int) -> str:
    beginning = ""
    for char in text:
        if cell_len(beginning + char) > width:
            break
        beginning += char
    return beginning


def _wrap(text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(Console(width=width), width, overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines
