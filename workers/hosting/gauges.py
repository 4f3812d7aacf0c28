"""Gauges of a worker: the catalog, the record log, its replicas, TLS certificates, and the worker's readiness.

If a source does not answer, its gauges keep the last values. Before its first answer, a source has no gauges.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from temporalio.common import MetricGauge, MetricMeter

from logstore.catalog.engine.database_connections import parse_database_url
from logstore.errors import InvalidInput, ServiceFailed, SextonError
from logstore.ports.catalog.delayed import CatalogDelayedMessageCounts
from logstore.ports.catalog.deletion import UndeletedCopyCounts
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.ports.catalog.records import RecordLogState, TombstoneCounts
from logstore.ports.catalog.transactions import UnfinishedTransactionCounts
from logstore.reconciliation.findings import CLUSTER_KINDS, STOPPED, FindingKind, plan_result
from logstore.records.services.replicas import ReplicaShipments
from logstore.records.tombstone_rules import ReplicaState
from logstore.transactions.transaction_ids_and_states import TransactionState
from workers.assembly.log_store import LogStore
from workers.hosting.readiness import Readiness
from workers.settings import Settings
from workers.settings.tls_files import read_tls_certificate_chain

_MIN_REMAINING: Final = timedelta(days=7)
_LIFETIME_DIVISOR: Final = 4  # bound for short-lived certificates, which a program renews


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """TLS certificate of a client, with its chain. All certificates of the chain are valid from `since` to `until`."""

    setting: str
    path: str
    since: datetime
    until: datetime

    @property
    def is_due(self) -> bool:
        """Whether the chain expires within a week or a quarter of its lifetime, whichever is shorter."""
        return self.until - datetime.now(UTC) < min(_MIN_REMAINING, (self.until - self.since) / _LIFETIME_DIVISOR)

    def describe_expiry(self) -> str:
        ends = "ended" if self.until <= datetime.now(UTC) else "ends"
        return f"the certificate that {self.setting} names, {self.path}, {ends} at {self.until:%Y-%m-%dT%H:%MZ}"

    def __str__(self) -> str:
        return f"{self.setting} until {self.until:%Y-%m-%dT%H:%MZ}"


def find_client_certificate_files(settings: Settings) -> dict[str, str]:
    """Return the paths of TLS certificates by setting. `database_url` names its file in the parameter `sslcert`."""
    path_by_setting = {name: str(getattr(settings, name)) for name in ("temporal_cert_file", "zookeeper_cert_file")}
    with suppress(InvalidInput):  # an invalid URL is reported by the connection
        path_by_setting["database_url"] = str(parse_database_url(settings.database_url).query.get("sslcert", ""))
    return {name: path for name, path in path_by_setting.items() if path}


def read_client_certificate(setting: str, path: str) -> ClientCertificate:
    chain = read_tls_certificate_chain(setting, path)
    since, until = max(link.not_valid_before_utc for link in chain), min(link.not_valid_after_utc for link in chain)
    return ClientCertificate(setting=setting, path=path, since=since, until=until)


def check_client_certificate_expiry(settings: Settings) -> str:
    """Return a line with the expiry of each TLS certificate.

    Raises:
        InvalidInput: A certificate cannot be read.
        ServiceFailed: A certificate has expired, or `is_due` is true.
    """
    certificates = [
        read_client_certificate(name, path) for name, path in find_client_certificate_files(settings).items()
    ]
    for certificate in certificates:
        if certificate.is_due:
            advice = "renew it, then restart the workers one by one"
            raise ServiceFailed("certificates", certificate.describe_expiry(), advice=advice)
    return ", ".join(map(str, certificates))


_READ_AT_START: Final = "temporal_cert_file"  # the process reads this certificate only when it starts
_MAX_PLANS: Final = 100  # number of newest plans that are searched for finished plans
_CATALOG_INTERVAL_S: Final = 15.0  # the usual interval of Prometheus, so that each scrape sees new values
_READINESS_INTERVAL_S: Final = 5.0
_LABEL_BY_STATE: Final[dict[ReplicaState | None, str]] = {
    None: "NEW",
    **{state: state.value for state in ReplicaState},
}
_UNFINISHED_STATES: Final = (TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.ABORTING)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GaugeSample:
    name: str
    value: int
    description: str
    unit: str | None = None
    labels: Mapping[str, str] | None = None


GaugeSource = Callable[[], Iterable[GaugeSample]]


def make_gauge_updater(meter: MetricMeter, read: GaugeSource) -> Callable[[], None]:
    """Return a function that reads the source once and sets its gauges. Errors of the source are raised."""
    gauge_by_name: dict[str, MetricGauge] = {}

    def update_gauges() -> None:
        for sample in read():
            if sample.name not in gauge_by_name:
                gauge_by_name[sample.name] = meter.create_gauge(sample.name, sample.description, sample.unit)
            gauge_by_name[sample.name].set(sample.value, sample.labels)

    return update_gauges


def sample_deletions(read_inflight: Callable[[], UndeletedCopyCounts]) -> Iterator[GaugeSample]:
    inflight, now_us = read_inflight(), time.time_ns() // 1000
    description = "Unfinished deletions, those waiting for a retry included"
    yield GaugeSample("sexton_deletion_estimated_inflight", inflight.estimated_inflight, description)
    yield GaugeSample(
        "sexton_deletion_dead_lettered",
        inflight.dead_lettered,
        "Dead letters that there are now, refusals included; a person must look at them. The counter"
        " sexton_deletion_reached_max_retries_total counts those of which every attempt failed",
    )
    description = "Age of the oldest unfinished deletion; 0 where there is none"
    yield GaugeSample("sexton_deletion_oldest_pending_seconds", _age_s(inflight.oldest_us, now_us), description, "s")
    description = "When the catalog last answered for the two gauges"
    yield GaugeSample("sexton_deletion_read_timestamp_seconds", now_us // 1_000_000, description, "s")


def sample_transactions(read_counts: Callable[[], UnfinishedTransactionCounts]) -> Iterator[GaugeSample]:
    counts, now_us = read_counts(), time.time_ns() // 1000
    description = "Transactions that are not over, by state"
    for state in _UNFINISHED_STATES:
        labels = {"state": state.value}
        yield GaugeSample(
            "sexton_transactions_unfinished", counts.count_by_state.get(state, 0), description, labels=labels
        )
    open_s, decided_s = _age_s(counts.oldest_open_us, now_us), _age_s(counts.oldest_decided_us, now_us)
    yield GaugeSample("sexton_transactions_oldest_open_seconds", open_s, "Age of the oldest open one", "s")
    description = "Since when the oldest decided one has participants that are not told"
    yield GaugeSample("sexton_transactions_oldest_decided_seconds", decided_s, description, "s")
    description = "Bitmaps of markers and of aborted messages, in the catalog"
    yield GaugeSample("sexton_transactions_hidden_bytes", counts.hidden_bytes, description)


def sample_delayed_messages(
    read_counts: Callable[[], CatalogDelayedMessageCounts], memory_bytes: Callable[[], int]
) -> Iterator[GaugeSample]:
    counts = read_counts()
    yield GaugeSample("sexton_delayed_buckets", counts.buckets, "Buckets of delayed messages")
    description = "Messages in buckets; those that were delivered go with their bucket"
    yield GaugeSample("sexton_delayed_messages", counts.messages, description)
    description = "Messages with a delivery time that no seal has looked at yet"
    yield GaugeSample("sexton_delayed_unsealed_messages", counts.unsealed, description)
    yield GaugeSample(
        "sexton_delayed_memory_bytes", memory_bytes(), "What the worker keeps of snapshots of buckets", "By"
    )


def sample_missing_data_of_plans(list_runs: Callable[..., Sequence[ReconciliationRun]]) -> Iterator[GaugeSample]:
    """Yield the gauges of lost data and of the newest finished plan's start. Yield nothing if no plan has finished.

    A plan compares only rows from before a cut-off time. Lost data of a plan stays in the gauge until a newer plan
    has the same or a later cut-off time.
    """
    finished = [run for run in list_runs(RunKind.PLAN, limit=_MAX_PLANS) if run.finished_us is not None]
    if finished:
        missing, compared_before_us = 0, -1
        for plan in (plan_result(run.summary) for run in finished):  # newest first
            before_us = plan.rows_before_us or plan.before_us
            if before_us > compared_before_us:
                missing = max(missing, plan.findings.get(FindingKind.MISSING_DATA.value, 0))
                compared_before_us = before_us
        description = "Findings of absent or short objects that no later plan refutes"
        yield GaugeSample("sexton_reconciliation_missing_data", missing, description)
        started_s, description = finished[0].created_us // 1_000_000, "When the newest plan that finished began"
        yield GaugeSample("sexton_reconciliation_plan_timestamp_seconds", started_s, description, "s")


def sample_cluster_plan(list_runs: Callable[..., Sequence[ReconciliationRun]]) -> Iterator[GaugeSample]:
    """Yield the gauges of the newest finished plan of a Pulsar cluster. Yield nothing if no plan has finished."""
    newest = next(
        (run for run in list_runs(RunKind.CLUSTER_PLAN, limit=_MAX_PLANS) if run.finished_us is not None), None
    )
    if newest is None:
        return
    plan = plan_result(newest.summary)
    for kind in CLUSTER_KINDS:
        labels, count = {"kind": kind.value}, plan.findings.get(kind.value, 0)
        yield GaugeSample("sexton_pulsar_findings", count, "Findings of the newest plan that finished", labels=labels)
        size = plan.size_bytes.get(kind.value, 0)
        yield GaugeSample("sexton_pulsar_finding_bytes", size, "Bytes of these findings", "By", labels)
    description = "1 if the newest plan that finished has read everything that may refer to a ledger"
    yield GaugeSample("sexton_pulsar_plan_complete", int(not plan.incomplete), description)
    started_s, description = newest.created_us // 1_000_000, "When the newest plan that finished began"
    yield GaugeSample("sexton_pulsar_plan_timestamp_seconds", started_s, description, "s")


def sample_cluster_apply(list_runs: Callable[..., Sequence[ReconciliationRun]]) -> Iterator[GaugeSample]:
    """Yield whether the newest apply in a Pulsar cluster was stopped. Yield nothing if no apply has ended."""
    ended = (run for run in list_runs(RunKind.APPLY, limit=_MAX_PLANS) if run.finished_us is not None)
    newest = next((run for run in ended if STOPPED in run.summary), None)
    if newest is not None:
        description = "1 if the newest apply in the cluster was stopped by something that its plan did not expect"
        yield GaugeSample("sexton_pulsar_apply_stopped", int(bool(newest.summary[STOPPED])), description)


def sample_record_log(
    read_state: Callable[[], RecordLogState],
    count_tombstones: Callable[[], TombstoneCounts],
    count_waiting_deletions: Callable[[], int],
) -> Iterator[GaugeSample]:
    state, counts = read_state(), count_tombstones()
    yield GaugeSample("sexton_records_outbox", state.outbox_changes, "Changes of records that are in no block yet")
    age_s, description = _age_s(state.oldest_change_us, state.now_us), "For how long the oldest of them has waited"
    yield GaugeSample("sexton_records_outbox_oldest_seconds", age_s, description, "s")
    yield GaugeSample("sexton_records_manifest", state.manifest, "Number of the newest manifest")
    description = "Unfinished deletions whose intent is in no block yet"
    yield GaugeSample("sexton_records_deletions_waiting", count_waiting_deletions(), description)
    description = "1 while a rebuilt catalog is not complete, and destructive jobs refuse"
    yield GaugeSample("sexton_records_adopting", int(state.is_adopting), description)
    for kind in ("ledger", "topic"):
        count = counts.by_kind.get(kind, 0)
        yield GaugeSample("sexton_tombstones", count, "Tombstones, by kind", labels={"kind": kind})
    yield GaugeSample("sexton_tombstones_cenotaphs", counts.candidates, "Candidates of a raid that has not ended")


def sample_replicas(replication: ReplicaShipments) -> Iterator[GaugeSample]:
    if not replication.replica_names:
        return
    replicas = replication.list_replica_statuses()
    for state, name in _LABEL_BY_STATE.items():
        count, description = sum(replica.state is state for replica in replicas), "Replicas of the record log, by state"
        yield GaugeSample("sexton_records_replicas", count, description, labels={"state": name})
    for replica in replicas:
        behind, label = max(0, replica.newest - replica.manifest), {"replica": replica.replica}
        description = "Manifests that a replica lacks"
        yield GaugeSample("sexton_records_replica_behind_manifests", behind, description, labels=label)
        if replica.lag_s is not None:
            description = "How much younger the newest manifest is than the replica's"
            yield GaugeSample("sexton_records_replica_lag_seconds", round(replica.lag_s), description, "s", label)


def make_client_certificate_sampler(settings: Settings) -> Callable[[], Iterator[GaugeSample]]:
    """Return a source for the expiry of each TLS certificate, by setting.

    Temporal's gauge shows the TLS certificate that the process read at its start. The other gauges follow the files.
    If a file is missing or incomplete, its gauge keeps the last value.
    """
    files = find_client_certificate_files(settings)

    def read_expiry(names: Iterable[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with suppress(InvalidInput):
                yield name, int(read_client_certificate(name, files[name]).until.timestamp())

    read_at_start = list(read_expiry(files.keys() & {_READ_AT_START}))

    def read() -> Iterator[GaugeSample]:
        name, description = "sexton_certificate_expiry_timestamp_seconds", "When our certificate for a service ends"
        for setting, until_s in (
            *read_at_start,
            *read_expiry(setting for setting in files if setting != _READ_AT_START),
        ):
            yield GaugeSample(name, until_s, description, "s", {"setting": setting})

    return read


def sample_readiness(readiness: Readiness) -> Iterator[GaugeSample]:
    description = "1 while the worker takes work and its services answer"
    yield GaugeSample("sexton_worker_ready", int(readiness.is_ready), description)
    description = "When the worker process began"
    yield GaugeSample("sexton_worker_start_timestamp_seconds", readiness.started_s, description, "s")
    for result in readiness.latest_results_failing_if_stale():
        description = "1 while this check of the worker is well"
        yield GaugeSample("sexton_worker_check_ok", int(result.ok), description, labels={"check": result.name})


def _age_s(since_us: int | None, now_us: int) -> int:
    return 0 if since_us is None else max(0, now_us - since_us) // 1_000_000


class PeriodicGauges:
    """Periodic update of gauges.

    If the catalog does not answer, an update ends early. Unexpected faults of a source do not affect other sources.
    """

    def __init__(self, *updaters: Callable[[], None]) -> None:
        self._updaters = updaters
        self._has_logged = False

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.update_gauges_until_outage)
            await asyncio.sleep(_CATALOG_INTERVAL_S)

    def update_gauges_until_outage(self) -> None:
        """Update all gauges, or stop at an outage. Log one failure, and no other until all updates succeed again."""
        has_failed = False
        for update_gauges in self._updaters:
            try:
                update_gauges()
            except SextonError as error:
                self._log_once(error)
                return  # other sources would wait for the same service
            except Exception as error:  # noqa: BLE001 - a row that this build cannot read
                self._log_once(error)
                has_failed = True
        self._has_logged = has_failed

    def _log_once(self, error: Exception) -> None:
        if not self._has_logged:
            unexpected = not isinstance(error, SextonError)
            _log.warning("metrics: gauges keep their last values: %s", error, exc_info=unexpected)
        self._has_logged = True


def make_periodic_gauges(meter: MetricMeter, log: LogStore, settings: Settings) -> PeriodicGauges:
    catalog, records = log.catalog, log.catalog.records
    sources: Sequence[GaugeSource] = (
        make_client_certificate_sampler(settings),
        partial(sample_deletions, catalog.deletions.count_undeleted_copies),
        partial(sample_missing_data_of_plans, catalog.reconciliation.list_runs),
        partial(sample_cluster_plan, catalog.reconciliation.list_runs),
        partial(sample_cluster_apply, catalog.reconciliation.list_runs),
        partial(sample_transactions, catalog.transactions.count_unfinished_transactions),
        partial(
            sample_delayed_messages, catalog.delayed.count_delayed_messages, lambda: log.delayed.snapshots.memory_bytes
        ),
        partial(
            sample_record_log,
            records.read_state,
            catalog.tombstones.count_tombstones,
            records.count_unflushed_deletions,
        ),
        partial(sample_replicas, log.records.replication),
    )
    return PeriodicGauges(*(make_gauge_updater(meter, source) for source in sources))


async def publish_readiness_repeatedly(meter: MetricMeter, readiness: Readiness) -> None:
    """Update the gauges of readiness every few seconds until cancelled. Run this on the event loop of `readiness`."""
    update_gauges = make_gauge_updater(meter, partial(sample_readiness, readiness))
    while True:
        update_gauges()
        await asyncio.sleep(_READINESS_INTERVAL_S)
