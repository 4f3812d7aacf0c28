"""Tracing of one process: where spans go, and what makes them without being asked; safe under replay."""

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

from infra.telemetry import collector_of
from infra.telemetry.span_files import SpanFileExporter

if TYPE_CHECKING:
    from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider

Provider: TypeAlias = "TracerProvider | ReplaySafeTracerProvider"

_FILE_QUEUE = 16_384  # a batch's page of SQL and S3 spans ends within the delay; beyond that spans are dropped
_FILE_DELAY_MS = 1000  # `sexton trace` shows what ended a second ago
_random: Final = random.SystemRandom()
_EXPECTED: Final = ("WorkflowAlreadyStartedError: ",)
"""A job of ours that starts another leaves the work to the one that runs already."""


class SystemIdGenerator(IdGenerator):
    """Ids from the operating system's random source.

    The SDK's own generator takes them from the module `random`: a program that seeds it, or forks, repeats its ids.
    """

    def generate_span_id(self) -> int:
        """Return 64 random bits, never 0."""
        return _random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        """Return 128 random bits, never 0."""
        return _random.randrange(1, 1 << 128)


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

        provider = create_tracer_provider(resource=resource, id_generator=SystemIdGenerator())
    else:
        provider = TracerProvider(resource=resource, id_generator=SystemIdGenerator())
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


_log = logging.getLogger(__name__)
_lock = threading.Lock()
_started: "Tracing | None" = None  # OpenTelemetry allows one provider per process


@dataclass(frozen=True, slots=True)
class Tracing:
    """The running tracing of this process."""

    provider: "Provider"

    def flush(self, *, within_s: float = 5.0) -> bool:
        """Hand over all finished spans; whether it was done in time."""
        return self.provider.force_flush(round(within_s * 1000))

    def shutdown(self) -> None:
        """Hand over all finished spans and end; spans finished later are lost. May be called again."""
        self.provider.shutdown()


def start_tracing(service: str, *, traces_dir: Path | None, workflows: bool = False) -> Tracing:
    """Send this process's spans to a file, and to an OTLP collector where the environment names one.

    Sets the process's tracer provider and gives every SQL statement a span (S3 clients bring theirs). A second call
    in a process returns the first one's tracing: OpenTelemetry allows one provider.

    Args:
        service: `service.name` and the file's name: lower-case letters, digits and `-`.
        traces_dir: Where `{service}-{pid}.jsonl` is written, mode 0600; None for no file. A folder that cannot
            be written is logged and does not disturb the work.
        workflows: Whether this process runs workflows, which needs a provider that is safe under replay; call it before
            the workflow worker is built.
    """
    global _started  # noqa: PLW0603 - one per process, as OpenTelemetry has it
    from infra.telemetry.sql_spans import observe_engines  # noqa: PLC0415 - start-up time

    with _lock:
        if _started is not None:
            _log.debug("tracing runs already: %s joins it", service)
            return _started
        tracing = _started = Tracing(make_provider(service, traces_dir=traces_dir, workflows=workflows))
        trace.set_tracer_provider(tracing.provider)
    observe_engines()
    return tracing
