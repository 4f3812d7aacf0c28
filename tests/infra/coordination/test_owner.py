"""Workers own bundles on a real ZooKeeper and a real catalog, whatever becomes of their sessions."""

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from infra.coordination.bundle_owner import BundleOwner, ExpiredPolicy
from infra.coordination.ownership_nodes import OWNERS, SESSIONS, WORKERS, session_path
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.errors import NotOwner, ServiceFailed, StoreUnavailable, WorkerIdTaken
from logstore.ownership import BundleId, Lease, bundle_name
from logstore.validated_names import TopicName
from tests.infra.coordination.crew import BUNDLES, Crew, Watcher
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service


def test_one_worker_owns_all_and_each_topic_has_a_lease(crew: Crew) -> None:
    """A cluster of one."""
    alone = crew.hire("a")
    assert_eventually(crew.settled)
    lease = alone.get_lease(TopicName.parse("persistent://a/b/c"))
    crew.fences.require_newest_lease(lease)
    assert lease.worker_id == "a"


def test_joiner_gets_its_share_and_a_leavers_bundles_find_owners_at_once(crew: Crew) -> None:
    """Few move: what the others have they keep."""
    crew.hire("a")
    assert_eventually(crew.settled)
    crew.hire("b")
    assert_eventually(lambda: crew.settled() and len(crew.owners["b"].leases()) >= BUNDLES // 4)
    before = crew.held()
    crew.hire("c")
    assert_eventually(lambda: crew.settled() and len(crew.owners["c"].leases()) >= BUNDLES // 6)
    assert sum(1 for bundle, name in crew.held().items() if name != before[bundle]) <= BUNDLES // 2
    assert_eventually(crew.rests)
    kept = crew.held("a", "b")
    crew.owners.pop("c").stop()
    assert_eventually(crew.settled)
    after = crew.held()
    assert sum(1 for bundle, name in kept.items() if after[bundle] != name) <= 2


def test_expired_session_is_opened_again_and_most_bundles_keep_their_owner(zookeeper: ZooKeeper, crew: Crew) -> None:
    """Each bundle is looked at again in the new session; a lease of before is refused (apache/pulsar#23011)."""
    crew.hire("a")
    assert_eventually(crew.settled)
    old, session = crew.owners["a"].leases(), crew.sessions["a"].id
    zookeeper.expire(crew.sessions["a"])
    assert_eventually(lambda: crew.sessions["a"].id != session and crew.settled())
    for lease in old:
        with pytest.raises(NotOwner):
            crew.fences.require_newest_lease(lease)
    assert crew.watchers["a"].unloaded_ == []


def test_expired_while_another_took_a_bundle_unloads_it(zookeeper: ZooKeeper, crew: Crew, looker: KazooClient) -> None:
    """Of the three cases after a reconnect this one makes two owners if it is missed (apache/pulsar#23011)."""
    crew.hire("a")
    assert_eventually(crew.settled)
    path = f"{OWNERS}/{bundle_name(BundleId(3), bundle_count=BUNDLES)}"
    crew.door.clear()
    zookeeper.expire(crew.sessions["a"])
    assert_eventually(lambda: looker.exists(path) is None)
    looker.create(path, b'{"worker_id": "other"}', ephemeral=True)
    crew.door.set()
    assert_eventually(lambda: len(crew.owners["a"].leases()) == BUNDLES - 1)
    assert 3 not in crew.held()
    assert crew.watchers["a"].unloaded_ == [3]
    assert looker.exists(path)


def test_suspended_gives_no_lease_and_loses_none(zookeeper: ZooKeeper, crew: Crew) -> None:
    """SUSPENDED is not LOST: what was held is held again, under the same fence."""
    crew.ensemble = EnsembleOptions(hosts=crew.ensemble.hosts, timeout_s=20.0)
    owner = crew.hire("a")
    assert_eventually(crew.settled)
    before = owner.leases()
    zookeeper.kill()
    assert_eventually(lambda: not owner.leases())
    with pytest.raises(NotOwner, match="a connection that is away"):
        owner.get_lease(TopicName.parse("persistent://a/b/c"))
    zookeeper.start()
    assert_eventually(lambda: owner.leases() == before)


def test_owner_node_deleted_by_an_operator_moves_the_bundle(crew: Crew, looker: KazooClient) -> None:
    """Who lost it rests, so that another takes it; and unloads it meanwhile."""
    crew.hire("a")
    assert_eventually(crew.settled)
    crew.hire("b")
    assert_eventually(lambda: crew.settled() and len(crew.owners["b"].leases()) >= BUNDLES // 4)
    bundle, owner = next(iter(crew.held().items()))
    looker.delete(f"{OWNERS}/{bundle_name(BundleId(bundle), bundle_count=BUNDLES)}")
    other = {"a": "b", "b": "a"}[owner]
    assert_eventually(lambda: bundle in [lease.bundle for lease in crew.owners[other].leases()])
    assert_eventually(lambda: bundle not in [lease.bundle for lease in crew.owners[owner].leases()])
    assert_eventually(crew.rests)
    assert bundle in crew.watchers[owner].unloaded_


@pytest.mark.parametrize("removed", [[OWNERS], [WORKERS], [SESSIONS], [OWNERS, WORKERS, SESSIONS]], ids=str)
def test_nodes_removed_by_hand_are_made_again_while_sessions_live(
    crew: Crew, looker: KazooClient, removed: list[str]
) -> None:
    """Nobody starts a worker again for that: every bundle has its owner, and each session is known to stand."""
    crew.ensemble = EnsembleOptions(hosts=crew.ensemble.hosts, timeout_s=20.0)
    for name in ("a", "b"):
        crew.hire(name)
    assert_eventually(crew.settled)
    sessions = {name: session.id for name, session in crew.sessions.items()}
    for path in removed:
        assert_eventually(partial(_removed, looker, path))
    assert_eventually(lambda: crew.settled() and _stands(looker, sessions), within_s=30)
    assert {name: session.id for name, session in crew.sessions.items()} == sessions


def _removed(looker: KazooClient, path: str) -> bool:
    """Remove a node with all below it; False where a worker was faster."""
    try:
        looker.delete(path, recursive=True)
    except (NotEmptyError, NoNodeError):
        return False
    return True


def _stands(looker: KazooClient, sessions: dict[str, int]) -> bool:
    own = [*(f"{WORKERS}/{name}" for name in sessions), *map(session_path, sessions.values())]
    owners = looker.get_children(OWNERS) if looker.exists(OWNERS) else []
    return len(owners) == BUNDLES and all(looker.exists(path) for path in own)


def test_bundle_taken_from_an_underloaded_worker_is_not_thrown_back_while_it_rests(
    crew: Crew, looker: KazooClient
) -> None:
    """Who takes it over keeps it for as long as the other rests: no loop of attempts (apache/pulsar#14736)."""
    crew.hire("a")
    assert_eventually(crew.settled)
    crew.hire("b")
    assert_eventually(lambda: len(crew.owners["b"].leases()) >= BUNDLES // 4 and crew.rests())
    lost = crew.owners["b"].leases()[0]
    looker.delete(f"{OWNERS}/{bundle_name(lost.bundle, bundle_count=BUNDLES)}")
    assert_eventually(lambda: any(one.bundle == lost.bundle for one in crew.owners["a"].leases()))
    crew.await_looks("b", 20)  # beyond its rest
    assert_eventually(crew.rests)
    last = next(one for one in crew.fences.list_newest_leases() if one.bundle == lost.bundle)
    assert last.fence <= lost.fence + 2, "more than once there and back"


def test_ensemble_that_lost_its_data_is_entered_anew(zookeeper: ZooKeeper, crew: Crew, looker: KazooClient) -> None:
    """Nobody's session is known there any more; all bundles are acquired again, under later fences."""
    owner = crew.hire("a")
    assert_eventually(crew.settled)
    for _ in range(200):
        looker.create("/one", sequence=True)
    old = owner.leases()
    zookeeper.wipe()
    with zookeeper.client() as client:
        client.create(crew.ensemble.hosts.removeprefix(zookeeper.address))
    assert_eventually(lambda: crew.settled() and not set(old) & set(owner.leases()))


def test_policy_shutdown_ends_the_worker_and_says_why(zookeeper: ZooKeeper, crew: Crew) -> None:
    """Nothing is taken up again; the process is to end."""
    owner = crew.hire("a", expired=ExpiredPolicy.SHUTDOWN)
    assert_eventually(crew.settled)
    zookeeper.expire(crew.sessions["a"])
    assert owner.stopping.wait(10)
    assert_eventually(lambda: not owner.leases())
    assert isinstance(owner.failure, ServiceFailed)


def test_second_process_of_a_worker_id_is_refused(crew: Crew) -> None:
    """The first one keeps all it has; the second is told so after two session timeouts."""
    crew.hire("a")
    assert_eventually(crew.settled)
    with pytest.raises(WorkerIdTaken, match="worker id a"):
        BundleOwner("a", lambda tell: ZooKeeperSession(crew.ensemble, tell), crew.fences, Watcher()).start()
    assert crew.settled()


def test_worker_told_to_stop_while_it_waits_for_its_id_has_not_failed(
    zookeeper: ZooKeeper, crew: Crew, looker: KazooClient
) -> None:
    """It would else end as if another process had its id."""
    sessions: list[ZooKeeperSession] = []

    def connect(tell: Callable[[SessionState], None]) -> ZooKeeperSession:
        if sessions:
            looker.create(f"{WORKERS}/a", b"", ephemeral=True)
        sessions.append(ZooKeeperSession(crew.ensemble, tell))
        return sessions[-1]

    owner = crew.owners["a"] = BundleOwner("a", connect, crew.fences, Watcher())
    owner.start()
    zookeeper.expire(sessions[0])
    assert_eventually(lambda: len(sessions) == 2)
    time.sleep(0.5)  # it waits for four timeouts, and knows no other sign of it
    owner.stop()
    assert owner.failure is None


def test_earlier_session_that_its_server_lets_live_longer_is_waited_for(crew: Crew, looker: KazooClient) -> None:
    """A killed worker of one second's timeout starts anew where no server grants less than four."""
    looker.ensure_path(WORKERS)
    looker.create(f"{WORKERS}/a", b"", ephemeral=True)
    leaving = threading.Timer(3 * crew.ensemble.timeout_s, lambda: looker.delete(f"{WORKERS}/a"))
    leaving.start()
    crew.hire("a")
    leaving.join()
    assert_eventually(crew.settled)


def test_catalog_that_fails_at_an_acquisition_is_asked_again(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node stands and gives no lease before its fence was raised."""
    raise_fences, failures = crew.fences.raise_fences, [0]

    def failing(bundles: object, worker_id: str) -> list[Lease]:
        failures[0] += 1
        if failures[0] <= 2:
            raise StoreUnavailable("planned")
        return raise_fences(bundles, worker_id)  # type: ignore[arg-type]

    monkeypatch.setattr(crew.fences, "raise_fences", failing)
    crew.hire("a")
    assert_eventually(crew.settled)
    assert failures[0] == 3
