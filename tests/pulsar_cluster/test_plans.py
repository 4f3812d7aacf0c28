"""Plans of a real cluster that is filled and damaged: equal to the truth, and never wrong when something is away."""

import http.server
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from infra.stack.service_port_choice import LOOPBACK
from infra.stack.service_process import ServiceProcess
from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Shell
from tests.pulsar_cluster.cluster import STORE, RealCluster
from tests.pulsar_cluster.demo import check_findings, ids_of_kind, list_findings
from tests.pulsar_cluster.scenario import DamagedCluster, attach_to_damaged_cluster, run_damaged_cluster
from tests.pulsar_cluster.traffic import Traffic
from workers.demo.temporary_homes import kill_processes_and_remove_home, make_home

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_800)]

_HANG_S: Final = 15.0  # longer than the session timeout of commands, and than that of the broker


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    damaged: DamagedCluster
    sexton: Shell
    is_admin_failing: threading.Event

    def plan(self) -> Mapping[str, Any]:
        arguments = ("pulsar", "plan", "--older-than", "1s", "--between", "5s", "--unsafe-age")
        document: Mapping[str, Any] = self.sexton.json(*arguments)
        return document

    def require_true_orphans(self, plan: Mapping[str, Any]) -> None:
        """Check that all orphans of a plan are true, and that a complete plan has all of them."""
        found = ids_of_kind(list_findings(self.sexton, plan["run_id"]), FindingKind.ORPHAN_LEDGER)
        orphans = {each.ledger_id for each in self.damaged.truth.values() if each.is_orphan}
        assert not found - orphans
        assert not plan["complete"] or found == orphans


@pytest.fixture(scope="module")
def damaged() -> Iterator[DamagedCluster]:
    """A new cluster, or the one in the home that SEXTON_TEST_PULSAR_HOME names."""
    if home := os.environ.get("SEXTON_TEST_PULSAR_HOME"):
        with attach_to_damaged_cluster(Path(home)) as attached:
            attached.cluster.start_broker()
            yield attached
        return
    new_home = make_home()
    try:
        with run_damaged_cluster(new_home, print) as started:
            yield started
    finally:
        RealCluster(new_home).kill()
        kill_processes_and_remove_home(new_home)


@pytest.fixture(scope="module")
def planned(damaged: DamagedCluster) -> Iterator[PlannedCluster]:
    home = make_home()
    is_failing = threading.Event()
    try:
        with run_admin_gate(damaged.cluster.admin_url, is_failing) as admin_url:
            settings = damaged.cluster.settings() | {"SEXTON_PULSAR_ADMIN_URL": admin_url}
            sexton = Shell(home, SEXTON_HOME=str(home), **settings)
            sexton.json("up", "--free-ports")
            yield PlannedCluster(damaged, sexton, is_failing)
    finally:
        kill_processes_and_remove_home(home)


@contextmanager
def run_admin_gate(admin_url: str, is_failing: threading.Event) -> Iterator[str]:
    """Serve the admin API of the broker, or 500 for every request while `is_failing` is set. Yield the URL."""

    class Gate(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if is_failing.is_set():
                self.send_error(500)
                return
            try:
                with urllib.request.urlopen(f"{admin_url}{self.path}", timeout=60) as response:  # noqa: S310
                    status, content = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            except OSError:
                self.send_error(502)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Gate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_plan_beside_traffic_equals_the_truth(planned: PlannedCluster) -> None:
    with Traffic(planned.damaged.cluster) as traffic:
        plan = planned.plan()
    assert not traffic.errors
    assert plan["complete"], plan["incomplete"]
    promises = check_findings(list_findings(planned.sexton, plan["run_id"]), planned.damaged)
    assert not [promise for promise in promises if not promise.ok]


def test_plan_with_a_failing_admin_calls_nothing_in_use_an_orphan(planned: PlannedCluster) -> None:
    planned.is_admin_failing.set()
    try:
        plan = planned.plan()
    finally:
        planned.is_admin_failing.clear()
    planned.require_true_orphans(plan)
    compacted = [
        finding["confirmed"]
        for finding in list_findings(planned.sexton, plan["run_id"])
        if finding["kind"] == FindingKind.ORPHAN_LEDGER and finding["statement"]["component"] == "compacted-ledger"
    ]
    assert not plan["complete"] or set(compacted) == {False}, "only the broker could confirm it"


def test_plan_without_a_registered_bookie_is_incomplete(planned: PlannedCluster) -> None:
    """The entry with the compacted ledger cannot be read then."""
    with planned.damaged.ledgers.unregistered_bookie():
        plan = planned.plan()
    assert not plan["complete"]
    assert any("__compaction" in reason for reason in plan["incomplete"])
    planned.require_true_orphans(plan)


def test_plan_while_sessions_expire_calls_nothing_in_use_an_orphan(planned: PlannedCluster) -> None:
    """ZooKeeper hangs longer than any session lives, again and again. The plan takes longer, or fails."""
    plans: list[Mapping[str, Any] | AssertionError] = []

    def make_plan() -> None:
        try:
            plans.append(planned.plan())
        except AssertionError as error:  # the command's exit code
            plans.append(error)

    store = ServiceProcess(STORE, planned.damaged.cluster.home).find_process()
    assert store
    thread = threading.Thread(target=make_plan)
    thread.start()
    for _ in range(2):
        time.sleep(_HANG_S / 3)
        os.kill(store.pid, signal.SIGSTOP)
        time.sleep(_HANG_S)
        os.kill(store.pid, signal.SIGCONT)
    thread.join()
    (plan,) = plans
    if not isinstance(plan, AssertionError):
        planned.require_true_orphans(plan)


def test_plan_without_a_broker_calls_nothing_in_use_an_orphan(planned: PlannedCluster) -> None:
    planned.damaged.cluster.kill_broker()
    planned.require_true_orphans(planned.plan())
