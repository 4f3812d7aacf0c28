"""The trace that the present work belongs to."""

import sys


def current_trace_id() -> str | None:
    """Its id as 32 lower-case hexadecimal digits, or None where nothing is traced.

    A process that has not loaded OpenTelemetry has no present span, and is spared its import.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - loaded already

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
