"""Contract of `PulsarClusterAccess.open_changes` and `ClusterChanges`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.coordination.zookeeper_session import EnsembleOptions
from logstore.errors import PreconditionFailed, StoreUnavailable, UnexpectedClusterState
from logstore.ports.pulsar_cluster import Restoration
from tests.contracts.pulsar.cluster_worlds import ClusterWorld, MemoryCluster, ZooKeeperCluster
from tests.infra.coordination.conftest import zookeeper
from tests.infra.pulsar.conftest import cluster, ensemble
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings
from workers.settings import Settings

__all__ = ["cluster", "ensemble", "zookeeper"]

Happen = Callable[[ClusterWorld], None]


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.external_service)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ClusterWorld:
    if request.param == "memory":
        return MemoryCluster()
    ensemble: EnsembleOptions = request.getfixturevalue("ensemble")
    settings = Settings(home=tmp_path, pulsar_zookeeper=ensemble.hosts, pulsar_bookkeeper_exclusive=True)
    return ZooKeeperCluster(request.getfixturevalue("cluster"), PulsarClusterOfSettings(settings))


def test_orphans_that_exist_are_returned_and_deleted(world: ClusterWorld) -> None:
    findings = [world.plant(ledger_id) for ledger_id in (6, 7, 8)]
    value = world.read(6)
    world.remove(7)
    with world.access.open_changes("a") as changes:
        ledgers = changes.read_planned(findings)
        assert [(each.ledger_id, each.path, each.data) for each in ledgers] == [
            (6, "00/0000/L0006", value),
            (8, "00/0000/L0008", value),
        ]
        assert changes.find_existing([6, 7, 8]) == {6, 8}
        changes.delete(ledgers)
        assert changes.find_existing([6, 7, 8]) == frozenset()
        changes.delete(ledgers)
    assert world.read(6) is None


_SURPRISES: dict[str, Happen] = {
    "written": lambda world: world.write_ledger(7, b"closed"),
    "created anew": lambda world: world.create_anew(7),
    "referenced": lambda world: world.refer_to(7),
}


@pytest.mark.parametrize("happen", _SURPRISES.values(), ids=_SURPRISES.keys())
def test_a_surprise_before_the_look_or_after_it_stops_the_deletion(world: ClusterWorld, happen: Happen) -> None:
    findings = [world.plant(ledger_id) for ledger_id in (6, 7)]
    with world.access.open_changes("a") as changes:
        ledgers = changes.read_planned(findings)
        happen(world)
        with pytest.raises(UnexpectedClusterState, match="7"):
            changes.delete(ledgers)
        with pytest.raises(UnexpectedClusterState, match="7"):
            changes.delete(changes.read_planned(findings))
        assert changes.find_existing([6, 7]) == {6, 7}


def test_a_deleted_ledger_to_which_something_refers_is_put_back(world: ClusterWorld) -> None:
    finding = world.plant(7)
    value = world.read(7)
    with world.access.open_changes("a") as changes:
        ledgers = changes.read_planned([finding])
        changes.delete(ledgers)
        world.refer_to(7)
        with pytest.raises(UnexpectedClusterState, match="7: expected no reference"):
            changes.delete(ledgers)
    assert world.read(7) == value


def test_a_ledger_is_restored_unless_it_exists(world: ClusterWorld) -> None:
    finding = world.plant(7)
    with world.access.open_changes("a") as changes:
        (ledger,) = changes.read_planned([finding])
        assert changes.restore([ledger])[0][0] is Restoration.PRESENT
        changes.delete([ledger])
        assert changes.restore([ledger])[0][0] is Restoration.RESTORED
        assert world.read(7) == ledger.data
        world.write_ledger(7, b"another")
        assert changes.restore([ledger])[0][0] is Restoration.OCCUPIED
        assert world.read(7) == b"another"
        with pytest.raises(UnexpectedClusterState, match="7"):
            changes.read_planned([finding])


def test_one_job_has_the_lease_until_it_is_released(world: ClusterWorld) -> None:
    with world.access.open_changes("a"):
        pass
    with pytest.raises(PreconditionFailed, match="found a"), world.access.open_changes("b"):
        pass
    world.access.release_lease("b")
    with pytest.raises(PreconditionFailed, match="found a"), world.access.open_changes("b"):
        pass
    with world.access.open_changes("a"):
        pass
    world.access.release_lease("a")
    world.access.release_lease("a")
    with world.access.open_changes("b"):
        pass


_TAKERS: dict[str, Happen] = {
    "another attempt": lambda world: _take(world, "a"),
    "a job that overtakes it": lambda world: _take(world, "b", overtakes="a"),
    "nobody": lambda world: world.access.release_lease("a"),
}


def _take(world: ClusterWorld, holder: str, *, overtakes: str = "") -> None:
    with world.access.open_changes(holder, overtakes=overtakes):
        pass


@pytest.mark.parametrize("happen", _TAKERS.values(), ids=_TAKERS.keys())
def test_a_job_without_the_lease_changes_nothing(world: ClusterWorld, happen: Happen) -> None:
    findings = [world.plant(ledger_id) for ledger_id in (6, 7)]
    with world.access.open_changes("a") as changes:
        ledgers = changes.read_planned(findings)
        world.remove(7)
        happen(world)
        with pytest.raises(StoreUnavailable, match="lease"):
            changes.delete(ledgers)
        with pytest.raises(StoreUnavailable, match="lease"):
            changes.restore([ledgers[1]])
        assert changes.find_existing([6, 7]) == {6}


def test_a_job_that_was_overtaken_does_not_go_on(world: ClusterWorld) -> None:
    """Whether the other job has ended or not. A job that begins again takes the lease."""
    _take(world, "a")
    with world.access.open_changes("a", continues=True):
        pass
    _take(world, "b", overtakes="a")
    with pytest.raises(PreconditionFailed, match="found b"), world.access.open_changes("a", continues=True):
        pass
    world.access.release_lease("b")
    with pytest.raises(PreconditionFailed, match="since it began"), world.access.open_changes("a", continues=True):
        pass
    _take(world, "a")


def test_a_cluster_that_was_made_anew_is_not_changed(world: ClusterWorld) -> None:
    findings = [world.plant(ledger_id) for ledger_id in (6, 7)]
    with world.access.open_changes("a") as changes:
        assert changes.identity == world.access.read_identity()
        ledgers = changes.read_planned(findings)
        world.remove(7)
        world.replace_cluster()
        actions: list[Callable[[], object]] = [
            lambda: changes.read_planned(findings),
            lambda: changes.delete(ledgers),
            lambda: changes.restore([ledgers[1]]),
            lambda: changes.find_existing([6]),
        ]
        for action in actions:
            with pytest.raises(PreconditionFailed, match=r"expected 5f0a.*, found 77aa"):
                action()
    assert (world.read(6) is None, world.read(7)) == (False, None)
