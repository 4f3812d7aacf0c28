"""Owners that sleep through the loss of their bundles, die and come back, or are not alone: they write in vain."""

import signal
import time
from contextlib import suppress
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from infra.coordination.bundle_holdings import _ATTEMPTS_RESET_S, TakeoverTimes
from infra.coordination.bundle_owner import ExpiredPolicy
from infra.coordination.ownership_nodes import OWNERS, WORKERS
from logstore.ownership import BundleId, bundle_name
from tests.logstore.eventually import assert_eventually
from tests.ownership.conftest import BUNDLES, ReportMeasurement
from tests.ownership.owner_process import FAILED, TAKEN
from tests.ownership.worker_processes import OwnerWorkerProcess, WorkerProcesses

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill]


def _stands(client: KazooClient, path: str) -> bool:
    return client.exists(path) is not None


def _pause(crew: WorkerProcesses, worker: OwnerWorkerProcess, seconds: float) -> float:
    """Freeze it for that long; when it woke."""
    crew.freeze(worker)
    time.sleep(seconds)
    worker.signal(signal.SIGCONT)
    return time.monotonic()


@pytest.mark.parametrize("timeouts", [0.5, 1.0])
def test_owner_paused_for_about_a_session_timeout_and_woken_has_its_bundles_or_none_twice(
    crew: WorkerProcesses, timeouts: float, measured: ReportMeasurement
) -> None:
    """Whether its session lived or not is the server's word, and both ends are right."""
    before = crew.trio()
    sessions = crew.sessions()
    woke = _pause(crew, crew.workers["a"], timeouts * crew.timeout_s)
    assert_eventually(lambda: len(crew.accepted(crew.workers.values(), woke)) == BUNDLES)
    assert_eventually(crew.settled)
    lived = crew.sessions() == sessions
    measured(f"paused for {timeouts} timeouts: session lived: {lived}, kept {crew.kept(before)} of {BUNDLES}")
    crew.audit()


@pytest.mark.parametrize("catalog_url", ["sqlite", "postgresql"], indirect=True)
def test_owner_paused_for_three_session_timeouts_wakes_and_writes_in_vain(
    crew: WorkerProcesses, measured: ReportMeasurement
) -> None:
    """Others took its bundles while it slept: each of its writes is refused with a clear error and changes nothing.

    As in apache/pulsar#19444, where the stale owner's write spoilt the topic's ledger list.
    """
    before = crew.trio()
    zombie = crew.workers["a"]
    mine = {bundle for bundle, owner in before.items() if owner == "a"}
    woke = _pause(crew, zombie, 3 * crew.timeout_s)
    assert_eventually(lambda: crew.refused(zombie, woke) >= len(mine), within_s=60)
    crew.rest()
    taken = {bundle for bundle in mine if any(row.fence > 1 and row.worker_id != "a" for row in crew.raises(bundle))}
    measured(f"paused for 3 timeouts: {len(taken)} of its {len(mine)} bundles went to others")
    assert taken
    crew.audit()


def test_zombie_meets_the_fences_of_an_ensemble_that_forgot_it(crew: WorkerProcesses) -> None:
    """A wiped ensemble hands out all bundles as if nobody ever had them: the fence alone knows of the sleeper."""
    crew.trio()
    zombie = crew.workers["a"]
    crew.freeze(zombie)
    began = time.monotonic()
    crew.zookeeper.wipe()
    crew.create_zookeeper_path()
    crew.wait_until_reacquired(began)
    zombie.signal(signal.SIGCONT)
    woke = time.monotonic()
    assert_eventually(lambda: crew.refused(zombie, woke) > 0, within_s=60)
    crew.rest()
    crew.audit()


def test_killed_owner_that_is_started_again_waits_for_its_own_old_nodes(crew: WorkerProcesses) -> None:
    """They look like its own, and are about to vanish: nothing is done under them (apache/pulsar#10351, #17664)."""
    crew.trio()
    old = crew.workers["a"]
    old.kill()
    with crew.look() as client:
        assert client.exists(f"{WORKERS}/a"), "the session ended with its process"
    again = crew.hire("a")
    assert_eventually(lambda: bool(again.said("acquired")))
    crew.rest()
    ended = max(entry["at"] for entry in old.said("wrote"))
    assert again.said("acquired")[0]["at"] > ended
    crew.audit()


def test_owner_whose_bundle_became_anothers_while_it_was_expired_unloads_it(crew: WorkerProcesses) -> None:
    """Foreign nodes are left to whom they are (apache/pulsar#23011, #295)."""
    crew.hire("a")
    crew.rest()
    path = f"{OWNERS}/{bundle_name(BundleId(3), bundle_count=BUNDLES)}"
    owner = crew.workers["a"]
    with crew.look() as client:
        crew.freeze(owner)
        assert_eventually(lambda: client.exists(path) is None)
        client.create(path, b'{"worker_id": "other"}', ephemeral=True)
        owner.signal(signal.SIGCONT)
        assert_eventually(lambda: len(crew.holders()) == BUNDLES - 1)
        assert_eventually(lambda: [3] in [entry["bundles"] for entry in owner.said("unloaded")])
        assert client.get(path)[0] == b'{"worker_id": "other"}'
    crew.audit()


def test_two_workers_racing_for_the_same_bundles_have_one_writer_each(crew: WorkerProcesses) -> None:
    """No grace, and nodes that vanish again and again: who loses the race writes nothing (apache/pulsar#14736)."""
    eager = TakeoverTimes(takeover_grace_s=0.0, rest_s=0.0)
    for worker_id in ("a", "b"):
        crew.hire(worker_id, takeover=eager)
    assert_eventually(crew.settled)
    raced = range(8)
    with crew.look() as client:
        for bundle in list(raced) * 2:
            path = f"{OWNERS}/{bundle_name(BundleId(bundle), bundle_count=BUNDLES)}"
            assert_eventually(partial(_stands, client, path))
            with suppress(NoNodeError):  # a worker that lost a race gave it back meanwhile
                client.delete(path)
    assert_eventually(crew.settled, within_s=_ATTEMPTS_RESET_S + 20)  # both may have spent their attempts at a bundle
    assert {row.worker_id for bundle in raced for row in crew.raises(bundle)} == {"a", "b"}
    crew.audit()


def test_second_process_of_a_worker_id_ends_and_the_first_keeps_all(crew: WorkerProcesses) -> None:
    """It is told that the id is taken, and never writes."""
    crew.hire("a")
    before = crew.rest()
    second = crew.start(crew.plan("a"))
    assert second.exit_code(within_s=60) == TAKEN
    assert "worker id a" in second.said("taken")[0]["error"]
    assert not second.said("wrote")
    assert crew.holders() == before
    crew.audit()


def test_policy_shutdown_ends_the_process_and_others_take_over(crew: WorkerProcesses) -> None:
    """It says why, exits, and its bundles have other owners."""
    for worker_id, policy in (("a", ExpiredPolicy.SHUTDOWN), ("b", ExpiredPolicy.RECONNECT)):
        crew.hire(worker_id, expired=policy)
    crew.rest()
    leaver = crew.workers.pop("a")
    crew.expire(leaver)
    assert leaver.exit_code(within_s=60) == FAILED
    assert leaver.said("ended")[-1]["failure"] == "ServiceFailed"
    crew.rest()
    crew.audit()
