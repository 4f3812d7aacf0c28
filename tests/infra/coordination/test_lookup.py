"""Looking an owner up on a real ZooKeeper: who has the node, what is no answer, and what is a refusal."""

import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from infra.coordination.bundle_owner import BundleOwner
from infra.coordination.ownership_nodes import OWNERS, OwnershipNodes, WorkerOwnershipNodes
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.errors import ServiceFailed, SessionLost, StoreUnavailable
from logstore.ownership import bundle_name, bundle_of_topic
from logstore.ports.bundle_owners import OtherBundleOwner
from logstore.validated_names import TopicName
from tests.infra.coordination.crew import BUNDLES, Crew
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service

_TOPIC: Final = TopicName.parse("persistent://shop/main/orders")
_BUNDLE: Final = bundle_of_topic(_TOPIC, bundle_count=BUNDLES)


def _two(crew: Crew) -> tuple[BundleOwner, BundleOwner]:
    """The first one owns everything still when the second one joins."""
    first = crew.hire("w1", rest_s=60)
    assert_eventually(lambda: len(first.leases()) == BUNDLES)
    return first, crew.hire("w2", rest_s=60)


def test_lookup_names_who_has_the_node(crew: Crew) -> None:
    """The owner answers with its lease, any other worker with the owner's name."""
    first, second = _two(crew)
    assert first.find_owner(_TOPIC, patience_s=10) == first.get_lease(_TOPIC)
    assert second.find_owner(_TOPIC, patience_s=10) == OtherBundleOwner(worker_id="w1")


def test_lookup_while_zookeeper_is_away_is_no_answer(crew: Crew, zookeeper: ZooKeeper) -> None:
    """What could not be asked is never read as "no owner"."""
    owner = crew.hire("w1")
    zookeeper.kill()
    try:
        assert_eventually(lambda: not owner.leases())
        with pytest.raises((StoreUnavailable, SessionLost)):
            owner.find_owner(_TOPIC, patience_s=10)
    finally:
        zookeeper.start()


def test_lookup_holds_no_thread_while_zookeeper_is_away(
    crew: Crew, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many topics as a worker has threads would else keep it from work that needs no owner."""
    owner = crew.hire("w1")
    zookeeper.kill()
    try:
        assert_eventually(lambda: crew.sessions["w1"].state is not SessionState.CONNECTED)
        look, asked = WorkerOwnershipNodes.find_owner_node, list[threading.Thread]()

        def spied(nodes: WorkerOwnershipNodes, *rest: Any, **more: Any) -> Any:
            asked.append(threading.current_thread())
            return look(nodes, *rest, **more)

        monkeypatch.setattr(WorkerOwnershipNodes, "find_owner_node", spied)
        with pytest.raises((StoreUnavailable, SessionLost)):
            owner.find_owner(_TOPIC, patience_s=10)
        assert threading.current_thread() not in asked, "it would wait for an answer"
    finally:
        zookeeper.start()


def test_lookup_gives_up_after_its_patience_and_before_the_session_does(crew: Crew, zookeeper: ZooKeeper) -> None:
    """A server that hangs is waited for as long as the job says, however long a session may be silent."""
    _, second = _two(crew)
    with zookeeper.hanging():
        with pytest.raises(StoreUnavailable):
            second.find_owner(_TOPIC, patience_s=0.1)
        assert crew.sessions["w2"].state is SessionState.CONNECTED


@pytest.fixture
def session(ensemble: EnsembleOptions) -> Iterator[ZooKeeperSession]:
    """Of a worker that owns nothing."""
    opened = ZooKeeperSession(ensemble, lambda _: None)
    yield opened
    opened.close()


def test_lookup_without_rights_names_zookeeper_the_path_and_what_to_do(
    session: ZooKeeperSession, looker: KazooClient, ensemble: EnsembleOptions
) -> None:
    """A denied ACL will be denied again."""
    denied = [make_digest_acl("other", "secret", all=True)]
    looker.ensure_path(OWNERS)
    looker.create(f"{OWNERS}/{bundle_name(_BUNDLE, bundle_count=BUNDLES)}", acl=denied)
    told = rf"^zookeeper: {ensemble.hosts} refuses us while looking an owner up \(NoAuthError\); grant .* that path"
    with pytest.raises(ServiceFailed, match=told):
        OwnershipNodes(session, BUNDLES).find_owner_node(_BUNDLE, patience_s=10)


def test_lookup_below_a_path_that_is_gone_is_refused(
    session: ZooKeeperSession, zookeeper: ZooKeeper, ensemble: EnsembleOptions
) -> None:
    """A path that somebody removed holds no owners, and does not say that there are none."""
    assert OwnershipNodes(session, BUNDLES).find_owner_node(_BUNDLE, patience_s=10) is None
    path = ensemble.hosts.removeprefix(zookeeper.address)
    with zookeeper.client() as client:
        client.delete(path)
    with pytest.raises(ServiceFailed, match=rf"^zookeeper: the path {path} of .* does not exist; create it, or mend"):
        OwnershipNodes(session, BUNDLES).find_owner_node(_BUNDLE, patience_s=10)
