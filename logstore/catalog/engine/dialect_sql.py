"""Parts of statements that depend on the database: bulk parameters, key conflicts, JSON, and the clock.

SQLite reads bulk values from a JSON text, PostgreSQL from arrays. So a statement does not grow with its input, and is
compiled once. Stored offload contexts may be damaged, and invalid JSON fails a whole statement. So contexts are read as
text and parsed one by one.
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


class BulkParameter(NamedTuple):
    """Statement parameter with many rows. `source` is a table expression with these rows."""

    source: FromClause
    dialect: str
    columns: tuple[str, ...]

    def to_parameters(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the statement's parameters for `rows`. The values of each row are in the order of `columns`."""
        if self.dialect == "sqlite":
            return {str(self.source.description): json.dumps(rows)}
        cells = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        names = (f"{self.source.description}_{key}" for key in self.columns)
        return dict(zip(names, map(list, cells), strict=True))


class BulkStatement(NamedTuple):
    """Statement with a bulk parameter. Build it once per dialect."""

    sql: Executable
    rows: BulkParameter

    def execute(self, connection: Connection, rows: Iterable[tuple[Any, ...]], **more: object) -> CursorResult[Any]:
        """Sort the rows and run the statement for them. `more` has the other parameters."""
        return connection.execute(self.sql, {**self.rows.to_parameters(sorted(rows)), **more})


def dataclass_from_row(kind: type[V], row: Row[Any], /, **more: Any) -> V:  # noqa: ANN401 - fields of any type
    """Convert a row to a dataclass. Values in `more` take precedence over columns of the same name."""
    columns = row._mapping  # noqa: SLF001 - public by SQLAlchemy's documentation
    values = {name: columns[name] for name in _fields(kind) if name not in more and name in columns}  # type: ignore[arg-type]  # a type is hashable
    return kind(**values, **more)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def build_bulk_parameter(dialect: str, name: str, columns: dict[str, TypeEngine[Any]]) -> BulkParameter:
    """Build a bulk parameter with columns of type `BIG` or `TEXT`. No other parameter's name may begin with `name`."""
    source: FromClause
    if dialect == "sqlite":
        value = func.json_each(bindparam(name, type_=TEXT)).table_valued("value", name=f"{name}_json").c.value
        source = select(
            *(
                cast(func.json_extract(value, f"$[{index}]"), kind).label(key)
                for index, (key, kind) in enumerate(columns.items())
            )
        ).subquery(name)
    else:
        arrays = [bindparam(f"{name}_{key}", type_=_array(kind)) for key, kind in columns.items()]
        source = func.unnest(*arrays).table_valued(*columns).render_derived(name=name)
    return BulkParameter(source, dialect, tuple(columns))


def is_one_of(connection: Connection, column: ColumnElement[Any], ids: Iterable[int]) -> ColumnElement[bool]:
    id_list = sorted({int(value) for value in ids})
    if connection.dialect.name == "sqlite":
        return column.in_(select(func.json_each(json.dumps(id_list)).table_valued("value").c.value))
    return column.in_(select(func.unnest(literal(id_list, _array(BIG)))))


def build_dialect_insert(dialect: str, table: Any) -> Any:  # noqa: ANN401 - two dialects, one class
    """Return the dialect's insert construct, which supports ON CONFLICT."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)  # imports only the dialect in use


def build_insert_if_absent(connection: Connection, table: Any) -> Any:  # noqa: ANN401 - two dialects, one method
    return build_dialect_insert(connection.dialect.name, table).on_conflict_do_nothing()


def _array(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    from sqlalchemy.dialects.postgresql import ARRAY  # noqa: PLC0415 - SQLite is spared its import

    return ARRAY(kind)


class DatabaseClock(FunctionElement[int]):
    """Microseconds since 1970 by the database's clock. SQLite's clock counts only milliseconds."""

    type = BigInteger()
    inherit_cache = True


@compiles(DatabaseClock)
def _compile_postgresql_clock(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


@compiles(DatabaseClock, "sqlite")
def _compile_sqlite_clock(*_: object, **__: object) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"


def cast_to_text(context: ColumnElement[Any], name: str = "context") -> ColumnElement[str]:
    """Cast the column to text, labelled `name`, for `parse_offload_context`."""
    return cast(context, Text).label(name)


def cast_to_text_or_empty(column: ColumnElement[str | None], name: str) -> ColumnElement[str]:
    return cast(func.coalesce(column, literal_column("''")), Text).label(name)


def parse_offload_context_or_empty(text: str) -> dict[str, str]:
    return parse_offload_context(text) or {}


def parse_offload_context(text: str) -> dict[str, str] | None:
    """Parse an offload context. Return `None` unless the text is a JSON object with texts as values."""
    context = parse_json_object(text)
    return context if context is not None and all(isinstance(value, str) for value in context.values()) else None


def parse_json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class ParsableJsonOrNull(FunctionElement[Any]):
    """JSON column that is NULL if the database cannot parse its value.

    SQLite stores any text. PostgreSQL stores escapes of invalid characters, but fails to parse such an escape.
    """

    name = "readable"
    type = JSON()
    inherit_cache = True


@compiles(ParsableJsonOrNull)
def _compile_postgresql_readable(element: ParsableJsonOrNull, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return rf"CASE WHEN CAST({column} AS TEXT) !~* '\\u(0000|d[89a-f])' THEN {column} END"


@compiles(ParsableJsonOrNull, "sqlite")
def _compile_sqlite_readable(element: ParsableJsonOrNull, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    column = compiler.process(element.clauses, **options)
    return f"CASE WHEN json_valid({column}) THEN {column} END"
