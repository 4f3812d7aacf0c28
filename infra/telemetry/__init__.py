"""Spans, logs and metrics.

This module does not import OpenTelemetry, because every process imports this module and most processes trace nothing.
"""

from collections.abc import Mapping
from typing import Final

_COLLECTOR_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)  # the first that is set wins


def find_collector_url(environ: Mapping[str, str]) -> str | None:
    """Return the address of the OTLP collector that an environment names, or `None`.

    Source: OpenTelemetry, "OTLP Exporter Configuration".
    """
    return next((environ[name] for name in _COLLECTOR_VARIABLES if environ.get(name)), None)
