"""Charts as inline SVG: bars with their names and values, which follow the colours of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_ROW: Final = 26  # pixels of one bar with its gap
_NAME: Final = 220  # pixels for names
_BAR: Final = 420
_VALUE: Final = 120
_LONGEST_NAME: Final = 34  # characters; the whole one is in the tooltip


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar."""

    name: str
    value: int  # 0 or more
    told: str  # the value in words
    alarming: bool = False


def bars(title: str, found: Sequence[Bar]) -> str:
    """A chart of horizontal bars, as long as their values; one without bars says that there is nothing."""
    if not found:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>nothing</p></figure>"
    most = max(1, *(one.value for one in found))
    height = _ROW * len(found)
    drawn = "".join(_drawn(at, one, most) for at, one in enumerate(found))
    width = _NAME + _BAR + _VALUE
    chart = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>"


def _drawn(at: int, one: Bar, most: int) -> str:
    top, middle = at * _ROW + 3, at * _ROW + _ROW // 2 + 4
    length = max(2, round(_BAR * one.value / most)) if one.value else 0
    kind = "bar alarming" if one.alarming and one.value else "bar"
    whole = escape(f"{one.name}: {one.told}")
    return (
        f"<g><title>{whole}</title>"
        f'<text class="name" x="{_NAME - 8}" y="{middle}" text-anchor="end">{escape(_short(one.name))}</text>'
        f'<rect class="{kind}" x="{_NAME}" y="{top}" width="{length}" height="{_ROW - 6}" rx="3"/>'
        f'<text class="value" x="{_NAME + length + 8}" y="{middle}">{escape(one.told)}</text></g>'
    )


def _short(name: str) -> str:
    """The end of a long name says more than its beginning."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
