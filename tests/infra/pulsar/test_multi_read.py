"""One request reads many znodes, and each answer is that of a read alone."""

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.security import make_digest_acl

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.multi_read import send_multi_read
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import ServiceFailed
from tests.infra.coordination.zookeeper import ZooKeeper

pytestmark = pytest.mark.external_service


@pytest.fixture
def paths(cluster: KazooClient) -> list[str]:
    """Paths of znodes with and without data and children, and of one that does not exist."""
    cluster.create("/a", b"x" * 70_000)
    cluster.create("/a/b", b"")
    cluster.create("/a/ü", "Zürich".encode())
    cluster.create("/empty")
    return ["/a", "/a/b", "/absent", "/a/ü", "/empty", "/a"]


def test_each_answer_is_that_of_a_read_alone(cluster: KazooClient, paths: list[str]) -> None:
    values = send_multi_read(cluster, GetData, paths).get()
    names = send_multi_read(cluster, GetChildren, paths).get()
    for number, path in enumerate(paths):
        if path == "/absent":
            assert isinstance(values[number], NoNodeError)
            assert isinstance(names[number], NoNodeError)
        else:
            assert values[number] == cluster.get(path)
            assert sorted(names[number]) == sorted(cluster.get_children(path))


def test_paths_are_below_the_chroot(zookeeper: ZooKeeper, cluster: KazooClient, ensemble: EnsembleOptions) -> None:
    cluster.create("/below/a", b"below", makepath=True)
    cluster.create("/a", b"above")
    with zookeeper.client(f"{ensemble.hosts}/below") as client:
        ((value, _),) = send_multi_read(client, GetData, ["/a"]).get()
    assert value == b"below"


def test_a_server_that_does_not_know_the_request_is_asked_for_each_znode(
    reader: ZnodeReader, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = [path[1:] for path in paths]
    known, listed = list(reader.read(relative)), list(reader.list_children(relative))
    monkeypatch.setattr("infra.pulsar.multi_read._MultiRead.type", 99)  # no server knows it, as 3.5 does not know 22
    assert list(reader.read(relative)) == known
    assert list(reader.list_children(relative)) == listed
    assert {path for path, znode in known if znode is None} == {"absent"}


def test_a_znode_that_may_not_be_read_ends_the_read(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create("/open")
    cluster.create("/closed", acl=[make_digest_acl("another", "secret", all=True)])
    with pytest.raises(ServiceFailed):
        list(reader.read(["open", "closed"]))
