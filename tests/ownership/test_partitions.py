"""A worker that no longer reaches ZooKeeper, and is told nothing: no connection closes, no packet arrives."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.logstore.eventually import assert_eventually
from tests.ownership.conftest import BUNDLES, ReportMeasurement
from tests.ownership.network_namespace import NetworkNamespace, find_obstacle
from tests.ownership.proxy import CuttableProxy
from tests.ownership.worker_processes import WorkerProcesses

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill]


@pytest.fixture
def proxy(crew: WorkerProcesses) -> Iterator[CuttableProxy]:
    """Between one worker and ZooKeeper."""
    made = CuttableProxy(crew.zookeeper.address)
    yield made
    made.close()


@pytest.fixture
def namespace() -> Iterator[NetworkNamespace]:
    """A network for one worker."""
    if reason := find_obstacle():
        pytest.skip(f"no network namespaces here: {reason}")
    with NetworkNamespace(f"sx{os.getpid()}") as made:
        yield made


def test_worker_cut_off_from_zookeeper_loses_its_bundles_and_takes_part_again(
    crew: WorkerProcesses, proxy: CuttableProxy, measured: ReportMeasurement
) -> None:
    """It reaches the catalog all the time, and writes there in vain (apache/pulsar#19444)."""
    crew.hire("a", address=proxy.address)
    _cut_off(crew, proxy.cut, proxy.mend, measured)


@pytest.mark.where_allowed
def test_worker_whose_network_is_parted_loses_its_bundles_and_takes_part_again(
    crew: WorkerProcesses, namespace: NetworkNamespace, measured: ReportMeasurement
) -> None:
    """The same with the kernel's network: packets vanish, connects hang."""
    proxy = CuttableProxy(crew.zookeeper.address, host=namespace.outside)  # ZooKeeper listens on the loopback alone
    try:
        crew.hire("a", address=proxy.address, namespace=namespace.path)
        _cut_off(crew, namespace.pull, namespace.plug, measured)
    finally:
        proxy.close()


def _cut_off(
    crew: WorkerProcesses, cut: Callable[[], None], mend: Callable[[], None], measured: ReportMeasurement
) -> None:
    """Worker a alone behind the wire; another takes all, and gives a share back once it is mended."""
    crew.hire("b")
    crew.rest()
    lonely, other = crew.workers["a"], crew.workers["b"]
    began = time.monotonic()
    cut()
    assert_eventually(lambda: len(crew.accepted([other], began)) == BUNDLES, within_s=60)
    took_over_s = time.monotonic() - began
    assert_eventually(lambda: crew.refused(lonely, began) > 0)
    assert lonely.since("linked", began)[0]["link"] == "SUSPENDED"
    heard_s = lonely.since("linked", began)[0]["at"] - began
    mended = time.monotonic()
    mend()
    assert_eventually(lambda: bool(lonely.since("acquired", mended)), within_s=60)
    back_s = time.monotonic() - mended
    crew.rest()
    measured(
        f"cut off: it knew after {heard_s:.1f} s, the other wrote all after {took_over_s:.1f} s; "
        f"it had bundles again {back_s:.1f} s after the mending"
    )
    crew.audit()
