"""Spans, logs and metrics. What stands here loads no OpenTelemetry: every process asks it, and most trace nothing."""

import sys
from collections.abc import Mapping
from typing import Final

_COLLECTORS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")  # the first that is set wins


def current_trace_id() -> str | None:
    """Id of the trace that the present work belongs to, as 32 lower-case hexadecimal digits; None where there is none.

    A process that has not loaded OpenTelemetry has no present span, and is spared its import.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - loaded already

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def collector_of(environ: Mapping[str, str]) -> str | None:
    """The address of the OTLP collector that an environment names, or None.

    Source: OpenTelemetry, "OTLP Exporter Configuration".
    """
    return next((environ[name] for name in _COLLECTORS if environ.get(name)), None)
