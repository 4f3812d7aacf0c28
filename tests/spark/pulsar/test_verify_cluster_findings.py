"""A candidate stays a finding if its ledger is unchanged and its owner, looked up by name, does not list it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.compaction_lookup import CompactionDirectory
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.znode_reads import ZnodeReader
from logstore.positions import LedgerId
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding, FindingKind
from spark.pulsar.verify_cluster_findings import ClusterVerifier
from tests.infra.pulsar.conftest import cluster, ensemble, reader, zookeeper
from tests.infra.pulsar.fake_admin import serve_admin
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
        "component": "managed-ledger",
        "owner": _TOPIC,
    } | changes.pop("statement", {})
    fields: dict[str, Any] = {"kind": FindingKind.ORPHAN_LEDGER, "key": path, "statement": statement} | changes
    return Finding(ledger_id=LedgerId(ledger_id), **fields)


@pytest.fixture
def owners(cluster: KazooClient, reader: ZnodeReader) -> OwnerDirectory:
    cluster.create("/admin/policies/t", b"{}", makepath=True)
    return make_owner_directory(reader)


def verify(reader: ZnodeReader, owners: OwnerDirectory, candidates: Sequence[Finding]) -> list[Finding]:
    return ClusterVerifier(reader, owners, CompactionDirectory(None, reader), "ledgers").verify(candidates)


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
    statement = {"version": str(stat.version), "czxid": str(stat.czxid), "owner": name}
    return Finding(kind=FindingKind.ORPHAN_MANAGED_LEDGER, key=path, statement=statement)


def test_an_orphan_managed_ledger_is_looked_up_by_its_topics_and_namespace(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    cluster.create("/admin/policies/t/ns", b"{}")
    pending = write_orphan_managed_ledger(cluster, "t/ns/persistent/a-b-sub__transaction_pending_ack")
    homeless = write_orphan_managed_ledger(cluster, "t/gone/persistent/c")
    changed = write_orphan_managed_ledger(cluster, "t/gone/persistent/d")
    cluster.set(changed.key, wire.managed_ledger([6]))
    findings = verify(reader, owners, [pending, homeless, changed])
    assert [(found.key, found.statement["verdict"], found.statement["confirmed"]) for found in findings] == [
        (pending.key, "topic_absent", "true"),
        (homeless.key, "namespace_absent", "true"),
    ]
    cluster.create("/managed-ledgers/t/ns/persistent/a-b", b"")
    cluster.create("/admin/policies/t/gone", b"{}")
    assert verify(reader, owners, [pending, homeless]) == []


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
    ("state", "confirmed"),
    [
        ((7, "SUCCESS"), []),
        ((9, "SUCCESS"), ["true"]),
        ((9, "RUNNING"), ["false"]),
    ],
)
def test_a_broker_that_has_loaded_the_topic_confirms_or_refutes_a_compacted_ledger(
    cluster: KazooClient,
    reader: ZnodeReader,
    owners: OwnerDirectory,
    state: tuple[int, str],
    confirmed: list[str],
) -> None:
    """The broker's compacted ledger is another one, or the candidate; a running compaction may write the candidate."""
    topic = "/admin/v2/persistent/t/ns/a"
    answers = {
        "/admin/v2/broker-stats/topics": {"t/ns": {"0x0_0xf": {"persistent": {"persistent://t/ns/a": {}}}}},
        f"{topic}/internalStats": {"compactedLedger": {"ledgerId": state[0]}},
        f"{topic}/compaction": {"status": state[1]},
    }
    owner = {"component": "compacted-ledger", "owner": f"{_TOPIC}/__compaction"}
    candidate = write_candidate(cluster, 7, statement=owner)
    with serve_admin(answers) as server:
        registration = json.dumps({"webServiceUrl": server.url}).encode()
        cluster.create("/loadbalance/brokers/b:8080", registration, makepath=True)
        compactions = CompactionDirectory(BrokerAdminAddress(url=server.url), reader)
        findings = ClusterVerifier(reader, owners, compactions, "ledgers").verify([candidate])
    assert [found.statement["confirmed"] for found in findings] == confirmed
    assert compactions.problems == {}


def test_an_admin_api_that_fails_leaves_a_compacted_ledger_unconfirmed(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    owner = {"component": "compacted-ledger", "owner": f"{_TOPIC}/__compaction"}
    candidate = write_candidate(cluster, 7, statement=owner)
    with serve_admin({}) as server:
        registration = json.dumps({"webServiceUrl": server.url}).encode()
        cluster.create("/loadbalance/brokers/b:8080", registration, makepath=True)
        compactions = CompactionDirectory(BrokerAdminAddress(url=server.url), reader)
        (found,) = ClusterVerifier(reader, owners, compactions, "ledgers").verify([candidate])
    assert found.statement["confirmed"] == "false"
    assert list(compactions.problems) == ["admin API"]


def test_an_owner_of_an_unknown_tenant_makes_it_unattributed(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    candidate = write_candidate(cluster, 7, statement={"owner": "managed-ledgers/other/ns/persistent/a"})
    (found,) = verify(reader, owners, [candidate])
    assert (found.kind, found.statement["verdict"]) == (FindingKind.UNATTRIBUTED_LEDGER, "owner_foreign")
    assert (found.statement["confirmed"], "tenant" in found.detail) == ("false", True)
