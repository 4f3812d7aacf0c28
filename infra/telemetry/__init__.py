"""Spans, logs and metrics.

This module does not import OpenTelemetry, because every process imports this module and most processes trace nothing.
"""

import sys
from collections.abc import Mapping
from typing import Final

_COLLECTOR_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)  # the first that is set wins


def current_trace_id() -> str | None:
    """Return the id of the current trace, as 32 lower-case hexadecimal digits. `None` means that there is no trace."""
    if "opentelemetry.trace" not in sys.modules:
        return None  # without OpenTelemetry no span can be open, and its import would cost start-up time
    from opentelemetry import trace  # noqa: PLC0415 - loaded already

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def find_collector_url(environ: Mapping[str, str]) -> str | None:
    """Return the address of the OTLP collector that an environment names, or `None`.

    Source: OpenTelemetry, "OTLP Exporter Configuration".
    """
    return next((environ[name] for name in _COLLECTOR_VARIABLES if environ.get(name)), None)
