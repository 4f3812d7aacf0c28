"""A verification of an apply knows its cluster, its journal and its plan."""

from pathlib import Path

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.apply_verification import ApplyVerification, DeletedLedgerState
from logstore.errors import PreconditionFailed
from logstore.positions import LedgerId
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind, apply_run_id, plan_result
from tests.faults.cluster_jobs import RUN_ID, ClusterJobs
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.planted_orphans import OF_TOPIC, TOPIC, plant_orphan, write
from tests.logstore.pulsar import wire
from workers.operations.pulsar_cluster import verify_pulsar_apply

__all__ = ["cluster", "ensemble", "zookeeper"]

pytestmark = pytest.mark.external_service


@pytest.fixture
def jobs(ensemble: EnsembleOptions, cluster: KazooClient, tmp_path: Path) -> ClusterJobs:
    """An apply has deleted the ledgers 101 and 102. The plan has found that ledger 9 is absent."""
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "admin/policies/t", b"{}")
    write(cluster, TOPIC, wire.managed_ledger([9, 1]))
    write(cluster, "ledgers/00/0000/L0001", wire.ledger_metadata(custom=OF_TOPIC))
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (101, 102)]
    findings += [
        Finding(kind=FindingKind.DANGLING_REFERENCE, ledger_id=LedgerId(9), key=f"/{TOPIC}"),
        Finding(kind=FindingKind.DANGLING_REFERENCE, key=f"/{TOPIC}"),  # to offloaded objects
        Finding(kind=FindingKind.UNATTRIBUTED_LEDGER, ledger_id=LedgerId(1), key="/ledgers/00/0000/L0001"),
    ]
    jobs = ClusterJobs(tmp_path / "sexton", ensemble.hosts)
    jobs.publish_plan(findings, ledgers=3)
    jobs.apply()
    return jobs


def verify(jobs: ClusterJobs, *, has_plan: bool = True, **settings: str) -> ApplyVerification:
    with jobs.open_catalog() as catalog:
        runs = catalog.reconciliation
        findings = FindingFiles(Path(plan_result(runs.get_run(RUN_ID).summary).report)) if has_plan else None
        apply_run = runs.get_run(apply_run_id(RUN_ID))
        changed = jobs.settings.model_copy(update=settings)
        return verify_pulsar_apply(changed, apply_run, catalog.cluster_journal, findings)


def test_apply_is_compared_with_its_journal_and_its_plan(jobs: ClusterJobs) -> None:
    result = verify(jobs)
    assert result.ledgers == {DeletedLedgerState.ABSENT: 2}
    assert (result.missing.count, result.planned_dangling, result.new_dangling.count) == (0, 1, 0)
    assert result.orphans_left == 0


def test_references_to_ledgers_of_the_journal_are_missing(jobs: ClusterJobs, cluster: KazooClient) -> None:
    """Also those of logs whose place a setting names."""
    cluster.set(f"/{TOPIC}", wire.managed_ledger([9, 101, 1]))
    write(cluster, "logs/f/<default>/allocation", b"102")
    assert [each.ledger_id for each in verify(jobs).missing.samples] == [101]
    assert [each.ledger_id for each in verify(jobs, pulsar_log_roots="/logs").missing.samples] == [101, 102]


def test_without_its_plan_every_other_absent_ledger_is_new(jobs: ClusterJobs) -> None:
    result = verify(jobs, has_plan=False)
    assert (result.planned_dangling, result.new_dangling.count, result.orphans_left) == (0, 1, None)


def test_another_cluster_is_refused(jobs: ClusterJobs, cluster: KazooClient) -> None:
    cluster.set("/ledgers/INSTANCEID", b"77aa")
    with pytest.raises(PreconditionFailed, match=r"apply-pulsar-1: expected the cluster 5f0a/.*, found 77aa/"):
        verify(jobs)
