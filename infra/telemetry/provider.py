"""The tracer provider: replay safe, with the exporters that this process was given."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from infra.telemetry import collector_of
from infra.telemetry.expected import ExpectedIsNoError
from infra.telemetry.span_files import SpanFileExporter

if TYPE_CHECKING:
    from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider

Provider: TypeAlias = "TracerProvider | ReplaySafeTracerProvider"

_FILE_QUEUE = 16_384  # a batch's page of SQL and S3 spans ends within the delay; beyond that spans are dropped
_FILE_DELAY_MS = 1000  # `sexton trace` shows what ended a second ago


def make_provider(service: str, *, traces_dir: Path | None, workflows: bool = False) -> Provider:
    """A provider that exports to a file under `traces_dir` and to the OTLP collector of the environment, if any.

    One for a process that runs workflows is replay safe, as `OpenTelemetryPlugin` asks; others are spared its import.

    Source: OpenTelemetry, "OTLP Exporter Configuration" (`OTEL_EXPORTER_OTLP_ENDPOINT` and its variant for
    traces); resource, sampler and limits follow their `OTEL_` variables too.
    """
    provider = _provider(Resource.create({SERVICE_NAME: service}), workflows=workflows)
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


def _provider(resource: Resource, *, workflows: bool) -> Provider:
    if not workflows:
        return TracerProvider(resource=resource)
    from temporalio.contrib.opentelemetry import create_tracer_provider  # noqa: PLC0415 - half a second

    return create_tracer_provider(resource=resource)
