"""Log stream for Sexton, Temporal and botocore, as JSON lines or as text for people."""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import structlog
from opentelemetry import trace
from structlog.contextvars import merge_contextvars
from structlog.typing import EventDict, Processor

_HANDLER_NAME = "sexton"
_VERBOSE_LOGGERS = ("botocore", "boto3", "urllib3", "kazoo", "sqlalchemy.engine")
_FIELD_BY_TEMPORAL_KEY = {
    "workflow_id": "workflow_id",
    "run_id": "run_id",
    "workflow_run_id": "run_id",
    "activity_type": "activity",
}

_TRACEBACK = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals hold credentials and payloads
)


def configure_log_stream(*, level: str = "INFO", stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """Send structlog and the standard library's logging to one stream. A repeated call replaces the stream.

    A JSON line has `timestamp` (UTC, ISO 8601), `level`, `logger`, `event` and the fields of structlog's
    `bound_contextvars`. Within a span it also has `trace_id` and `span_id`. Libraries that log their requests stay at
    WARNING, because their lower levels show headers and parameters. If `as_json` is `None`, lines are text on a
    terminal and otherwise JSON.
    """
    target = stream or sys.stderr
    to_json = not target.isatty() if as_json is None else as_json
    handler = logging.StreamHandler(target)
    handler.set_name(_HANDLER_NAME)
    handler.setFormatter(_build_formatter(to_json=to_json))
    root = logging.getLogger()
    root.handlers[:] = [other for other in root.handlers if other.get_name() != _HANDLER_NAME] + [handler]
    root.setLevel(level.upper())
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_COMMON_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _build_formatter(*, to_json: bool) -> logging.Formatter:
    renderers: Sequence[Processor] = (
        [_TRACEBACK, structlog.processors.JSONRenderer(default=str)]
        if to_json
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_COMMON_PROCESSORS, structlog.stdlib.ExtraAdder(), _rename_temporal_ids],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _add_span_ids(_logger: object, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _rename_temporal_ids(_logger: object, _method: str, event: EventDict) -> EventDict:
    for source in ("temporal_workflow", "temporal_activity"):
        details: Mapping[str, Any] | None = event.pop(source, None)
        for temporal_key, field in _FIELD_BY_TEMPORAL_KEY.items():
            if details and temporal_key in details:
                event.setdefault(field, details[temporal_key])
    return event


_COMMON_PROCESSORS: list[Processor] = [
    merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.PositionalArgumentsFormatter(),
    _add_span_ids,
]
