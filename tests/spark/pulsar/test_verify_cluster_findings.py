"""A candidate stays a finding if its ledger is unchanged and its owner, looked up by name, does not list it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.compaction_lookup import CompactionLookup
from infra.pulsar.finding_verification import ClusterVerifier
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.znode_reads import ZnodeReader
from logstore.positions import LedgerId
from logstore.pulsar.ledger_verdicts import BrokerLookup
from logstore.pulsar.znode_names import format_ledger_path
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.finding_files import FindingFiles, write_finding_file
from logstore.reconciliation.findings import Finding, FindingKind
from spark.pulsar.verify_cluster_findings import _look_up_compactions, _open_verifier
from tests.infra.pulsar.conftest import cluster, ensemble, reader, zookeeper
from tests.infra.pulsar.fake_admin import FakeAdmin, serve_admin
from tests.infra.pulsar.owner_directories import make_owner_directory
from tests.logstore.pulsar import wire

__all__ = ["cluster", "ensemble", "reader", "zookeeper"]

pytestmark = pytest.mark.external_service

_TOPIC = "managed-ledgers/t/ns/persistent/a"


def write_candidate(cluster: KazooClient, ledger_id: int, **changes: Any) -> Finding:
    """Write a ledger, and return the candidate that two scans of it make."""
    path = f"/ledgers/{format_ledger_path(ledger_id)}"
    _, stat = cluster.create(path, wire.ledger_metadata(), makepath=True, include_data=True)
    statement = {
        "version": str(stat.version),
        "czxid": str(stat.czxid),
        "state": "CLOSED",
        "component": "managed-ledger",
        "owner": _TOPIC,
    } | changes.pop("statement", {})
    fields: dict[str, Any] = {"kind": FindingKind.ORPHAN_LEDGER, "key": path, "statement": statement} | changes
    return Finding(ledger_id=LedgerId(ledger_id), **fields)


@pytest.fixture
def owners(cluster: KazooClient, reader: ZnodeReader) -> OwnerDirectory:
    cluster.create("/admin/policies/t", b"{}", makepath=True)
    return make_owner_directory(reader)


def verify(
    reader: ZnodeReader,
    owners: OwnerDirectory,
    candidates: Sequence[Finding],
    broker_lookups: Mapping[int, BrokerLookup] | None = None,
) -> list[Finding]:
    return ClusterVerifier(reader, owners, broker_lookups or {}, "ledgers").verify(candidates)


def test_an_orphan_of_an_absent_owner_is_confirmed(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7)
    (found,) = verify(reader, owners, [candidate])
    assert found.kind is FindingKind.ORPHAN_LEDGER
    assert (found.statement["verdict"], found.statement["confirmed"]) == ("owner_absent", "true")
    assert found.detail == "nothing refers to it, and its owner /managed-ledgers/t/ns/persistent/a does not exist"


def test_an_owner_that_lists_other_ledgers_leaves_an_orphan(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7)
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([8]), makepath=True)
    (found,) = verify(reader, owners, [candidate])
    assert found.statement["verdict"] == "owner_not_listing"


def test_an_owner_that_lists_it_now_ends_the_candidate(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7)
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([7]), makepath=True)
    assert verify(reader, owners, [candidate]) == []


def test_an_unreadable_owner_makes_it_unattributed(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7)
    cluster.create(f"/{_TOPIC}", b"\xff", makepath=True)
    (found,) = verify(reader, owners, [candidate])
    assert (found.kind, found.statement["verdict"]) == (FindingKind.UNATTRIBUTED_LEDGER, "owner_unreadable")


@pytest.mark.parametrize("kind", [FindingKind.ORPHAN_LEDGER, FindingKind.UNATTRIBUTED_LEDGER])
def test_a_ledger_that_changed_or_vanished_ends_the_candidate(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory, kind: FindingKind
) -> None:
    changed, vanished = (write_candidate(cluster, each, kind=kind) for each in (7, 8))
    cluster.set(changed.key, wire.ledger_metadata(last_entry=3))
    cluster.delete(vanished.key)
    assert verify(reader, owners, [changed, vanished]) == []


def test_a_compacted_ledger_is_not_confirmed(cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory) -> None:
    owner = {"component": "compacted-ledger", "owner": f"{_TOPIC}/__compaction"}
    candidate = write_candidate(cluster, 7, statement=owner)
    (absent,) = verify(reader, owners, [candidate])
    cluster.create(f"/{_TOPIC}/__compaction", wire.cursor(-1, compacted=9), makepath=True)
    (living,) = verify(reader, owners, [candidate])
    assert (absent.statement["confirmed"], living.statement["confirmed"]) == ("false", "false")


def write_orphan_managed_ledger(cluster: KazooClient, name: str) -> Finding:
    """Write a managed ledger, and return the candidate that two scans of it make."""
    path = f"/managed-ledgers/{name}"
    _, stat = cluster.create(path, wire.managed_ledger([5]), makepath=True, include_data=True)
    statement = {"version": str(stat.version), "czxid": str(stat.czxid), "owner": f"managed-ledgers/{name}"}
    return Finding(kind=FindingKind.ORPHAN_MANAGED_LEDGER, key=path, statement=statement)


def test_an_orphan_managed_ledger_is_looked_up_by_its_topics_and_namespace(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    cluster.create("/admin/policies/t/ns", b"{}")
    pending = write_orphan_managed_ledger(cluster, "t/ns/persistent/a-b-sub__transaction_pending_ack")
    slashed = write_orphan_managed_ledger(cluster, "t/ns/s-team/persistent/app__transaction_pending_ack")
    homeless = write_orphan_managed_ledger(cluster, "t/gone/persistent/c")
    changed = write_orphan_managed_ledger(cluster, "t/gone/persistent/d")
    cluster.set(changed.key, wire.managed_ledger([6]))
    findings = verify(reader, owners, [pending, slashed, homeless, changed])
    assert [(found.key, found.statement["verdict"], found.statement["confirmed"]) for found in findings] == [
        (pending.key, "topic_absent", "true"),
        (slashed.key, "topic_absent", "true"),
        (homeless.key, "namespace_absent", "true"),
    ]
    cluster.create("/managed-ledgers/t/ns/persistent/a-b", b"")
    cluster.create("/managed-ledgers/t/ns/persistent/s", b"")
    cluster.create("/admin/policies/t/gone", b"{}")
    assert verify(reader, owners, [pending, slashed, homeless]) == []


@pytest.mark.parametrize("path", ["admin/policies/t/new", "admin/local-policies/t/new", "namespace/t/new/0x0_0xff"])
def test_a_namespace_with_policies_or_in_use_has_no_orphan_managed_ledger(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory, path: str
) -> None:
    homeless = write_orphan_managed_ledger(cluster, "t/new/persistent/c")
    cluster.create(f"/{path}", b"{}", makepath=True)
    assert verify(reader, owners, [homeless]) == []


def test_a_namespace_whose_bundles_no_broker_owns_is_not_in_use(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    """Old brokers leave the parent of the bundles behind."""
    homeless = write_orphan_managed_ledger(cluster, "t/new/persistent/c")
    cluster.create("/namespace/t/new", b"", makepath=True)
    assert [found.key for found in verify(reader, owners, [homeless])] == [homeless.key]


def test_a_reference_dangles_as_long_as_its_znode_exists_and_the_ledger_does_not(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    dangling = Finding(kind=FindingKind.DANGLING_REFERENCE, ledger_id=LedgerId(9), key=f"/{_TOPIC}")
    assert verify(reader, owners, [dangling]) == []
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([9]), makepath=True)
    assert verify(reader, owners, [dangling]) == [dangling]
    write_candidate(cluster, 9)
    assert verify(reader, owners, [dangling]) == []


def test_other_findings_stay_as_they_are(cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory) -> None:
    unattributed = write_candidate(cluster, 7, kind=FindingKind.UNATTRIBUTED_LEDGER)
    hazard = Finding(kind=FindingKind.HAZARD, key="shadow_topics")
    assert verify(reader, owners, [unattributed, hazard]) == [unattributed, hazard]


@pytest.mark.parametrize(
    ("broker", "confirmed"),
    [(BrokerLookup.LISTING, []), (BrokerLookup.NOT_LISTING, ["true"]), (BrokerLookup.UNKNOWN, ["false"])],
)
def test_a_broker_confirms_or_refutes_a_compacted_ledger(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory, broker: BrokerLookup, confirmed: list[str]
) -> None:
    owner = {"component": "compacted-ledger", "owner": f"{_TOPIC}/__compaction"}
    candidate = write_candidate(cluster, 7, statement=owner)
    findings = verify(reader, owners, [candidate], {7: broker})
    assert [found.statement["confirmed"] for found in findings] == confirmed


@pytest.fixture
def access(ensemble: EnsembleOptions) -> PulsarCluster:
    return PulsarCluster(zookeeper=ensemble.hosts, configuration_store=ensemble.hosts, reads_per_s=1_000)


def test_all_sessions_of_tasks_together_keep_the_rate_of_reads(
    cluster: KazooClient, access: PulsarCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has a session with the cluster, and one with the configuration store."""
    rates: list[float] = []

    def make_limiter(units_per_s: float) -> RateLimiter:
        rates.append(units_per_s)
        return RateLimiter(units_per_s)

    monkeypatch.setattr("infra.pulsar.cluster_access.RateLimiter", make_limiter)
    with _open_verifier(cluster=access, parallel_sessions=4, broker_lookups={}, offload_facts={}) as verify_candidates:
        assert verify_candidates([]).findings == []
    assert rates == [250, 250]


@contextmanager
def serve_broker(cluster: KazooClient, answers: dict[str, Any]) -> Iterator[FakeAdmin]:
    """Serve the admin API of the only broker of the cluster."""
    with serve_admin(answers) as server:
        registration = json.dumps({"webServiceUrl": server.url}).encode()
        cluster.create("/loadbalance/brokers/b:8080", registration, makepath=True)
        yield server


def write_compacted_candidates(cluster: KazooClient, folder: Path, *ledger_ids: int) -> FindingFiles:
    owner = {"component": "compacted-ledger", "owner": f"{_TOPIC}/__compaction"}
    candidates = [write_candidate(cluster, ledger_id, statement=owner) for ledger_id in ledger_ids]
    write_finding_file(folder / "candidates.parquet", [candidates])
    return FindingFiles(folder)


@pytest.mark.parametrize(
    ("status", "other"), [("SUCCESS", BrokerLookup.NOT_LISTING), ("RUNNING", BrokerLookup.UNKNOWN)]
)
def test_brokers_are_asked_once_for_all_candidates(
    cluster: KazooClient, access: PulsarCluster, tmp_path: Path, status: str, other: BrokerLookup
) -> None:
    """A running compaction may write any ledger."""
    topic = "/admin/v2/persistent/t/ns/a"
    answers = {
        "/admin/v2/broker-stats/topics": {"t/ns": {"0x0_0xf": {"persistent": {"persistent://t/ns/a": {}}}}},
        f"{topic}/internalStats": {"compactedLedger": {"ledgerId": 7}},
        f"{topic}/compaction": {"status": status},
    }
    with serve_broker(cluster, answers) as server:
        asked = replace(access, admin=BrokerAdminAddress(url=server.url))
        compactions = _look_up_compactions(asked, write_compacted_candidates(cluster, tmp_path, 7, 8))
        assert compactions == CompactionLookup({7: BrokerLookup.LISTING, 8: other})
        assert sorted(path for path, _ in server.requests) == sorted([*answers, f"{topic}/compaction"])


def test_an_old_list_of_loaded_topics_is_read_again(
    cluster: KazooClient, access: PulsarCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question about a topic that a broker has unloaded meanwhile would load it."""
    monkeypatch.setattr("infra.pulsar.compaction_lookup._LIST_LIFETIME_S", -1.0)
    names = [f"t/ns/persistent/{name}" for name in ("a", "b")]
    candidates = [
        write_candidate(
            cluster,
            7 + number,
            statement={"component": "compacted-ledger", "owner": f"managed-ledgers/{name}/__compaction"},
        )
        for number, name in enumerate(names)
    ]
    write_finding_file(tmp_path / "candidates.parquet", [candidates])
    lists: list[Any] = [
        {"t/ns": {"0x0_0xf": {"persistent": {f"persistent://t/ns/{each}": {} for each in topics}}}}
        for topics in ("ab", "a")
    ]
    statistics = "/admin/v2/broker-stats/topics"
    answers: dict[str, Any] = {statistics: [(200, json.dumps(each)) for each in lists]}
    for name in ("a", "b"):
        answers[f"/admin/v2/persistent/t/ns/{name}/internalStats"] = {"compactedLedger": {"ledgerId": 1}}
        answers[f"/admin/v2/persistent/t/ns/{name}/compaction"] = {"status": "SUCCESS"}
    with serve_broker(cluster, answers) as server:
        asked = replace(access, admin=BrokerAdminAddress(url=server.url))
        compactions = _look_up_compactions(asked, FindingFiles(tmp_path))
        assert compactions == CompactionLookup({7: BrokerLookup.NOT_LISTING})
        assert server.count(statistics) == 2


def test_brokers_are_not_asked_without_compacted_candidates(
    cluster: KazooClient, access: PulsarCluster, tmp_path: Path
) -> None:
    write_finding_file(tmp_path / "candidates.parquet", [[write_candidate(cluster, 7)]])
    with serve_broker(cluster, {}) as server:
        asked = replace(access, admin=BrokerAdminAddress(url=server.url))
        assert _look_up_compactions(asked, FindingFiles(tmp_path)) == CompactionLookup({})
        assert server.requests == []


@pytest.mark.parametrize("token_file", ["", "/absent/token"])
def test_brokers_that_do_not_answer_and_files_that_are_absent_are_a_problem(
    cluster: KazooClient, access: PulsarCluster, tmp_path: Path, token_file: str
) -> None:
    with serve_broker(cluster, {}) as server:
        asked = replace(access, admin=BrokerAdminAddress(url=server.url, token_file=token_file))
        compactions = _look_up_compactions(asked, write_compacted_candidates(cluster, tmp_path, 7))
    assert compactions.answers == {}
    assert ("pulsar_admin_token_file" if token_file else "status 404") in compactions.problem


def test_an_owner_of_an_unknown_tenant_makes_it_unattributed(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7, statement={"owner": "managed-ledgers/other/ns/persistent/a"})
    (found,) = verify(reader, owners, [candidate])
    assert (found.kind, found.statement["verdict"]) == (FindingKind.UNATTRIBUTED_LEDGER, "owner_foreign")
    assert (found.statement["confirmed"], "tenant" in found.detail) == ("false", True)
