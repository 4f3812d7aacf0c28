"""One job changes a cluster at a time, and a job that was overtaken changes nothing."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar import cluster_lease
from infra.pulsar.cluster_lease import LEASE_PATH, ClusterLease, LeaseLost
from infra.pulsar.ledger_changes import LedgerChanges
from logstore.errors import PreconditionFailed, UnexpectedClusterState
from logstore.failpoints import SimulatedCrash, arm
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import format_ledger_path

pytestmark = pytest.mark.external_service


@pytest.fixture
def session(ensemble: EnsembleOptions) -> Iterator[ZooKeeperSession]:
    with closing(ZooKeeperSession(ensemble, lambda _: None)) as session:
        yield session


def make_changes(session: ZooKeeperSession) -> LedgerChanges:
    lease = ClusterLease(session, "a")
    return LedgerChanges(session, "ledgers", lease, lease.take())


def make_ledger(ledger_id: int, path: str = "", data: bytes = b"") -> JournaledLedger:
    path = path or format_ledger_path(ledger_id)
    return JournaledLedger(ledger_id=ledger_id, path=path, version=0, czxid=1, data=data)


def write_ledgers(cluster: KazooClient, *ledger_ids: int) -> list[JournaledLedger]:
    for ledger_id in ledger_ids:
        cluster.create(f"/ledgers/{format_ledger_path(ledger_id)}", b"ledger %d" % ledger_id, makepath=True)
    return [make_ledger(ledger_id) for ledger_id in ledger_ids]


def test_a_lease_is_refused_while_another_job_has_it(session: ZooKeeperSession) -> None:
    lease = ClusterLease(session, "catalog a, apply 1").take()
    with pytest.raises(PreconditionFailed, match="catalog a, apply 1"):
        ClusterLease(session, "catalog b, apply 1").take()
    ClusterLease(session, "catalog c, apply 1").release()
    with pytest.raises(PreconditionFailed):
        ClusterLease(session, "catalog b, apply 1").take()
    ClusterLease(session, "catalog a, apply 1").release()
    ClusterLease(session, "catalog a, apply 1").release()
    assert ClusterLease(session, "catalog b, apply 1").take().mark != lease.mark


def test_an_undo_takes_the_lease_from_the_apply(session: ZooKeeperSession, cluster: KazooClient) -> None:
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    ClusterLease(session, "b", overtakes="a").take()
    with pytest.raises(LeaseLost):
        changes.delete(ledgers, {})
    with pytest.raises(PreconditionFailed, match="found b"):
        ClusterLease(session, "a").take()


def test_an_expired_lease_is_taken(
    session: ZooKeeperSession, cluster: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    monkeypatch.setattr(cluster_lease, "LEASE_S", 0.0)
    ClusterLease(session, "b").take()
    with pytest.raises(LeaseLost):
        changes.delete(ledgers, {})


def test_a_lease_whose_answer_was_lost_is_taken_once(session: ZooKeeperSession, cluster: KazooClient) -> None:
    lease = ClusterLease(session, "a")
    arm("pulsar.take_lease.reported_failed", action="fail")
    with pytest.raises(Exception, match="take_lease"):
        lease.take()
    assert [f"{LEASE_PATH}/{name}" for name in cluster.get_children(LEASE_PATH)] == [lease.take().mark]
    assert cluster.get(LEASE_PATH)[1].version == 1


@pytest.mark.parametrize("is_taken", [False, True], ids=["deleted", "taken by another job"])
def test_a_lease_that_was_deleted_by_hand_is_lost(
    session: ZooKeeperSession, cluster: KazooClient, is_taken: bool
) -> None:
    """The next holder's znode has the same versions as the first one's had."""
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    cluster.delete("/sexton", recursive=True)
    if is_taken:
        ClusterLease(session, "b").take()
    with pytest.raises(LeaseLost):
        changes.delete(ledgers, {})
    assert cluster.exists(f"/ledgers/{ledgers[0].path}")


@pytest.mark.parametrize("value", [b"[]", b"{}", b"not ours", b"\xff"])
def test_a_value_that_no_lease_has_is_refused_by_name(
    session: ZooKeeperSession, cluster: KazooClient, value: bytes
) -> None:
    cluster.create(LEASE_PATH, value, makepath=True)
    with pytest.raises(PreconditionFailed, match=r'/sexton/lease: expected {"holder": NAME}, found'):
        ClusterLease(session, "a").take()
    assert cluster.get(LEASE_PATH)[0] == value
    cluster.set(LEASE_PATH, b"")
    ClusterLease(session, "a").take()


def test_a_lease_that_was_freed_ends_its_proof(session: ZooKeeperSession, cluster: KazooClient) -> None:
    """An attempt that was replaced may still run when its job has ended."""
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    ClusterLease(session, "a").release()
    with pytest.raises(LeaseLost):
        changes.delete(ledgers, {})
    assert not cluster.get_children(LEASE_PATH)


def test_ledgers_are_deleted_in_their_versions(session: ZooKeeperSession, cluster: KazooClient) -> None:
    ledgers = write_ledgers(cluster, *range(99), 2**40)
    changes = make_changes(session)
    assert changes.delete(ledgers, {})
    assert not any(cluster.exists(f"/ledgers/{ledger.path}") for ledger in ledgers)
    assert cluster.exists("/ledgers/00/0000")
    assert changes.delete(ledgers, {})


@pytest.mark.parametrize("change", ["set", "delete"])
def test_an_owner_that_changes_stops_the_deletion(session: ZooKeeperSession, cluster: KazooClient, change: str) -> None:
    """Some ledgers of the request may be absent."""
    ledgers = write_ledgers(cluster, 1, 2, 3)
    cluster.delete(f"/ledgers/{ledgers[0].path}")
    for name in "ab":
        cluster.create(f"/managed-ledgers/{name}", makepath=True)
    changes, versions = make_changes(session), {"managed-ledgers/a": 0, "managed-ledgers/b": 0}
    if change == "set":
        cluster.set("/managed-ledgers/b", b"")
    else:
        cluster.delete("/managed-ledgers/b")
    assert not changes.delete(ledgers, versions)
    assert cluster.exists(f"/ledgers/{ledgers[1].path}")
    assert changes.delete(ledgers, {"managed-ledgers/a": 0})
    assert not any(cluster.exists(f"/ledgers/{ledger.path}") for ledger in ledgers)


def test_another_version_stops_the_deletion(session: ZooKeeperSession, cluster: KazooClient) -> None:
    """All znodes of its request stay."""
    ledgers = write_ledgers(cluster, 1, 2, 3)
    cluster.set(f"/ledgers/{ledgers[1].path}", b"recovered")
    changes = make_changes(session)
    with pytest.raises(UnexpectedClusterState, match="L0002: expected the version"):
        changes.delete(ledgers, {})
    assert all(cluster.exists(f"/ledgers/{ledger.path}") for ledger in ledgers)


def test_an_overtaken_job_changes_nothing(session: ZooKeeperSession, cluster: KazooClient) -> None:
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    ClusterLease(session, "a").take()
    with pytest.raises(LeaseLost):
        changes.delete(ledgers, {})
    with pytest.raises(LeaseLost):
        changes.restore(format_ledger_path(2), b"")
    assert cluster.exists(f"/ledgers/{ledgers[0].path}")
    assert not cluster.exists(f"/ledgers/{format_ledger_path(2)}")


@pytest.mark.parametrize(
    "path", ["INSTANCEID", "00/0000", "cookies/10.0.0.1:3181", "00/0000/L00001", "../managed-ledgers/t"]
)
def test_only_ledgers_are_deleted(session: ZooKeeperSession, cluster: KazooClient, path: str) -> None:
    ledgers = write_ledgers(cluster, 1)
    changes = make_changes(session)
    with pytest.raises(UnreadableMetadata):
        changes.delete([*ledgers, make_ledger(2, path)], {})
    assert cluster.exists(f"/ledgers/{ledgers[0].path}")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_a_deletion_is_repeated(session: ZooKeeperSession, cluster: KazooClient, moment: str) -> None:
    ledgers = write_ledgers(cluster, 1, 2)
    changes = make_changes(session)
    arm(f"pulsar.delete_ledgers.{moment}", action="crash")
    with pytest.raises(SimulatedCrash):
        changes.delete(ledgers, {})
    changes = make_changes(session)
    changes.delete(ledgers, {})
    assert not any(cluster.exists(f"/ledgers/{ledger.path}") for ledger in ledgers)


def test_a_ledger_is_restored_with_the_rights_of_its_parent(session: ZooKeeperSession, cluster: KazooClient) -> None:
    (ledger,) = write_ledgers(cluster, 1)
    changes = make_changes(session)
    changes.delete([ledger], {})
    cluster.delete("/ledgers/00/0000")
    assert changes.restore(ledger.path, b"ledger 1") is Restoration.RESTORED
    assert changes.restore(ledger.path, b"ledger 1") is Restoration.PRESENT
    assert changes.restore(ledger.path, b"another") is Restoration.OCCUPIED
    assert cluster.get(f"/ledgers/{ledger.path}")[0] == b"ledger 1"


def test_an_overtaken_job_creates_no_parent(session: ZooKeeperSession, cluster: KazooClient) -> None:
    cluster.create("/ledgers")
    changes = make_changes(session)
    ClusterLease(session, "b", overtakes="a").take()
    with pytest.raises(LeaseLost):
        changes.restore(format_ledger_path(1), b"")
    assert not cluster.get_children("/ledgers")


def test_no_root_of_ledgers_is_created(session: ZooKeeperSession, cluster: KazooClient) -> None:
    """The metadata of the cluster were wiped."""
    with pytest.raises(UnexpectedClusterState, match="expected the root of ledgers"):
        make_changes(session).restore(format_ledger_path(1), b"")
    assert cluster.get_children("/") == ["sexton"]


def test_an_old_lease_is_renewed_before_a_change(session: ZooKeeperSession, cluster: KazooClient) -> None:
    """A page of an apply may take longer than a lease lives."""
    now = [0.0]
    lease = ClusterLease(session, "a", clock=lambda: now[0])
    taken = lease.take()
    now[0] = 299.0
    assert lease.renew_if_old(taken) == taken
    now[0] = 301.0
    renewed = lease.renew_if_old(taken)
    assert (renewed.mark, renewed.taken_s) == (taken.mark, 301.0)
    assert cluster.get(LEASE_PATH)[1].version == 2
    assert lease.renew_if_old(taken) == renewed, "the answer of the first renewal was lost"
    ClusterLease(session, "a").take()
    now[0] = 602.0
    with pytest.raises(LeaseLost):
        lease.renew_if_old(renewed)
