"""One span per question to ZooKeeper, where something that is traced asks it."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

_tracer = trace.get_tracer("sexton.zookeeper")


@contextmanager
def zookeeper_span(doing: str) -> Iterator[None]:
    """A span around the block, retries included, under the present one; none where there is no present one.

    A worker looks at ZooKeeper every second for as long as it lives, which is no command's trace. What a person or an
    activity waits for is.
    """
    if not trace.get_current_span().is_recording():
        yield
        return
    facts = {"db.system.name": "zookeeper", "db.operation.name": doing}
    with _tracer.start_as_current_span(
        f"ZooKeeper {doing}",
        kind=SpanKind.CLIENT,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
