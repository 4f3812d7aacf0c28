"""One span per SQL statement, made from SQLAlchemy's own events."""

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
_SPAN = "_sexton_span"  # where the statement's own context carries it between events
_SUBJECT = re.compile(r"\b(?:from|into|update|table|join)\s+([\w.\"]+)", re.IGNORECASE)
_SHAPES: dict[str, tuple[str, str]] = {}  # statement -> verb and summary; statements are few and repeated
_MOST_SHAPES = 1000
_observing = threading.Event()


def observe_engines() -> None:
    """Give each statement of every engine of this process a span; calling it again changes nothing.

    A span tells the verb, the first table and the number of rows; never the statement's text, which may hold
    literals, and never a parameter. Without a tracer provider this costs next to nothing.
    """
    if not _observing.is_set():  # SQLAlchemy's own `contains` does not know listeners of the class again
        _observing.set()
        for name, listener in _LISTENERS.items():
            event.listen(Engine, name, listener)


def _begin(
    connection: "Connection",
    _cursor: "DBAPICursor",
    statement: str,
    parameters: Any,  # noqa: ANN401 - whatever the driver takes
    context: "ExecutionContext | None",
    executemany: bool,
) -> None:
    if context is None or statement == "BEGIN" or statement.startswith("PRAGMA"):
        return  # nothing that an operator looks for: a BEGIN IMMEDIATE, which may wait, is shown
    verb, summary = _shape(statement)
    facts: dict[str, str | int] = {"db.system.name": connection.dialect.name, "db.operation.name": verb}
    if executemany:
        facts["db.operation.batch.size"] = len(parameters)
    span = _tracer.start_span(summary, kind=SpanKind.CLIENT, attributes=facts)
    if span.is_recording():
        setattr(context, _SPAN, span)


def _end(
    _connection: "Connection",
    cursor: "DBAPICursor",
    _statement: str,
    _parameters: Any,  # noqa: ANN401
    context: "ExecutionContext | None",
    _executemany: bool,
) -> None:
    span: Span | None = getattr(context, _SPAN, None)
    if span is None:
        return
    if cursor.rowcount >= 0:  # SQLite knows no count for what it selects
        span.set_attribute("sexton.rows", cursor.rowcount)
    span.end()


def _fail(context: "ExceptionContext") -> None:
    span: Span | None = getattr(context.execution_context, _SPAN, None)
    if span is None or not span.is_recording():  # ended before: the error came while rows were read
        return
    error = context.original_exception
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:  # another writer is at work: tried again
        span.set_attribute("db.response.status_code", "SQLITE_BUSY")
    else:
        span.set_status(StatusCode.ERROR, type(error).__name__)
    span.end()


def _shape(statement: str) -> tuple[str, str]:
    found = _SHAPES.get(statement)
    if found is None:
        verb = statement.lstrip("( \n\t").partition(" ")[0].partition("\n")[0].upper() or "SQL"
        subject = _SUBJECT.search(statement)
        found = verb, f"{verb} {subject[1]}" if subject else verb
        if len(_SHAPES) < _MOST_SHAPES:
            _SHAPES[statement] = found
    return found


_LISTENERS: dict[str, Callable[..., None]] = {
    "before_cursor_execute": _begin,
    "after_cursor_execute": _end,
    "handle_error": _fail,
}
