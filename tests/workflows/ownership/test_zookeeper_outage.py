"""A real ZooKeeper that is killed in the midst of a job: the job ends, and its owner is anybody."""

import pytest

from infra.coordination.zookeeper_session import EnsembleOptions
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.infra.coordination.conftest import ensemble, zookeeper
from tests.infra.coordination.crew import Crew
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually as assert_soon
from tests.workflows.ownership.neighbours import Neighbours
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.deletion.job_definitions import DeletionPolicy

__all__ = ["ensemble", "zookeeper"]

pytestmark = pytest.mark.external_service


async def test_trim_ends_under_no_lease_when_zookeeper_is_killed_in_its_midst(
    house: WorkflowHarness, street: Neighbours, zookeeper: ZooKeeper, ensemble: EnsembleOptions
) -> None:
    """The chunk in hand ends under the lease that SQL knows; the rest is done by anybody, and nothing waits."""
    house.world.fill(30)
    house.policy = DeletionPolicy(chunk=10, parallelism=1)
    crew = Crew(ensemble, house.world.catalog.fences)
    owner = crew.hire(street.name("a"))

    def outage() -> None:
        zookeeper.kill()
        assert_soon(lambda: not owner.leases())

    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=outage))
    try:
        assert_soon(lambda: len(owner.leases()) == house.world.catalog.fences.count_bundles())
        async with house.worker(replacements=street.at(owner)), street.owner("a", owners=owner):
            result = await (await house.trim()).result()
    finally:
        crew.dismiss()
        zookeeper.start()
    assert (result.detached, result.deleted) == (30, 30)
    assert street.visits("deletion.delete_chunk") == ["a", "a", "shared", "shared"]
    assert street.visits("deletion.certify") == ["shared"]
    assert not house.attempts("deletion.hand_over_chunk")
