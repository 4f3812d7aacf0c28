"""The relay passes writes on, and stops exactly before a fatal one."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.infra.coordination.zookeeper import ZooKeeper
from tests.pulsar_cluster.zookeeper_relay import CREATE, DELETE, SET, ZnodeWrite, ZooKeeperRelay

pytestmark = pytest.mark.external_service

_quiet = logging.getLogger("tests.relay")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(Path(tmp_path_factory.mktemp("zk")))
    yield server
    server.kill()


@pytest.fixture
def relay(server: ZooKeeper) -> Iterator[ZooKeeperRelay]:
    relay = ZooKeeperRelay(int(server.address.rpartition(":")[2]))
    yield relay
    relay.close()


def write_all(client: KazooClient, root: str) -> None:
    """Make one write of each kind, alone and in a transaction."""
    client.create(root, b"one", makepath=True)
    client.set(root, b"two")
    transaction = client.transaction()
    transaction.create(f"{root}/child", b"three")
    transaction.check(root, 1)
    transaction.set_data(root, b"four")
    transaction.delete(f"{root}/child")
    transaction.commit()
    client.delete(root)


def test_without_a_trap_every_write_arrives(server: ZooKeeper, relay: ZooKeeperRelay) -> None:
    seen: list[ZnodeWrite] = []

    def record(write: ZnodeWrite) -> bool:
        seen.append(write)
        return False

    relay.set_trap(record, lambda: None)
    with server.client(f"127.0.0.1:{relay.port}") as client:
        write_all(client, "/all")
    assert seen == [
        ZnodeWrite(CREATE, "/all", b"one"),
        ZnodeWrite(SET, "/all", b"two"),
        ZnodeWrite(CREATE, "/all/child", b"three"),
        ZnodeWrite(SET, "/all", b"four"),
        ZnodeWrite(DELETE, "/all/child"),
        ZnodeWrite(DELETE, "/all"),
    ]


def test_a_fatal_write_inside_a_transaction_does_not_arrive(server: ZooKeeper, relay: ZooKeeperRelay) -> None:
    ended = []
    with server.client() as direct, server.client(f"127.0.0.1:{relay.port}") as client:
        client.create("/fatal", b"one")
        relay.set_trap(
            lambda write: write == ZnodeWrite(SET, "/fatal", b"two"), lambda: ended.append(direct.get("/fatal")[0])
        )
        transaction = client.transaction()
        transaction.create("/beside", b"")
        transaction.set_data("/fatal", b"two")
        transaction.commit_async()
        assert relay.wait_for_trap(30).path == "/fatal"
        assert ended == [b"one"], "the client was ended before the write"
        assert not direct.exists("/beside")
