"""Sessions that end on the server's side, and servers that go away and come back."""

import time
from collections.abc import Mapping
from functools import partial

import pytest

from tests.logstore.eventually import assert_eventually
from tests.ownership.conftest import BUNDLES, ReportMeasurement
from tests.ownership.worker_processes import WorkerProcesses

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill]

_LONG_S, _VERY_LONG_S = 10, 180  # that ZooKeeper is away: five session timeouts, and ninety


@pytest.mark.parametrize("catalog_url", ["sqlite", "postgresql"], indirect=True)
def test_all_sessions_that_expire_at_once_are_opened_again_and_keep_most_bundles(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """No stampede: each bundle is acquired again, few of them twice, mostly by the owner that it had."""
    before = crew.trio()
    counters = crew.counters()
    began = time.monotonic()
    crew.expire(*crew.workers.values())
    crew.wait_until_reacquired(began)
    converged_s = crew.converged_s(began)
    crew.rest()
    assert _raised(crew, counters) <= 3 * BUNDLES, "bundles went round and round"
    measured(f"each bundle owned {converged_s:.2f} s after the last reconnect; kept {crew.kept(before)} of {BUNDLES}")
    assert crew.kept(before) > BUNDLES / 2
    crew.audit()


def test_session_that_expires_loses_no_bundle_and_gives_no_old_lease_a_write(crew: WorkerProcesses) -> None:
    """The claims are looked at again, under a fence raised anew; others may have been faster (apache/pulsar#23011)."""
    crew.trio()
    victim = crew.workers["b"]
    began = time.monotonic()
    crew.expire(victim)
    assert_eventually(lambda: bool(victim.since("acquired", began)))
    crew.rest()
    assert_eventually(lambda: crew.refused(victim, began) > 0)
    assert victim.alive
    crew.audit()


def test_zookeeper_away_for_many_session_timeouts_and_back_finds_all_owned_soon(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """Nobody gives up, nobody takes what it cannot ask for, and nothing loops until the end (apache/pulsar#17759)."""
    _away_for(crew, _LONG_S, measured)


@pytest.mark.all_faults
@pytest.mark.timeout(_VERY_LONG_S + 120)
def test_zookeeper_away_for_minutes_and_back_finds_all_owned_soon(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """The same, for as long as it takes to mend an ensemble."""
    _away_for(crew, _VERY_LONG_S, measured)


def _raised(crew: WorkerProcesses, counters: Mapping[int, int]) -> int:
    """How often bundles were acquired since their counters stood so."""
    return sum(crew.counters().values()) - sum(counters.values())


def _away_for(crew: WorkerProcesses, seconds: float, measured: ReportMeasurement) -> None:
    before = crew.trio()
    crew.zookeeper.kill()
    try:
        time.sleep(seconds)
        counters = crew.counters()
    finally:
        back = time.monotonic()
        crew.zookeeper.start()
    assert_eventually(crew.settled, within_s=60)
    settled_s = time.monotonic() - back
    crew.rest()
    assert _raised(crew, counters) <= 3 * BUNDLES, "bundles went round and round"
    measured(
        f"away for {seconds} s: each bundle owned {settled_s:.1f} s after the start, "
        f"{crew.converged_s(back):.2f} s after the last reconnect; kept {crew.kept(before)} of {BUNDLES}"
    )
    crew.audit()


def test_zookeeper_that_flaps_within_a_session_timeout_leaves_one_owner_each(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """Killed and started again and again: whoever keeps its session keeps its fences (apache/pulsar#19444)."""
    crew.timeout_s = 10.0
    before, sessions = crew.trio(), crew.sessions()
    counters = crew.counters()
    for _ in range(3):
        crew.zookeeper.kill()
        crew.zookeeper.start()
    began = time.monotonic()
    assert_eventually(crew.settled, within_s=60)
    same = {worker_id for worker_id, session in crew.sessions().items() if sessions[worker_id] == session}
    for bundle, owner in crew.holders().items():
        assert crew.counters()[bundle] == counters[bundle] or {owner, before[bundle]} - same
    measured(f"{len(same)} of 3 sessions lived, kept {crew.kept(before)} of {BUNDLES}")
    assert crew.kept(before) > BUNDLES / 2
    assert_eventually(lambda: len(crew.accepted(crew.workers.values(), began)) == BUNDLES)
    crew.audit()


def test_ensemble_that_lost_all_its_data_knows_nobody_and_the_fences_do(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """Each bundle is acquired once more, under a later fence: what was held before the loss is worth nothing."""
    crew.trio()
    counters = crew.counters()
    began = time.monotonic()
    crew.zookeeper.wipe()
    crew.create_zookeeper_path()
    crew.wait_until_reacquired(began)
    measured(f"wiped: each bundle owned {time.monotonic() - began:.1f} s later")
    assert all(counter > counters[bundle] for bundle, counter in crew.counters().items())
    for worker in crew.workers.values():
        assert_eventually(partial(crew.refused, worker, began))
    crew.audit()
