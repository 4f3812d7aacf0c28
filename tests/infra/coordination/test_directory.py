"""Whoever only looks sees who owns what, and makes nothing."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from infra.coordination.ownership_nodes import SESSIONS, OwnershipNodes, WorkerOwnershipNodes
from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from logstore.ownership import BundleId, WorkerLoad

pytestmark = pytest.mark.external_service

_N = 8


@pytest.fixture
def directory(ensemble: EnsembleOptions) -> Iterator[OwnershipNodes]:
    """An onlooker's."""
    session = ZooKeeperSession(ensemble, lambda _: None)
    yield OwnershipNodes(session, _N)
    session.close()


@pytest.fixture
def worker(ensemble: EnsembleOptions) -> Iterator[tuple[ZooKeeperSession, WorkerOwnershipNodes]]:
    """One that is enlisted and owns two bundles."""
    session = ZooKeeperSession(ensemble, lambda _: None)
    nodes = WorkerOwnershipNodes(session, "a", _N)
    nodes.register_worker(WorkerLoad(load=0.5, bundles=2))
    nodes.create_owner_nodes([BundleId(1), BundleId(6)])
    yield session, nodes
    session.close()


def test_looking_where_nobody_ever_took_part_finds_nothing_and_makes_nothing(
    directory: OwnershipNodes, looker: KazooClient
) -> None:
    """A path without nodes is an answer; a person who asks leaves no trace, not even an empty path."""
    assert directory.read_owner_nodes() == {}
    assert directory.read_live_workers() == {}
    assert directory.read_live_sessions() == frozenset()
    assert not directory.delete_owner_node(BundleId(1), 5)
    assert looker.get_children("/") == []


def test_looking_finds_workers_with_their_sessions_and_what_they_own(
    directory: OwnershipNodes, worker: tuple[ZooKeeperSession, WorkerOwnershipNodes], looker: KazooClient
) -> None:
    """Enough to tell whether an owner's session lives; the onlooker itself is none of the workers."""
    session = worker[0].id
    looker.create(f"{SESSIONS}/odd")
    (name, found), *others = directory.read_live_workers().items()
    assert (name, found.session, found.load, others) == ("a", session, WorkerLoad(load=0.5, bundles=2), [])
    assert {bundle: (node.worker_id, node.session) for bundle, node in directory.read_owner_nodes().items()} == {
        1: ("a", session),
        6: ("a", session),
    }
    assert directory.read_live_sessions() == {session}


def test_onlooker_may_remove_a_node_of_the_session_that_it_read(
    directory: OwnershipNodes, worker: tuple[ZooKeeperSession, WorkerOwnershipNodes]
) -> None:
    """Without taking part; a session that it did not read as the node's own removes nothing (apache/pulsar#295)."""
    session, nodes = worker
    assert not directory.delete_owner_node(BundleId(1), session.id + 1)
    assert nodes.read_owned_bundles() == {1, 6}
    assert directory.delete_owner_node(BundleId(1), session.id)
    assert nodes.read_owned_bundles() == {6}
