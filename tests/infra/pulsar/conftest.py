"""The run's real ZooKeeper, and a cluster's chroot of its own for every test."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.znode_reads import ZnodeReader
from tests.infra.coordination.conftest import ensemble, zookeeper
from tests.infra.coordination.zookeeper import ZooKeeper

__all__ = ["ensemble", "zookeeper"]


@pytest.fixture
def cluster(zookeeper: ZooKeeper, ensemble: EnsembleOptions) -> Iterator[KazooClient]:
    """A client that writes the cluster's znodes."""
    with zookeeper.client(ensemble.hosts) as client:
        yield client


@pytest.fixture
def reader(ensemble: EnsembleOptions) -> Iterator[ZnodeReader]:
    with closing(ZooKeeperSession(ensemble, lambda _: None)) as session:
        yield ZnodeReader(session, reads_per_s=1_000_000)
