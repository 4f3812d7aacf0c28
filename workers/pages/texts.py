"""How values read for people: in tables, in lines, in sentences, and in pages for a browser.

A page is made of a template of this folder: all that is filled in is escaped. It holds its own style, and its browser
is told to run no script and to load nothing: whatever stands in a topic's name or in an error is text.

Source: W3C, "Content Security Policy Level 3"; Jinja, "Autoescaping".
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote


def plain(value: object) -> str:
    """A value in a table: lists and objects on one line, large numbers with commas, nothing as a dash.

    Objects and lists inside an object are in brackets, so that it is plain where each ends.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_inside(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(item) for item in value) or "-"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10**5 else str(value)


def _inside(value: object) -> str:
    several = isinstance(value, Mapping | Sequence) and not isinstance(value, str) and len(value) > 0
    return f"({plain(value)})" if several else plain(value)


def fields(thing: object, names: str) -> dict[str, object]:
    """The thing's fields of these names, separated by spaces, in their order; a value of an enumeration as its text."""
    found = {name: getattr(thing, name) for name in names.split()}
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in found.items()}


def harmless(text: str) -> str:
    """Escape what would steer a terminal: names and payloads may hold any character."""
    if text.isprintable():  # as nearly every value of a long table is
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def topic_shown(encoded: str) -> str:
    """A topic's name as a person writes it, and as every command takes it."""
    return unquote(encoded)


def shown_us(moment_us: int) -> str:
    """Microseconds since 1970 as RFC 3339, UTC."""
    seconds, rest = divmod(moment_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest).isoformat().replace("+00:00", "Z")


def shown_s(moment_us: int) -> str:
    """The same to the second, which is what people look for."""
    return f"{datetime.fromtimestamp(moment_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of every page."""


def rendered(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever a template shows
    """The page of a template of this folder.

    Raises:
        jinja2.UndefinedError: The template shows what it was not given.
    """
    return str(_environment().get_template(template).render(policy=POLICY, **values))


def streamed(template: str, **values: Any) -> Iterator[str]:  # noqa: ANN401 - whatever a template shows
    """The same page in parts, so that rows which pass by are not in memory together."""
    return iter(_environment().get_template(template).generate(policy=POLICY, **values))


@cache
def _environment() -> Any:  # noqa: ANN401 - of a package whose import takes a command 30 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    loader = FileSystemLoader(Path(__file__).parent)
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, cache_size=-1
    )
    made.filters["harmless"] = harmless
    return made
