"""Nodes of a session: made twice is made once, removed only while they are its own."""

import threading
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from infra.coordination.ownership_nodes import OWNERS, WORKERS, WorkerOwnershipNodes
from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from logstore.errors import PreconditionFailed, SessionLost
from logstore.ownership import BundleId, WorkerLoad, bundle_name
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service

_N = 8
_IDLE = WorkerLoad(load=0.0, bundles=0)


@pytest.fixture
def join(ensemble: EnsembleOptions) -> Iterator[Callable[[str], tuple[ZooKeeperSession, WorkerOwnershipNodes]]]:
    """Open sessions for workers by name; all are closed at the end."""
    opened: list[ZooKeeperSession] = []

    def joined(worker_id: str) -> tuple[ZooKeeperSession, WorkerOwnershipNodes]:
        session = ZooKeeperSession(ensemble, lambda _: None)
        opened.append(session)
        return session, WorkerOwnershipNodes(session, worker_id, _N)

    yield joined
    for session in opened:
        session.close()


Join = Callable[[str], tuple[ZooKeeperSession, WorkerOwnershipNodes]]


def _bundles(*numbers: int) -> list[BundleId]:
    return [BundleId(number) for number in numbers]


def test_take_twice_is_once_and_never_anothers(join: Join) -> None:
    """NodeExists is success only if its ephemeral owner is this session (apache/pulsar#10351)."""
    (first, one), (_, two) = join("a"), join("b")
    assert one.create_owner_nodes(_bundles(0, 1)) == set(_bundles(0, 1))
    assert one.create_owner_nodes(_bundles(1, 2)) == set(_bundles(1, 2))
    assert two.create_owner_nodes(_bundles(2, 3)) == set(_bundles(3))
    owners = two.read_owner_nodes()
    assert {bundle: node.worker_id for bundle, node in owners.items()} == {0: "a", 1: "a", 2: "a", 3: "b"}
    assert owners[BundleId(0)].session == first.id
    assert one.read_owned_bundles() == set(_bundles(0, 1, 2, 3))


def test_take_of_the_same_by_many_at_once_has_one_winner_each(join: Join) -> None:
    """However they race, a bundle has one owner."""
    crowd = [join(f"w{number}")[1] for number in range(6)]
    got: list[frozenset[BundleId]] = []
    gate = threading.Barrier(len(crowd))

    def run(nodes: WorkerOwnershipNodes) -> None:
        gate.wait()
        got.append(nodes.create_owner_nodes(_bundles(*range(_N))))

    threads = [threading.Thread(target=run, args=(nodes,)) for nodes in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bundle for each in got for bundle in each) == list(range(_N))


def test_give_up_leaves_a_node_that_is_anothers_by_now(zookeeper: ZooKeeper, join: Join) -> None:
    """Deletes ask for the session, not for the version alone: that is 0 whoever made it (apache/pulsar#295)."""
    (first, one), (_, two) = join("a"), join("b")
    one.create_owner_nodes(_bundles(0))
    stale = one.read_owner_nodes()[BundleId(0)].session
    zookeeper.expire(first)
    assert_eventually(lambda: two.create_owner_nodes(_bundles(0)) == set(_bundles(0)))
    assert two.delete_owner_node(BundleId(0), stale) is False
    with pytest.raises(SessionLost):
        one.delete_own_nodes(_bundles(0))
    assert two.read_owner_nodes()[BundleId(0)].worker_id == "b"


def test_remove_asks_for_the_session_within_the_delete(join: Join, looker: KazooClient) -> None:
    """A session that ended after its node was read, and before it is deleted, stops the delete."""
    (first, one), (_, two) = join("a"), join("b")
    one.create_owner_nodes(_bundles(0))
    looker.delete(f"/sessions/{first.id:016x}")
    assert two.delete_owner_node(BundleId(0), first.id) is False
    assert one.read_owned_bundles() == set(_bundles(0))


def test_give_up_frees_the_bundle_at_once(join: Join) -> None:
    """A drained worker's bundles do not wait for a session timeout."""
    (_, one), (_, two) = join("a"), join("b")
    one.create_owner_nodes(_bundles(0, 1))
    one.delete_own_nodes(_bundles(0, 5))
    assert two.create_owner_nodes(_bundles(0)) == set(_bundles(0))
    assert {node.worker_id for node in two.read_owner_nodes().values()} == {"a", "b"}


def test_worker_id_is_had_by_one_session(join: Join) -> None:
    """A second process under the same id is told so; the first one repeating is not."""
    (_, one), (_, two) = join("a"), join("a")
    assert one.register_worker(_IDLE)
    assert one.register_worker(_IDLE)
    assert not two.register_worker(_IDLE)
    with pytest.raises(PreconditionFailed, match="worker id a"):
        two.publish_load(_IDLE)


def _loads(nodes: WorkerOwnershipNodes) -> dict[str, WorkerLoad]:
    return {name: worker.load for name, worker in nodes.read_live_workers().items()}


def test_workers_are_those_with_a_live_session_and_their_last_word(join: Join) -> None:
    """Lookups never name a member without a live session (apache/pulsar#7679)."""
    (first, one), (_, two) = join("a"), join("b")
    one.register_worker(_IDLE)
    two.register_worker(_IDLE)
    two.publish_load(WorkerLoad(load=2.5, bundles=3))
    assert _loads(two) == {"a": _IDLE, "b": WorkerLoad(load=2.5, bundles=3)}
    first.close()
    assert _loads(two) == {"b": WorkerLoad(load=2.5, bundles=3)}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"load": "much"}',
        b'{"load": 1}',
        b'{"load": -3, "bundles": 1}',
        b"\xff",
        b'{"load": Infinity, "bundles": 1}',
        b'{"load": NaN, "bundles": 1}',
        b'{"load": 1, "bundles": Infinity}',
    ],
)
def test_load_that_cannot_be_read_counts_as_none(join: Join, looker: KazooClient, body: bytes) -> None:
    """A worse choice, never a wrong one, and never an error: another build may say more or less."""
    (_, one) = join("a")
    looker.create(f"{WORKERS}/odd", body)
    assert _loads(one)["odd"].load == 0.0


def test_owner_node_that_cannot_be_read_is_nobody_we_know(join: Join, looker: KazooClient) -> None:
    """It is somebody's, and not ours."""
    (_, one) = join("a")
    looker.create(f"{OWNERS}/{bundle_name(BundleId(2), bundle_count=_N)}", b"?")
    assert one.read_owner_nodes()[BundleId(2)].worker_id == ""
    assert one.create_owner_nodes(_bundles(2)) == frozenset()


def test_watch_is_called_when_workers_or_owners_change(join: Join) -> None:
    """Once for each time it is asked."""
    (_, one), (_, two) = join("a"), join("b")
    called = threading.Event()
    one.watch_next_ownership_change(lambda _: called.set())
    two.register_worker(_IDLE)
    assert called.wait(10)
    called.clear()
    one.watch_next_ownership_change(lambda _: called.set())
    two.create_owner_nodes(_bundles(1))
    assert called.wait(10)
