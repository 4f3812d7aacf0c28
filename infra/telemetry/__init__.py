"""Spans and logs."""

from infra.telemetry.logs import bind, start_logs
from infra.telemetry.tracing import Tracing, start_tracing

__all__ = ["Tracing", "bind", "start_logs", "start_tracing"]
