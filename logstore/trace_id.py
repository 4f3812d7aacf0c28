"""Trace to which the running code belongs."""

import sys


def current_trace_id() -> str | None:
    """Return the id of the current trace, as 32 lower-case hexadecimal digits. `None` means that there is no trace."""
    if "opentelemetry.trace" not in sys.modules:
        return None  # without OpenTelemetry no span can be open, and its import would cost start-up time
    from opentelemetry import trace  # noqa: PLC0415 - loaded already

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
