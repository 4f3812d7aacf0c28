"""The catalog's tables as classes, and what writes `infra.catalog.tables` from them (`make tables`).

SQLModel, the ORM below it and these classes take a third of a second to import. Queries need none of them, so they
import the same tables as SQLAlchemy's Core has them: columns with their types and defaults. Indexes and constraints are
the business of migrations, which are compared with the classes; an index of one dialect's would load that dialect.
"""

from types import FunctionType
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, TextClause
from sqlalchemy.sql.schema import DefaultClause
from sqlmodel import AutoString

_HEAD = '''"""The catalog's tables for queries; written from `infra.declared.models` by `make tables`."""

from sqlalchemy import JSON, BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text, text

from infra.telemetry import current_trace_id

Big = BigInteger().with_variant(Integer, "sqlite")
metadata = MetaData()
'''


def source(declared: MetaData) -> str:
    """The text of `tables`, formatted as it stands in the repository."""
    return "\n".join([_HEAD.rstrip("\n"), *(_table(table) for table in declared.tables.values())]) + "\n"


def _table(table: Table) -> str:
    parts = [f'"{table.name}"', "metadata", *map(_column, table.columns)]
    return "\n".join([f"{table.name} = Table(", *(f"    {part}," for part in parts), ")"])


def _column(column: Column[Any]) -> str:
    parts = [f'"{column.name}"', _type(column)]
    if column.primary_key:
        parts.append("primary_key=True")
        parts += ["autoincrement=False"] if column.autoincrement is False else []
    elif not column.nullable:
        parts.append("nullable=False")
    for name, given in (("default", column.default), ("onupdate", column.onupdate)):
        if given is not None:
            parts.append(f"{name}={_value(getattr(given, 'arg', None))}")
    if isinstance(column.server_default, DefaultClause):
        parts.append(f"server_default={_value(column.server_default.arg)}")
    return f"Column({', '.join(parts)})"


def _type(column: Column[Any]) -> str:
    if isinstance(column.type, BigInteger):
        return "Big"
    known = {AutoString: String.__name__, Text: Text.__name__}
    return known.get(type(column.type), type(column.type).__name__)


def _value(given: object) -> str:
    """A default as it is written: a function by its name, SQL as text, otherwise the value."""
    if isinstance(given, TextClause):
        return f"text({_quoted(given.text)})"
    if isinstance(given, FunctionType):
        return given.__name__
    return _quoted(given) if isinstance(given, str) else repr(given).replace("'", '"')


def _quoted(words: str) -> str:
    assert '"' not in words
    assert "\\" not in words
    return f'"{words}"'
