"""Ownership without ZooKeeper: one worker owns everything, and the one that was started last is it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.coordination.bundle_owner import SingleOwner
from logstore.catalog import Catalog, Database
from logstore.errors import CatalogBusy, NotOwner
from logstore.ownership import BundleId, Lease
from logstore.validated_names import TopicName
from tests.migrated_catalogs import migrate_or_copy_catalog

_TOPIC = TopicName.parse("persistent://shop/main/orders")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog of eight bundles."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database, bundles=8)
    yield Catalog(database)
    database.close()


def test_sole_owner_holds_a_lease_of_every_bundle(catalog: Catalog) -> None:
    """It asks nobody: the setting says that it is alone."""
    owner = SingleOwner("w1", catalog.fences)
    owner.start()
    assert [(lease.bundle, lease.fence, lease.worker_id) for lease in owner.leases()] == [
        (bundle, 1, "w1") for bundle in range(8)
    ]
    assert owner.find_owner(_TOPIC, patience_s=10) == owner.get_lease(_TOPIC)


def test_sole_owner_started_beside_another_fences_it(catalog: Catalog) -> None:
    """A second worker by mistake: the first one's leases are refused, and it sends nobody to itself."""
    first, second = SingleOwner("w1", catalog.fences), SingleOwner("w2", catalog.fences)
    first.start()
    second.start()
    with pytest.raises(NotOwner):
        catalog.fences.require_newest_lease(first.get_lease(_TOPIC))
    assert first.find_owner(_TOPIC, patience_s=10) is None
    assert second.find_owner(_TOPIC, patience_s=10) == second.get_lease(_TOPIC)


def test_sole_owner_owns_nothing_once_stopped(catalog: Catalog) -> None:
    """Work in hand meets NotOwner."""
    owner = SingleOwner("w1", catalog.fences)
    owner.start()
    owner.stop()
    assert owner.stopping.is_set()
    assert owner.leases() == []
    with pytest.raises(NotOwner, match="has stopped"):
        owner.get_lease(_TOPIC)


def test_sole_owner_asks_again_for_what_a_paused_write_holds(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped in the middle of a write keeps nobody from starting for good."""
    raise_fences, asked = catalog.fences.raise_fences, []

    def raise_some(bundles: list[BundleId], worker_id: str) -> list[Lease]:
        asked.append(len(bundles))
        return raise_fences(bundles, worker_id)[: 5 if len(asked) == 1 else None]

    monkeypatch.setattr(catalog.fences, "raise_fences", raise_some)
    owner = SingleOwner("w1", catalog.fences)
    owner.start()
    assert asked == [8, 3]
    assert len(owner.leases()) == 8


def test_sole_owner_that_never_gets_all_does_not_start(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which bundles, and that somebody writes."""
    monkeypatch.setattr(catalog.fences, "raise_fences", lambda bundles, worker_id: [])
    with pytest.raises(CatalogBusy, match="earlier lease"):
        SingleOwner("w1", catalog.fences).start()


def test_sole_owner_told_to_stop_asks_no_further(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forty attempts would be minutes in which a process told to end does not."""
    owner, asked = SingleOwner("w1", catalog.fences), []

    def raise_none(bundles: list[BundleId], worker_id: str) -> list[Lease]:
        asked.append(bundles)
        owner.stop()
        return []

    monkeypatch.setattr(catalog.fences, "raise_fences", raise_none)
    with pytest.raises(CatalogBusy):
        owner.start()
    assert len(asked) == 1
