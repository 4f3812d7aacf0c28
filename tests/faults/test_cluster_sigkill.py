"""Processes that apply and undo a plan of a cluster die by SIGKILL at each effect; another one ends the job.

The ZooKeeper is real, and so are the deaths. Each failpoint is met before and after its effect.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar import cluster_lease
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from infra.pulsar.offload_verification import OffloadVerifier
from infra.pulsar.znode_reads import ZnodeReader
from infra.stack.embedded_stack import StackAddresses
from logstore.errors import PreconditionFailed
from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import parse_parts
from logstore.pulsar.offload_objects import OffloadKey
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.reconciliation.findings import Finding, FindingKind
from tests.faults.cluster_jobs import ClusterJobs, free_lease_or_holder
from tests.faults.failpoint_hits import hits
from tests.infra.coordination.conftest import zookeeper
from tests.infra.pulsar.conftest import cluster, ensemble, reader
from tests.infra.pulsar.fake_admin import CLUSTER_ANSWERS, CLUSTER_ZNODES, serve_admin
from tests.infra.pulsar.offloads import CLUSTER, begin_upload, create_offload_bucket, put_objects
from tests.infra.pulsar.planted_orphans import (
    CURSOR,
    OF_CURSOR,
    OF_SCHEMA,
    OF_TOPIC,
    SCHEMA,
    TOPIC,
    plant_orphan,
    read_tree,
    write,
)
from tests.logstore.eventually import assert_eventually
from tests.logstore.pulsar import wire

__all__ = ["cluster", "ensemble", "reader", "zookeeper"]

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill]

_GONE = OF_TOPIC | {"pulsar/managed-ledger": "t/ns/persistent/gone"}
_ORPHANS = {101: OF_TOPIC, 102: _GONE, 103: OF_CURSOR, 104: OF_SCHEMA, 105: _GONE, 106: OF_TOPIC, 2**31 + 2: _GONE}
_LIVE = {1: OF_TOPIC, 3: OF_CURSOR, 7: OF_SCHEMA, 8: {"application": "another"}}

# Hits of each effect: begin and three pages take the lease, and each page has one request of a deletion.
_EFFECTS_OF_APPLY = {
    "catalog.open_run": 2,
    "catalog.record_act": 2,
    "pulsar.take_lease": 2,
    "catalog.journal_ledgers": 2,
    "pulsar.put_journal": 2,
    "pulsar.delete_ledgers": 2,
    "catalog.settle_journal": 2,
    "pulsar.put_fates": 2,
    "pulsar.put_certificate": 1,
    "catalog.close_run": 1,
    "pulsar.release_lease": 1,
}
# Hits of each effect of an apply with findings that no undo puts back: two offloads, two uploads and two managed
# ledgers, each of which is a batch of its own.
_EFFECTS_OF_REMOVALS = {
    "catalog.open_run": 1,
    "catalog.record_act": 2,
    "pulsar.take_lease": 2,
    "catalog.journal_ledgers": 1,
    "pulsar.put_journal": 1,
    "pulsar.delete_ledgers": 1,
    "catalog.settle_journal": 1,
    "catalog.journal_removals": 3,
    "pulsar.put_removals": 3,
    "pulsar.delete_offloads": 1,
    "pulsar.abort_upload": 2,
    "pulsar.delete_managed_ledger": 2,
    "catalog.settle_removals": 3,
    "pulsar.put_fates": 2,
    "pulsar.put_certificate": 1,
    "catalog.close_run": 1,
    "pulsar.release_lease": 1,
}
_EFFECTS_OF_UNDO = {
    "catalog.record_act": 2,
    "pulsar.take_lease": 1,
    "pulsar.restore_ledger": 4,
    "catalog.store_undo_results": 1,
    "pulsar.release_lease": 1,
}
_MOMENTS = ("before", "after")


def list_points(effects: dict[str, int]) -> list[tuple[str, int]]:
    return [(f"{effect}.{moment}", nth) for effect, nth in effects.items() for moment in _MOMENTS]


@pytest.fixture
def findings(cluster: KazooClient) -> list[Finding]:
    """Findings of the orphans of a cluster with other ledgers and topics, and with access rights of its own."""
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    write(cluster, "ledgers/cookies/bk0", b"cookie")
    write(cluster, "admin/policies/t", b"{}")
    write(cluster, TOPIC, wire.managed_ledger([1]))
    write(cluster, CURSOR, wire.cursor(3))
    write(cluster, SCHEMA, wire.schema_locator([7]))
    for ledger_id, custom in _LIVE.items():
        write(cluster, f"ledgers/00/0000/L{ledger_id:04}", wire.ledger_metadata(custom=custom))
    findings = [plant_orphan(cluster, ledger_id, custom) for ledger_id, custom in _ORPHANS.items()]
    acl = [make_acl("world", "anyone", all=True), make_digest_acl("broker", "secret", all=True)]
    for path in ("/ledgers/00/0000", *(finding.key for finding in findings)):
        if path.startswith("/ledgers/00/0000"):
            cluster.set_acls(path, acl)
    return findings


@pytest.fixture
def jobs(ensemble: EnsembleOptions, tmp_path: Path, findings: list[Finding]) -> ClusterJobs:
    jobs = ClusterJobs(tmp_path / "sexton", ensemble.hosts)
    jobs.publish_plan(findings, ledgers=len(_ORPHANS) + len(_LIVE))
    return jobs


def require_only_journaled_deletions(
    jobs: ClusterJobs, cluster: KazooClient, before: dict[str, tuple[bytes, object]], findings: list[Finding]
) -> set[str]:
    """Require that SQL and bucket have each deleted ledger with its value. Return the deleted paths."""
    tree = read_tree(cluster)
    deleted = before.keys() - tree.keys()
    assert tree.items() <= before.items(), "something else changed"
    assert deleted <= {finding.key for finding in findings}
    deleted_values = {path: before[path][0] for path in deleted}
    for journal in (jobs.read_journal(), jobs.read_journal_copies()):
        assert deleted_values.items() <= {f"/ledgers/{each.path}": each.data for each in journal}.items()
    return deleted


def test_every_effect_of_apply_and_undo_is_met_here(jobs: ClusterJobs) -> None:
    hits_of_apply, hits_of_undo = hits(jobs.apply), hits(jobs.undo)
    for found, expected in ((hits_of_apply, _EFFECTS_OF_APPLY), (hits_of_undo, _EFFECTS_OF_UNDO)):
        assert {point.rpartition(".")[0] for point in found} == expected.keys()
        assert all(found[point] >= nth for point, nth in list_points(expected))


@pytest.mark.parametrize(("point", "nth"), list_points(_EFFECTS_OF_APPLY))
def test_an_apply_that_is_killed_is_finished_by_another_process(
    jobs: ClusterJobs, cluster: KazooClient, findings: list[Finding], point: str, nth: int
) -> None:
    before = read_tree(cluster)
    jobs.die_in(ClusterJobs.apply, point, nth)
    require_only_journaled_deletions(jobs, cluster, before, findings)
    assert jobs.apply().applied == {"orphan_ledger": len(findings)}
    deleted = require_only_journaled_deletions(jobs, cluster, before, findings)
    assert deleted == {finding.key for finding in findings}
    assert {each.ledger_id for each in jobs.read_journal() if each.deleted_us is not None} == _ORPHANS.keys()
    assert not free_lease_or_holder(cluster)


@pytest.mark.parametrize(("point", "nth"), list_points(_EFFECTS_OF_UNDO))
def test_an_undo_that_is_killed_is_finished_by_another_process(
    jobs: ClusterJobs, cluster: KazooClient, point: str, nth: int
) -> None:
    before = read_tree(cluster)
    jobs.apply()
    jobs.die_in(ClusterJobs.undo, point, nth)
    assert read_tree(cluster).items() <= before.items()
    counts = jobs.undo()
    assert counts.get("restored", 0) + counts.get("present", 0) == len(_ORPHANS)
    assert read_tree(cluster) == before, "value and access rights of each znode"
    assert not free_lease_or_holder(cluster)


def test_an_undo_need_not_wait_for_the_lease_of_an_apply_that_died(jobs: ClusterJobs, cluster: KazooClient) -> None:
    """Bookies free the space of ledgers within 15 minutes, and the lease expires after 15 minutes."""
    before = read_tree(cluster)
    jobs.die_in(ClusterJobs.apply, "pulsar.delete_ledgers.after", 1)
    assert read_tree(cluster) != before
    assert jobs.undo()["restored"] > 0
    assert read_tree(cluster) == before


def test_two_sextons_do_not_change_one_cluster_at_once(
    jobs: ClusterJobs, cluster: KazooClient, findings: list[Finding], tmp_path: Path
) -> None:
    """The second one is refused, and deletes nothing, until the first one has ended."""
    other = ClusterJobs(tmp_path / "other", jobs.zookeeper)
    other.publish_plan(findings, ledgers=len(_ORPHANS) + len(_LIVE), has_own_id=True)
    before = read_tree(cluster)
    jobs.die_in(ClusterJobs.apply, "pulsar.delete_ledgers.after", 1)
    after_death = read_tree(cluster)
    with pytest.raises(PreconditionFailed, match="found the apply of pulsar-1, catalog"):
        other.apply()
    assert read_tree(cluster) == after_death
    assert jobs.apply().applied == {"orphan_ledger": len(findings)}
    assert other.apply().skipped == {"it does not exist any more": len(findings)}
    assert before.keys() - read_tree(cluster).keys() == {finding.key for finding in findings}


def test_a_process_that_is_paused_longer_than_its_lease_deletes_nothing(
    jobs: ClusterJobs, cluster: KazooClient, findings: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is alive when it goes on. A second Sexton has the lease meanwhile, and has released it again."""
    other = ClusterJobs(tmp_path / "other", jobs.zookeeper)
    other.publish_plan([], ledgers=1, has_own_id=True)
    before = read_tree(cluster)
    paused = jobs.start_paused_apply()
    assert_eventually(lambda: paused.is_paused)
    monkeypatch.setattr(cluster_lease, "LEASE_S", 0.0)
    other.apply()
    assert not free_lease_or_holder(cluster)
    assert paused.resume().startswith("LeaseLost: cluster: expected the lease of the apply of pulsar-1")
    assert read_tree(cluster) == before
    monkeypatch.undo()
    assert jobs.apply().applied == {"orphan_ledger": len(findings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovableWorld:
    """Sexton with a plan of every kind, and what the plan found: in ZooKeeper, in a bucket, and behind a broker."""

    jobs: ClusterJobs
    client: KazooClient
    store: OffloadStore
    findings: list[Finding]

    def find_left(self) -> set[str]:
        """Return the paths and keys of what is left of the findings."""
        keys = {info.key for info in self.store.objects.list("")}
        keys |= {upload.key for upload in self.store.list_uploads("")}
        names = {str(part["key"]) for finding in self.findings if finding.uuid for part in parse_parts(finding)}
        paths = {finding.key for finding in self.findings if not finding.uuid}
        return (keys & names) | {path for path in paths if self.client.exists(path)}

    def require_journaled(self) -> None:
        """Require that SQL and bucket have everything that is gone, with all of its parts."""
        left = self.find_left()
        journaled = {(removal.path, json.dumps(removal.parts)) for removal in self.jobs.list_removals()}
        copied = {(line["path"], json.dumps(line["parts"])) for line in self.jobs.read_removal_copies()}
        for finding in self.findings:
            if finding.uuid:
                names = {str(part["key"]) for part in parse_parts(finding)}
                expected = {(finding.key, finding.statement["parts"])}
            elif finding.kind is FindingKind.ORPHAN_LEDGER:
                continue
            else:
                names = {finding.key}
                expected = {each for each in journaled if each[0] == finding.key}
                assert expected or names <= left
            if not names <= left:
                assert expected <= journaled & copied


_OTHER_KEY, _OTHER_PATH = "3fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d-ledger-9", "/managed-ledgers/t/ns/persistent/b"


@pytest.fixture
def removable(
    ensemble: EnsembleOptions, tmp_path: Path, cluster: KazooClient, servers: StackAddresses, reader: ZnodeReader
) -> Iterator[RemovableWorld]:
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "admin/policies/t/ns", b"{}")
    write(cluster, _OTHER_PATH[1:], wire.managed_ledger([1]))
    for path, value in CLUSTER_ZNODES.items():
        write(cluster, path, value)
    bucket = create_offload_bucket(servers)
    store = open_offload_store(bucket)
    put_objects(store, OffloadKey(_OTHER_KEY[:36], 9))
    candidates = [
        plant_offload(store, f"{digit}fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d", is_upload=digit > 2)
        for digit in (1, 2, 4, 5)
    ]
    verifier = OffloadVerifier(store, reader, cluster=CLUSTER, before_us=store.read_clock_us() + 3_600_000_000)
    findings = [*verifier.verify(candidates).findings, *map(partial(plant_managed_ledger, cluster), ("x-s", "y-s"))]
    findings.insert(3, plant_orphan(cluster, 101, _GONE))
    deletions = {make_deletion(path): partial(answer_deletion, cluster, path) for path in _list_pending(findings)}
    with serve_admin({**CLUSTER_ANSWERS, **deletions}) as admin:
        jobs = ClusterJobs(tmp_path / "sexton", ensemble.hosts, offloads=bucket, admin_url=admin.url)
        jobs.publish_plan(findings, ledgers=10)
        yield RemovableWorld(jobs=jobs, client=cluster, store=store, findings=findings)


def plant_offload(store: OffloadStore, uuid: str, *, is_upload: bool) -> Finding:
    """Write the objects or an upload, and return the candidate."""
    key = OffloadKey(uuid, 7)
    if is_upload:
        begin_upload(store, key)
    else:
        put_objects(store, key)
    listed = list(store.objects.list(uuid))
    return Finding(
        kind=FindingKind.ABANDONED_UPLOAD if is_upload else FindingKind.ORPHAN_OFFLOAD,
        ledger_id=LedgerId(7),
        bucket=store.bucket,
        key=str(key),
        uuid=uuid,
        size_bytes=sum(info.size_bytes for info in listed),
        newest_us=max((info.modified_us or 0 for info in listed), default=1),
    )


def plant_managed_ledger(cluster: KazooClient, name: str) -> Finding:
    path = f"managed-ledgers/t/ns/persistent/{name}__transaction_pending_ack"
    write(cluster, path, wire.managed_ledger([11]))
    stat, verdict = cluster.exists(f"/{path}"), ManagedLedgerVerdict.TOPIC_ABSENT
    statement = {"version": str(stat.version), "czxid": str(stat.czxid), "owner": path, "verdict": verdict.value}
    return Finding(
        kind=FindingKind.ORPHAN_MANAGED_LEDGER,
        key=f"/{path}",
        objects=1,
        statement={**statement, "confirmed": "true"},
        detail=verdict.reason,
    )


def _list_pending(findings: list[Finding]) -> list[str]:
    return [finding.key for finding in findings if finding.kind is FindingKind.ORPHAN_MANAGED_LEDGER]


def make_deletion(path: str) -> str:
    *_, tenant, namespace, _, topic = path.split("/")
    return f"DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}?force=true"


def answer_deletion(cluster: KazooClient, path: str) -> tuple[int, str]:
    """Delete a managed ledger as a broker does."""
    if not cluster.exists(path):
        return (404, '{"reason":"Topic not found"}')
    cluster.delete(path, recursive=True)
    return (204, "")


def test_every_effect_of_removals_is_met_here(removable: RemovableWorld) -> None:
    found = hits(removable.jobs.apply)
    assert {point.rpartition(".")[0] for point in found} == _EFFECTS_OF_REMOVALS.keys()
    assert all(found[point] >= nth for point, nth in list_points(_EFFECTS_OF_REMOVALS))


@pytest.mark.parametrize(("point", "nth"), list_points(_EFFECTS_OF_REMOVALS))
def test_an_apply_of_every_kind_that_is_killed_is_finished_by_another_process(
    removable: RemovableWorld, point: str, nth: int
) -> None:
    removable.jobs.die_in(ClusterJobs.apply, point, nth)
    removable.require_journaled()
    counts = removable.jobs.apply()
    assert counts.applied == {
        "orphan_ledger": 1,
        "orphan_offload": 2,
        "abandoned_upload": 2,
        "orphan_managed_ledger": 2,
    }
    assert (counts.skipped, counts.failed) == ({}, 0)
    assert removable.find_left() == set()
    removable.require_journaled()
    assert all(removal.removed_us is not None for removal in removable.jobs.list_removals())
    assert {info.key for info in removable.store.objects.list("")} == {_OTHER_KEY, f"{_OTHER_KEY}-index"}
    assert removable.client.exists(_OTHER_PATH)
    assert not free_lease_or_holder(removable.client)
