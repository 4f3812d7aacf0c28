"""Metrics, spans and log lines of one worker's ownership."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from infra.coordination.bundle_holdings import TakeoverTimes, UnloadReason
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions, SingleOwner
from infra.coordination.ownership_nodes import OwnershipNodes
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from infra.telemetry import client_spans
from logstore.catalog import Database
from logstore.catalog.ownership.fences import Fences
from logstore.errors import ServiceFailed, StoreUnavailable
from logstore.ownership import BundleId, Lease
from tests.fakes.meter import FakeMeter, metric_series
from tests.infra.coordination.conftest import ensemble, zookeeper
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.observed_engines import trace_sql_statements
from workers.hosting import bundle_ownership
from workers.hosting.bundle_ownership import OwnershipTelemetry

__all__ = ["ensemble", "zookeeper"]

_N = 6
_TWO = [BundleId(3), BundleId(1)]


class _World:
    """Telemetry with all that it wrote."""

    def __init__(self, spans: InMemorySpanExporter) -> None:
        self.now = 100.0
        self.meter, self.spans = FakeMeter(), spans
        self.telemetry = OwnershipTelemetry(self.meter, clock=lambda: self.now)

    def metric(self, name: str, **labels: str) -> int | None:
        """Its value, or None where it was never told."""
        return self.meter.values.get(metric_series(f"sexton_ownership_{name}", **labels))

    def state(self) -> str:
        """The one state that is shown."""
        (found,) = [one.value for one in SessionState if self.metric("session", state=one.value) == 1]
        return found

    def named(self, name: str) -> list[Any]:
        """Ended spans of that name."""
        return [span for span in self.spans.get_finished_spans() if span.name == name]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[_World]:
    """On tracers of its own."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(bundle_ownership, "_tracer", provider.get_tracer("test"))
    for name in ("_sql_tracer", "_zookeeper_tracer"):
        monkeypatch.setattr(client_spans, name, provider.get_tracer("test"))
    with trace_sql_statements():
        yield _World(exporter)
    provider.shutdown()


def _leases(*bundles: int) -> list[Lease]:
    return [Lease(bundle=BundleId(one), fence=1, worker_id="a") for one in bundles]


def _events(span: Any) -> list[tuple[str, Mapping[str, object]]]:
    return [(event.name, dict(event.attributes)) for event in span.events]


def test_loss_and_recovery_are_one_span_and_one_duration(world: _World) -> None:
    """From the loss until nothing waits: what happened between is in it, and a late end of a look is none of it."""
    told = world.telemetry
    told.on_session_opened(0xA)
    told.on_session_state(SessionState.EXPIRED)
    assert (world.state(), world.metric("sessions_lost_total")) == ("EXPIRED", 1)
    told.on_reconciled(0)  # the end of a look that began before
    world.now += 3
    told.on_session_state(SessionState.EXPIRED)  # another session was opened, and lost before it was of use
    told.on_session_opened(0xB)
    told.on_unloaded([BundleId(5)], UnloadReason.FOREIGN)
    told.on_reconciled(2)
    assert (world.metric("unsettled"), world.metric("recovery_seconds")) == (2, None)
    assert world.named("ownership.recovery") == []
    world.now += 4
    told.on_reconciled(0)
    assert (world.metric("unsettled"), world.metric("recovery_seconds")) == (0, 7)
    (recovery,) = world.named("ownership.recovery")
    assert recovery.parent is None
    assert _events(recovery) == [
        ("session lost", {}),
        ("session lost", {}),
        ("session opened", {"sexton.session": "0xb"}),
        ("bundles unloaded", {"sexton.bundles": 1, "sexton.bundle_sample": (5,), "sexton.reason": "FOREIGN"}),
    ]
    assert (world.state(), world.metric("sessions_opened_total"), world.metric("sessions_lost_total")) == (
        "CONNECTED",
        2,
        2,
    )


def test_suspension_is_a_span_of_its_own_and_no_loss(world: _World) -> None:
    """SUSPENDED is not LOST: the state says so, bundles are held, nothing is counted as lost."""
    told = world.telemetry
    told.on_session_opened(1)
    told.on_lease_count(4)
    told.on_session_state(SessionState.SUSPENDED)
    told.on_session_state(SessionState.SUSPENDED)
    assert (world.state(), world.metric("bundles"), world.metric("sessions_lost_total")) == ("SUSPENDED", 4, None)
    told.on_session_state(SessionState.CONNECTED)
    (span,) = world.named("ownership.suspended")
    assert span.attributes == {"sexton.outcome": "CONNECTED"}
    assert world.state() == "CONNECTED"
    told.on_session_state(SessionState.SUSPENDED)
    told.on_session_state(SessionState.EXPIRED)
    assert world.named("ownership.suspended")[1].attributes == {"sexton.outcome": "EXPIRED"}


def test_groups_of_bundles_are_counted_and_logged(world: _World, caplog: pytest.LogCaptureFixture) -> None:
    """By bundle in the counters, by group in spans and log; the reason is a label, a bundle never is."""
    told = world.telemetry
    with caplog.at_level(logging.INFO):
        with told.trace_acquisition(_TWO):
            told.on_acquired(_leases(3))
        told.on_unloaded(_TWO, UnloadReason.REMOVED)
        told.on_unloaded([BundleId(one) for one in range(30)], UnloadReason.SHED)
    for line in ("acquired bundle 3", "unloaded (REMOVED) 2 bundles: 1, 3", "unloaded (SHED) 30 bundles: 0, 1, 2"):
        assert f"{line}\n" in caplog.text or f"{line}, " in caplog.text
    (span,) = world.named("ownership.acquire")
    assert span.attributes == {"sexton.bundles": 2, "sexton.bundle_sample": (1, 3), "sexton.acquired": 1}
    assert world.metric("bundles_acquired_total") == 1
    assert world.metric("bundles_unloaded_total", reason="REMOVED") == 2
    assert world.metric("bundles_unloaded_total", reason="SHED") == 30
    removed, shed = world.named("ownership bundles unloaded")
    assert removed.attributes["sexton.bundle_sample"] == (1, 3)
    assert (shed.attributes["sexton.bundles"], len(shed.attributes["sexton.bundle_sample"])) == (30, 20)


def test_attempt_that_fails_is_an_error_span_and_counts_nothing(world: _World) -> None:
    """The next look repeats it."""
    with pytest.raises(StoreUnavailable), world.telemetry.trace_acquisition(_TWO):
        raise StoreUnavailable("the database is away")
    (span,) = world.named("ownership.acquire")
    assert span.status.status_code is StatusCode.ERROR
    assert world.metric("bundles_acquired_total") is None


def test_worker_that_gives_up_ends_its_recovery_with_the_reason(world: _World) -> None:
    """No span is left open, and the state says that there is no session."""
    told = world.telemetry
    told.on_session_opened(1)
    told.on_session_state(SessionState.SUSPENDED)
    told.on_session_state(SessionState.EXPIRED)
    told.on_lease_count(0)
    told.on_ended(ServiceFailed("zookeeper", "gone", advice="mend it"))
    (recovery,) = world.named("ownership.recovery")
    assert (recovery.status.status_code, recovery.status.description) == (StatusCode.ERROR, "ServiceFailed")
    assert (world.state(), world.metric("bundles"), world.metric("recovery_seconds")) == ("EXPIRED", 0, None)


def test_sole_owner_shows_its_bundles_and_no_session(world: _World, tmp_path: Path) -> None:
    """With ownership=single there is none whose state could be shown."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database, bundles=_N)
    owner = SingleOwner("a", Fences(database), world.telemetry)
    owner.start()
    assert (world.metric("bundles"), world.metric("bundles_acquired_total")) == (_N, _N)
    assert world.metric("session", state="CONNECTED") is None
    owner.stop()
    database.close()
    assert world.metric("bundles") == 0


@pytest.mark.external_service
def test_worker_on_a_real_zookeeper_tells_all_of_it(
    world: _World, zookeeper: ZooKeeper, ensemble: EnsembleOptions, tmp_path: Path
) -> None:
    """Joining, a bundle taken away, a session that expires, the end; with every call of an acquisition in its span."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database, bundles=_N)
    sessions: list[ZooKeeperSession] = []

    def connect(tell: Any) -> ZooKeeperSession:
        sessions.append(ZooKeeperSession(ensemble, tell))
        return sessions[-1]

    policy = BundleOwnerOptions(check_interval_s=0.1, takeover=TakeoverTimes(takeover_grace_s=0.1, rest_s=0.3))
    listener = _Silent()
    fences = Fences(database)
    world.telemetry = OwnershipTelemetry(world.meter)
    owner = BundleOwner("a", connect, fences, listener, options=policy, events=world.telemetry)
    owner.start()
    try:
        assert_eventually(lambda: world.metric("bundles") == _N and bool(world.metric("looked_timestamp_seconds")))
        first = world.named("ownership.acquire")[0]
        under = {span.name for span in world.spans.get_finished_spans() if _parent(span) == first.context.span_id}
        assert under >= {"ZooKeeper taking bundles", "INSERT bundle_fence", "ZooKeeper reading owners"}
        assert OwnershipNodes(sessions[0], _N).delete_owner_node(BundleId(2), sessions[0].id)
        assert_eventually(lambda: world.metric("bundles_unloaded_total", reason="REMOVED") == 1)
        assert_eventually(lambda: world.metric("bundles_acquired_total") == _N + 1)
        zookeeper.expire(sessions[0])
        assert_eventually(lambda: world.metric("bundles_acquired_total") == 2 * _N + 1)
        assert_eventually(lambda: len(world.named("ownership.recovery")) == 1)
        (recovery,) = world.named("ownership.recovery")
        assert [name for name, _ in _events(recovery)] == ["session lost", "session opened"]
        again = [span for span in world.named("ownership.acquire") if _parent(span) == recovery.context.span_id]
        assert sum(span.attributes["sexton.acquired"] for span in again) == _N
        assert (world.metric("recovery_seconds") or 0) <= 10
    finally:
        owner.stop()
        database.close()
    assert (world.state(), world.metric("bundles")) == ("EXPIRED", 0)
    assert world.metric("bundles_unloaded_total", reason="STOPPED") == _N
    looked = [span for span in world.spans.get_finished_spans() if span.name == "ZooKeeper looking for changes"]
    assert looked == [], "a look every second is nobody's trace"


def _parent(span: Any) -> int | None:
    return span.parent.span_id if span.parent else None


class _Silent:
    def on_acquired(self, lease: Lease) -> None:
        """See `BundleListener`."""

    def on_unloaded(self, bundle: BundleId) -> None:
        """See `BundleListener`."""
