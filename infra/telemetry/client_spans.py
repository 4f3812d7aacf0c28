"""Spans of requests to S3, ZooKeeper and SQL databases."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

if TYPE_CHECKING:
    from botocore.awsrequest import AWSResponse
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client
    from sqlalchemy import Connection, ExceptionContext, ExecutionContext
    from sqlalchemy.engine.interfaces import DBAPICursor

_s3_tracer = trace.get_tracer("sexton.objects")
_zookeeper_tracer = trace.get_tracer("sexton.zookeeper")
_sql_tracer = trace.get_tracer("sexton.sql")
_S3_CONTEXT_KEY = "sexton_span"  # key of the span in the request's context
_EXPECTED_S3_STATUSES = frozenset({304, 404, 409, 412, 416})  # no failures: an absent key, a key already taken


def trace_s3_calls(client: "S3Client") -> None:
    """Record a span for each call of `client`, never with the content of an object.

    An absent key, or a key that is taken, is no error in a span. Without a tracer provider, the cost is negligible.

    Source: PostHog #97438: error spans of expected errors hide real errors.
    """
    events = client.meta.events
    events.register("provide-client-params.s3", _begin_s3_span)
    events.register("after-call.s3", _end_s3_span)
    events.register("after-call-error.s3", _fail_s3_span)


def _begin_s3_span(params: Mapping[str, Any], model: "OperationModel", context: dict[str, Any], **_: object) -> None:
    span = _s3_tracer.start_span(
        f"S3.{model.name}", kind=SpanKind.CLIENT, attributes=_build_request_attributes(model.name, params)
    )
    if span.is_recording():
        context[_S3_CONTEXT_KEY] = span


def _end_s3_span(http_response: "AWSResponse", parsed: Mapping[str, Any], context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_S3_CONTEXT_KEY, None)
    if span is None:
        return
    status: int = http_response.status_code
    counts = {
        f"sexton.{attribute}": len(parsed[name])
        for name, attribute in (("Contents", "found"), ("Deleted", "deleted"), ("Errors", "failed"))
        if name in parsed
    }
    span.set_attributes({"http.response.status_code": status, **counts})
    if status >= 300:
        code = str(parsed.get("Error", {}).get("Code", status))
        span.set_attribute("aws.error_code", code)
        if status not in _EXPECTED_S3_STATUSES:
            span.set_status(StatusCode.ERROR, code)
    span.end()


def _fail_s3_span(exception: Exception, context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_S3_CONTEXT_KEY, None)
    if span is not None:
        span.set_status(StatusCode.ERROR, type(exception).__name__)
        span.end()


def _build_request_attributes(method: str, params: Mapping[str, Any]) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": method}
    for name, attribute in (("Bucket", "aws.s3.bucket"), ("Key", "aws.s3.key"), ("Prefix", "aws.s3.prefix")):
        if name in params:
            attributes[attribute] = str(params[name])
    if "Delete" in params:
        attributes["sexton.keys"] = len(params["Delete"]["Objects"])
    if isinstance(params.get("Body"), bytes):
        attributes["sexton.bytes"] = len(params["Body"])
    return attributes


@contextmanager
def trace_zookeeper_call_within_trace(action: str) -> Iterator[None]:
    """Record the block, retries included, as a child span of the current span.

    Without a current span, record nothing: a worker reads ZooKeeper every second, and these reads need no trace.
    """
    if not trace.get_current_span().is_recording():
        yield
        return
    attributes = {"db.system.name": "zookeeper", "db.operation.name": action}
    with _zookeeper_tracer.start_as_current_span(
        f"ZooKeeper {action}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


_SQL_CONTEXT_ATTRIBUTE = "_sexton_span"  # attribute of the statement's context that holds the span
_FIRST_TABLE = re.compile(r"\b(?:from|into|update|table|join)\s+([\w.\"]+)", re.IGNORECASE)
_summary_by_statement: dict[str, tuple[str, str]] = {}  # verb and summary; statements are few and repeated
_MAX_CACHED_STATEMENTS = 1000
_observing_sql = threading.Event()


def trace_all_sql_statements() -> None:
    """Record a span for each statement of all engines of this process. Idempotent.

    A span contains neither parameters nor the statement's text, which may contain literals.
    """
    from sqlalchemy import Engine, event  # noqa: PLC0415 - start-up time

    if not _observing_sql.is_set():  # SQLAlchemy's `event.contains` does not find listeners of the class
        _observing_sql.set()
        for name, listener in _SQL_LISTENERS.items():
            event.listen(Engine, name, listener)


def _begin_sql_span(
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
    span = _sql_tracer.start_span(span_name, kind=SpanKind.CLIENT, attributes=attributes)
    if span.is_recording():
        setattr(context, _SQL_CONTEXT_ATTRIBUTE, span)


def _end_sql_span(
    _connection: "Connection",
    cursor: "DBAPICursor",
    _statement: str,
    _parameters: Any,  # noqa: ANN401
    context: "ExecutionContext | None",
    _executemany: bool,
) -> None:
    span: Span | None = getattr(context, _SQL_CONTEXT_ATTRIBUTE, None)
    if span is None:
        return
    if cursor.rowcount >= 0:  # SQLite does not count selected rows
        span.set_attribute("sexton.rows", cursor.rowcount)
    span.end()


def _fail_sql_span(context: "ExceptionContext") -> None:
    span: Span | None = getattr(context.execution_context, _SQL_CONTEXT_ATTRIBUTE, None)
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


_SQL_LISTENERS: dict[str, Callable[..., None]] = {
    "before_cursor_execute": _begin_sql_span,
    "after_cursor_execute": _end_sql_span,
    "handle_error": _fail_sql_span,
}
