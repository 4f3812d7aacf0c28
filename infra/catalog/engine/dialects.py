"""The parts of a statement that depend on the database: many values as one parameter, taken keys, JSON, and the clock.

A statement's text does not grow with its input, nor reach a limit of parameters. So it is compiled once, and prepared
once on a connection. SQLite reads the values from JSON, PostgreSQL from arrays.

An offload context is stored as it was found. It may be damaged: by an edit by hand, by a failing disk, or by an older
tool. One text that is no JSON makes SQLite fail the whole statement, and the driver the whole result. So contexts are
read as text, and each is parsed by itself.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    FromClause,
    Row,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

V = TypeVar("V")

BIG = BigInteger()
TEXT = Text()


class Rows(NamedTuple):
    """Rows that travel with a statement: what it selects from, and how its parameters are made."""

    source: FromClause
    dialect: str
    columns: tuple[str, ...]

    def packed(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The statement's parameters; each row has the columns in their order."""
        if self.dialect == "sqlite":
            return {str(self.source.description): json.dumps(rows)}
        cells = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        names = (f"{self.source.description}_{key}" for key in self.columns)
        return dict(zip(names, map(list, cells), strict=True))


class Statement(NamedTuple):
    """A statement, built once for a dialect, and the rows it takes."""

    sql: Executable
    rows: Rows

    def execute(self, connection: Connection, rows: Iterable[tuple[Any, ...]], **more: object) -> CursorResult[Any]:
        """Run it for these rows, each with the columns in their order, and with its other parameters."""
        return connection.execute(self.sql, {**self.rows.packed(sorted(rows)), **more})


def value_of(kind: type[V], row: Row[Any], /, **more: Any) -> V:  # noqa: ANN401 - fields of any type
    """A row as a value of a dataclass: each field is `more`'s or, if there is one, the column of its name."""
    found = row._mapping  # noqa: SLF001 - public by SQLAlchemy's documentation
    told = {name: found[name] for name in _fields(kind) if name not in more and name in found}  # type: ignore[arg-type]  # a type is hashable
    return kind(**told, **more)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def rows_of(dialect: str, name: str, columns: dict[str, TypeEngine[Any]]) -> Rows:
    """Rows of these columns, `BIG` or `TEXT`, under a name that no other parameter of the statement begins with."""
    source: FromClause
    if dialect == "sqlite":
        value = func.json_each(bindparam(name, type_=TEXT)).table_valued("value", name=f"{name}_json").c.value
        parts = enumerate(columns.items())
        source = select(
            *(cast(func.json_extract(value, f"$[{at}]"), kind).label(key) for at, (key, kind) in parts)
        ).subquery(name)
    else:
        arrays = [bindparam(f"{name}_{key}", type_=_array(kind)) for key, kind in columns.items()]
        source = func.unnest(*arrays).table_valued(*columns).render_derived(name=name)
    return Rows(source, dialect, tuple(columns))


def among(connection: Connection, column: ColumnElement[Any], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether the column is one of the ids."""
    wanted = sorted({int(one) for one in ids})
    if connection.dialect.name == "sqlite":
        return column.in_(select(func.json_each(json.dumps(wanted)).table_valued("value").c.value))
    return column.in_(select(func.unnest(literal(wanted, _array(BIG)))))


def inserting(dialect: str, table: Any) -> Any:  # noqa: ANN401 - two dialects, one class
    """An insert that may say what happens where a unique key is taken."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)  # the other one's import is spared


def ignoring_conflict(connection: Connection, table: Any) -> Any:  # noqa: ANN401 - two dialects, one method
    """An insert that does nothing where a unique key is taken."""
    return inserting(connection.dialect.name, table).on_conflict_do_nothing()


def _array(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    from sqlalchemy.dialects.postgresql import ARRAY  # noqa: PLC0415 - SQLite is spared its import

    return ARRAY(kind)


class Clock(FunctionElement[int]):
    """Microseconds since 1970 by the database's clock; SQLite's tells milliseconds. See `Database.now_us`."""

    type = BigInteger()
    inherit_cache = True


@compiles(Clock)
def _of_a_server(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


@compiles(Clock, "sqlite")
def _of_this_machine(*_: object, **__: object) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"


def as_text(context: ColumnElement[Any], name: str = "context") -> ColumnElement[str]:
    """The column as its text, under that name; for `context_in`."""
    return cast(context, Text).label(name)


def text_or_empty(column: ColumnElement[str | None], name: str) -> ColumnElement[str]:
    """The column as its text under that name, empty in place of NULL."""
    return cast(func.coalesce(column, literal_column("''")), Text).label(name)


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
    type = JSON()
    inherit_cache = True


@compiles(Readable)
def _where_each_escape_is_a_character(element: Readable, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return rf"CASE WHEN CAST({column} AS TEXT) !~* '\\u(0000|d[89a-f])' THEN {column} END"


@compiles(Readable, "sqlite")
def _where_it_is_json(element: Readable, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return f"CASE WHEN json_valid({column}) THEN {column} END"
