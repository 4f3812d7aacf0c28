"""Managed ledgers without a topic or a namespace are deleted through a broker, and by nothing else.

ZooKeeper is real. The broker is a small HTTP server that deletes the znodes as a broker does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar import broker_admin
from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdminAddress
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_changes import LeasedClusterChanges, open_cluster_changes
from infra.pulsar.cluster_lease import LeaseLost
from logstore.errors import InvalidInput, StoreUnavailable, UnexpectedClusterState, UnreadableClusterState
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from tests.infra.pulsar.fake_admin import CLUSTER_ANSWERS, CLUSTER_ZNODES, FakeAdmin, Redirect, serve_admin
from tests.infra.pulsar.planted_orphans import read_tree, write
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_KIND = FindingKind.ORPHAN_MANAGED_LEDGER
_DELETED = RemovalResult(fate=FindingFate.DELETED)
_PENDING = "t/ns/persistent/a-sub__transaction_pending_ack"
_ABSENT = ("t/gone/persistent/a", "t/gone/persistent/b")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerWorld:
    """A cluster whose broker deletes topics, except those that have another answer."""

    client: KazooClient
    server: FakeAdmin
    address: PulsarCluster

    def plant(
        self, name: str, verdict: ManagedLedgerVerdict = ManagedLedgerVerdict.TOPIC_ABSENT, **more: Any
    ) -> Finding:
        """Create an orphan managed ledger with two ledgers, and return it as a plan would."""
        path = f"managed-ledgers/{name}"
        write(self.client, path, wire.managed_ledger([11, 12], **more))
        stat = self.client.exists(f"/{path}")
        self.server.answers[make_request(name)] = lambda: self.delete(name)
        statement = {
            "version": str(stat.version),
            "czxid": str(stat.czxid),
            "owner": path,
            "verdict": verdict.value,
            "confirmed": "true",
        }
        return Finding(kind=_KIND, key=f"/{path}", objects=2, statement=statement, detail=verdict.reason)

    def delete(self, name: str) -> tuple[int, str]:
        """Delete a managed ledger as a broker does, which owns the namespace from then on."""
        namespace = name.rsplit("/", 2)[0]
        self.client.ensure_path(f"/namespace/{namespace}/0x00000000_0xffffffff")
        self.client.delete(f"/managed-ledgers/{name}", recursive=True)
        return (204, "")

    def list_deletions(self) -> list[str]:
        return [request for request, _ in self.server.requests if request.startswith("DELETE")]


def make_request(name: str) -> str:
    *namespace, _, topic = name.split("/")
    return f"DELETE /admin/v2/persistent/{'/'.join([*namespace, topic])}?force=true"


@pytest.fixture
def world(cluster: KazooClient, ensemble: EnsembleOptions, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerWorld]:
    monkeypatch.setattr(broker_admin, "_BACKOFF_S", 0.01)
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "admin/policies/t/ns", b"{}")
    write(cluster, "managed-ledgers")
    for path, value in CLUSTER_ZNODES.items():
        write(cluster, path, value)
    with serve_admin(CLUSTER_ANSWERS) as server:
        address = PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=4, admin=BrokerAdminAddress(url=server.url))
        yield BrokerWorld(client=cluster, server=server, address=address)


@pytest.fixture
def changes(world: BrokerWorld) -> Iterator[LeasedClusterChanges]:
    with open_cluster_changes(world.address, "a") as changes:
        yield changes


def test_pending_acknowledgements_without_a_topic_are_deleted_by_force(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    finding = world.plant(_PENDING)
    (look,) = changes.look(_KIND, [finding])
    assert [part["path"] for part in look.parts] == [finding.key]
    assert changes.remove(_KIND, [finding]) == [_DELETED]
    assert world.list_deletions() == [make_request(_PENDING)]
    assert world.client.exists("/managed-ledgers/t/ns/persistent") is not None, "never a parent"
    assert changes.look(_KIND, [finding]) == [RemovalLook()]
    assert changes.remove(_KIND, [finding]) == [_DELETED], "again"
    assert len(world.list_deletions()) == 1


def test_broker_that_owns_the_namespace_gets_the_request(world: BrokerWorld, changes: LeasedClusterChanges) -> None:
    finding = world.plant(_PENDING)
    with serve_admin({make_request(_PENDING): lambda: world.delete(_PENDING)}) as owner:
        path = make_request(_PENDING).removeprefix("DELETE ")
        world.server.answers[make_request(_PENDING)] = Redirect(f"{owner.url}{path}")
        assert changes.remove(_KIND, [finding]) == [_DELETED]
        assert owner.count(make_request(_PENDING)) == 1


def test_all_managed_ledgers_of_an_absent_namespace_are_deleted(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    """The first request makes a broker own the namespace, which looks like a use of it."""
    findings = [world.plant(name, ManagedLedgerVerdict.NAMESPACE_ABSENT) for name in _ABSENT]
    for finding in findings:
        assert changes.remove(_KIND, [finding]) == [_DELETED]
    assert world.list_deletions() == [make_request(name) for name in _ABSENT]


def test_namespace_that_a_broker_owns_for_another_reason_is_kept(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    finding = world.plant(_ABSENT[0], ManagedLedgerVerdict.NAMESPACE_ABSENT)
    write(world.client, "namespace/t/gone/0x00000000_0xffffffff", b"{}")
    (result,) = changes.remove(_KIND, [finding])
    assert result.fate is FindingFate.KEPT
    assert "a broker owns its namespace" in result.reason
    assert not world.list_deletions()


def _touch(world: BrokerWorld) -> None:
    world.client.set(f"/managed-ledgers/{_PENDING}", wire.managed_ledger([11, 12, 13]))


def _create_anew(world: BrokerWorld) -> None:
    world.client.delete(f"/managed-ledgers/{_PENDING}")
    write(world.client, f"managed-ledgers/{_PENDING}", wire.managed_ledger([11, 12]))


def _create_topic(world: BrokerWorld) -> None:
    write(world.client, "managed-ledgers/t/ns/persistent/a", wire.managed_ledger([1]))


_SURPRISES: dict[str, Callable[[BrokerWorld], None]] = {
    "another version": _touch,
    "created anew": _create_anew,
    "the topic exists": _create_topic,
}


@pytest.mark.parametrize("happen", _SURPRISES.values(), ids=_SURPRISES.keys())
def test_surprise_deletes_nothing(
    world: BrokerWorld, changes: LeasedClusterChanges, happen: Callable[[BrokerWorld], None]
) -> None:
    finding = world.plant(_PENDING)
    happen(world)
    for act in (changes.look, changes.remove):
        with pytest.raises(UnexpectedClusterState, match="a-sub__transaction_pending_ack: expected"):
            act(_KIND, [finding])
    assert not world.list_deletions()


def test_policies_of_the_namespace_are_a_surprise(world: BrokerWorld, changes: LeasedClusterChanges) -> None:
    finding = world.plant(_ABSENT[0], ManagedLedgerVerdict.NAMESPACE_ABSENT)
    write(world.client, "admin/policies/t/gone", b"{}")
    with pytest.raises(UnexpectedClusterState, match="its namespace has no policies"):
        changes.remove(_KIND, [finding])
    assert not world.list_deletions()


def test_shadow_topic_is_kept_because_a_broker_would_delete_the_ledgers_of_its_source(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    finding = world.plant(_ABSENT[0], ManagedLedgerVerdict.NAMESPACE_ABSENT, shadow="persistent://t/ns/source")
    (result,) = changes.remove(_KIND, [finding])
    assert (result.fate, "ledgers of another topic" in result.reason) == (FindingFate.KEPT, True)
    assert not world.list_deletions()


def test_source_of_a_shadow_topic_is_a_surprise(world: BrokerWorld) -> None:
    finding = world.plant(_PENDING)
    shadow = "t/ns/persistent/shadow"
    write(world.client, f"managed-ledgers/{shadow}", wire.managed_ledger([12], shadow="persistent://t/ns/a"))
    with open_cluster_changes(world.address, "a", shadow_topics=[shadow]) as changes:
        with pytest.raises(UnexpectedClusterState, match=r"expected no shadow topic, found .*/shadow"):
            changes.remove(_KIND, [finding])
        world.client.set(f"/managed-ledgers/{shadow}", b"\xff")
        with pytest.raises(UnreadableClusterState, match="shadow"):
            changes.remove(_KIND, [finding])
    assert not world.list_deletions()


def test_managed_ledger_that_cannot_be_read_stops_the_apply_for_now(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    finding = world.plant(_PENDING)
    world.client.set(finding.key, b"\xff")
    stat = world.client.exists(finding.key)
    unread = replace(finding, statement={**finding.statement, "version": str(stat.version)})
    with pytest.raises(UnreadableClusterState, match="its ledgers are unknown"):
        changes.remove(_KIND, [unread])
    assert not world.list_deletions()


@pytest.mark.parametrize(
    "name", ["t/ns/a-x/persistent/b__transaction_pending_ack", "t/ns/persistent/a%2Fb-sub__transaction_pending_ack"]
)
def test_name_that_the_admin_api_does_not_have_is_kept(
    world: BrokerWorld, changes: LeasedClusterChanges, name: str
) -> None:
    finding = world.plant(name)
    before = read_tree(world.client)
    (result,) = changes.remove(_KIND, [finding])
    assert (result.fate, "the admin API has no topic with its name" in result.reason) == (FindingFate.KEPT, True)
    assert read_tree(world.client) == before


@pytest.mark.parametrize(
    ("status", "fate", "requests"),
    [
        (404, FindingFate.KEPT, 1),
        (409, FindingFate.KEPT, 1),
        (401, FindingFate.FAILED, 1),
        (403, FindingFate.FAILED, 1),
        (500, FindingFate.FAILED, 3),
        (429, FindingFate.FAILED, 3),
    ],
)
def test_answer_of_a_broker_that_does_not_delete_becomes_the_fate(
    world: BrokerWorld, changes: LeasedClusterChanges, status: int, fate: FindingFate, requests: int
) -> None:
    finding = world.plant(_PENDING)
    world.server.answers[make_request(_PENDING)] = (status, '{"reason":"Namespace not found"}')
    (result,) = changes.remove(_KIND, [finding])
    assert (result.fate, f"status {status} (Namespace not found)" in result.reason) == (fate, True)
    assert len(world.list_deletions()) == requests


def test_error_after_a_deletion_that_happened_counts_as_deleted(
    world: BrokerWorld, changes: LeasedClusterChanges
) -> None:
    finding = world.plant(_PENDING)

    def fail_after_deletion() -> tuple[int, str]:
        world.delete(_PENDING)
        return (500, "{}")

    world.server.answers[make_request(_PENDING)] = fail_after_deletion
    assert changes.remove(_KIND, [finding]) == [_DELETED]


@pytest.mark.parametrize("happen", _SURPRISES.values(), ids=_SURPRISES.keys())
def test_surprise_after_an_error_of_the_broker_sends_no_other_request(
    world: BrokerWorld, changes: LeasedClusterChanges, happen: Callable[[BrokerWorld], None]
) -> None:
    """A deletion by force would not stop at producers and consumers that came meanwhile."""
    finding = world.plant(_PENDING)

    def fail() -> tuple[int, str]:
        happen(world)
        return (500, "{}")

    world.server.answers[make_request(_PENDING)] = fail
    if happen is _create_anew:
        assert changes.remove(_KIND, [finding]) == [_DELETED], "the one of the plan is gone"
    else:
        with pytest.raises(UnexpectedClusterState, match="a-sub__transaction_pending_ack: expected"):
            changes.remove(_KIND, [finding])
    assert world.list_deletions() == [make_request(_PENDING)]


def test_confirmation_without_a_deletion_is_looked_at_again(world: BrokerWorld, changes: LeasedClusterChanges) -> None:
    finding = world.plant(_PENDING)
    world.server.answers[make_request(_PENDING)] = (204, "")
    with pytest.raises(StoreUnavailable, match="expected to be deleted, found it"):
        changes.remove(_KIND, [finding])


def test_no_answer_is_no_fate(world: BrokerWorld) -> None:
    finding = world.plant(_PENDING)
    address = replace(world.address, admin=BrokerAdminAddress(url="http://127.0.0.1:9"))
    with open_cluster_changes(address, "a") as changes, pytest.raises(AdminRequestFailed, match="no connection"):
        changes.remove(_KIND, [finding])


def test_nothing_is_sent_without_the_lease(world: BrokerWorld, changes: LeasedClusterChanges) -> None:
    finding = world.plant(_PENDING)
    with open_cluster_changes(world.address, "a"):
        pass
    with pytest.raises(LeaseLost):
        changes.remove(_KIND, [finding])
    assert not world.list_deletions()


@pytest.mark.parametrize("path", CLUSTER_ANSWERS)
def test_nothing_is_sent_to_the_admin_api_of_another_cluster(
    world: BrokerWorld, changes: LeasedClusterChanges, path: str
) -> None:
    """A topic of the same name may be in use there."""
    finding = world.plant(_PENDING)
    world.server.answers[path] = ["other"]
    for act in (changes.look, changes.remove):
        with pytest.raises(InvalidInput, match=r"pulsar_admin_url: expected the API of .* found .*other"):
            act(_KIND, [finding])
    assert not world.list_deletions()


def test_cluster_without_an_admin_api_is_refused_by_the_name_of_the_setting(world: BrokerWorld) -> None:
    finding = world.plant(_PENDING)
    address = replace(world.address, admin=None)
    with open_cluster_changes(address, "a") as changes, pytest.raises(InvalidInput, match="pulsar_admin_url"):
        changes.remove(_KIND, [finding])
