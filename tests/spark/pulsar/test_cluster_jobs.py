"""The jobs of a plan on a real ZooKeeper, with a ledger of each kind of reference and of orphan."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from logstore.errors import PreconditionFailed
from logstore.pulsar.plan_jobs import PROBLEM, CompareScansJob, ScanClusterJob, VerifyClusterJob
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_mains import cluster_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.reconciliation.fact_files import read_facts
from spark.warm_session import WarmSession
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.fake_bookie import answer_with, run_bookie, seal_entry
from tests.logstore.pulsar import wire

__all__ = ["cluster", "ensemble", "zookeeper"]

pytestmark = pytest.mark.external_service

_TOPIC = "t/ns/persistent/a"


def custom(component: str, **keys: str) -> dict[str, str | bytes]:
    return {"application": "pulsar", "component": component, **{f"pulsar/{name}": each for name, each in keys.items()}}


_MESSAGES = custom("managed-ledger", **{"managed-ledger": _TOPIC})
_CURSOR = custom("managed-ledger", **{"managed-ledger": _TOPIC, "cursor": "billing"})
_BUCKET = custom("delayed-index-bucket", delayedIndexTopic="persistent://t/ns/a", delayedIndexCursor="billing")
_COMPACTED = custom("compacted-ledger", compactedTopic="persistent://t/ns/a")
_SCHEMA = custom("schema", schemaId="t/ns/a")
_GONE = custom("managed-ledger", **{"managed-ledger": "t/ns/persistent/gone"})

_LIVE: dict[int, dict[str, str | bytes]] = {
    1: _MESSAGES, 2: _MESSAGES, 3: _CURSOR, 4: _BUCKET, 5: custom("managed-ledger", **{"managed-ledger": _TOPIC}),
    6: _COMPACTED, 7: _SCHEMA, 8: {}, 2_147_483_647: _MESSAGES,
}  # fmt: skip
_ORPHANS: dict[int, dict[str, str | bytes]] = {
    101: _MESSAGES, 102: _GONE, 103: _CURSOR, 104: _BUCKET, 105: _COMPACTED, 106: _SCHEMA, 2_147_483_650: _GONE,
}  # fmt: skip
_UNATTRIBUTED: dict[int, dict[str, str | bytes]] = {201: {}, 202: {"application": "bk-stream-storage-service"}}


@contextmanager
def filled(cluster: KazooClient) -> Iterator[None]:
    """Ledgers and references, and a bookie with the state of the compaction cursor as long as the block runs."""
    with run_bookie(answer_with(seal_entry(5, 3, wire.cursor_position(compacted=6)))) as bookie:
        bookies = [f"127.0.0.1:{bookie.address.port}"]
        for ledger_id, keys in (_LIVE | _ORPHANS | _UNATTRIBUTED).items():
            state = 1 if ledger_id == 5 else 3
            write(cluster, f"ledgers/{format_ledger_path(ledger_id)}",
                  wire.ledger_metadata(state=state, custom=keys, bookies=bookies))  # fmt: skip
        write(cluster, f"managed-ledgers/{_TOPIC}", wire.managed_ledger([1, 300, 2_147_483_647, 2]))
        write(cluster, f"managed-ledgers/{_TOPIC}/billing", wire.cursor(3, buckets={"1_2": "4"}))
        write(cluster, f"managed-ledgers/{_TOPIC}/__compaction", wire.cursor(5, compacted=105))
        write(cluster, "schemas/t/ns/a", wire.schema_locator([7]))
        write(cluster, "admin/policies/t/ns", b"{}")
        write(cluster, "pulsar/functions/f/<default>/ledgers/logrecs_1", b"5;8;1")
        yield


def write(cluster: KazooClient, path: str, value: bytes) -> None:
    cluster.create(f"/{path}", value, makepath=True)


@pytest.fixture
def plan(warm: WarmSession, ensemble: EnsembleOptions, tmp_path: Path) -> Callable[..., dict[str, BulkJobSummary]]:
    """Run the jobs of one plan; between the scans something may happen."""

    def run(
        between: Callable[[], None] = lambda: None, *, between_s: float = 0, **access: Any
    ) -> dict[str, BulkJobSummary]:
        address = PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=10, **access)
        jobs = SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: cluster_job_mains(address))
        summaries = {}
        for job in (
            ScanClusterJob(run_id="run", number=1),
            ScanClusterJob(run_id="run", number=2),
            CompareScansJob(run_id="run", between_s=between_s, older_than_s=0),
            VerifyClusterJob(run_id="run", has_offloads=False),
        ):
            summaries[job.name] = jobs.run_job(job, lambda _: None)
            if job.name == "scan-cluster-1":
                between()
        return summaries

    return run


def findings_of(summaries: Mapping[str, BulkJobSummary]) -> list[Finding]:
    return [each for _, each in FindingFiles(Path(summaries["verify-cluster"].folder)).iterate_findings()]


def ids_of(findings: list[Finding], kind: FindingKind) -> set[int | None]:
    return {found.ledger_id for found in findings if found.kind is kind}


def test_every_planted_orphan_is_found_and_nothing_else(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """Between the scans a ledger is made with its reference, and another one that had none gets its reference."""

    def happen() -> None:
        write(cluster, f"ledgers/{format_ledger_path(301)}", wire.ledger_metadata(custom=_MESSAGES))
        cluster.set(f"/managed-ledgers/{_TOPIC}", wire.managed_ledger([1, 300, 2_147_483_647, 2, 301]))
        cluster.set("/schemas/t/ns/a", wire.schema_locator([7, 106]))

    with filled(cluster):
        summaries = plan(happen)
    scanned = summaries["scan-cluster-1"].counts
    assert (scanned["ledgers"], scanned["managed_ledgers"], scanned["problems"]) == (18, 1, 0)
    findings = findings_of(summaries)
    assert ids_of(findings, FindingKind.ORPHAN_LEDGER) == set(_ORPHANS) - {106}
    assert ids_of(findings, FindingKind.UNATTRIBUTED_LEDGER) == set(_UNATTRIBUTED)
    assert ids_of(findings, FindingKind.DANGLING_REFERENCE) == {300}
    verdicts = {int(found.ledger_id or 0): found.statement.get("verdict") for found in findings}
    assert (verdicts[101], verdicts[102]) == ("owner_not_listing", "owner_absent")
    assert len(findings) == sum(summaries["verify-cluster"].counts.values())
    hazards = {found.key: (found.objects, found.statement.get("names")) for found in findings if found.kind == "hazard"}
    assert hazards == {"foreign_application": (1, "bk-stream-storage-service"), "log_ledgers": (1, None)}
    assert {found.statement["confirmed"] for found in findings if found.ledger_id in {101, 102}} == {"true"}


def test_locks_that_are_not_seen_are_missed(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_no_locks(folder: Path, stem: str, group: int | None, schema: pa.Schema) -> pa.Table:
        return schema.empty_table() if stem == "locks" else read_facts(folder, stem, group, schema)

    monkeypatch.setattr("spark.pulsar.compare_scans.read_facts", read_no_locks)
    write(cluster, "ledgers/underreplication/locks/urL0000000101", b"")
    with filled(cluster), pytest.raises(PreconditionFailed, match="scan 2: expected 1 locks in its files, found 0"):
        plan()


def test_managed_ledgers_that_outlived_their_topic_are_found(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """One of them gets its topic back between the scans, and another one changes: they are no orphans."""
    names = [f"t/ns/persistent/gone-{name}__transaction_pending_ack" for name in ("x", "y")]
    names += ["t/gone/persistent/a", "t/gone/persistent/b", "t/ns/persistent/a-sub__transaction_pending_ack"]

    def happen() -> None:
        write(cluster, "managed-ledgers/t/ns/persistent/back", b"")
        cluster.set("/managed-ledgers/t/gone/persistent/b", wire.managed_ledger([2]))

    with filled(cluster):
        for name in [*names, "t/ns/persistent/back-x__transaction_pending_ack"]:
            write(cluster, f"managed-ledgers/{name}", wire.managed_ledger([1]))
        write(cluster, "managed-ledgers/t/ns/persistent/copy", wire.managed_ledger([1], shadow="persistent://t/ns/a"))
        summaries = plan(happen)
    findings = findings_of(summaries)
    orphans = [found for found in findings if found.kind is FindingKind.ORPHAN_MANAGED_LEDGER]
    assert [found.key for found in orphans] == [f"/managed-ledgers/{name}" for name in sorted(names[:3])]
    assert [found.statement["owner"] for found in orphans] == [f"managed-ledgers/{name}" for name in sorted(names[:3])]
    assert {found.statement["confirmed"] for found in orphans} == {"true"}
    (shadow,) = (found for found in findings if found.key == "shadow_topics")
    assert (shadow.objects, shadow.statement["names"]) == (1, "t/ns/persistent/copy")


def test_pending_acknowledgements_of_a_subscription_with_a_slash_are_kept(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """Pulsar takes the names for those of topics of Pulsar 1."""
    names = [f"t/ns/{topic}-team/persistent/app__transaction_pending_ack" for topic in ("a", "gone")]
    with filled(cluster):
        for name in names:
            write(cluster, f"managed-ledgers/{name}", wire.managed_ledger([1]))
        findings = findings_of(plan())
    orphans = [found for found in findings if found.kind is FindingKind.ORPHAN_MANAGED_LEDGER]
    assert [(found.key, found.statement["verdict"]) for found in orphans] == [
        (f"/managed-ledgers/{names[1]}", "topic_absent")
    ]


@pytest.mark.parametrize("path", ["admin/local-policies/t/new", "namespace/t/new/0x00000000_0xffffffff"])
def test_a_namespace_that_brokers_use_is_no_orphan(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]], path: str
) -> None:
    """The policies here are an old copy: the cluster has its own in a configuration store that is not set."""
    with filled(cluster):
        write(cluster, path, b"{}")
        for namespace in ("new", "gone"):
            write(cluster, f"managed-ledgers/t/{namespace}/persistent/a", wire.managed_ledger([1]))
        findings = findings_of(plan())
    orphans = [found.key for found in findings if found.kind is FindingKind.ORPHAN_MANAGED_LEDGER]
    assert orphans == ["/managed-ledgers/t/gone/persistent/a"]


def test_references_to_the_ledgers_of_another_cluster_make_the_plan_incomplete(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """`pulsar_ledgers_root` names the ledgers of another cluster."""
    with filled(cluster):
        cluster.set(f"/managed-ledgers/{_TOPIC}", wire.managed_ledger(range(1_000, 1_020)))
        summaries = plan()
    assert f"{PROBLEM}references to ledgers" in summaries["compare-scans"].facts
    assert summaries["verify-cluster"].counts["problems"] == 1


def test_a_cluster_without_policies_is_incomplete(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """The policies are in another configuration store, which nobody named: no namespace is an orphan."""
    with filled(cluster):
        cluster.delete("/admin/policies", recursive=True)
        summaries = plan()
    assert f"{PROBLEM}/admin/policies" in summaries["scan-cluster-1"].facts
    findings = findings_of(summaries)
    assert not ids_of(findings, FindingKind.ORPHAN_LEDGER)
    assert not [found for found in findings if found.kind is FindingKind.ORPHAN_MANAGED_LEDGER]


def test_slices_of_topics_spread_a_namespace_over_tasks(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.pulsar.scan_slices._NAMES_PER_SLICE", 2)
    with filled(cluster):
        for number in range(5):
            write(cluster, f"managed-ledgers/t/ns/persistent/more-{number}", wire.managed_ledger([1]))
        scanned = plan()["scan-cluster-1"]
    assert scanned.counts["managed_ledgers"] == 6
    assert len(list(Path(scanned.folder).glob("topics-*.arrow"))) == 3
    assert len(list(Path(scanned.folder).glob("managed_ledgers-*.arrow"))) == 5, "with logs and schemas"


def test_times_and_identity_of_a_scan(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]], ensemble: EnsembleOptions
) -> None:
    """The cluster's time is that of its newest change; here, a broker writes its load report at the end."""
    with filled(cluster):
        write(cluster, "loadbalance/brokers/broker:8080", b"{}")
        summaries = plan()
    _, stat = cluster.get("/loadbalance/brokers/broker:8080")
    first, second = (summaries[f"scan-cluster-{number}"] for number in (1, 2))
    assert first.counts["cluster_ms"] == stat.last_modified * 1_000
    assert first.counts["begun_ms"] < first.counts["ended_ms"] <= second.counts["begun_ms"]
    assert first.facts["identity"] == second.facts["identity"]
    with PulsarCluster(zookeeper=ensemble.hosts).open_reader(parallel_sessions=1) as reader:
        assert first.facts["identity"] == read_cluster_identity(reader, "ledgers")


def test_scans_that_are_too_close_are_refused(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    with filled(cluster), pytest.raises(PreconditionFailed, match="expected 600 s or more between the scans"):
        plan(between_s=600)


def test_a_cluster_that_was_made_again_between_the_scans_is_refused(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    def make_again() -> None:
        cluster.delete("/managed-ledgers", recursive=True)
        write(cluster, f"managed-ledgers/{_TOPIC}", wire.managed_ledger([1]))

    with filled(cluster), pytest.raises(PreconditionFailed, match="scan 2: expected the cluster"):
        plan(make_again)


def test_a_shared_bookkeeper_leaves_no_orphan(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    with filled(cluster):
        summaries = plan(shared_clusters=("east",))
    assert summaries["compare-scans"].counts["problems"] == 2
    assert f"{PROBLEM}cluster east" in summaries["scan-cluster-1"].facts
    findings = findings_of(summaries)
    assert not ids_of(findings, FindingKind.ORPHAN_LEDGER)
    assert ids_of(findings, FindingKind.UNATTRIBUTED_LEDGER) == set(_ORPHANS) | set(_UNATTRIBUTED)


def test_what_cannot_be_read_is_counted_and_named(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    """A plan with it is incomplete: the bookie with the compaction cursor is away, a schema is damaged."""
    with filled(cluster):
        cluster.set("/schemas/t/ns/a", b"\xff")
    summaries = plan()
    assert summaries["verify-cluster"].counts["problems"] == 4, "two of each scan"
    scanned = summaries["scan-cluster-2"]
    assert scanned.counts["problems"] == 2
    assert {name for name in scanned.facts if name.startswith(PROBLEM)} == {
        f"{PROBLEM}/schemas/t/ns/a",
        f"{PROBLEM}/managed-ledgers/{_TOPIC}/__compaction",
    }


def test_a_chroot_without_a_cluster_is_refused(
    cluster: KazooClient, plan: Callable[..., dict[str, BulkJobSummary]]
) -> None:
    cluster.create("/ledgers")
    with pytest.raises(PreconditionFailed, match="managed-ledgers"):
        plan()
