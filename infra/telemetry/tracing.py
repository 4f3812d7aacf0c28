"""Tracing of one process: tracer provider, exporters and automatic spans. Safe under replay of workflows."""

import logging
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status

from infra.telemetry import find_collector_url
from infra.telemetry.span_files import SpanFileExporter

if TYPE_CHECKING:
    from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider

Provider: TypeAlias = "TracerProvider | ReplaySafeTracerProvider"

_FILE_QUEUE_SPANS = 16_384  # more spans than one page of a batch ends within the delay; further spans are dropped
_FILE_DELAY_MS = 1000  # `sexton trace` shows spans one second after their end
_random: Final = random.SystemRandom()
_EXPECTED_ERROR_PREFIXES: Final = ("WorkflowAlreadyStartedError: ",)
"""Prefixes of the descriptions of expected errors, such as the start of a job that already runs."""


class SystemIdGenerator(IdGenerator):
    """Generator of ids from the operating system's random source.

    The SDK's generator uses the module `random`. A program that seeds this module or forks would repeat ids.
    """

    def generate_span_id(self) -> int:
        return _random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        return _random.randrange(1, 1 << 128)


class ExpectedErrorFilter(SpanExporter):
    """Exporter that clears the error status which Temporal's SDK sets for expected errors.

    Source: PostHog #97438: error spans of expected errors hide real errors.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_clear_expected_error(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _clear_expected_error(span: ReadableSpan) -> ReadableSpan:
    if not (span.status.description or "").startswith(_EXPECTED_ERROR_PREFIXES):
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


def create_tracer_provider(service: str, *, traces_dir: Path | None, runs_workflows: bool = False) -> Provider:
    """Build a provider that exports to a file under `traces_dir`, and to the OTLP collector of the environment, if any.

    Environment variables `OTEL_…` set the resource, the sampler and the limits. The arguments are those of
    `start_tracing`. With `runs_workflows`, the provider is the replay-safe provider of Temporal's
    `OpenTelemetryPlugin`, whose import takes half a second.

    Source: OpenTelemetry, "OTLP Exporter Configuration" (`OTEL_EXPORTER_OTLP_ENDPOINT` and its variant for traces).
    """
    resource = Resource.create({SERVICE_NAME: service})
    provider: Provider
    if runs_workflows:
        from temporalio.contrib.opentelemetry import create_tracer_provider  # noqa: PLC0415 - half a second

        provider = create_tracer_provider(resource=resource, id_generator=SystemIdGenerator())
    else:
        provider = TracerProvider(resource=resource, id_generator=SystemIdGenerator())
    if traces_dir is not None:
        exporter = SpanFileExporter(traces_dir, service)
        provider.add_span_processor(
            BatchSpanProcessor(
                ExpectedErrorFilter(exporter), max_queue_size=_FILE_QUEUE_SPANS, schedule_delay_millis=_FILE_DELAY_MS
            )
        )
    if find_collector_url(os.environ):
        # Imported here, because most processes have no collector.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(ExpectedErrorFilter(OTLPSpanExporter())))
    return provider


_log = logging.getLogger(__name__)
_lock = threading.Lock()
_started: "Tracing | None" = None  # OpenTelemetry allows one provider per process


@dataclass(frozen=True, slots=True)
class Tracing:
    provider: "Provider"

    def flush(self, *, timeout_s: float = 5.0) -> bool:
        """Export all finished spans. Return whether the export succeeded in time."""
        return self.provider.force_flush(round(timeout_s * 1000))

    def shutdown(self) -> None:
        """Export all finished spans and end the tracing. Spans that end later are lost. Idempotent."""
        self.provider.shutdown()


def start_tracing(service: str, *, traces_dir: Path | None, runs_workflows: bool = False) -> Tracing:
    """Send this process's spans to a file, and to an OTLP collector if the environment names one.

    The call sets the process's tracer provider, and records a span for every SQL statement from now on. S3 clients
    record their own spans. A second call in a process returns the tracing of the first call, because OpenTelemetry
    allows one provider per process.

    Args:
        service: `service.name`, also part of the file's name: lower-case letters, digits and `-`.
        traces_dir: Directory of `{service}-{pid}.jsonl`, mode 0600. `None` means no file. If the directory is not
            writable, a warning is logged and the work continues.
        runs_workflows: Whether this process runs workflows. If so, call this before the workers are built.
    """
    global _started  # noqa: PLW0603 - OpenTelemetry allows one provider per process
    from infra.telemetry.sql_spans import trace_all_sql_statements  # noqa: PLC0415 - start-up time

    with _lock:
        if _started is not None:
            _log.debug("tracing runs already: %s joins it", service)
            return _started
        tracing = _started = Tracing(
            create_tracer_provider(service, traces_dir=traces_dir, runs_workflows=runs_workflows)
        )
        trace.set_tracer_provider(tracing.provider)
    trace_all_sql_statements()
    return tracing
