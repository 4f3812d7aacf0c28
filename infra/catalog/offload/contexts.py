"""Reading offload contexts from the catalog: a context that cannot be read does not keep other rows from being read.

A context is stored as it was found. It may be damaged: by an edit by hand, by a failing disk, or by an older tool. One
text that is no JSON makes SQLite fail the whole statement, and the driver the whole result. So contexts are read as
text, and each is parsed by itself.
"""

import json
from typing import Any

from sqlalchemy import JSON, ColumnElement, Text, cast
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_JSON = JSON()


def as_text(context: ColumnElement[Any], name: str = "context") -> ColumnElement[str]:
    """The column as its text, under that name; for `context_in`."""
    return cast(context, Text).label(name)


def context_in(text: str) -> dict[str, str]:
    """The context that a text means; one that cannot be read is empty."""
    return context_or_none(text) or {}


def context_or_none(text: str) -> dict[str, str] | None:
    """The context that a text means, or None where it is anything but names with texts."""
    found = json_object(text)
    return found if found is not None and all(isinstance(value, str) for value in found.values()) else None


def json_object(text: str) -> dict[str, Any] | None:
    """A JSON object, or None for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Readable(FunctionElement[Any]):
    """A column of JSON, NULL where the database keeps what it cannot take apart.

    SQLite accepts any text; PostgreSQL any escape of four hexadecimal digits, also of what is no character, over which
    it fails the statement. Contexts of ours have none of those that it may refuse.
    """

    name = "readable"
    type = _JSON
    inherit_cache = True


@compiles(Readable)
def _where_each_escape_is_a_character(element: Readable, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return rf"CASE WHEN CAST({column} AS TEXT) !~* '\\u(0000|d[89a-f])' THEN {column} END"


@compiles(Readable, "sqlite")
def _where_it_is_json(element: Readable, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return f"CASE WHEN json_valid({column}) THEN {column} END"
