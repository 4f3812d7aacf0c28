"""The tables that queries import are the declared classes, no less and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Dialect, MetaData
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from logstore.catalog import tables
from logstore.catalog.declared import render_tables
from logstore.catalog.declared.catalog_tables import metadata


def test_source_of_the_declared_classes_is_the_module_of_tables() -> None:
    """`make tables` was run after the last edit."""
    assert Path(tables.__file__).read_text(encoding="utf-8") == render_tables(metadata)


@pytest.mark.parametrize("kind", [SQLiteDialect_pysqlite, PGDialect_psycopg])
def test_source_of_the_declared_classes_loses_nothing_that_a_query_needs(kind: Callable[[], Dialect]) -> None:
    """It has the same columns: types in both databases, keys, and values that inserts and updates fill in."""
    written = _columns(tables.metadata, kind())
    assert written == _columns(metadata, kind())
    assert written["pending_deletion.trace_id"][-2:] == ("current_trace_id", "current_trace_id")


def _columns(tables: MetaData, dialect: Dialect) -> dict[str, tuple[object, ...]]:
    return {
        str(column): (
            column.type.compile(dialect=dialect),
            column.nullable,
            column.primary_key,
            column.autoincrement,
            column.server_default is not None,
            _shown(column.default),
            _shown(column.onupdate),
        )
        for table in tables.tables.values()
        for column in table.columns
    }


def _shown(default: object) -> object:
    """A value, or a function's name."""
    given = getattr(default, "arg", None)
    return getattr(given, "__name__", given)
