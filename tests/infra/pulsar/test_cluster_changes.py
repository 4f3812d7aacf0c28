"""Writers of the cluster race with deletions: what is referenced stays or is put back, and the job stops.

A race happens at an exact moment of a deletion: after the last look and before its request, or right after its request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_changes import LeasedClusterChanges, open_cluster_changes
from infra.pulsar.cluster_lease import ClusterLease, LeaseLost
from infra.pulsar.ledger_changes import LedgerChanges
from logstore.errors import PreconditionFailed, RetryableError, StoreUnavailable, UnexpectedClusterState
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration
from logstore.reconciliation.findings import Finding
from tests.infra.coordination.zookeeper import ZooKeeper
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
from tests.logstore.pulsar import wire
from tests.pulsar_cluster.zookeeper_relay import DELETE, ZnodeWrite, ZooKeeperRelay

pytestmark = pytest.mark.external_service

Race = Callable[[KazooClient], None]


@pytest.fixture
def address(ensemble: EnsembleOptions) -> PulsarCluster:
    return PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=4)


@pytest.fixture(autouse=True)
def empty_cluster(cluster: KazooClient) -> None:
    """Roots and one tenant, whose topic has one ledger."""
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "admin/policies/t", b"{}")
    write(cluster, "managed-ledgers")


@pytest.fixture
def changes(address: PulsarCluster, empty_cluster: None) -> Iterator[LeasedClusterChanges]:
    with open_cluster_changes(address, "a") as changes:
        yield changes


class Moments:
    """What happens around the next request of a deletion, once."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.owner_versions: list[Mapping[str, int]] = []  # of all requests

    def take_before(self) -> Callable[[], None]:
        happen, self.before = self.before, lambda: None
        return happen

    def take_after(self) -> Callable[[], None]:
        happen, self.after = self.after, lambda: None
        return happen


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    moments, delete = Moments(), LedgerChanges.delete

    def race(changes: LedgerChanges, ledgers: Sequence[JournaledLedger], owner_versions: Mapping[str, int]) -> bool:
        moments.owner_versions.append(owner_versions)
        moments.take_before()()
        is_done = delete(changes, ledgers, owner_versions)
        moments.take_after()()
        return is_done

    monkeypatch.setattr(LedgerChanges, "delete", race)
    return moments


def delete_planned(changes: LeasedClusterChanges, *findings: Finding) -> None:
    changes.delete(changes.read_planned(findings))


def create_topic(cluster: KazooClient) -> None:
    write(cluster, TOPIC, wire.managed_ledger([8]))


def create_cursor(cluster: KazooClient) -> None:
    create_topic(cluster)
    write(cluster, CURSOR, wire.cursor(9))


def create_schema(cluster: KazooClient) -> None:
    write(cluster, SCHEMA, wire.schema_locator([8]))


def attach_to_topic(cluster: KazooClient) -> None:
    cluster.set(f"/{TOPIC}", wire.managed_ledger([8, 7]))


def attach_to_cursor(cluster: KazooClient) -> None:
    cluster.set(f"/{CURSOR}", wire.cursor(7))


def attach_to_schema(cluster: KazooClient) -> None:
    cluster.set(f"/{SCHEMA}", wire.schema_locator([8, 7]))


@dataclass(frozen=True)
class Owner:
    custom: Mapping[str, str]  # of its ledgers
    create: Race
    attach: Race  # the ledger 7


_OWNERS = {
    "topic": Owner(OF_TOPIC, create_topic, attach_to_topic),
    "cursor": Owner(OF_CURSOR, create_cursor, attach_to_cursor),
    "schema": Owner(OF_SCHEMA, create_schema, attach_to_schema),
}


@pytest.mark.parametrize("owner", _OWNERS.values(), ids=_OWNERS.keys())
def test_a_ledger_that_its_owner_takes_after_the_last_look_is_never_deleted(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments, owner: Owner
) -> None:
    owner.create(cluster)
    finding = plant_orphan(cluster, 7, owner.custom)
    moments.before = lambda: owner.attach(cluster)
    with pytest.raises(UnexpectedClusterState, match="ledger 7: expected no reference, found one in"):
        delete_planned(changes, finding)
    stat = cluster.exists(finding.key)
    assert str(stat.czxid) == finding.statement["czxid"], "it was not even deleted and put back"


@pytest.mark.parametrize("owner", _OWNERS.values(), ids=_OWNERS.keys())
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_ledger_whose_owner_comes_back_with_it_is_put_back(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments, owner: Owner, moment: str
) -> None:
    """A transaction cannot check that the owner is absent."""
    finding = plant_orphan(cluster, 7, owner.custom)
    value = cluster.get(finding.key)[0]

    def come_back() -> None:
        owner.create(cluster)
        owner.attach(cluster)

    setattr(moments, moment, come_back)
    with pytest.raises(UnexpectedClusterState, match=r"ledger 7: expected no reference, .*\. Ledgers put back: 1"):
        delete_planned(changes, finding)
    assert cluster.get(finding.key)[0] == value


def create_anew_with_ledger(path: str, attach: Race) -> Race:
    """Give the znode the value that has the ledger, in the version of the last look."""

    def happen(cluster: KazooClient) -> None:
        attach(cluster)
        value = cluster.get(f"/{path}")[0]
        cluster.delete(f"/{path}")
        write(cluster, path, value)

    return happen


def create_cursor_with_ledger(cluster: KazooClient) -> None:
    write(cluster, f"{TOPIC}/another", wire.cursor(7))


def create_schema_with_ledger(cluster: KazooClient) -> None:
    write(cluster, SCHEMA, wire.schema_locator([7]))


_UNPROVABLE = {
    "the topic is created anew": Owner(OF_TOPIC, create_topic, create_anew_with_ledger(TOPIC, attach_to_topic)),
    "the cursor is created anew": Owner(OF_CURSOR, create_cursor, create_anew_with_ledger(CURSOR, attach_to_cursor)),
    "the schema is created anew": Owner(OF_SCHEMA, create_schema, create_anew_with_ledger(SCHEMA, attach_to_schema)),
    "a cursor of the topic takes it": Owner(OF_TOPIC, create_topic, create_cursor_with_ledger),
    "a schema of the topic takes it": Owner(OF_TOPIC, create_topic, create_schema_with_ledger),
}


@pytest.mark.parametrize("owner", _UNPROVABLE.values(), ids=_UNPROVABLE.keys())
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_ledger_that_gets_a_reference_which_no_version_shows_is_put_back(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments, owner: Owner, moment: str
) -> None:
    owner.create(cluster)
    finding = plant_orphan(cluster, 7, owner.custom)
    value = cluster.get(finding.key)[0]
    setattr(moments, moment, lambda: owner.attach(cluster))
    with pytest.raises(UnexpectedClusterState, match=r"ledger 7: expected no reference, .*\. Ledgers put back: 1"):
        delete_planned(changes, finding)
    assert cluster.get(finding.key)[0] == value


def test_a_process_that_dies_after_a_deletion_leaves_the_second_look_to_the_next(
    cluster: KazooClient, address: PulsarCluster, changes: LeasedClusterChanges
) -> None:
    """The next attempt deletes what the journal has, with the ledgers that are absent."""
    finding = plant_orphan(cluster, 7, OF_TOPIC)
    ledgers = changes.read_planned([finding])
    cluster.delete(finding.key)  # by the attempt that died
    create_topic(cluster)
    attach_to_topic(cluster)
    with (
        open_cluster_changes(address, "a") as next_changes,
        pytest.raises(UnexpectedClusterState, match="Ledgers put back: 1"),
    ):
        next_changes.delete(ledgers)
    assert cluster.get(finding.key)[0] == ledgers[0].data


def create_topic_anew(cluster: KazooClient) -> None:
    cluster.delete(f"/{TOPIC}")
    create_topic(cluster)


_HARMLESS: dict[str, tuple[Race, Race]] = {
    "another ledger is attached": (
        create_topic,
        lambda cluster: cluster.set(f"/{TOPIC}", wire.managed_ledger([8, 9])),
    ),
    "the topic is deleted": (create_topic, lambda cluster: cluster.delete(f"/{TOPIC}")),
    "the topic is created by the same name": (lambda _: None, create_topic),
    "the topic is deleted and created": (create_topic, create_topic_anew),
    "the parent of the topic is removed": (
        lambda cluster: write(cluster, TOPIC.rpartition("/")[0]),
        lambda cluster: cluster.delete("/managed-ledgers/t", recursive=True),
    ),
    "the broker deletes the ledger": (lambda _: None, lambda cluster: cluster.delete("/ledgers/00/0000/L0007")),
}


@pytest.mark.parametrize(("prepare", "happen"), _HARMLESS.values(), ids=_HARMLESS.keys())
def test_changes_without_a_reference_do_not_keep_an_orphan(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments, prepare: Race, happen: Race
) -> None:
    prepare(cluster)
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (7, 6)]
    moments.before = lambda: happen(cluster)
    delete_planned(changes, *findings)
    assert not any(cluster.exists(finding.key) for finding in findings)


def test_an_owner_that_never_rests_is_tried_later(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments
) -> None:
    create_topic(cluster)
    finding = plant_orphan(cluster, 7, OF_TOPIC)

    def change() -> None:
        cluster.set(f"/{TOPIC}", wire.managed_ledger([8]))
        moments.before = change

    moments.before = change
    with pytest.raises(StoreUnavailable, match="one changed at 5 looks"):
        delete_planned(changes, finding)
    assert cluster.exists(finding.key)


def test_ledgers_before_a_surprise_get_the_second_look(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments
) -> None:
    """The first request deletes 100 ledgers. Before the second one, a reference to one of them appears elsewhere."""
    create_topic(cluster)
    findings = [plant_orphan(cluster, 10_000 + number, OF_TOPIC) for number in range(101)]
    before = read_tree(cluster)

    def surprise() -> None:
        write(cluster, f"{TOPIC}/another", wire.cursor(10_000))
        cluster.set(findings[100].key, b"recovered")

    moments.after = surprise
    with pytest.raises(UnexpectedClusterState, match=r"ledger 10000: expected no reference, .*put back: 100"):
        delete_planned(changes, *findings)
    after = read_tree(cluster)
    assert {path: after[path] for path in before if path != findings[100].key} == {
        path: value for path, value in before.items() if path != findings[100].key
    }


def _change_ledger(cluster: KazooClient) -> None:
    cluster.set("/ledgers/00/0000/L0007", b"recovered")


def _make_cluster_anew(cluster: KazooClient) -> None:
    """Format BookKeeper. Its next ledgers have the ids and versions of the first ones."""
    cluster.delete("/ledgers", recursive=True)
    write(cluster, "ledgers/INSTANCEID", b"77aa")
    plant_orphan(cluster, 7, OF_TOPIC)


@pytest.mark.parametrize(
    ("happen", "expected"),
    [
        (_change_ledger, (UnexpectedClusterState, "expected the version that was read")),
        (lambda cluster: cluster.delete("/sexton/lease", recursive=True), (LeaseLost, "expected the lease of a")),
    ],
    ids=["the ledger is written", "the lease is deleted"],
)
def test_nothing_is_deleted_after_a_surprise(
    cluster: KazooClient,
    changes: LeasedClusterChanges,
    moments: Moments,
    happen: Race,
    expected: tuple[type[Exception], str],
) -> None:
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (6, 7)]
    moments.before = lambda: happen(cluster)
    error, message = expected
    with pytest.raises(error, match=message):
        delete_planned(changes, *findings)
    assert all(cluster.exists(finding.key) for finding in findings)


def _create_ledger_anew(cluster: KazooClient) -> None:
    value = cluster.get("/ledgers/00/0000/L0007")[0]
    cluster.delete("/ledgers/00/0000/L0007")
    write(cluster, "ledgers/00/0000/L0007", value)


@pytest.mark.parametrize(
    ("happen", "error", "message"),
    [
        (_create_ledger_anew, UnexpectedClusterState, "L0007: expected version 0 of transaction .* found version 0 of"),
        (_make_cluster_anew, PreconditionFailed, "cluster: expected 5f0a/.*, found 77aa/"),
    ],
    ids=["a ledger", "the cluster"],
)
def test_what_was_made_anew_with_the_same_version_between_two_requests_stays(
    cluster: KazooClient, changes: LeasedClusterChanges, happen: Race, error: type[Exception], message: str
) -> None:
    """A deletion names the version, which begins at 0 again. The transaction that created the znode differs."""
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (6, 7)]
    first, second = changes.read_planned(findings)
    changes.delete([first])
    happen(cluster)
    with pytest.raises(error, match=message):
        changes.delete([second])
    assert cluster.exists(findings[1].key)
    if happen is _make_cluster_anew:
        for change in (lambda: changes.restore([first]), lambda: changes.find_existing([6])):
            with pytest.raises(PreconditionFailed, match="found 77aa/"):
                change()


def test_an_owner_of_many_ledgers_is_checked_once_a_request(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments
) -> None:
    create_topic(cluster)
    findings = [plant_orphan(cluster, 10_000 + number, OF_TOPIC) for number in range(150)]
    before = read_tree(cluster)
    delete_planned(changes, *findings)
    assert moments.owner_versions == [{TOPIC: 0}] * 2
    assert read_tree(cluster) == {
        path: each for path, each in before.items() if path not in {finding.key for finding in findings}
    }


@pytest.mark.parametrize(("characters", "requests"), [(4_000, [100]), (11_000, [63, 37])])
def test_a_request_with_many_long_names_is_not_too_long(
    cluster: KazooClient, changes: LeasedClusterChanges, moments: Moments, characters: int, requests: list[int]
) -> None:
    """ZooKeeper closes the connection of a request above 1 MiB."""
    findings = []
    for number in range(100):
        name = f"t/ns/persistent/{number:02}{'x' * characters}"
        write(cluster, f"managed-ledgers/{name}", wire.managed_ledger([8]))
        findings.append(plant_orphan(cluster, 10_000 + number, OF_TOPIC | {"pulsar/managed-ledger": name}))
    delete_planned(changes, *findings)
    assert [len(versions) for versions in moments.owner_versions] == requests
    assert not any(cluster.exists(finding.key) for finding in findings)


@contextmanager
def relayed(zookeeper: ZooKeeper, address: PulsarCluster) -> Iterator[tuple[ZooKeeperRelay, PulsarCluster]]:
    relay = ZooKeeperRelay(int(zookeeper.address.rpartition(":")[2]))
    path = address.zookeeper.partition("/")[2]
    with closing(relay):
        yield relay, PulsarCluster(zookeeper=f"127.0.0.1:{relay.port}/{path}", session_timeout_s=4)


def _is_deletion(write: ZnodeWrite) -> bool:
    return write.kind == DELETE and "/ledgers/" in write.path


def test_a_deletion_whose_answer_is_lost_is_repeated(
    cluster: KazooClient, zookeeper: ZooKeeper, address: PulsarCluster
) -> None:
    create_topic(cluster)
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (6, 7)]
    lost: list[bool] = []
    with relayed(zookeeper, address) as (relay, through_relay), open_cluster_changes(through_relay, "a") as changes:
        ledgers = changes.read_planned(findings)
        relay.lose_answer(_is_deletion, before=lambda: lost.append(not cluster.exists(findings[0].key)))
        changes.delete(ledgers)
    assert lost == [True]
    assert not any(cluster.exists(finding.key) for finding in findings)


def test_a_session_that_ends_with_an_unknown_result_is_followed_by_another(
    cluster: KazooClient, zookeeper: ZooKeeper, address: PulsarCluster
) -> None:
    findings = [plant_orphan(cluster, ledger_id, OF_TOPIC) for ledger_id in (6, 7)]
    with relayed(zookeeper, address) as (relay, through_relay), open_cluster_changes(through_relay, "a") as changes:
        ledgers = changes.read_planned(findings)
        relay.lose_answer(_is_deletion, before=lambda: zookeeper.expire(changes._changes._session))
        with pytest.raises(RetryableError):
            changes.delete(ledgers)
        assert not any(cluster.exists(finding.key) for finding in findings)
        with pytest.raises(RetryableError):
            changes.restore([ledgers[0]])
        with open_cluster_changes(through_relay, "a") as next_changes:
            next_changes.delete(ledgers)
            assert next_changes.restore([ledgers[0]])[0][0] is Restoration.RESTORED


def test_a_job_that_is_overtaken_on_the_way_of_its_request_deletes_nothing(
    cluster: KazooClient, address: PulsarCluster, ensemble: EnsembleOptions, moments: Moments
) -> None:
    """Its connection is lost, and another job has the lease when the request arrives."""
    finding = plant_orphan(cluster, 7, OF_TOPIC)

    def overtake() -> None:
        with closing(ZooKeeperSession(ensemble, lambda _: None)) as session:
            ClusterLease(session, "b", overtakes="a").take()

    moments.before = overtake
    with open_cluster_changes(address, "a") as changes, pytest.raises(LeaseLost):
        delete_planned(changes, finding)
    assert cluster.exists(finding.key)
