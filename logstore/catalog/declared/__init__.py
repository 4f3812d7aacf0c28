"""Declaration of the catalog's tables as classes, and the generator of `logstore.catalog.tables` (`make tables`).

An import of SQLModel and these classes takes a third of a second. So queries import generated tables of SQLAlchemy's
Core, which have only types and defaults. Indexes and constraints are in the migrations. Tests compare the migrations
with the classes.
"""

from types import FunctionType
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, TextClause
from sqlalchemy.sql.schema import DefaultClause
from sqlmodel import AutoString

_MODULE_HEAD = '''"""The catalog's tables for queries; `make tables` writes them from `logstore.catalog.declared`."""

from sqlalchemy import JSON, BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text, text

from logstore.trace_id import current_trace_id

Big = BigInteger().with_variant(Integer, "sqlite")
metadata = MetaData()
'''


def render_tables(declared: MetaData) -> str:
    return "\n".join([_MODULE_HEAD.rstrip("\n"), *(_render_table(table) for table in declared.tables.values())]) + "\n"


def _render_table(table: Table) -> str:
    parts = [f'"{table.name}"', "metadata", *map(_render_column, table.columns)]
    return "\n".join([f"{table.name} = Table(", *(f"    {part}," for part in parts), ")"])


def _render_column(column: Column[Any]) -> str:
    parts = [f'"{column.name}"', _render_type(column)]
    if column.primary_key:
        parts.append("primary_key=True")
        parts += ["autoincrement=False"] if column.autoincrement is False else []
    elif not column.nullable:
        parts.append("nullable=False")
    for name, default in (("default", column.default), ("onupdate", column.onupdate)):
        if default is not None:
            parts.append(f"{name}={_render_value(getattr(default, 'arg', None))}")
    if isinstance(column.server_default, DefaultClause):
        parts.append(f"server_default={_render_value(column.server_default.arg)}")
    return f"Column({', '.join(parts)})"


def _render_type(column: Column[Any]) -> str:
    if isinstance(column.type, BigInteger):
        return "Big"
    name_by_type = {AutoString: String.__name__, Text: Text.__name__}
    return name_by_type.get(type(column.type), type(column.type).__name__)


def _render_value(default: object) -> str:
    if isinstance(default, TextClause):
        return f"text({_quote(default.text)})"
    if isinstance(default, FunctionType):
        return default.__name__
    return _quote(default) if isinstance(default, str) else repr(default).replace("'", '"')


def _quote(value: str) -> str:
    assert '"' not in value
    assert "\\" not in value
    return f'"{value}"'
