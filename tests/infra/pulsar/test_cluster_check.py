"""A check names what a plan needs of a cluster, and which cluster it saw."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.objects.s3_store import BucketAddress
from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import check_cluster, read_cluster_identity
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.cluster_check import ClusterCheck
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.fake_admin import FakeAdmin, Redirect, serve_admin
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_BROKER = "10.0.0.1:8080"
_CONFIGURATION = "/admin/v2/brokers/internal-configuration"


def write_cluster(cluster: KazooClient, *, layout: bytes = _HIERARCHICAL) -> None:
    rpc = wire.encode_message((1, "bookie"), (2, 3181), (3, "10.0.0.1"), (4, "bookie-rpc"))
    for path, value in {
        "ledgers/LAYOUT": layout,
        "ledgers/INSTANCEID": b"5f0a",
        "ledgers/available/bk0": wire.encode_message((6, rpc)),
        "ledgers/available/readonly/bk1": wire.encode_message((6, rpc)),
        f"ledgers/{format_ledger_path(7)}": wire.ledger_metadata(),
        "managed-ledgers/public/default/persistent/orders": b"",
        "admin/clusters/east": b"{}",
        "admin/clusters/west": b"{}",
        "admin/clusters/global": b"{}",
        "admin/policies/public": b"{}",
        f"loadbalance/brokers/{_BROKER}": json.dumps({"webServiceUrl": f"http://{_BROKER}"}).encode(),
        f"namespace/pulsar/east/{_BROKER}/0x00000000_0xffffffff": b"{}",
        f"namespace/pulsar/{_BROKER}/0x00000000_0xffffffff": b"{}",
    }.items():
        cluster.create(f"/{path}", value, makepath=True)


@pytest.fixture
def access(ensemble: EnsembleOptions) -> PulsarCluster:
    return PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=5)


@pytest.fixture
def admin(access: PulsarCluster) -> Iterator[FakeAdmin]:
    """The admin API of the cluster that `write_cluster` writes."""
    chroot = access.zookeeper.partition("/")[2]
    answers = {
        "/admin/v2/brokers/ready": (200, "ok"),
        "/admin/v2/brokers/version": (200, "4.0.8"),
        "/admin/v2/clusters": ["east", "west"],
        "/admin/v2/brokers/east": [_BROKER],
        _CONFIGURATION: {"metadataStoreUrl": f"zk:zoo-1:2181,zoo-2:2181/{chroot}"},
    }
    with serve_admin(answers) as server:
        yield server


def _with_admin(access: PulsarCluster, admin: FakeAdmin) -> PulsarCluster:
    return replace(access, admin=BrokerAdminAddress(url=admin.url))


def failed(check: ClusterCheck) -> list[str]:
    return [each.name for each in check.capabilities if not each.ok]


def _detail(check: ClusterCheck, name: str) -> str:
    return next(each.detail for each in check.capabilities if each.name == name)


def test_a_cluster_is_named_and_found_fit(cluster: KazooClient, access: PulsarCluster) -> None:
    write_cluster(cluster)
    check = check_cluster(access)
    assert (check.ok, check.cluster) == (True, "east")
    assert {each.name: each.detail for each in check.capabilities} == {
        "layout": "hierarchical, 1 folder of ledgers",
        "ledger_manager": "HierarchicalLedgerManagerFactory",
        "identity": "INSTANCEID and the creation of /ledgers and /managed-ledgers identify the cluster",
        "metadata_service": "ZooKeeper; not compared with settings of brokers, because pulsar_admin_url is not set",
        "managed_ledgers": "1 tenant",
        "bookies": "2 bookies, 1 of them read-only",
        "brokers": f"1 broker: {_BROKER}",
        "admin": "not set: compacted ledgers stay unconfirmed",
        "offloads": "not set: objects of offloads are not checked",
        "shared_clusters": "none named: all ledgers of BookKeeper count as those of this cluster",
        "configuration_store": "the same as pulsar_zookeeper, 2 clusters, 1 tenant",
    }


def test_a_cluster_that_is_made_anew_in_the_same_transactions_has_another_identity() -> None:
    """A standalone cluster has no INSTANCEID, and always creates its roots in the same transactions."""

    class Reader:
        def __init__(self, created_ms: int) -> None:
            self._created_ms = created_ms

        def read(self, paths: list[str]) -> Iterator[tuple[str, Znode | None]]:
            for path in paths:
                yield path, None if path.endswith("INSTANCEID") else Znode(b"", 0, 4, self._created_ms, 0, 1)

    identities = {read_cluster_identity(cast("ZnodeReader", Reader(created_ms)), "ledgers") for created_ms in (1, 2)}
    assert len(identities) == 2


def test_the_identity_is_that_of_one_cluster_created_once(cluster: KazooClient, access: PulsarCluster) -> None:
    write_cluster(cluster)
    before = check_cluster(access).identity
    assert before.startswith("5f0a/")
    assert check_cluster(access).identity == before
    cluster.delete("/managed-ledgers", recursive=True)
    cluster.create("/managed-ledgers")
    assert check_cluster(access).identity != before


def test_an_empty_chroot_is_no_cluster(cluster: KazooClient, access: PulsarCluster) -> None:
    cluster.create("/elsewhere")
    check = check_cluster(access)
    assert failed(check) == ["layout", "identity", "managed_ledgers", "bookies", "brokers", "configuration_store"]
    assert (check.identity, check.cluster) == ("no INSTANCEID/absent/absent", "")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (b"", ["layout", "ledger_manager"]),
        (b"2\norg.example.FlatLedgerManagerFactory:1", ["ledger_manager"]),
        (_HIERARCHICAL.replace(b"2\n", b"3\n"), ["layout"]),
        (b"\xff\xfe", ["layout", "ledger_manager"]),
    ],
)
def test_an_unknown_layout_is_told(
    cluster: KazooClient, access: PulsarCluster, layout: bytes, expected: list[str]
) -> None:
    write_cluster(cluster, layout=layout)
    assert failed(check_cluster(access)) == expected


def test_a_bookie_without_an_address_is_told(cluster: KazooClient, access: PulsarCluster) -> None:
    write_cluster(cluster)
    cluster.create("/ledgers/available/bk2", b"")
    check = check_cluster(access)
    assert failed(check) == ["bookies"]
    assert "bk2" in _detail(check, "bookies")


def test_without_brokers_the_metadata_may_be_elsewhere(cluster: KazooClient, access: PulsarCluster) -> None:
    """Other brokers of a replicated cluster are no reason to guess the name."""
    write_cluster(cluster)
    cluster.delete(f"/loadbalance/brokers/{_BROKER}")
    check = check_cluster(access)
    assert (failed(check), check.cluster) == (["brokers"], "")
    assert "they may keep their metadata elsewhere now" in _detail(check, "brokers")


@pytest.mark.parametrize("registration", [b"", b"{}", b"[]", b'{"webServiceUrl": 7}', b"\xff"])
def test_a_broker_whose_registration_cannot_be_read_is_told(
    cluster: KazooClient, access: PulsarCluster, registration: bytes
) -> None:
    write_cluster(cluster)
    cluster.set(f"/loadbalance/brokers/{_BROKER}", registration)
    assert failed(check_cluster(access)) == ["brokers"]


def test_a_cluster_without_geo_replication_needs_no_broker_for_its_name(
    cluster: KazooClient, access: PulsarCluster
) -> None:
    write_cluster(cluster)
    cluster.delete("/admin/clusters/west")
    cluster.delete("/namespace", recursive=True)
    assert check_cluster(access).cluster == "east"


def test_an_admin_api_of_the_cluster_is_ready(cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin) -> None:
    write_cluster(cluster)
    check = check_cluster(_with_admin(access, admin))
    assert check.ok
    assert _detail(check, "admin") == "ready, Pulsar 4.0.8"
    chroot = access.zookeeper.partition("/")[2]
    assert _detail(check, "metadata_service") == f"ZooKeeper, below /{chroot}, as the brokers say"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"/admin/v2/brokers/ready": (200, "starting")}, "expected a ready broker, found 'starting'"),
        ({"/admin/v2/brokers/ready": (500, "")}, "expected a text, found status 500"),
        ({"/admin/v2/clusters": (401, "")}, "check pulsar_admin_token_file"),
        ({"/admin/v2/clusters": ["west"]}, "expected the API of cluster east, found 'clusters west'"),
        ({"/admin/v2/clusters": (200, "<html>")}, "expected a JSON list"),
        ({"/admin/v2/brokers/east": ["10.9.9.9:8080"]}, "expected the API of a broker in /loadbalance/brokers"),
        ({"/admin/v2/brokers/east": (403, '{"reason":"no superuser"}')}, "its role needs the rights of a superuser"),
        ({"/admin/v2/brokers/east": Redirect("http://elsewhere/x")}, "the token was not sent there"),
    ],
)
def test_an_admin_api_that_is_unfit_is_told(
    cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin, answer: dict[str, object], expected: str
) -> None:
    write_cluster(cluster)
    admin.answers |= answer
    check = check_cluster(_with_admin(access, admin))
    assert failed(check) == ["admin"]
    assert expected in _detail(check, "admin")


@pytest.mark.parametrize(
    "url", ["zk:zoo-1:2181/moved", "zoo-1:2181/moved", "rocksdb:///data", "oxia://host:6648/x", "etcd:http://host:2379"]
)
def test_metadata_in_another_place_is_told(
    cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin, url: str
) -> None:
    write_cluster(cluster)
    admin.answers[_CONFIGURATION] = {"metadataStoreUrl": url}
    check = check_cluster(_with_admin(access, admin))
    assert failed(check) == ["metadata_service"]
    assert f"expected the metadata store of the brokers, {url}" in _detail(check, "metadata_service")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ledgersRootPath": "/ledgers", "bookkeeperMetadataServiceUri": None}, None),
        ({"ledgersRootPath": "/other"}, "expected the ledgers of the brokers, /other"),
        ({"bookkeeperMetadataServiceUri": "zk+hierarchical://z:2181/CHROOT/ledgers", "ledgersRootPath": "/x"}, None),
        ({"bookkeeperMetadataServiceUri": "metadata-store:zk:z:2181,y:2181/CHROOT"}, None),
        ({"bookkeeperMetadataServiceUri": "metadata-store:zk:z:2181/x/ledgers"}, "expected the ledgers of the brokers"),
    ],
)
def test_ledgers_in_another_place_are_told(
    cluster: KazooClient,
    access: PulsarCluster,
    admin: FakeAdmin,
    settings: dict[str, str | None],
    expected: str | None,
) -> None:
    write_cluster(cluster)
    chroot = access.zookeeper.partition("/")[2]
    admin.answers[_CONFIGURATION] |= {key: value and value.replace("CHROOT", chroot) for key, value in settings.items()}
    check = check_cluster(_with_admin(access, admin))
    assert failed(check) == (["metadata_service"] if expected else [])
    assert (expected or "") in _detail(check, "metadata_service")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zk:zoo-2:2181,zoo-1:2181/CHROOT", []),
        ("zk:zoo-1:2181,zoo-2:2181/conf", ["configuration_store"]),
        ("zk:zoo-9:2181/CHROOT", ["configuration_store"]),
        ("oxia://host:6648/x", ["configuration_store"]),
    ],
)
def test_a_configuration_store_in_another_place_is_told(
    cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin, url: str, expected: list[str]
) -> None:
    write_cluster(cluster)
    chroot = access.zookeeper.partition("/")[2]
    admin.answers[_CONFIGURATION] |= {"configurationMetadataStoreUrl": url.replace("CHROOT", chroot)}
    assert failed(check_cluster(_with_admin(access, admin))) == expected


def test_a_configuration_store_without_the_cluster_of_the_brokers_is_told(
    cluster: KazooClient, access: PulsarCluster
) -> None:
    write_cluster(cluster)
    cluster.delete("/admin/clusters/east")
    check = check_cluster(access)
    assert failed(check) == ["configuration_store"]
    assert "expected the cluster of the brokers, east, found west" in _detail(check, "configuration_store")


def test_a_broker_without_an_address_of_the_scheme_is_told(
    cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin
) -> None:
    write_cluster(cluster)
    registration = json.dumps({"webServiceUrlTls": f"https://{_BROKER}"}).encode()
    cluster.set(f"/loadbalance/brokers/{_BROKER}", registration)
    check = check_cluster(_with_admin(access, admin))
    assert failed(check) == ["admin"]
    assert f"expected a scheme that {_BROKER} has, too" in _detail(check, "admin")


def test_a_bucket_of_offloads_has_to_be_listable(
    cluster: KazooClient, access: PulsarCluster, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(cluster)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    listing = "<ListBucketResult><Name>offloads</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
    admin.answers = _AnyListing(listing)
    bucket = BucketAddress("offloads", "offloads", admin.url, "us-east-1", "key", "secret")
    check = check_cluster(replace(access, offloads=bucket))
    assert _detail(check, "offloads") == "bucket offloads can be listed, and is empty"
    admin.answers = _AnyListing("<html>")
    check = check_cluster(replace(access, offloads=bucket))
    assert failed(check) == ["offloads"]
    assert _detail(check, "offloads").startswith("pulsar_offload_bucket: expected a bucket that can be listed. ")
    without_keys = replace(bucket, access_key="", secret_key="")
    assert "set pulsar_offload_access_key and" in _detail(
        check_cluster(replace(access, offloads=without_keys)), "offloads"
    )


class _AnyListing(dict[str, object]):
    """Answers that give one body for each path."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self._body = body

    def get(self, *_: object) -> object:
        return (200, self._body)


def test_shared_clusters_are_others(cluster: KazooClient, access: PulsarCluster) -> None:
    write_cluster(cluster)
    check = check_cluster(replace(access, shared_clusters=("north", "south")))
    assert check.ok
    assert _detail(check, "shared_clusters").startswith("north, south: a ledger to which nothing refers here may")
    assert failed(check_cluster(replace(access, shared_clusters=("north", "east")))) == ["shared_clusters"]


def test_a_configuration_store_of_its_own_names_clusters_and_tenants(
    cluster: KazooClient, access: PulsarCluster
) -> None:
    write_cluster(cluster)
    cluster.delete("/admin", recursive=True)
    assert failed(check_cluster(access)) == ["configuration_store"]
    for path in ("clusters/east", "policies/public", "policies/acme"):
        cluster.create(f"/global/admin/{path}", b"{}", makepath=True)
    split = replace(access, configuration_store=f"{access.zookeeper}/global")
    check = check_cluster(split)
    assert (check.ok, check.cluster) == (True, "east")
    assert _detail(check, "configuration_store") == "pulsar_configuration_store, 1 cluster, 2 tenants"
    check = check_cluster(replace(access, configuration_store="127.0.0.1:1", session_timeout_s=1))
    assert failed(check) == ["configuration_store"]
    assert "pulsar_configuration_store" in _detail(check, "configuration_store")
