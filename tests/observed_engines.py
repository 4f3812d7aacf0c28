"""Spans of SQL statements for as long as a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event

from infra.telemetry import sql_spans


@contextmanager
def trace_sql_statements() -> Iterator[None]:
    """Every engine of this process is observed within the block, and none behind it."""
    sql_spans.trace_all_sql_statements()
    try:
        yield
    finally:
        sql_spans._observing.clear()
        for name, listener in sql_spans._LISTENERS.items():
            event.remove(Engine, name, listener)
