"""Spans of SQL statements for as long as a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event

from infra.telemetry import client_spans


@contextmanager
def trace_sql_statements() -> Iterator[None]:
    """Every engine of this process is observed within the block, and none behind it."""
    client_spans.trace_all_sql_statements()
    try:
        yield
    finally:
        client_spans._observing_sql.clear()
        for name, listener in client_spans._SQL_LISTENERS.items():
            event.remove(Engine, name, listener)
