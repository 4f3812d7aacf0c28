"""The tracer provider: replay safe, with the exporters that this process was given."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status

from infra.telemetry import collector_of
from infra.telemetry.span_files import SpanFileExporter

if TYPE_CHECKING:
    from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider

Provider: TypeAlias = "TracerProvider | ReplaySafeTracerProvider"

_FILE_QUEUE = 16_384  # a batch's page of SQL and S3 spans ends within the delay; beyond that spans are dropped
_FILE_DELAY_MS = 1000  # `sexton trace` shows what ended a second ago


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


def make_provider(service: str, *, traces_dir: Path | None, workflows: bool = False) -> Provider:
    """A provider that exports to a file under `traces_dir` and to the OTLP collector of the environment, if any.

    For a process that runs workflows it is replay safe, as `OpenTelemetryPlugin` asks; others do not import that.

    Source: OpenTelemetry, "OTLP Exporter Configuration" (`OTEL_EXPORTER_OTLP_ENDPOINT` and its variant for
    traces); resource, sampler and limits follow their `OTEL_` variables too.
    """
    resource = Resource.create({SERVICE_NAME: service})
    provider: Provider
    if workflows:
        from temporalio.contrib.opentelemetry import create_tracer_provider  # noqa: PLC0415 - half a second

        provider = create_tracer_provider(resource=resource)
    else:
        provider = TracerProvider(resource=resource)
    if traces_dir is not None:
        exporter = SpanFileExporter(traces_dir, service)
        provider.add_span_processor(
            BatchSpanProcessor(
                ExpectedIsNoError(exporter), max_queue_size=_FILE_QUEUE, schedule_delay_millis=_FILE_DELAY_MS
            )
        )
    if collector_of(os.environ):
        # Most processes have no collector and are spared the import.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(ExpectedIsNoError(OTLPSpanExporter())))
    return provider
