"""Spans of SQL statements, from SQLAlchemy's events. Each statement has one span."""

import re
import sqlite3
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from sqlalchemy import Connection, ExceptionContext, ExecutionContext
    from sqlalchemy.engine.interfaces import DBAPICursor

_tracer = trace.get_tracer("sexton.sql")
_CONTEXT_ATTRIBUTE = "_sexton_span"  # attribute of the statement's context that holds the span
_FIRST_TABLE = re.compile(r"\b(?:from|into|update|table|join)\s+([\w.\"]+)", re.IGNORECASE)
_summary_by_statement: dict[str, tuple[str, str]] = {}  # verb and summary; statements are few and repeated
_MAX_CACHED_STATEMENTS = 1000
_observing = threading.Event()


def trace_all_sql_statements() -> None:
    """Record a span for each statement of all engines of this process. Idempotent.

    A span contains neither parameters nor the statement's text, which may contain literals.
    """
    if not _observing.is_set():  # SQLAlchemy's `event.contains` does not find listeners of the class
        _observing.set()
        for name, listener in _LISTENERS.items():
            event.listen(Engine, name, listener)


def _begin_span(
    connection: "Connection",
    _cursor: "DBAPICursor",
    statement: str,
    parameters: Any,  # noqa: ANN401 - whatever the driver takes
    context: "ExecutionContext | None",
    executemany: bool,
) -> None:
    if context is None or statement == "BEGIN" or statement.startswith("PRAGMA"):
        return  # of no interest to an operator; but a BEGIN IMMEDIATE may wait, and gets a span
    verb, span_name = _parse_verb_and_span_name(statement)
    attributes: dict[str, str | int] = {"db.system.name": connection.dialect.name, "db.operation.name": verb}
    if executemany:
        attributes["db.operation.batch.size"] = len(parameters)
    span = _tracer.start_span(span_name, kind=SpanKind.CLIENT, attributes=attributes)
    if span.is_recording():
        setattr(context, _CONTEXT_ATTRIBUTE, span)


def _end_span(
    _connection: "Connection",
    cursor: "DBAPICursor",
    _statement: str,
    _parameters: Any,  # noqa: ANN401
    context: "ExecutionContext | None",
    _executemany: bool,
) -> None:
    span: Span | None = getattr(context, _CONTEXT_ATTRIBUTE, None)
    if span is None:
        return
    if cursor.rowcount >= 0:  # SQLite does not count selected rows
        span.set_attribute("sexton.rows", cursor.rowcount)
    span.end()


def _fail_span(context: "ExceptionContext") -> None:
    span: Span | None = getattr(context.execution_context, _CONTEXT_ATTRIBUTE, None)
    if span is None or not span.is_recording():  # the error came while rows were read, after the end of the span
        return
    error = context.original_exception
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:  # retried after another writer has ended
        span.set_attribute("db.response.status_code", "SQLITE_BUSY")
    else:
        span.set_status(StatusCode.ERROR, type(error).__name__)
    span.end()


def _parse_verb_and_span_name(statement: str) -> tuple[str, str]:
    summary = _summary_by_statement.get(statement)
    if summary is None:
        verb = statement.lstrip("( \n\t").partition(" ")[0].partition("\n")[0].upper() or "SQL"
        table = _FIRST_TABLE.search(statement)
        summary = verb, f"{verb} {table[1]}" if table else verb
        if len(_summary_by_statement) < _MAX_CACHED_STATEMENTS:
            _summary_by_statement[statement] = summary
    return summary


_LISTENERS: dict[str, Callable[..., None]] = {
    "before_cursor_execute": _begin_span,
    "after_cursor_execute": _end_span,
    "handle_error": _fail_span,
}
