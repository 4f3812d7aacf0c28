"""Gauges of the record log, of tombstones and of replicas, read by each worker: take the maximum over workers."""

from collections.abc import Callable
from typing import Final

from temporalio.common import MetricMeter

from logstore.ports.catalog import RecordLogState, TombstoneCounts
from logstore.records.services.replicating import Replication
from logstore.records.tombstones import ReplicaState

_STATES: Final[dict[ReplicaState | None, str]] = {None: "NEW", **{one: one.value for one in ReplicaState}}


class RecordGauges:
    """What is in no block yet and for how long, the newest manifest, and tombstones, read from SQL."""

    def __init__(
        self,
        meter: MetricMeter,
        state: Callable[[], RecordLogState],
        counts: Callable[[], TombstoneCounts],
        waiting: Callable[[], int],
    ) -> None:
        """Take the meter of the process's runtime, and how to ask the catalog."""
        self._state, self._counts, self._waiting = state, counts, waiting
        self._deletions = meter.create_gauge(
            "sexton_records_deletions_waiting", "Unfinished deletions whose intent is in no block yet"
        )
        self._outbox = meter.create_gauge("sexton_records_outbox", "Changes of records that are in no block yet")
        self._age = meter.create_gauge(
            "sexton_records_outbox_oldest_seconds", "For how long the oldest of them has waited", "s"
        )
        self._manifest = meter.create_gauge("sexton_records_manifest", "Number of the newest manifest")
        self._adopting = meter.create_gauge(
            "sexton_records_adopting", "1 while a rebuilt catalog is not complete, and destructive jobs refuse"
        )
        self._tombstones = meter.create_gauge("sexton_tombstones", "Tombstones, by kind")
        self._cenotaphs = meter.create_gauge("sexton_tombstones_cenotaphs", "Candidates of a raid that has not ended")

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The catalog does not answer.
        """
        state, counts = self._state(), self._counts()
        self._outbox.set(state.outbox)
        waited_us = 0 if state.oldest_us is None else max(0, state.now_us - state.oldest_us)
        self._age.set(waited_us // 1_000_000)
        self._manifest.set(state.manifest)
        self._deletions.set(self._waiting())
        self._adopting.set(int(state.adopting))
        for kind in ("ledger", "topic"):
            self._tombstones.set(counts.by_kind.get(kind, 0), {"kind": kind})
        self._cenotaphs.set(counts.candidates)


class ReplicaGauges:
    """Replicas of the record log by state, and how far each is behind, read from its bucket; none are no reads."""

    def __init__(self, meter: MetricMeter, replication: Replication) -> None:
        """Take the meter of the process's runtime, and the replicas."""
        self._replication = replication
        self._states = meter.create_gauge("sexton_records_replicas", "Replicas of the record log, by state")
        self._behind = meter.create_gauge("sexton_records_replica_behind_manifests", "Manifests that a replica lacks")
        self._lag = meter.create_gauge(
            "sexton_records_replica_lag_seconds", "How much younger the newest manifest is than the replica's", "s"
        )

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The store does not answer.
        """
        if not self._replication.names:
            return
        found = self._replication.standings()
        for state, name in _STATES.items():
            self._states.set(sum(one.state is state for one in found), {"state": name})
        for one in found:
            label = {"replica": one.replica}
            self._behind.set(max(0, one.newest - one.manifest), label)
            if one.lag_s is not None:
                self._lag.set(round(one.lag_s), label)
