"""Formats of values for people, and HTML pages.

A page comes from a template in this folder, which escapes every value. The page's Content-Security-Policy allows no
script and no other resource. So a browser shows topic names and errors only as text.

Source: W3C, "Content Security Policy Level 3"; Jinja, "Autoescaping".
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote


def format_value(value: object) -> str:
    """Format a value for a table: lists and objects on one line, large numbers with commas, nothing as a dash.

    Lists and objects inside an object are in parentheses.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_format_nested(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_value(item) for item in value) or "-"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10**5 else str(value)


def _format_nested(value: object) -> str:
    has_items = isinstance(value, Mapping | Sequence) and not isinstance(value, str) and len(value) > 0
    return f"({format_value(value)})" if has_items else format_value(value)


def select_fields(source: object, names: str) -> dict[str, object]:
    """Return the named attributes of an object in order; `names` are separated by spaces. Enum values become text."""
    value_by_name = {name: getattr(source, name) for name in names.split()}
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in value_by_name.items()}


def escape_unprintable(text: str) -> str:
    """Escape characters that control a terminal, except line breaks. Topic names may have any character."""
    if text.isprintable():  # fast path for the common case
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def decode_topic_name(encoded: str) -> str:
    """Return the topic name that people and commands use."""
    return unquote(encoded)


def format_time_us(moment_us: int) -> str:
    """Format microseconds since 1970 by RFC 3339, in UTC."""
    seconds, microseconds = divmod(moment_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds).isoformat().replace("+00:00", "Z")


def format_time_s(moment_us: int) -> str:
    """Format microseconds since 1970 by RFC 3339, in UTC, without the fraction of a second."""
    return f"{datetime.fromtimestamp(moment_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy of every page."""


def render_template(template: str, **values: Any) -> str:  # noqa: ANN401 - values depend on the template
    """Return the page of a template in this folder. A missing value raises `jinja2.UndefinedError`."""
    return str(_environment().get_template(template).render(policy=CONTENT_SECURITY_POLICY, **values))


def stream_template(template: str, **values: Any) -> Iterator[str]:  # noqa: ANN401 - values depend on the template
    """Return the page in parts. Rows of an iterator are never in memory together."""
    return iter(_environment().get_template(template).generate(policy=CONTENT_SECURITY_POLICY, **values))


@cache
def _environment() -> Any:  # noqa: ANN401 - the type's import takes a command 30 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, cache_size=-1
    )
    environment.filters["escape_unprintable"] = escape_unprintable
    return environment
