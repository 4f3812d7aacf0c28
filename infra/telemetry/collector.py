"""The OTLP collector that an environment names."""

from collections.abc import Mapping

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")  # the first that is set wins


def collector_of(environ: Mapping[str, str]) -> str | None:
    """Its address, or None.

    Source: OpenTelemetry, "OTLP Exporter Configuration".
    """
    return next((environ[name] for name in _VARIABLES if environ.get(name)), None)
