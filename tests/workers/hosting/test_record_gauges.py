"""Gauges of the record log, of tombstones and of replicas."""

from types import SimpleNamespace
from typing import Any, cast

from logstore.ports.catalog.records import RecordLogState, TombstoneCounts
from logstore.records.manifest import IdCeilings
from logstore.records.services.replicas import ReplicaShipments, ReplicaStatus
from logstore.records.tombstone_rules import ReplicaState
from tests.fakes.meter import FakeMeter, metric_series
from workers.hosting.gauges import make_gauge_updater, sample_record_log, sample_replicas

_NOW_US = 1_000_000_000


def _state(**changes: Any) -> RecordLogState:
    known: dict[str, Any] = {
        "catalog_id": "c",
        "epoch": 1,
        "bundles": 64,
        "manifest": 12,
        "stamp": "s",
        "pending_stamps": frozenset(),
        "is_adopting": False,
        "ceilings": IdCeilings(),
        "next_ids": IdCeilings(),
        "outbox_changes": 5,
        "oldest_change_us": _NOW_US - 7_500_000,
        "oldest_cursor_change_us": None,
        "now_us": _NOW_US,
    }
    return RecordLogState(**{**known, **changes})


def test_what_is_in_no_block_is_shown_with_the_age_of_the_oldest() -> None:
    """An outbox that was emptied is zero, and not the last value that it had."""
    meter = FakeMeter()
    states = [_state(is_adopting=True), _state(outbox_changes=0, oldest_change_us=None)]
    counts = [
        TombstoneCounts(by_kind={"ledger": 3}, candidates=2, oldest_us=1),
        TombstoneCounts(by_kind={}, candidates=0, oldest_us=None),
    ]
    read = make_gauge_updater(meter, lambda: sample_record_log(lambda: states.pop(0), lambda: counts.pop(0), lambda: 4))
    shown = []
    for _ in range(2):
        read()
        names = ("outbox", "outbox_oldest_seconds", "manifest", "adopting")
        tombs = [meter.values[metric_series("sexton_tombstones", kind=kind)] for kind in ("ledger", "topic")]
        cenotaphs = meter.values[metric_series("sexton_tombstones_cenotaphs")]
        shown.append(([meter.values[metric_series(f"sexton_records_{name}")] for name in names], tombs, cenotaphs))
    assert meter.values[metric_series("sexton_records_deletions_waiting")] == 4
    assert shown == [([5, 7, 12, 1], [3, 0], 2), ([0, 0, 12, 0], [0, 0], 0)]


def test_replicas_are_shown_by_state_with_how_far_each_is_behind() -> None:
    """A lag that is not known is not shown as none."""
    meter = FakeMeter()
    found = [
        ReplicaStatus(replica="far", state=ReplicaState.BEHIND, manifest=9, newest=12, lag_s=31.6, at_us=1),
        ReplicaStatus(replica="new", state=None, manifest=0, newest=12, lag_s=None, at_us=None),
    ]
    service = SimpleNamespace(replica_names=("far", "new"), list_replica_statuses=lambda: found)
    make_gauge_updater(meter, lambda: sample_replicas(cast("ReplicaShipments", service)))()
    states = [
        meter.values[metric_series("sexton_records_replicas", state=state)] for state in ("NEW", "BEHIND", "STALE")
    ]
    assert states == [1, 1, 0]
    behind = [
        meter.values[metric_series("sexton_records_replica_behind_manifests", replica=one)] for one in ("far", "new")
    ]
    assert behind == [3, 12]
    assert meter.values[metric_series("sexton_records_replica_lag_seconds", replica="far")] == 32
    assert metric_series("sexton_records_replica_lag_seconds", replica="new") not in meter.values


def test_without_replicas_the_store_is_not_asked() -> None:
    """A worker reads its gauges every 15 seconds."""
    service = cast("ReplicaShipments", SimpleNamespace(replica_names=()))
    make_gauge_updater(FakeMeter(), lambda: sample_replicas(service))()
