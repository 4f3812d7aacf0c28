"""A check names what a plan needs of a cluster, and which cluster it saw."""

import pytest
from kazoo.client import KazooClient

from infra.pulsar.cluster_check import check_cluster
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.cluster_check import ClusterCheck
from logstore.pulsar.znode_names import format_ledger_path
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


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
        "admin/clusters/global": b"{}",
    }.items():
        cluster.create(f"/{path}", value, makepath=True)


def failed(check: ClusterCheck) -> list[str]:
    return [each.name for each in check.capabilities if not each.ok]


def test_a_cluster_is_named_and_found_fit(cluster: KazooClient, reader: ZnodeReader) -> None:
    write_cluster(cluster)
    check = check_cluster(reader, "ledgers")
    assert (check.ok, check.cluster) == (True, "east")
    details = {each.name: each.detail for each in check.capabilities}
    assert details == {
        "layout": "HierarchicalLedgerManagerFactory, 1 folders of ledgers",
        "managed_ledgers": "1 tenants",
        "bookies": "2 bookies, 1 of them read-only",
    }


def test_the_identity_is_that_of_one_cluster_created_once(cluster: KazooClient, reader: ZnodeReader) -> None:
    write_cluster(cluster)
    before = check_cluster(reader, "ledgers").identity
    assert before.startswith("5f0a/")
    assert check_cluster(reader, "ledgers").identity == before
    cluster.delete("/managed-ledgers", recursive=True)
    cluster.create("/managed-ledgers")
    assert check_cluster(reader, "ledgers").identity != before


def test_an_empty_chroot_is_no_cluster(reader: ZnodeReader) -> None:
    check = check_cluster(reader, "ledgers")
    assert failed(check) == ["layout", "managed_ledgers", "bookies"]
    assert check.identity == "no INSTANCEID/absent/absent"


@pytest.mark.parametrize("layout", [b"", b"2\norg.example.FlatLedgerManagerFactory:1", b"\xff\xfe"])
def test_an_unknown_layout_is_told(cluster: KazooClient, reader: ZnodeReader, layout: bytes) -> None:
    write_cluster(cluster, layout=layout)
    assert failed(check_cluster(reader, "ledgers")) == ["layout"]


def test_a_bookie_without_an_address_is_told(cluster: KazooClient, reader: ZnodeReader) -> None:
    write_cluster(cluster)
    cluster.create("/ledgers/available/bk2", b"")
    check = check_cluster(reader, "ledgers")
    assert failed(check) == ["bookies"]
    assert "bk2" in check.capabilities[2].detail
