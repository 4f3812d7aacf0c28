"""The run's real ZooKeeper, and a cluster's chroot of its own for every test."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from infra.pulsar.znode_reads import ZnodeReader
from infra.stack.embedded_stack import StackAddresses
from logstore.rate_limiter import RateLimiter
from tests.infra.coordination.conftest import ensemble, zookeeper
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.infra.pulsar.offloads import create_offload_bucket

__all__ = ["ensemble", "zookeeper"]


@pytest.fixture
def cluster(zookeeper: ZooKeeper, ensemble: EnsembleOptions) -> Iterator[KazooClient]:
    """A client that writes the cluster's znodes."""
    with zookeeper.client(ensemble.hosts) as client:
        yield client


@pytest.fixture
def reader(ensemble: EnsembleOptions) -> Iterator[ZnodeReader]:
    with closing(ZooKeeperSession(ensemble, lambda _: None)) as session:
        yield ZnodeReader(session, RateLimiter(1_000_000))


@pytest.fixture
def offloads(servers: StackAddresses) -> OffloadStore:
    """An empty bucket of the test's own on the run's SeaweedFS."""
    return open_offload_store(create_offload_bucket(servers))
