"""Looks at the Pulsar cluster that the settings name, for commands. Everything is read only."""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from activities.pulsar.abort_checks import require_abortable
from infra.pulsar.apply_verification import ApplyVerification, ApplyVerifier
from infra.pulsar.broker_transactions import open_broker_transactions
from infra.pulsar.cluster_check import check_cluster, read_cluster_identity
from infra.pulsar.index_bucket_scan import (
    ScannedIndexBucket,
    list_partitions,
    scan_all_index_buckets,
    scan_index_buckets,
)
from infra.pulsar.ledger_explanation import LedgerExplanation, explain_ledger
from infra.pulsar.owner_lookup import open_owner_directory
from infra.pulsar.scan_facts import ScanProblem
from logstore.catalog.reconciliation.cluster_journal import ClusterJournal, iterate_journal
from logstore.errors import PreconditionFailed
from logstore.ports.catalog.reconciliation import JournaledLedger, ReconciliationRun
from logstore.pulsar.cluster_check import ClusterCheck
from logstore.pulsar.cluster_findings import require_ledger_id
from logstore.pulsar.cluster_transactions import OpenTransaction, TransactionReport
from logstore.pulsar.delayed_buckets import parse_topic_argument
from logstore.pulsar.plan_jobs import IDENTITY
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import FindingKind
from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings
from workers.settings import Settings


def check_pulsar_cluster(settings: Settings) -> ClusterCheck:
    return check_cluster(pulsar_cluster_from_settings(settings))


def read_pulsar_transactions(settings: Settings) -> TransactionReport:
    with open_broker_transactions(pulsar_cluster_from_settings(settings)) as transactions:
        return transactions.list_open()


def require_abortable_pulsar_transactions(
    settings: Settings, transaction_ids: Sequence[str], *, unsafe_age: bool
) -> list[OpenTransaction]:
    """Return transactions as they are now. For errors see `require_abortable`."""
    with open_broker_transactions(pulsar_cluster_from_settings(settings)) as transactions:
        return require_abortable(transactions, transaction_ids, now_s=time.time(), unsafe_age=unsafe_age)


def explain_pulsar_ledger(settings: Settings, ledger_id: int) -> LedgerExplanation:
    cluster = pulsar_cluster_from_settings(settings)
    with (
        cluster.open_reader(parallel_sessions=1) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=1) as owners,
    ):
        return explain_ledger(reader, owners, cluster.ledgers_root, ledger_id, log_roots=cluster.log_roots)


def verify_pulsar_apply(
    settings: Settings,
    apply_run: ReconciliationRun,
    journal: ClusterJournal,
    findings: FindingFiles | None,
) -> ApplyVerification:
    """Look at the cluster after an apply. `findings` are those of the plan, or `None` if it has left the catalog.

    Raises:
        PreconditionFailed: The settings name another cluster.
    """
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader(parallel_sessions=1) as reader:
        planned, current = apply_run.summary[IDENTITY], read_cluster_identity(reader, cluster.ledgers_root)
        if current != planned:
            advice = "Set pulsar_zookeeper and pulsar_ledgers_root to those of the apply"
            raise PreconditionFailed(f"{apply_run.run_id}: expected the cluster {planned}, found {current}. {advice}")
        verifier = ApplyVerifier(
            reader, cluster.ledgers_root, RateLimiter(cluster.reads_per_s), log_roots=cluster.log_roots
        )
        verifier.check_references(
            partial(_find_journaled, journal, apply_run.run_id),
            frozenset(_iterate_dangling(findings) if findings else ()),
        )
        verifier.check_journal(iterate_journal(journal, apply_run.run_id))
        if findings:
            verifier.count_orphans_left(
                require_ledger_id(finding) for _, finding in findings.iterate_findings(FindingKind.ORPHAN_LEDGER)
            )
        return verifier.result


def _find_journaled(journal: ClusterJournal, run_id: str, ledger_ids: Collection[int]) -> dict[int, JournaledLedger]:
    ledgers = journal.list_ledgers(run_id, after=-1, limit=len(ledger_ids), ledger_ids=ledger_ids)
    return {ledger.ledger_id: ledger for ledger in ledgers}


def _iterate_dangling(findings: FindingFiles) -> Iterator[tuple[str, int]]:
    for _, finding in findings.iterate_findings(FindingKind.DANGLING_REFERENCE):
        if finding.ledger_id is not None:
            yield finding.key.removeprefix("/"), finding.ledger_id


def scan_pulsar_index_buckets(settings: Settings, topic: str | None) -> Iterator[ScannedIndexBucket | ScanProblem]:
    """Yield the index buckets of a topic and its partitions, or those of all topics.

    Raises:
        InvalidInput: The text is no topic's name, or the cluster has no such topic.
    """
    managed_ledger = None if topic is None else parse_topic_argument(topic)
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader(parallel_sessions=1) as reader:
        if managed_ledger is None:
            yield from scan_all_index_buckets(reader, cluster.ledgers_root)
        else:
            yield from scan_index_buckets(reader, cluster.ledgers_root, list_partitions(reader, managed_ledger))
