"""A fence that is raised late: by a worker that was paused after it had the node."""

import threading
from collections.abc import Collection

import pytest

from logstore.catalog.ownership.fences import Fences
from logstore.ownership import BundleId, Lease
from tests.infra.coordination.crew import BUNDLES, Crew
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service


class Late(Fences):
    """Fences of a worker that is paused before it raises the first ones."""

    def __init__(self, fences: Fences) -> None:
        vars(self).update(vars(fences))
        self._fences = fences
        self.asked, self.go, self.done = threading.Event(), threading.Event(), threading.Event()

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        self.asked.set()
        assert self.go.wait(60)
        leases = self._fences.raise_fences(bundles, worker_id)
        self.done.set()
        return leases


def test_owner_that_a_late_raise_overtook_acquires_again(zookeeper: ZooKeeper, crew: Crew) -> None:
    """Its node stands, so nobody else would: its writes would be refused for as long as its session lives."""
    late = Late(crew.fences)
    crew.hire("a", fences=late)
    assert late.asked.wait(20)
    zookeeper.expire(crew.sessions["a"])
    crew.hire("b")
    assert_eventually(lambda: len(crew.owners["b"].leases()) == BUNDLES and crew.settled("b"))
    late.go.set()
    assert late.done.wait(20)
    assert_eventually(lambda: bool(crew.owners["a"].leases()) and crew.settled())


def test_owners_that_one_without_zookeeper_overtook_acquire_again(crew: Crew) -> None:
    """A worker of `ownership=single` beside those of ZooKeeper, by mistake, does not take their leases for ever."""
    crew.hire("a")
    assert_eventually(crew.settled)
    crew.fences.raise_fences([BundleId(one) for one in range(BUNDLES)], "single")
    assert not crew.settled()
    assert_eventually(crew.settled)
