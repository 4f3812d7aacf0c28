"""`plan-pulsar` as a whole: a real ZooKeeper, Spark and Temporal, and a bookie that speaks the real protocol."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from activities.pulsar.apply_cluster import ApplyClusterActivities
from activities.pulsar.plan_cluster import PlanClusterActivities
from activities.pulsar.undo_cluster import UndoClusterActivities
from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.bookie_reads import BookieConnections
from infra.pulsar.stored_data import look_for_stored_data
from logstore.catalog import Catalog
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import StoredData
from logstore.pulsar.plan_jobs import FIRST_SCAN, NO_OFFLOAD_BUCKET, SECOND_SCAN
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, BulkJobProgress, BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import FindingKind, PlanOrScrubResult
from spark.job_mains import lazy_cluster_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.activities.activity_world import open_activity_world
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.logstore.pulsar import wire
from tests.spark.conftest import warm
from tests.spark.pulsar.test_cluster_jobs import filled
from tests.workflows.pulsar.cluster_plans import plan, run_id
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workers.assembly.log_store_from_settings import find_cluster_for_jobs
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings
from workers.settings import Settings
from workflows.pulsar.apply_pulsar import ApplyPulsar
from workflows.pulsar.job_definitions import (
    APPLY_PULSAR,
    UNDO_PULSAR,
    ApplyPulsarInput,
    ApplyPulsarResult,
    UndoPulsarInput,
    UndoPulsarResult,
)
from workflows.pulsar.undo_pulsar import UndoPulsar

__all__ = ["cluster", "ensemble", "warm", "zookeeper"]

pytestmark = pytest.mark.external_service

_ORPHANS = {101, 102, 103, 104, 105, 106, 2_147_483_650}
_UNATTRIBUTED = {201, 202}
_UNCONFIRMED = {104, 105}


class GatedSparkJobs(SparkBulkJobs):
    """Spark jobs, of which each may be held before it runs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.hold: Callable[[BulkJob], None] = lambda _job: None
        self.ran: list[str] = []

    def run_job(
        self, job: BulkJob, on_progress: Callable[[BulkJobProgress], None], *, master: str = ""
    ) -> BulkJobSummary:
        self.hold(job)
        self.ran.append(job.name)
        return super().run_job(job, on_progress, master=master)


@pytest.fixture
def settings(tmp_path: Path, ensemble: EnsembleOptions) -> Settings:
    return Settings(home=tmp_path, pulsar_zookeeper=ensemble.hosts, pulsar_bookkeeper_exclusive=True)


@pytest.fixture
def jobs(warm: WarmSession, tmp_path: Path, settings: Settings) -> GatedSparkJobs:
    mains = partial(lazy_cluster_job_mains, partial(find_cluster_for_jobs, settings))
    return GatedSparkJobs(warm, PublishedOutputs(tmp_path / "bulk"), mains)


@asynccontextmanager
async def working(
    house: WorkflowHarness, settings: Settings, jobs: SparkBulkJobs, catalog: Catalog | None = None
) -> AsyncIterator[None]:
    """A worker whose plans read the cluster of the settings."""
    catalog = catalog or house.world.catalog
    planning = PlanClusterActivities(
        catalog=catalog,
        cluster=PulsarClusterOfSettings(settings),
        bulk=jobs,
        finished_retention_s=30 * 86_400,
    )
    applying = ApplyClusterActivities(
        catalog=catalog,
        records=house.world.record_objects,
        cluster=PulsarClusterOfSettings(settings),
        bulk=jobs,
        store_now_us=lambda: house.world.record_objects.now_us,
        finished_retention_s=30 * 86_400,
    )
    undoing = UndoClusterActivities(
        catalog=catalog,
        records=house.world.record_objects,
        cluster=PulsarClusterOfSettings(settings),
    )
    replacements: list[Callable[..., Any]] = [
        planning.check_cluster_and_begin_plan,
        planning.run_cluster_plan_bulk_job,
        planning.conclude_cluster_plan,
        applying.begin_cluster_apply,
        applying.apply_cluster_page,
        applying.conclude_cluster_apply,
        undoing.begin_undo,
        undoing.undo_page,
    ]
    async with house.worker(max_cached_workflows=0, replacements=replacements):
        yield


@pytest.fixture
def real_cluster(cluster: KazooClient) -> Iterator[KazooClient]:
    """A cluster with ledgers of each kind, and a bookie that answers while the test runs."""
    rpc = wire.encode_message((1, "bookie"), (2, 3181), (3, "10.0.0.1"), (4, "bookie-rpc"))
    cluster.create("/ledgers/INSTANCEID", b"5f0a", makepath=True)
    cluster.create("/ledgers/available/bk0", wire.encode_message((6, rpc)), makepath=True)
    cluster.create("/admin/clusters/east", b"{}", makepath=True)
    registration = b'{"webServiceUrl": "http://10.0.0.2:8080"}'
    cluster.create("/loadbalance/brokers/10.0.0.2:8080", registration, makepath=True)
    with filled(cluster):
        yield cluster


def ids_by_kind(result: PlanOrScrubResult) -> dict[FindingKind, set[int | None]]:
    ids: dict[FindingKind, set[int | None]] = {}
    for _, finding in FindingFiles(Path(result.report)).iterate_findings():
        ids.setdefault(finding.kind, set()).add(finding.ledger_id)
    return ids


async def plan_at_once(house: WorkflowHarness, **more: Any) -> Any:
    """Start a plan of ledgers that were made just now."""
    return await plan(house, **({"between_s": 0.0, "older_than_s": 0.0, "unsafe_age": True} | more))


async def test_every_planted_orphan_is_found_and_nothing_else(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    async with working(house, settings, jobs):
        result = await (await plan_at_once(house)).result()
    assert result.found
    found = result.found
    ids = ids_by_kind(found)
    assert ids[FindingKind.ORPHAN_LEDGER] == _ORPHANS
    assert ids[FindingKind.UNATTRIBUTED_LEDGER] == _UNATTRIBUTED
    assert ids[FindingKind.DANGLING_REFERENCE] == {300}
    assert found.findings["orphan_ledger"] == len(_ORPHANS)
    assert (found.incomplete, found.left_out) == ([], [NO_OFFLOAD_BUCKET])
    assert found.ledgers == 18
    assert found.references > 0
    run = house.world.catalog.reconciliation.get_run(run_id(house))
    assert run.summary["identity"].startswith("5f0a/")


async def test_plan_is_incomplete_if_no_bookie_has_the_compaction_cursor(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, cluster: KazooClient
) -> None:
    """The compacted ledger that the broker uses is unknown. The plan says so, and reports the rest."""
    cluster.create("/ledgers/available/bk0", makepath=True)
    with filled(cluster):
        pass  # the bookie is gone when the block ends
    async with working(house, settings, jobs):
        result = await (await plan_at_once(house)).result()
    assert result.found
    reasons = result.found.incomplete
    assert any(reason.startswith("bookies: ") for reason in reasons)
    assert any(reason.startswith("/managed-ledgers/t/ns/persistent/a/__compaction: ") for reason in reasons)
    assert result.found.findings["unattributed_ledger"] >= len(_UNATTRIBUTED)


async def test_worker_that_is_lost_between_the_scans_is_replaced(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    """The next worker does not repeat the first scan, and compares both."""
    gate = Gate()

    def hold(job: BulkJob) -> None:
        if job.name == SECOND_SCAN and not gate.reached.is_set():
            gate.wait()

    jobs.hold = hold
    async with working(house, settings, jobs):
        handle = await plan_at_once(house)
        await assert_eventually(gate.reached.is_set)
    async with working(house, settings, jobs):
        result = await handle.result()
    assert result.found
    assert ids_by_kind(result.found)[FindingKind.ORPHAN_LEDGER] == _ORPHANS
    assert jobs.ran.count(FIRST_SCAN) == 1


async def test_timer_that_fires_too_early_is_noticed_by_the_comparison(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    """Temporal skips time here, so that ten minutes pass for the workflow and none for the cluster."""
    async with working(house, settings, jobs):
        result = await (await plan_at_once(house, between_s=600.0)).result()
    first, second = house.attempts("pulsar.run_bulk")[:2]
    assert (second.scheduled - first.scheduled).total_seconds() >= 600
    assert result.refused
    assert "expected 600 s or more between the scans" in result.refused.message


async def test_cluster_made_anew_between_the_scans_is_refused(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    def replace(job: BulkJob) -> None:
        if job.name == SECOND_SCAN:
            real_cluster.set("/ledgers/INSTANCEID", b"77aa")

    jobs.hold = replace
    async with working(house, settings, jobs):
        result = await (await plan_at_once(house)).result()
    assert result.refused
    assert "scan 2: expected the cluster 5f0a/" in result.refused.message


async def apply(house: WorkflowHarness, **more: Any) -> ApplyPulsarResult:
    request = ApplyPulsarInput(run_id=run_id(house), actor="tests", max_orphan_share=1.0, **more)
    return await house.client.execute_workflow(
        ApplyPulsar.run, request, id=APPLY_PULSAR.id(request.run_id), task_queue=house.queue
    )


def ledger_ids(cluster: KazooClient) -> set[int]:
    with_parents = [("", "")]
    ids = set()
    while with_parents:
        path, _ = with_parents.pop()
        for name in cluster.get_children(f"/ledgers{path}"):
            if name.startswith("L"):
                ids.add(int("".join(f"{path}/{name[1:]}".split("/"))))
            elif name.isdecimal():
                with_parents.append((f"{path}/{name}", ""))
    return ids


async def test_apply_deletes_what_the_plan_found_and_nothing_else(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    """First two ledgers, then the confirmed ones, then all. A last apply changes nothing."""
    before, confirmed = ledger_ids(real_cluster), len(_ORPHANS - _UNCONFIRMED)
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        first = await apply(house, limit=2)
        assert (first.stopped, first.refused, first.done.applied) == ("", None, {"orphan_ledger": 2})
        assert len(ledger_ids(real_cluster)) == len(before) - 2
        second = await apply(house)
        assert (second.done.applied, sum(second.done.skipped.values())) == ({"orphan_ledger": confirmed}, 2)
        assert ledger_ids(real_cluster) == before - _ORPHANS | _UNCONFIRMED
        third = await apply(house, include_unconfirmed=True)
        assert (third.done.applied, third.done.skipped) == ({"orphan_ledger": len(_ORPHANS)}, {})
        assert ledger_ids(real_cluster) == before - _ORPHANS
        assert await apply(house) == third
    journal = house.world.catalog.cluster_journal.list_ledgers(f"apply-{run_id(house)}", after=-1, limit=100)
    assert {each.ledger_id for each in journal if each.deleted_us is not None} == _ORPHANS


def read_certificate(house: WorkflowHarness, key: str) -> list[dict[str, Any]]:
    stored = house.world.record_objects.get(key)
    assert stored
    assert key.endswith(f"-{sha256(stored.body).hexdigest()}.jsonl")
    return list(map(json.loads, stored.body.splitlines()))


async def test_certificates_list_what_applies_have_deleted(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    """Each apply of a plan has one. The last one has all, and an earlier one is not changed."""
    versions = {"/ledgers/00/0000/L0101": 0}
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        first = await apply(house, limit=2, reason="a trial")
        earlier = read_certificate(house, first.certificate)
        second = await apply(house, include_unconfirmed=True, reason="the rest")
        repeated = await apply(house, reason="once more")
    header, *rows, end = read_certificate(house, second.certificate)
    assert (len(earlier) - 2, end) == (2, {"ledgers": len(_ORPHANS), "irreversible": 0})
    assert {row["ledger_id"] for row in rows} == _ORPHANS
    assert {row["path"]: row["version"] for row in rows}.items() >= versions.items()
    assert header["cluster"]["name"] == "east"
    assert header["cluster"]["identity"].startswith("5f0a/")
    assert [header[name] for name in ("plan", "actor", "reason", "stopped", "left")] == [
        run_id(house), "tests", "the rest", "", 0,
    ]  # fmt: skip
    assert header["result"]["applied"] == {"orphan_ledger": len(_ORPHANS)}
    assert (earlier[0]["reason"], earlier[0]["left"]) == ("a trial", len(_ORPHANS) - 2)
    assert read_certificate(house, first.certificate) == earlier
    assert repeated == second


async def test_apply_stops_at_the_first_surprise(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    before = ledger_ids(real_cluster)
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        real_cluster.set("/managed-ledgers/t/ns/persistent/a", wire.managed_ledger([1, 300, 2_147_483_647, 2, 101]))
        result = await apply(house)
        assert "ledger 101: expected no reference" in result.stopped
        deleted = before - ledger_ids(real_cluster)
        assert deleted < _ORPHANS - {101}, "those of earlier pages"
        assert result.done.applied == {"orphan_ledger": len(deleted)}
        if deleted:
            header, *rows, _ = read_certificate(house, result.certificate)
            assert {row["ledger_id"] for row in rows} == deleted
            assert header["stopped"] == result.stopped
        assert await apply(house) == result, "the plan is not trusted any more"


async def test_apply_refuses_another_cluster_and_a_bookkeeper_that_may_be_shared(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    before = ledger_ids(real_cluster)
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        settings.__dict__["pulsar_bookkeeper_exclusive"] = False
        refused = (await apply(house)).refused
        assert refused
        assert "pulsar_bookkeeper_exclusive" in refused.message
        settings.__dict__["pulsar_bookkeeper_exclusive"] = True
        real_cluster.set("/ledgers/INSTANCEID", b"77aa")
        refused = (await apply(house)).refused
        assert refused
        assert "found 77aa" in refused.message
    assert ledger_ids(real_cluster) == before


async def undo(house: WorkflowHarness, *ledger_ids: int) -> UndoPulsarResult:
    request = UndoPulsarInput(run_id=run_id(house), actor="tests", ledger_ids=list(ledger_ids))
    return await house.client.execute_workflow(
        UndoPulsar.run, request, id=UNDO_PULSAR.id(request.run_id), task_queue=house.queue
    )


async def test_undo_puts_back_what_applies_have_deleted(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    before, path = ledger_ids(real_cluster), "/ledgers/00/0000/L0101"
    value, _ = real_cluster.get(path)
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        refused = (await undo(house)).refused
        assert refused, "nothing was deleted"
        await apply(house)
        assert (await undo(house, 101)).counts["restored"] == 1
        assert real_cluster.get(path)[0] == value
        result = await undo(house)
        confirmed = len(_ORPHANS - _UNCONFIRMED)
        assert (result.counts["restored"], result.counts["present"]) == (confirmed - 1, 1)
        assert ledger_ids(real_cluster) == before


async def test_undo_after_the_catalog_was_thrown_away(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient, tmp_path: Path
) -> None:
    """A new catalog knows neither the plan nor the apply. Torn copies change nothing in the cluster."""
    before, records = ledger_ids(real_cluster), house.world.record_objects
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        await apply(house)
    deleted = before - ledger_ids(real_cluster)
    key = next(key for key in records.keys if key.startswith(f"cluster-journals/apply-{run_id(house)}/"))
    copy = records.get(key)
    assert copy
    (tmp_path / "new").mkdir()
    new_world = open_activity_world(tmp_path / "new")
    with new_world.opened:
        async with working(house, settings, jobs, new_world.catalog):
            records.delete([key])
            records.put_if_absent(key, copy.body[:-1], metadata={})
            refused = (await undo(house)).refused
            assert refused
            assert refused.message.startswith(f"{key}: expected an object whose name is its SHA-256 digest")
            assert ledger_ids(real_cluster) == before - deleted
            records.delete([key])
            records.put_if_absent(key, copy.body, metadata={})
            refused = (await undo(house, 101, 99)).refused
            assert refused
            assert "found '99'" in refused.message
            assert ledger_ids(real_cluster) == before - deleted
            assert (await undo(house)).counts["restored"] == len(deleted)
    assert ledger_ids(real_cluster) == before


async def test_undo_without_the_catalog_refuses_another_cluster(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient, tmp_path: Path
) -> None:
    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        await apply(house)
    remaining = ledger_ids(real_cluster)
    real_cluster.set("/ledgers/INSTANCEID", b"77aa")
    (tmp_path / "new").mkdir()
    new_world = open_activity_world(tmp_path / "new")
    with new_world.opened:
        async with working(house, settings, jobs, new_world.catalog):
            refused = (await undo(house)).refused
    assert refused
    assert "expected the cluster 5f0a/" in refused.message
    assert ledger_ids(real_cluster) == remaining


async def test_ledgers_are_back_before_a_bookie_is_asked(
    house: WorkflowHarness, settings: Settings, jobs: GatedSparkJobs, real_cluster: KazooClient
) -> None:
    """A bookie that does not answer must not delay the others until their entries are gone."""
    before = ledger_ids(real_cluster)
    seen: list[set[int]] = []

    def watch(connections: BookieConnections, ledgers: Sequence[JournaledLedger]) -> list[StoredData]:
        seen.append(ledger_ids(real_cluster))
        return look_for_stored_data(connections, ledgers)

    async with working(house, settings, jobs):
        await (await plan_at_once(house)).result()
        await apply(house)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("infra.pulsar.cluster_changes.look_for_stored_data", watch)
            await undo(house)
    assert seen == [before]
