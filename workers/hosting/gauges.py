"""Gauges of a worker: of the catalog, the record log and its replicas, and of the worker's own readiness.

Values of the catalog are the same at every worker: take the maximum over workers, not the sum. A source that does not
answer leaves its last values. Before its first answer there is no gauge at all: a zero would say that all is well.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from temporalio.common import MetricGauge, MetricMeter

from logstore.errors import InvalidInput, SextonError
from logstore.ports.catalog import (
    DelayedCounts,
    Inflight,
    ReconciliationRun,
    RecordLogState,
    RunKind,
    TombstoneCounts,
    TransactionCounts,
)
from logstore.reconciliation.findings import FindingKind, PlanResult, plan_result
from logstore.records.services.replicating import Replication
from logstore.records.tombstones import ReplicaState
from logstore.transactions.transactions import TransactionState
from workers.assembly.log import LogStore
from workers.hosting.certificates import files_of_certificates, read_certificate
from workers.hosting.readiness import Readiness
from workers.settings import Settings

_AT_START: Final = "temporal_cert_file"
_LOOKED_AT: Final = 100  # of plans that failed or are at work, behind which none is looked for
_EVERY_S: Final = 15.0  # Prometheus' usual interval: each scrape sees a new value
_READINESS_EVERY_S: Final = 5.0
_STATES: Final[dict[ReplicaState | None, str]] = {None: "NEW", **{one: one.value for one in ReplicaState}}
_UNFINISHED: Final = (TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.ABORTING)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a gauge, with what the gauge tells."""

    name: str
    value: int
    about: str
    unit: str | None = None
    labels: Mapping[str, str] | None = None


Source = Callable[[], Iterable[Sample]]


def showing(meter: MetricMeter, ask: Source) -> Callable[[], None]:
    """Asks once, and shows the answer at the meter of the process's runtime; raises what the source raises."""
    gauges: dict[str, MetricGauge] = {}

    def show() -> None:
        for one in ask():
            if one.name not in gauges:
                gauges[one.name] = meter.create_gauge(one.name, one.about, one.unit)
            gauges[one.name].set(one.value, one.labels)

    return show


def of_deletions(inflight: Callable[[], Inflight]) -> Iterator[Sample]:
    """Deletions that are left; only both counts at zero mean that all is deleted."""
    found, now_us = inflight(), time.time_ns() // 1000
    about = "Unfinished deletions, those waiting for a retry included"
    yield Sample("sexton_deletion_estimated_inflight", found.estimated_inflight, about)
    yield Sample(
        "sexton_deletion_dead_lettered",
        found.dead_lettered,
        "Dead letters that there are now, refusals included; a person must look at them. The counter"
        " sexton_deletion_reached_max_retries_total counts those of which every attempt failed",
    )
    about = "Age of the oldest unfinished deletion; 0 where there is none"
    yield Sample("sexton_deletion_oldest_pending_seconds", _age_s(found.oldest_us, now_us), about, "s")
    about = "When the catalog last answered for the two gauges"
    yield Sample("sexton_deletion_read_timestamp_seconds", now_us // 1_000_000, about, "s")


def of_transactions(counts: Callable[[], TransactionCounts]) -> Iterator[Sample]:
    """Unfinished transactions by state, and how old the oldest are."""
    found, now_us = counts(), time.time_ns() // 1000
    about = "Transactions that are not over, by state"
    for state in _UNFINISHED:
        labels = {"state": state.value}
        yield Sample("sexton_transactions_unfinished", found.states.get(state, 0), about, labels=labels)
    open_s, decided_s = _age_s(found.oldest_open_us, now_us), _age_s(found.oldest_decided_us, now_us)
    yield Sample("sexton_transactions_oldest_open_seconds", open_s, "Age of the oldest open one", "s")
    about = "Since when the oldest decided one has participants that are not told"
    yield Sample("sexton_transactions_oldest_decided_seconds", decided_s, about, "s")
    about = "Bitmaps of markers and of aborted messages, in the catalog"
    yield Sample("sexton_transactions_hidden_bytes", found.hidden_bytes, about)


def of_delayed(counts: Callable[[], DelayedCounts], memory_bytes: Callable[[], int]) -> Iterator[Sample]:
    """Delayed messages of all topics, and what this process keeps of their snapshots."""
    found = counts()
    yield Sample("sexton_delayed_buckets", found.buckets, "Buckets of delayed messages")
    about = "Messages in buckets; those that were delivered go with their bucket"
    yield Sample("sexton_delayed_messages", found.messages, about)
    about = "Messages with a delivery time that no seal has looked at yet"
    yield Sample("sexton_delayed_unsealed_messages", found.unsealed, about)
    yield Sample("sexton_delayed_memory_bytes", memory_bytes(), "What the worker keeps of snapshots of buckets", "By")


def of_plans(runs: Callable[..., Sequence[ReconciliationRun]]) -> Iterator[Sample]:
    """Losses that plans found, and when the newest plan that finished began; nothing before one has.

    A loss that a plan found stands until a later plan has looked at rows at least as young: one that left out more for
    their age says nothing of it.
    """
    finished = [one for one in runs(RunKind.PLAN, limit=_LOOKED_AT) if one.finished_us is not None]
    if finished:
        missing = _missing([plan_result(one.summary) for one in finished])
        about = "Findings of absent or short objects that no later plan refutes"
        yield Sample("sexton_reconciliation_missing_data", missing, about)
        begun_s, about = finished[0].created_us // 1_000_000, "When the newest plan that finished began"
        yield Sample("sexton_reconciliation_plan_timestamp_seconds", begun_s, about, "s")


def _missing(plans: Sequence[PlanResult]) -> int:
    """The largest count of those plans, newest first, after which none has looked at rows as young as theirs."""
    missing, looked_us = 0, -1
    for plan in plans:
        before_us = plan.rows_before_us or plan.before_us
        if before_us > looked_us:
            missing = max(missing, plan.findings.get(FindingKind.MISSING_DATA.value, 0))
            looked_us = before_us
    return missing


def of_records(
    ask: Callable[[], RecordLogState], tombstones: Callable[[], TombstoneCounts], waiting: Callable[[], int]
) -> Iterator[Sample]:
    """Changes that are in no block yet and their age, the newest manifest, and tombstones."""
    state, counts = ask(), tombstones()
    yield Sample("sexton_records_outbox", state.outbox, "Changes of records that are in no block yet")
    age_s, about = _age_s(state.oldest_us, state.now_us), "For how long the oldest of them has waited"
    yield Sample("sexton_records_outbox_oldest_seconds", age_s, about, "s")
    yield Sample("sexton_records_manifest", state.manifest, "Number of the newest manifest")
    about = "Unfinished deletions whose intent is in no block yet"
    yield Sample("sexton_records_deletions_waiting", waiting(), about)
    about = "1 while a rebuilt catalog is not complete, and destructive jobs refuse"
    yield Sample("sexton_records_adopting", int(state.adopting), about)
    for kind in ("ledger", "topic"):
        count = counts.by_kind.get(kind, 0)
        yield Sample("sexton_tombstones", count, "Tombstones, by kind", labels={"kind": kind})
    yield Sample("sexton_tombstones_cenotaphs", counts.candidates, "Candidates of a raid that has not ended")


def of_replicas(replication: Replication) -> Iterator[Sample]:
    """Replicas of the record log by state, and how far each is behind, read from its bucket; none are no reads."""
    if not replication.names:
        return
    found = replication.standings()
    for state, name in _STATES.items():
        count, about = sum(one.state is state for one in found), "Replicas of the record log, by state"
        yield Sample("sexton_records_replicas", count, about, labels={"state": name})
    for one in found:
        behind, label = max(0, one.newest - one.manifest), {"replica": one.replica}
        about = "Manifests that a replica lacks"
        yield Sample("sexton_records_replica_behind_manifests", behind, about, labels=label)
        if one.lag_s is not None:
            about = "How much younger the newest manifest is than the replica's"
            yield Sample("sexton_records_replica_lag_seconds", round(one.lag_s), about, "s", label)


def of_certificates(settings: Settings) -> Callable[[], Iterator[Sample]]:
    """A source of gauges: until when each certificate is good, by setting.

    Of Temporal's it tells of the certificate that this process has held since its start; the others are read with every
    connection that is made, hence as their files are now. A file that is being replaced, or is away, leaves its value.
    """
    files = files_of_certificates(settings)

    def ends(names: Iterable[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with suppress(InvalidInput):
                yield name, int(read_certificate(name, files[name]).until.timestamp())

    held = list(ends(files.keys() & {_AT_START}))

    def ask() -> Iterator[Sample]:
        name, about = "sexton_certificate_expiry_timestamp_seconds", "When our certificate for a service ends"
        for setting, until_s in (*held, *ends(one for one in files if one != _AT_START)):
            yield Sample(name, until_s, about, "s", {"setting": setting})

    return ask


def of_readiness(readiness: Readiness) -> Iterator[Sample]:
    """The readiness probe of this worker, as a whole and by check."""
    about = "1 while the worker takes work and its services answer"
    yield Sample("sexton_worker_ready", int(readiness.ready), about)
    about = "When the worker process began"
    yield Sample("sexton_worker_start_timestamp_seconds", readiness.started_s, about, "s")
    for seen in readiness.seen():
        about = "1 while this check of the worker is well"
        yield Sample("sexton_worker_check_ok", int(seen.ok), about, labels={"check": seen.name})


def _age_s(since_us: int | None, now_us: int) -> int:
    return 0 if since_us is None else max(0, now_us - since_us) // 1_000_000


class CatalogGauges:
    """Reads sources again and again.

    Where the catalog does not answer, none is read until it does; one alone that cannot be read harms no other.
    """

    def __init__(self, *reads: Callable[[], None]) -> None:
        """Call these, which may raise what the catalog raises."""
        self._reads = reads
        self._told = False

    async def run(self) -> None:
        """Read every 15 seconds until cancelled."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(_EVERY_S)

    def read(self) -> None:
        """Read once; a failure is logged once until all can be read again."""
        failed = False
        for read in self._reads:
            try:
                read()
            except SextonError as error:
                self._tell(error)
                return  # the others would wait for the same answer
            except Exception as error:  # noqa: BLE001 - a row that this build cannot read
                self._tell(error)
                failed = True
        self._told = failed

    def _tell(self, error: Exception) -> None:
        if not self._told:
            unexpected = not isinstance(error, SextonError)
            _log.warning("metrics: gauges keep their last values: %s", error, exc_info=unexpected)
        self._told = True


def catalog_gauges(meter: MetricMeter, log: LogStore, settings: Settings) -> CatalogGauges:
    """All of one process but its readiness."""
    catalog, records = log.catalog, log.catalog.records
    sources: Sequence[Source] = (
        of_certificates(settings),
        partial(of_deletions, catalog.deletions.inflight),
        partial(of_plans, catalog.reconciliation.runs),
        partial(of_transactions, catalog.transactions.counts),
        partial(of_delayed, catalog.delayed.counts, lambda: log.delayed.snapshots.memory_bytes),
        partial(of_records, records.state, catalog.tombstones.counts, records.waiting_deletions),
        partial(of_replicas, log.records.replication),
    )
    return CatalogGauges(*(showing(meter, source) for source in sources))


async def show_readiness(meter: MetricMeter, readiness: Readiness) -> None:
    """Show it every few seconds, without end; on the process's event loop, as the readiness is."""
    show = showing(meter, partial(of_readiness, readiness))
    while True:
        show()
        await asyncio.sleep(_READINESS_EVERY_S)
