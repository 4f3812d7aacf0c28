"""Errors that their callers expect are answers, and would hide the real ones among the spans."""

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

_EXPECTED: Final = ("WorkflowAlreadyStartedError: ",)
"""A job of ours that starts another leaves the work to the one that runs already."""


class ExpectedIsNoError(SpanExporter):
    """Hands spans on, those of expected errors without the status of an error.

    The spans of Temporal's SDK are ended by the SDK, so that this is the first place that can tell.

    Source: PostHog #97438: an expected "already started" shown as an error span hides the real ones.
    """

    def __init__(self, inner: SpanExporter) -> None:
        """Hand on to `inner`."""
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`."""
        return self._inner.export([_told(span) for span in spans])

    def shutdown(self) -> None:
        """See `SpanExporter.shutdown`."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter.force_flush`."""
        return self._inner.force_flush(timeout_millis)


def _told(span: ReadableSpan) -> ReadableSpan:
    if not (span.status.description or "").startswith(_EXPECTED):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=Status(),
        start_time=span.start_time,
        end_time=span.end_time,
    )
