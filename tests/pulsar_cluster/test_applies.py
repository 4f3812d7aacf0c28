"""Applies and undos on a real cluster: beside traffic and another Sexton, with crashes, and after its data were wiped.

The tests run in their order. The last one wipes the cluster.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.errors import StoreUnavailable
from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Shell
from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.filling import ClusterFiller
from tests.pulsar_cluster.ledger_entries import read_entries
from tests.pulsar_cluster.ledger_list import LedgerList
from tests.pulsar_cluster.traffic import Traffic
from tests.pulsar_cluster.waits import wait_until
from workers.cli.command_errors import ExitCode
from workers.demo.temporary_homes import kill_processes_and_remove_home, make_home
from workers.operations.service_checks import WORKER

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_800)]

_LIVE_TOPIC: Final = "orders"
_KIND: Final = FindingKind.ORPHAN_LEDGER.value
_MIN_AGE_S: Final = 2.0
_APPLY_TIMEOUT_S: Final = 900.0  # a busy machine


@dataclass(kw_only=True)
class AppliedCluster:
    """A cluster with one live topic, and the Sexton that plans it."""

    cluster: RealCluster
    ledgers: LedgerList
    filler: ClusterFiller
    sexton: Shell
    next_planted_id: int = 1_000_000

    def make_orphans(self, topic: str) -> list[int]:
        """Write messages, and delete the metadata of the topic by hand. Return its ledgers with ten entries each."""
        self.filler.subscribe(topic, "reader")  # keeps the messages
        self.filler.write(topic, 25)
        full = [each["ledgerId"] for each in self.filler.admin("GET", f"{topic}/internalStats")["ledgers"][:2]]
        self.filler.admin("PUT", f"{topic}/unload")
        self.ledgers.delete_managed_ledger(topic)
        return full

    def plant_orphans(self, count: int) -> list[int]:
        """Create ledgers that name the live topic as their owner. No bookie has entries of them."""
        source = self.filler.admin("GET", f"{_LIVE_TOPIC}/internalStats")["ledgers"][0]["ledgerId"]
        planted = list(range(self.next_planted_id, self.next_planted_id + count))
        self.next_planted_id += count
        self.ledgers.plant_copies(source, planted)
        return planted

    def plan(self) -> str:
        """Make a plan of what is a second older than the newest change, which is the clock of a plan."""
        time.sleep(_MIN_AGE_S)
        self.filler.write(_LIVE_TOPIC, 11)  # creates a ledger
        return plan(self.sexton)

    def apply(self, run_id: str, *options: str, code: int = 0) -> Any:
        return apply(self.sexton, run_id, *options, code=code)

    def verify(self, run_id: str) -> Mapping[str, Any]:
        """Return what `sexton pulsar verify` says, after a check that nothing is missing and everything was read."""
        verification: Mapping[str, Any] = self.sexton.json("pulsar", "verify", run_id)
        assert (verification["missing_referenced"], verification["complete"]) == (0, True)
        assert verification["certificate"]["intact"]
        return verification

    def wait_until_some_are_deleted(self, ledger_ids: list[int]) -> None:
        wait_until(lambda: len(self.ledgers.find_existing(ledger_ids)) < len(ledger_ids), "a deletion")
        assert self.ledgers.find_existing(ledger_ids), "the apply has ended already"

    def wait_for_end(self, run_id: str) -> Mapping[str, int]:
        """Wait for the apply that runs. Return the fates of its orphan ledgers."""
        apply_id = f"apply-pulsar/{run_id}"
        wait_until(lambda: not is_running(self.sexton, apply_id), f"the end of {apply_id}", _APPLY_TIMEOUT_S)
        return count_fates(self.sexton, run_id)


def plan(sexton: Shell) -> str:
    """Make a plan, and return its id."""
    document = sexton.json("pulsar", "plan", "--older-than", "1s", "--between", "1s", "--unsafe-age")
    assert document["complete"], document["incomplete"]
    return str(document["run_id"])


def apply(sexton: Shell, run_id: str, *options: str, code: int = 0) -> Any:
    return sexton.json("orphans", "apply", run_id, "--max-orphan-share", "1", *options, code=code)


def is_running(sexton: Shell, workflow_id: str) -> bool:
    running = sexton.json("workflow", "list", "--type", workflow_id.partition("/")[0], "--status", "running")
    return any(each["workflow_id"] == workflow_id for each in running)


def count_fates(sexton: Shell, run_id: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in sexton.json("orphans", "report", run_id, "--kind", _KIND, "--limit", "10000"):
        counts[str(finding["fate"])] = counts.get(str(finding["fate"]), 0) + 1
    return counts


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    home = make_home()
    cluster = RealCluster(home, print)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        kill_processes_and_remove_home(home)


@pytest.fixture(scope="module")
def applied(cluster: RealCluster) -> Iterator[AppliedCluster]:
    ledgers, filler = LedgerList(cluster), None
    try:
        filler = ClusterFiller(cluster, ledgers)
        filler.subscribe(_LIVE_TOPIC, "audit")
        filler.write(_LIVE_TOPIC, 25)
        with run_sexton(cluster) as sexton:
            yield AppliedCluster(cluster=cluster, ledgers=ledgers, filler=filler, sexton=sexton)
    finally:
        if filler is not None:
            filler.shut_down()
        ledgers.close()


@contextmanager
def run_sexton(cluster: RealCluster) -> Iterator[Shell]:
    """Run a Sexton with a catalog of its own."""
    home = make_home()
    try:
        sexton = Shell(home, SEXTON_HOME=str(home), **cluster.settings())
        sexton.json("up", "--free-ports")
        yield sexton
    finally:
        kill_processes_and_remove_home(home)


def test_apply_and_undo_beside_traffic_lose_no_message(applied: AppliedCluster) -> None:
    orphans = set(applied.make_orphans("gone"))
    with Traffic(applied.cluster) as traffic:
        run_id = applied.plan()
        previewed = {row["ledger_id"] for row in applied.apply(run_id, "--dry-run")["paths"]}
        assert orphans <= previewed
        assert applied.ledgers.find_existing(previewed) == previewed
        assert applied.apply(run_id, "--limit", "1")["applied"] == {_KIND: 1}
        assert len(applied.ledgers.find_existing(previewed)) == len(previewed) - 1
        assert applied.apply(run_id)["stopped"] is None
        assert not applied.ledgers.find_existing(previewed)
        verified = applied.verify(run_id)
        assert verified["journal"] == {"absent": len(previewed), "restored": 0, "replaced": 0}
        assert (verified["orphans_left"], verified["new_dangling"]) == (0, [])
        assert applied.sexton.json("orphans", "undo", run_id)["counts"]["restored"] == len(previewed)
        assert applied.ledgers.find_existing(previewed) == previewed
        verified = applied.verify(run_id)
        assert verified["journal"] == {"absent": 0, "restored": len(previewed), "replaced": 0}
        assert (verified["orphans_left"], verified["bytes"]["awaiting_collection"]) == (len(previewed), 0)
    assert traffic.find_problems() == []


def test_undo_before_a_garbage_collection_reads_all_entries_again(applied: AppliedCluster) -> None:
    """After the collection the entries are gone, and the undo and the verification say so."""
    undone, lost = applied.make_orphans("read")
    before = read_entries(applied.cluster, undone)
    assert len(before) == 10
    deleted_before = applied.cluster.read_bookie_metrics()["bookie_DELETED_LEDGER_TOTAL"]
    run_id = applied.plan()
    applied.apply(run_id)
    (row,) = applied.sexton.json("orphans", "undo", run_id, "--ledger", str(undone))["ledgers"]
    assert (row["znode"], row["data"]) == ("restored", "stored")
    assert read_entries(applied.cluster, undone) == before
    printed = applied.ledgers.run_shell("readledger", "-ledgerid", str(undone), "-msg")
    assert all(f"message {number}" in printed for number in range(10)), "BookKeeper's own client reads them, too"
    space_bytes = applied.verify(run_id)["bytes"]
    assert space_bytes["awaiting_collection"] > 0

    applied.cluster.collect_garbage()
    reclaimed_bytes = space_bytes["reclaimed"] + space_bytes["awaiting_collection"]
    expected = {"reclaimed": reclaimed_bytes, "awaiting_collection": 0, "unknown": 0}
    assert applied.verify(run_id)["bytes"] == expected
    assert applied.cluster.read_bookie_metrics()["bookie_DELETED_LEDGER_TOTAL"] > deleted_before
    assert read_entries(applied.cluster, undone) == before
    late_undo = applied.sexton.json("orphans", "undo", run_id, "--ledger", str(lost), code=ExitCode.PARTIAL)
    (row,) = late_undo["ledgers"]
    assert (row["znode"], row["data"]) == ("restored", "gone")
    assert [failed["id"] for failed in late_undo["failed"]] == [lost]
    with pytest.raises(StoreUnavailable):
        read_entries(applied.cluster, lost)


def test_broker_that_is_killed_in_mid_apply_disturbs_nothing(applied: AppliedCluster) -> None:
    """The apply goes on while the broker is away. Its clients go on when it is back, and no message is lost."""
    planted = applied.plant_orphans(2_500)
    run_id = applied.plan()
    with Traffic(applied.cluster) as traffic:
        applied.apply(run_id, "--rate", "10", "--no-wait")
        applied.wait_until_some_are_deleted(planted)
        applied.cluster.kill_broker()
        remaining = len(applied.ledgers.find_existing(planted))
        wait_until(lambda: len(applied.ledgers.find_existing(planted)) < remaining, "a deletion without a broker")
        applied.cluster.start_broker()
        assert applied.ledgers.find_existing(planted), "the apply has ended already"
        applied.sexton.json("deletion", "rate", f"apply-pulsar/{run_id}", "0")
        fates = applied.wait_for_end(run_id)
    assert set(fates) == {"deleted"}
    assert not applied.ledgers.find_existing(planted)
    assert not traffic.errors
    assert not traffic.lost  # some may come twice: their acknowledgements died with the broker


def test_worker_that_is_killed_in_mid_apply_is_succeeded_by_another(applied: AppliedCluster) -> None:
    planted = applied.plant_orphans(300)
    metadata = applied.ledgers.read_metadata(planted)
    run_id = applied.plan()
    applied.apply(run_id, "--rate", "20", "--no-wait")
    applied.wait_until_some_are_deleted(planted)
    worker = ServiceProcess(WORKER, StackHome.at(applied.sexton.folder))
    killed = worker.find_process()
    assert killed is not None
    killed.kill()
    killed.wait(timeout=60)
    assert applied.ledgers.find_existing(planted), "the apply has ended already"
    applied.sexton.json("up")
    assert set(applied.wait_for_end(run_id)) == {"deleted"}
    assert not applied.ledgers.find_existing(planted)
    undone = applied.sexton.json("orphans", "undo", run_id, code=ExitCode.PARTIAL)  # planted ledgers have no entries
    assert undone["counts"]["restored"] >= len(planted)
    assert applied.ledgers.read_metadata(planted) == metadata


def test_second_of_two_applies_on_one_cluster_is_refused(applied: AppliedCluster) -> None:
    """The Sextons do not know each other. The cluster's lease names the one that has it."""
    planted = applied.plant_orphans(300)
    with run_sexton(applied.cluster) as other:
        run_id, other_run_id = applied.plan(), plan(other)
        applied.apply(run_id, "--rate", "20", "--no-wait")
        applied.wait_until_some_are_deleted(planted)
        error = apply(other, other_run_id, code=3)["error"]
        assert f"expected no other job that changes it, found the apply of {run_id}" in error["message"]
        assert "Wait until it has ended" in error["message"]
        assert applied.ledgers.find_existing(planted), "the first apply has ended already"
        assert set(applied.wait_for_end(run_id)) == {"deleted"}
        assert apply(other, other_run_id)["applied"] == {}, "the first apply has deleted all"
        assert set(count_fates(other, other_run_id)) == {"kept"}


def test_wiped_cluster_at_the_same_address_is_refused(applied: AppliedCluster) -> None:
    applied.plant_orphans(3)
    applied_run_id = applied.plan()
    applied.apply(applied_run_id)
    applied.plant_orphans(3)
    run_id = applied.plan()
    applied.filler.shut_down()
    applied.cluster.make_anew()
    with closing(LedgerList(applied.cluster)) as ledgers:  # a client of the old ZooKeeper never gets into the new one
        before = ledgers.list_ids()
        assert "expected the cluster" in applied.apply(run_id, code=3)["error"]["message"]
        undo_error = applied.sexton.json("orphans", "undo", applied_run_id, code=3)["error"]
        assert "expected the cluster" in undo_error["message"]
        assert before <= ledgers.list_ids()
        assert not ledgers.find_existing(range(1_000_000, applied.next_planted_id))
