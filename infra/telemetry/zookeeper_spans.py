"""Spans of requests to ZooKeeper within a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

_tracer = trace.get_tracer("sexton.zookeeper")


@contextmanager
def trace_zookeeper_call_within_trace(action: str) -> Iterator[None]:
    """Record the block, retries included, as a child span of the current span.

    Without a current span, record nothing: a worker reads ZooKeeper every second, and these reads need no trace.
    """
    if not trace.get_current_span().is_recording():
        yield
        return
    attributes = {"db.system.name": "zookeeper", "db.operation.name": action}
    with _tracer.start_as_current_span(
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
