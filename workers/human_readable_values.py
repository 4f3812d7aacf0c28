"""Formats of values for people: times, numbers, topic names and text without control characters."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from logstore.positions import Position


def format_table_cell(value: object) -> str:
    """Format a value for a table: lists and objects on one line, large numbers with commas, `None` as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_format_nested(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_table_cell(item) for item in value) or "-"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10**5 else str(value)


def _format_nested(value: object) -> str:
    has_items = isinstance(value, Mapping | Sequence) and not isinstance(value, str) and len(value) > 0
    return f"({format_table_cell(value)})" if has_items else format_table_cell(value)


def select_fields(source: object, names: str) -> dict[str, Any]:
    """Return attributes of an object, or values of a mapping, in this order. Spaces separate the names.

    `new=old` renames a field. Values become those of JSON: enum values and positions are text. Attributes that end in
    `_us` are microseconds since 1970, and become times.
    """
    values: dict[str, Any] = {}
    for name in names.split():
        label, _, field = name.rpartition("=")
        value = source[field] if isinstance(source, Mapping) else getattr(source, field)
        if isinstance(value, StrEnum | Position):
            value = str(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif field.endswith("_us") and value is not None:
            value = format_time_to_microsecond(value)
        values[label or field] = value
    return values


def escape_unprintable(text: str) -> str:
    """Escape characters that control a terminal, except line breaks. Topic names may have any character."""
    if text.isprintable():  # no escape is needed in most texts, and this test is fast
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def decode_topic_name(encoded: str) -> str:
    return unquote(encoded)


def format_time_to_microsecond(moment_us: int) -> str:
    """Format microseconds since 1970 by RFC 3339, in UTC."""
    seconds, microseconds = divmod(moment_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds).isoformat().replace("+00:00", "Z")


def format_time_to_second(moment_us: int) -> str:
    """Format microseconds since 1970 by RFC 3339, in UTC, without the fraction of a second."""
    return f"{datetime.fromtimestamp(moment_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
