"""One stream of logs: ours, Temporal's and botocore's alike, as JSON lines or for people."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
from opentelemetry import trace
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor

_HANDLER = "sexton"
_CHATTY = ("botocore", "boto3", "urllib3", "kazoo", "sqlalchemy.engine")
_FROM_TEMPORAL = {
    "workflow_id": "workflow_id",
    "run_id": "run_id",
    "workflow_run_id": "run_id",
    "activity_type": "activity",
}

_TRACEBACK = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals hold credentials and payloads
)


def start_logs(*, level: str = "INFO", stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """Send structlog and the standard library's logging to one stream, in one form; calling again replaces it.

    A JSON line has `timestamp` (UTC, ISO 8601), `level`, `logger`, `event`, what `bind` has bound
    (`workflow_id`, `run_id`, `activity`), and `trace_id` and `span_id` within a span.

    Args:
        level: The lowest level shown, by name. Libraries that log their requests stay at WARNING at least:
            their lower levels show headers and parameters.
        stream: Standard error unless given.
        as_json: Whether lines are JSON; by default unless the stream is a terminal.
    """
    target = stream or sys.stderr
    to_json = not target.isatty() if as_json is None else as_json
    handler = logging.StreamHandler(target)
    handler.set_name(_HANDLER)
    handler.setFormatter(_formatter(to_json=to_json))
    root = logging.getLogger()
    root.handlers[:] = [h for h in root.handlers if h.get_name() != _HANDLER] + [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_FACTS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def bind(**fields: str | int | None) -> Iterator[None]:
    """Add `fields` to every log line of this context, tasks and copied contexts included, until the block ends."""
    with bound_contextvars(**fields):
        yield


def _formatter(*, to_json: bool) -> logging.Formatter:
    last: Sequence[Processor] = (
        [_TRACEBACK, structlog.processors.JSONRenderer(default=str)]
        if to_json
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_FACTS, structlog.stdlib.ExtraAdder(), _temporal_ids],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _span_ids(_logger: object, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _temporal_ids(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Temporal's loggers hand over a dictionary of ids: keep ours of them, by the names used everywhere here."""
    for source in ("temporal_workflow", "temporal_activity"):
        details: Mapping[str, Any] | None = event.pop(source, None)
        for theirs, ours in _FROM_TEMPORAL.items():
            if details and theirs in details:
                event.setdefault(ours, details[theirs])
    return event


_FACTS: list[Processor] = [
    merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.PositionalArgumentsFormatter(),
    _span_ids,
]
