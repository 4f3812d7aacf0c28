"""Ownership of bundles by a worker, with its metrics, spans and log lines.

With `ownership=single`, the worker owns all bundles without ZooKeeper. `docs/reference/metrics.md` explains the
metrics. Spans:

- `ownership.recovery` lasts from the loss of a session until no acquisition of a bundle is pending.
- `ownership.suspended` lasts while the connection is lost.
- `ownership.acquire` lasts while bundles are acquired.

Another event, such as `session opened`, is in the span of a running recovery. Otherwise it is a span of length 0.
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

from infra.coordination.bundle_holdings import OwnershipObserver, UnloadReason
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions, ExpiredPolicy, SingleOwner
from infra.coordination.ownership_nodes import claim_path_for_catalog
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.catalog.ownership.fences import Fences
from logstore.errors import InvalidInput, SextonError
from logstore.ownership import BundleId, Lease, bundle_of_topic
from logstore.validated_names import TopicName
from workers.assembly.log_store import LogStore
from workers.settings import Settings
from workers.settings.tls_files import identity_and_tls_from_settings

_Attributes = Mapping[str, str | int | list[int]]

_MAX_NAMED_BUNDLES: Final = 20  # maximum number of bundle numbers in a span or a log line

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.ownership")


class OwnershipTelemetry(OwnershipObserver):
    """Telemetry of one worker's ownership. Thread-safe, because the worker's thread and kazoo's thread call it."""

    def __init__(self, meter: MetricMeter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bundles = meter.create_gauge("sexton_ownership_bundles", "Bundles that this worker has a lease of")
        self._pending_bundles_gauge = meter.create_gauge(
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
        self._has_new_session = False  # a session was opened after the loss of the previous session

    def on_session_opened(self, session: int) -> None:
        self._opened.add(1)
        with self._lock:
            self._has_new_session = True
        self._set_state(SessionState.CONNECTED)
        self._add_span_event("session opened", {"sexton.session": f"{session:#x}"})
        _log.info("ownership: session %s opened", f"{session:#x}")

    def on_session_state(self, state: SessionState) -> None:
        self._set_state(state)
        with self._lock:
            if state is SessionState.SUSPENDED:
                self._suspended = self._suspended or _tracer.start_span("ownership.suspended", context=Context())
            elif self._suspended:
                self._suspended.set_attribute("sexton.outcome", state.value)
                self._suspended.end()
                self._suspended = None
            if state is SessionState.EXPIRED:
                self._lost.add(1)
                self._has_new_session = False
                if self._recovery is None:
                    self._lost_at = self._clock()
                    self._recovery = _tracer.start_span("ownership.recovery", context=Context())
                self._recovery.add_event("session lost")
        _log.log(
            logging.INFO if state is SessionState.CONNECTED else logging.WARNING,
            "ownership: the session is %s",
            state.value,
        )

    def on_lease_count(self, lease_count: int) -> None:
        self._bundles.set(lease_count)

    @contextmanager
    def trace_acquisition(self, bundles: Collection[BundleId]) -> Iterator[None]:
        with self._lock:
            context = trace.set_span_in_context(self._recovery, Context()) if self._recovery else Context()
        with _tracer.start_as_current_span(
            "ownership.acquire", context=context, attributes=_attributes_from_bundles(bundles), record_exception=False
        ):
            yield

    def on_acquired(self, leases: Collection[Lease]) -> None:
        trace.get_current_span().set_attribute("sexton.acquired", len(leases))
        if leases:
            self._acquired.add(len(leases))
            _log.info("ownership: acquired %s", _format_bundles(lease.bundle for lease in leases))

    def on_unloaded(self, bundles: Collection[BundleId], reason: UnloadReason) -> None:
        self._unloaded.add(len(bundles), {"reason": reason.value})
        self._add_span_event("bundles unloaded", {**_attributes_from_bundles(bundles), "sexton.reason": reason.value})
        _log.info("ownership: unloaded (%s) %s", reason.value, _format_bundles(bundles))

    def on_reconciled(self, pending_bundles: int) -> None:
        self._pending_bundles_gauge.set(pending_bundles)
        self._looked.set(int(time.time()))
        with self._lock:
            if self._recovery is None or pending_bundles or not self._has_new_session:
                return
            seconds = self._clock() - self._lost_at
            self._recovery.end()
            self._recovery = None
        self._recovery_s.set(seconds)
        _log.info("ownership: all is settled again, %.1f s after the session was lost", seconds)

    def on_ended(self, failure: SextonError | None) -> None:
        self._set_state(SessionState.EXPIRED)
        self._pending_bundles_gauge.set(0)
        with self._lock:
            for span in filter(None, (self._suspended, self._recovery)):
                if failure:
                    span.set_status(StatusCode.ERROR, type(failure).__name__)
                span.end()
            self._suspended = self._recovery = None

    def _set_state(self, state: SessionState) -> None:
        for label in SessionState:
            self._state.set(int(label is state), {"state": label.value})

    def _add_span_event(self, name: str, attributes: _Attributes) -> None:
        with self._lock:
            if self._recovery:
                self._recovery.add_event(name, dict(attributes))
            else:
                _tracer.start_span(f"ownership {name}", context=Context(), attributes=dict(attributes)).end()


def _attributes_from_bundles(bundles: Collection[BundleId]) -> dict[str, str | int | list[int]]:
    return {
        "sexton.bundles": len(bundles),
        "sexton.bundle_sample": [int(bundle) for bundle in sorted(bundles)[:_MAX_NAMED_BUNDLES]],
    }


def _format_bundles(bundles: Iterable[BundleId]) -> str:
    ordered = sorted(bundles)
    first = ", ".join(map(str, ordered[:_MAX_NAMED_BUNDLES]))
    if len(ordered) == 1:
        return f"bundle {first}"
    return f"{len(ordered)} bundles: {first}{', …' if ordered[_MAX_NAMED_BUNDLES:] else ''}"


WorkerOwnership = BundleOwner | SingleOwner


class TopicCacheInvalidator:
    """Observer of acquired and lost bundles, which discards this process's cached data about the bundles' topics."""

    def __init__(self, log: LogStore) -> None:
        self._log = log
        self._bundles = log.catalog.fences.count_bundles()

    def on_acquired(self, lease: Lease) -> None:
        self._log.subscriptions.forget()
        parse_name, bundles = TopicName.from_encoded, self._bundles
        self._log.topic_logs.reload_last_ledgers(
            lambda topic: bundle_of_topic(parse_name(topic.name), bundle_count=bundles) == lease.bundle
        )

    def on_unloaded(self, bundle: BundleId) -> None:
        del bundle
        self._log.subscriptions.forget()


def create_zookeeper_or_single_ownership(
    settings: Settings,
    log: LogStore,
    worker_id: str,
    read_load: Callable[[], float],
    *,
    observer: OwnershipObserver | None = None,
) -> WorkerOwnership:
    """Create the ownership that the settings define. `read_load` returns the worker's load. 1 means full.

    Raises:
        ServiceFailed: The settings name no ZooKeeper and are not `ownership=single`.
    """
    fences: Fences = log.catalog.fences
    if settings.ownership == "single":
        return SingleOwner(worker_id, fences, observer)
    ensemble = ensemble_from_settings(settings)

    def connect(on_state: Callable[[SessionState], None]) -> ZooKeeperSession:
        session = ZooKeeperSession(ensemble, on_state)
        try:
            claim_path_for_catalog(session, log.catalog.identities.catalog_id())
        except BaseException:
            session.close()
            raise
        return session

    policy = BundleOwnerOptions(
        expired=ExpiredPolicy(settings.session_expired_policy),
        reconnect_attempts=settings.session_reconnect_attempts,
    )
    return BundleOwner(
        worker_id, connect, fences, TopicCacheInvalidator(log), options=policy, load=read_load, events=observer
    )


def ensemble_from_settings(settings: Settings) -> EnsembleOptions:
    auth, tls = identity_and_tls_from_settings(settings, "zookeeper")
    if settings.zookeeper_acl == "creator" and not auth:
        raise InvalidInput("zookeeper_acl", expected="anyone, because there is no zookeeper_auth", found="creator")
    return EnsembleOptions(
        hosts=settings.require_address("zookeeper"),
        timeout_s=float(settings.session_timeout),
        auth=auth,
        protected=settings.zookeeper_acl == "creator",
        tls=tls,
    )
