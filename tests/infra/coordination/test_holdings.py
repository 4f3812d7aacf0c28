"""What a worker does with bundles that it cannot take, or not yet."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable

import pytest
from kazoo.client import KazooClient

from infra.coordination.ownership_nodes import OWNERS, WORKERS, WorkerOwnershipNodes
from logstore.catalog.ownership.fences import Fences
from logstore.errors import OutcomeUnknown, StoreUnavailable, WorkerIdTaken
from logstore.ownership import BundleId, Lease, bundle_name
from tests.infra.coordination.crew import BUNDLES, Crew
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service


class Shaky(Fences):
    """Fences of a catalog that one worker cannot reach for a while; how many bundles there are it knows from before."""

    def __init__(self, fences: Fences) -> None:
        vars(self).update(vars(fences))
        self._fences = fences
        self._told = False
        self.away = threading.Event()
        self.refusals = threading.Semaphore(0)
        self.lost_answers = 0
        self.meanwhile: list[Callable[[], object]] = []  # what happens between a raise and what follows, once each

    def count_bundles(self) -> int:
        if self._told:
            self._require_there()
        self._told = True
        return self._fences.count_bundles()

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        self._require_there()
        leases = self._fences.raise_fences(bundles, worker_id)
        while self.meanwhile:
            self.meanwhile.pop()()
        if self.lost_answers:
            self.lost_answers -= 1
            raise OutcomeUnknown("planned")
        return leases

    def _require_there(self) -> None:
        if self.away.is_set():
            self.refusals.release()
            raise StoreUnavailable("planned")


@pytest.fixture
def shaky(crew: Crew) -> Shaky:
    """The crew's catalog, for one of them."""
    return Shaky(crew.fences)


def _held(crew: Crew, name: str) -> int:
    return len(crew.owners[name].leases())


def test_worker_without_a_catalog_stands_aside_and_takes_part_once_it_is_back(crew: Crew, shaky: Shaky) -> None:
    """Nothing is let go for it in vain, and no node of its stands in the others' way."""
    crew.hire("b")
    assert_eventually(crew.settled)
    shaky.away.set()
    crew.hire("a", fences=shaky)
    for _ in range(20):  # more often than a bundle may be tried
        assert shaky.refusals.acquire(timeout=20)
    assert_eventually(lambda: _held(crew, "b") == BUNDLES and crew.rests())
    assert len(crew.watchers["b"].unloaded_) <= 2, "bundles were let go for a worker that cannot take them"
    shaky.away.clear()
    assert_eventually(lambda: crew.settled() and _held(crew, "a") >= BUNDLES // 4)


def test_bundles_of_a_worker_that_lost_its_catalog_find_another(zookeeper: ZooKeeper, crew: Crew, shaky: Shaky) -> None:
    """It lives in ZooKeeper, and could keep nodes for ever without a lease of any."""
    crew.hire("a", fences=shaky)
    crew.hire("b")
    assert_eventually(lambda: crew.settled() and _held(crew, "a") >= BUNDLES // 4)
    shaky.away.set()
    zookeeper.expire(crew.sessions["a"])
    assert_eventually(lambda: _held(crew, "b") == BUNDLES)
    assert crew.owners["a"].failure is None


def test_only_worker_whose_catalog_was_away_for_long_owns_all_again(crew: Crew, shaky: Shaky) -> None:
    """A failed attempt is not a bundle's last: nobody else would ever take it (apache/pulsar#14736 bounds them)."""
    shaky.away.set()
    crew.hire("a", fences=shaky)
    for _ in range(20):
        assert shaky.refusals.acquire(timeout=20)
    assert crew.owners["a"].leases() == []
    shaky.away.clear()
    assert_eventually(crew.settled)


def test_raise_whose_answer_is_lost_is_repeated(crew: Crew, shaky: Shaky) -> None:
    """It may have landed: a number is wasted, and the worker lives."""
    shaky.lost_answers = 2
    owner = crew.hire("a", fences=shaky)
    assert_eventually(crew.settled)
    assert {lease.fence for lease in owner.leases()} == {3}


def test_node_that_is_another_s_after_the_raise_gives_no_lease(crew: Crew, shaky: Shaky, looker: KazooClient) -> None:
    """Raised and committed, the node is read again: who lost it meanwhile never had the bundle (promise 7)."""
    path = f"{OWNERS}/{bundle_name(BundleId(3), bundle_count=BUNDLES)}"

    def another_takes_it() -> None:
        looker.delete(path)
        looker.create(path, b'{"worker_id": "z"}', ephemeral=True)

    shaky.meanwhile = [another_takes_it]
    crew.hire("a", fences=shaky)
    assert_eventually(lambda: _held(crew, "a") == BUNDLES - 1)
    assert BundleId(3) not in {lease.bundle for lease in crew.watchers["a"].acquired_}
    assert looker.get(path)[0] == b'{"worker_id": "z"}'


def test_owner_that_meets_a_fault_of_ours_says_so(crew: Crew, shaky: Shaky) -> None:
    """Whatever ended its thread, the worker is told that it owns nothing, and shuts down as failed."""

    def fault() -> None:
        raise ZeroDivisionError("planned")

    shaky.meanwhile = [fault]
    owner = crew.hire("a", fences=shaky)
    assert owner.stopping.wait(timeout=20)
    assert "ZeroDivisionError" in str(owner.failure)
    assert owner.leases() == []


def test_lease_is_given_out_only_after_the_bundles_topics_were_loaded(crew: Crew) -> None:
    """And one that fails to load keeps no other back; it is loaded again under a later fence."""
    early: list[BundleId] = []
    failing = [BundleId(3)] * 3

    def load(lease: Lease) -> None:
        early.extend(held.bundle for held in crew.owners["a"].leases() if held.bundle == lease.bundle)
        if lease.bundle in failing:
            failing.pop()
            raise StoreUnavailable("planned")

    owner = crew.hire("a", loading=load)
    assert_eventually(lambda: _held(crew, "a") == BUNDLES - 1)
    assert_eventually(crew.settled)
    assert early == []
    assert {lease.bundle: lease.fence for lease in owner.leases()}[BundleId(3)] == 4
    assert crew.watchers["a"].unloaded_ == [3] * 3


def test_bundle_that_a_worker_cannot_load_goes_to_another(crew: Crew) -> None:
    """Its attempts in a session are bounded, and its node does not stay (apache/pulsar#14736, #17759)."""

    def load(lease: Lease) -> None:
        if lease.bundle in {1, 2, 3, 4}:
            raise StoreUnavailable("planned")

    crew.hire("a", loading=load)
    assert_eventually(lambda: _held(crew, "a") == BUNDLES - 4)
    crew.hire("b")
    assert_eventually(lambda: crew.settled() and {1, 2, 3, 4} <= {one.bundle for one in crew.owners["b"].leases()})


def test_node_of_no_bundle_is_left_alone_with_one_warning(
    crew: Crew, looker: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator's note, or a bundle of another catalog, is nobody's bundle, and ends no worker."""
    looker.ensure_path(f"{OWNERS}/0x00000000_0x00000001")
    looker.create(f"{OWNERS}/read me")
    with caplog.at_level(logging.WARNING):
        owner = crew.hire("a")
        assert_eventually(crew.settled)
        crew.hire("b")
        assert_eventually(lambda: crew.settled() and _held(crew, "b") >= BUNDLES // 4)
    assert owner.failure is None
    said = [record.getMessage() for record in caplog.records if "left alone" in record.getMessage()]
    assert len(said) == 2 * 2, said  # by each of two workers


def test_node_of_ours_that_gave_no_lease_is_acquired(crew: Crew, looker: KazooClient) -> None:
    """A create may land after its caller gave up on it: the node would stand for as long as the session."""
    crew.hire("a", rest_s=600.0)  # so that it is not taken as one that was lost
    assert_eventually(crew.settled)
    path = f"{OWNERS}/{bundle_name(BundleId(5), bundle_count=BUNDLES)}"
    looker.delete(path)
    assert_eventually(lambda: BundleId(5) in crew.watchers["a"].unloaded_)
    body = b'{"worker_id": "a"}'
    crew.sessions["a"].run_idempotent("making", lambda client: client.create(path, body, ephemeral=True))
    assert_eventually(crew.settled)


def test_shed_bundle_has_no_lease_any_more_when_its_node_goes(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another could take it, and raise its fence, while this worker still gives its lease out (promise 7)."""
    real = WorkerOwnershipNodes.delete_own_nodes
    shed: set[BundleId] = set()
    kept: set[BundleId] = set()

    def give_up(nodes: WorkerOwnershipNodes, bundles: Iterable[BundleId]) -> None:
        going = set(bundles)
        if nodes._worker_id == "a":
            shed.update(going)
            kept.update(going & {lease.bundle for lease in crew.owners["a"].leases()})
        real(nodes, going)

    monkeypatch.setattr(WorkerOwnershipNodes, "delete_own_nodes", give_up)
    crew.hire("a")
    assert_eventually(crew.settled)
    crew.hire("b")
    assert_eventually(lambda: crew.settled() and _held(crew, "b") >= BUNDLES // 4, within_s=20)
    assert len(shed) >= BUNDLES // 4
    assert not kept


def test_worker_whose_own_node_was_removed_tells_of_itself_again(crew: Crew, looker: KazooClient) -> None:
    """Its session lives, and so does it: unseen it would own what it has and take nothing more."""
    crew.hire("a")
    assert_eventually(crew.settled)
    looker.delete(f"{WORKERS}/a")
    assert_eventually(lambda: looker.exists(f"{WORKERS}/a") is not None)
    assert crew.settled()


def test_worker_whose_id_another_took_owns_nothing_any_more(crew: Crew, looker: KazooClient) -> None:
    """Two processes of one id never work side by side for long, whoever removed the first one's node."""
    owner = crew.hire("a")
    assert_eventually(crew.settled)
    both = looker.transaction()
    both.delete(f"{WORKERS}/a")
    both.create(f"{WORKERS}/a", b"", ephemeral=True)
    both.commit()
    assert owner.stopping.wait(10)
    assert_eventually(lambda: not owner.leases())
    assert isinstance(owner.failure, WorkerIdTaken)
