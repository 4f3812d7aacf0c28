"""Tracing of one process: where spans go, and what makes them without being asked."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import trace

if TYPE_CHECKING:
    from infra.telemetry.provider import Provider

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
    # S3 clients import this package too, in processes that trace nothing and need neither SDK nor Temporal.
    from infra.telemetry.provider import make_provider  # noqa: PLC0415
    from infra.telemetry.sql_spans import observe_engines  # noqa: PLC0415

    with _lock:
        if _started is not None:
            _log.debug("tracing runs already: %s joins it", service)
            return _started
        tracing = _started = Tracing(make_provider(service, traces_dir=traces_dir, workflows=workflows))
        trace.set_tracer_provider(tracing.provider)
    observe_engines()
    return tracing
