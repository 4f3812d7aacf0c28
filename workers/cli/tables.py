"""Tables for people: as wide as the terminal and no wider, or, when all was asked for, as wide as their content.

Where room is short a name is cut in its middle, a sentence goes over several lines, and what stands beneath a row (an
error, a reason) has lines of its own. Numbers are cut last.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.text import Span, Text

from workers.pages.texts import escape_unprintable, format_value

_GAP = 2
_NARROWEST = 8  # a name is not cut further while anything else can be
_FIRST = 40
_INDENT = 4
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}):[0-9]{2}(?:\.[0-9]+)?Z")
_STATES = frozenset({"state", "status", "outcome", "session state"})
_IDS = frozenset({"id", "ledger", "no", "closed", "opened"})
_GOOD, _GOING, _BAD = "green", "yellow", "red"
_COLOURS = {
    **dict.fromkeys(("ACTIVE", "DELETED", "ALREADY_GONE", "LIVE", "ALIVE", "Completed"), _GOOD),
    **dict.fromkeys(("PENDING", "RETRYING", "DELETING", "CREATING", "WRITING", "UNLISTED", "Running"), _GOING),
    **dict.fromkeys(("DEAD_LETTERED", "INVALID", "STILL_IN_USE", "METADATA_MISMATCH", "GONE"), _BAD),
    **dict.fromkeys(("STALE_CATALOG", "Failed", "Terminated", "TimedOut", "Canceled"), _BAD),
}
Row = Mapping[str, object]


class Rows(Protocol):
    """Rows that can be read several times."""

    def __iter__(self) -> Iterator[Row]:
        """Read them from the first one on."""


def table(rows: Sequence[Row], *, width: int | None, beneath: Sequence[str] = ()) -> list[Text]:
    """Rows under their headings, as `table_lines` draws them."""
    return list(table_lines(rows, width=width, beneath=beneath))


def table_lines(rows: Rows, *, width: int | None, beneath: Sequence[str] = ()) -> Iterator[Text]:
    """Rows under their headings. They are read three times, and one of them is in memory at a time.

    Args:
        rows: At least one; the first one's names are the columns.
        width: Cells of a line, inclusive; None: nothing is cut, and nothing stands beneath.
        beneath: Names whose values stand on lines of their own below their row, where they are not empty.
    """
    names = [name for name in next(iter(rows)) if width is None or name not in beneath]
    headings = [_words(name) for name in names]
    columns = [_Column(heading) for heading in headings]
    for row in rows:
        for name, column in zip(names, columns, strict=True):
            column.look_at(row.get(name))

    def cells_of(row: Row) -> list[_Cell]:
        return [
            _cell(row.get(name), column.heading, width, grouped=column.is_grouped)
            for name, column in zip(names, columns, strict=True)
        ]

    widths = [cell_len(heading) for heading in headings]
    for row in rows:
        widths = [max(wide, _cells_wide(text)) for wide, (text, _) in zip(widths, cells_of(row), strict=True)]
    if width is not None:
        rigid = [column.is_numeric or column.heading in _STATES or column.is_temporal for column in columns]
        widths = _squeezed(widths, headings, rigid, width - 1 - _GAP * (len(names) - 1))
    line = partial(_line, widths=widths, numeric=[column.is_numeric for column in columns])
    yield from line([_Cell(heading, "bold") for heading in headings])
    yield Text(" " + "─" * (sum(widths) + _GAP * (len(widths) - 1)), "dim")
    for row in rows:
        yield from line(cells_of(row))
        if width is not None:
            for name in beneath:
                yield from _beneath(row.get(name), width)


@dataclass(slots=True)
class _Column:
    """What the values of a column have in common, of those that were looked at."""

    heading: str
    is_grouped: bool = False  # one has commas: then all of the column have, so that they can be compared
    is_numeric: bool = True
    is_temporal: bool = True

    def look_at(self, value: object) -> None:
        """Take one more value into account."""
        self.is_grouped = self.is_grouped or (isinstance(value, int) and "," in format_value(value))
        self.is_numeric = self.is_numeric and _is_number(value)
        self.is_temporal = self.is_temporal and _is_time(value)


def pairs(document: Row, *, width: int | None) -> list[Text]:
    """The values of one object, a line each; lists of objects are tables of their own, below."""
    lists = {name: value for name, value in document.items() if value and isinstance(value, list | tuple)}
    inner = {name: value for name, value in lists.items() if all(isinstance(one, Mapping) for one in value)}
    labels = {name: _words(name) for name in document if name not in inner}
    left = max(map(cell_len, labels.values()), default=0)
    told = []
    for name, label in labels.items():
        shown = Text(*_cell(document[name], label, None))  # there is room for the whole time
        lines = [shown] if width is None else _wrapped(shown, max(width - 1 - left - _GAP, _NARROWEST))
        heads = [label, *[""] * (len(lines) - 1)]
        told += [
            Text.assemble(" ", (head, "bold"), " " * (left - cell_len(head) + _GAP), line)
            for head, line in zip(heads, lines, strict=True)
        ]
    for name, value in inner.items():
        told += [Text(), Text(f" {_words(name)}", "bold"), *table(value, width=width)]
    return told


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, str) and _TIME.fullmatch(value) is not None)


def _words(name: str) -> str:
    return name.replace("_", " ")


class _Cell(NamedTuple):
    """Text of one cell, on one line, with its style. A `Text` for each of many rows would cost more than the rest."""

    text: str
    style: str = ""


def _cell(value: object, heading: str, width: int | None, *, grouped: bool = False) -> _Cell:
    if isinstance(value, bool):
        return _Cell("yes", _GOOD) if value else _Cell("no", _BAD)
    if isinstance(value, int):
        is_id = heading in _IDS or heading.endswith(" id")  # to be typed again: without commas
        text = str(value) if is_id else f"{value:,}" if grouped else format_value(value)
    else:
        text = escape_unprintable(format_value(value)).replace("\n", " ")
    if width is not None and (time := _TIME.fullmatch(text)):
        text = f"{time[1]} {time[2]}"
    return _Cell(text, _COLOURS.get(text, "") if heading in _STATES else "")


def _cells_wide(text: str) -> int:
    """Return how many cells of a terminal the text of a cell takes; it has no control characters."""
    return len(text) if text.isascii() else cell_len(text)


def _squeezed(widths: list[int], headings: list[str], rigid: list[bool], room: int) -> list[int]:
    """Make the widest elastic column narrower until the table fits; columns of fixed width and headings come last."""
    widths = list(widths)
    floors = [
        wide if fixed else min(wide, max(_NARROWEST, cell_len(heading)))
        for wide, heading, fixed in zip(widths, headings, rigid, strict=True)
    ]
    first = min(widths[0], _FIRST)  # what a person types again
    for least in ([max(floors[0], first), *floors[1:]], floors, [1] * len(widths)):
        while sum(widths) > room:
            giving = [at for at, wide in enumerate(widths) if wide > least[at]]
            if not giving:
                break
            widths[max(giving, key=lambda at: widths[at])] -= 1
    return widths


def _line(cells: Sequence[_Cell], *, widths: Sequence[int], numeric: Sequence[bool]) -> list[Text]:
    """One row: as many lines as its longest sentence takes."""
    spare = [wide - _cells_wide(text) for (text, _), wide in zip(cells, widths, strict=True)]
    if min(spare) >= 0:
        return [_fitting_line(cells, spare, numeric)]
    columns = [_fitted(Text(*cell), wide) for cell, wide in zip(cells, widths, strict=True)]
    told = []
    for at in range(max(map(len, columns))):
        line = Text(" ")
        for number, (column, wide, right) in enumerate(zip(columns, widths, numeric, strict=True)):
            cell = column[at] if at < len(column) else Text()
            room = " " * (wide - cell_len(cell.plain))
            line.append_text(Text.assemble(" " * (_GAP if number else 0), *((room, cell) if right else (cell, room))))
        line.rstrip()
        told.append(line)
    return told


def _fitting_line(cells: Sequence[_Cell], spare: Sequence[int], numeric: Sequence[bool]) -> Text:
    """Return the one line of a row of which every cell fits into its column.

    Args:
        cells: At least one.
        spare: How many cells of the terminal each column is wider than its text.
        numeric: Whether each column ends where its texts end.
    """
    parts, spans, at = [" "], list[Span](), 1
    for number, ((text, style), room, right) in enumerate(zip(cells, spare, numeric, strict=True)):
        before = " " * ((_GAP if number else 0) + (room if right else 0))
        start = at + len(before)
        at = start + len(text)
        parts += [before, text]
        if style:
            spans.append(Span(start, at, style))
        if not right:
            parts.append(" " * room)
            at += room
    return Text("".join(parts).rstrip(), spans=spans)


def _fitted(cell: Text, width: int) -> list[Text]:
    if cell_len(cell.plain) <= width:
        return [cell]
    if " " in cell.plain:
        return _wrapped(cell, width)
    return [Text(_cut(cell.plain, width), cell.style)]


def _cut(text: str, width: int) -> str:
    """A name without its middle: beginnings are often alike, and so are ends."""
    head = _within(text, (width - 1) // 2)
    tail = _within(text[::-1], width - 1 - cell_len(head))[::-1]
    return f"{head}…{tail}"


def _within(text: str, width: int) -> str:
    kept = ""
    for char in text:
        if cell_len(kept + char) > width:
            break
        kept += char
    return kept


def _wrapped(text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(Console(width=width), width, overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines


def _beneath(value: object, width: int) -> list[Text]:
    text = escape_unprintable(format_value(value))
    if text == "-":
        return []
    lines = _wrapped(Text(text, "dim"), max(width - _INDENT, _NARROWEST))
    return [Text.assemble(" " * _INDENT, line) for line in lines]
