"""One worker's ownership as an operator sees it: metrics at its endpoint, spans, and lines in its log.

docs/reference/metrics.md explains each metric.

Spans: `ownership.recovery` from the loss of a session until all is settled, `ownership.suspended` while the connection
is away, `ownership.acquire` around nodes and fences of a group of bundles. An act of a moment is an event of the
recovery under way or, without one, a span without length: `session opened`, `bundles unloaded`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode
from temporalio.common import MetricMeter

from infra.coordination.holdings import OwnershipEvents, UnloadReason
from infra.coordination.session import SessionState
from logstore.errors import SextonError
from logstore.ownership import BundleId, Lease

_Facts = Mapping[str, str | int | list[int]]

_SAMPLE: Final = 20  # bundles named in a span

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.ownership")


class OwnershipTelemetry(OwnershipEvents):
    """The `OwnershipEvents` of one worker; told by its own thread and by kazoo's."""

    def __init__(self, meter: MetricMeter, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the meter of the process's runtime."""
        self._bundles = meter.create_gauge("sexton_ownership_bundles", "Bundles that this worker has a lease of")
        self._unsettled = meter.create_gauge(
            "sexton_ownership_unsettled", "Bundles that wait for an answer, or for an old node to vanish"
        )
        self._state = meter.create_gauge("sexton_ownership_session", "1 for the present state of the session")
        self._looked = meter.create_gauge(
            "sexton_ownership_looked_timestamp_seconds", "When a look at all bundles last ended well", "s"
        )
        self._recovery_s = meter.create_gauge_float(
            "sexton_ownership_recovery_seconds",
            "From when the loss of a session was noticed until all was settled again",
            "s",
        )
        self._opened = meter.create_counter("sexton_ownership_sessions_opened_total", "Sessions that were opened")
        self._lost = meter.create_counter("sexton_ownership_sessions_lost_total", "Sessions that expired")
        self._acquired = meter.create_counter(
            "sexton_ownership_bundles_acquired_total", "Bundles acquired, those anew after a loss included"
        )
        self._unloaded = meter.create_counter("sexton_ownership_bundles_unloaded_total", "Bundles released, by reason")
        self._clock = clock
        self._lock = threading.Lock()
        self._suspended: Span | None = None
        self._recovery: Span | None = None
        self._lost_at = 0.0
        self._again = False  # whether a session was opened since

    def on_session_opened(self, session: int) -> None:
        """See `OwnershipEvents`."""
        self._opened.add(1)
        with self._lock:
            self._again = True
        self._show(SessionState.CONNECTED)
        self._mark("session opened", {"sexton.session": f"{session:#x}"})
        _log.info("ownership: session %s opened", f"{session:#x}")

    def on_session_state(self, state: SessionState) -> None:
        """See `OwnershipEvents`."""
        self._show(state)
        with self._lock:
            if state is SessionState.SUSPENDED:
                self._suspended = self._suspended or _tracer.start_span("ownership.suspended", context=Context())
            elif self._suspended:
                self._suspended.set_attribute("sexton.outcome", state.value)
                self._suspended.end()
                self._suspended = None
            if state is SessionState.EXPIRED:
                self._lost.add(1)
                self._again = False
                if self._recovery is None:
                    self._lost_at = self._clock()
                    self._recovery = _tracer.start_span("ownership.recovery", context=Context())
                self._recovery.add_event("session lost")
        _log.log(
            logging.INFO if state is SessionState.CONNECTED else logging.WARNING,
            "ownership: the session is %s",
            state.value,
        )

    def on_lease_count(self, bundles: int) -> None:
        """See `OwnershipEvents`."""
        self._bundles.set(bundles)

    @contextmanager
    def trace_acquisition(self, bundles: Collection[BundleId]) -> Iterator[None]:
        """See `OwnershipEvents`; SQL and ZooKeeper calls of the block come under its span."""
        with self._lock:
            within = trace.set_span_in_context(self._recovery, Context()) if self._recovery else Context()
        with _tracer.start_as_current_span(
            "ownership.acquire", context=within, attributes=_named(bundles), record_exception=False
        ):
            yield

    def on_acquired(self, leases: Collection[Lease]) -> None:
        """See `OwnershipEvents`."""
        trace.get_current_span().set_attribute("sexton.acquired", len(leases))
        if leases:
            self._acquired.add(len(leases))
            _log.info("ownership: acquired %s", _listed(lease.bundle for lease in leases))

    def on_unloaded(self, bundles: Collection[BundleId], why: UnloadReason) -> None:
        """See `OwnershipEvents`."""
        self._unloaded.add(len(bundles), {"reason": why.value})
        self._mark("bundles unloaded", {**_named(bundles), "sexton.reason": why.value})
        _log.info("ownership: unloaded (%s) %s", why.value, _listed(bundles))

    def on_reconciled(self, unsettled: int) -> None:
        """See `OwnershipEvents`."""
        self._unsettled.set(unsettled)
        self._looked.set(int(time.time()))
        with self._lock:
            if self._recovery is None or unsettled or not self._again:
                return
            seconds = self._clock() - self._lost_at
            self._recovery.end()
            self._recovery = None
        self._recovery_s.set(seconds)
        _log.info("ownership: all is settled again, %.1f s after the session was lost", seconds)

    def on_ended(self, failure: SextonError | None) -> None:
        """See `OwnershipEvents`."""
        self._show(SessionState.EXPIRED)
        self._unsettled.set(0)
        with self._lock:
            for span in filter(None, (self._suspended, self._recovery)):
                if failure:
                    span.set_status(StatusCode.ERROR, type(failure).__name__)
                span.end()
            self._suspended = self._recovery = None

    def _show(self, state: SessionState) -> None:
        for one in SessionState:
            self._state.set(int(one is state), {"state": one.value})

    def _mark(self, what: str, facts: _Facts) -> None:
        """Something that happened at this moment."""
        with self._lock:
            if self._recovery:
                self._recovery.add_event(what, dict(facts))
            else:
                _tracer.start_span(f"ownership {what}", context=Context(), attributes=dict(facts)).end()


def _named(bundles: Collection[BundleId]) -> dict[str, str | int | list[int]]:
    return {"sexton.bundles": len(bundles), "sexton.bundle_sample": [int(one) for one in sorted(bundles)[:_SAMPLE]]}


def _listed(bundles: Iterable[BundleId]) -> str:
    """For the log: their number, and the first few."""
    found = sorted(bundles)
    first = ", ".join(str(one) for one in found[:_SAMPLE])
    return f"bundle {first}" if len(found) == 1 else f"{len(found)} bundles: {first}{', …' if found[_SAMPLE:] else ''}"
