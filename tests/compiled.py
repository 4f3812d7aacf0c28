"""Statements compiled once a process: what an engine learns of one, the engines of later tests know.

Most tests open a catalog of their own, thus an engine of its own, and half of their time was the compiling of the same
few hundred statements anew. SQLAlchemy caches what it compiled in the engine, under a key that holds the dialect.
"""

from typing import Any, Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from infra.catalog.engine import database

_DIALECTS: Final = (SQLiteDialect_pysqlite, PGDialect_psycopg)
_STATEMENTS: Final = LRUCache[Any, Any](4000)


def share_compiled_statements() -> None:
    """Let all engines of the catalog share one cache: a dialect of one kind is as good as another, on one server."""
    for dialect in _DIALECTS:
        dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    database.create_engine = _engine  # type: ignore[attr-defined]


def _engine(*arguments: Any, **options: Any) -> Engine:
    engine = create_engine(*arguments, **options)
    engine._compiled_cache = _STATEMENTS
    return engine
