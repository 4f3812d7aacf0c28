"""Jobs that change a Pulsar cluster, run without Temporal on a real ZooKeeper: in this process, or in one that dies."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from kazoo.client import KazooClient
from pydantic import SecretStr
from temporalio.testing import ActivityEnvironment

from activities.bulk_jobs import RUN_CLAIM_S
from activities.pulsar.apply_cluster import ApplyClusterActivities
from activities.pulsar.inputs_and_results import (
    ApplyClusterPageInput,
    BeginClusterApplyInput,
    BeginUndoInput,
    ConcludeClusterApplyInput,
    UndoPageInput,
)
from activities.pulsar.journal_copies import REMOVAL_PREFIX, JournalCopies
from activities.pulsar.undo_cluster import UndoClusterActivities
from infra.objects.s3_store import BucketAddress
from infra.pulsar import cluster_lease
from infra.pulsar.ledger_changes import LedgerChanges
from logstore import failpoints
from logstore.catalog import Catalog, Database, migrate_catalog
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, RunKind
from logstore.ports.object_storage import ObjectInfo, OwnedStore, StoredObject
from logstore.pulsar.plan_jobs import VerifyClusterJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import (
    CLUSTER_KINDS,
    RESULT,
    ApplyCounts,
    Finding,
    PlanOrScrubResult,
    apply_run_id,
)
from tests.fakes.bulk_jobs import FakeBulkJobs
from tests.migrated_catalogs import create_migrated_sqlite
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings
from workers.settings import Settings

RUN_ID: Final = "pulsar-1"
_FINDINGS_PER_PAGE: Final = 3
_DEATH_TIMEOUT_S: Final = 120.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])  # a process begins with all modules imported


class FolderStore:
    """Bucket in a folder, which outlives its process. It has only what an apply needs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_if_absent(self, key: str, body: bytes, *, metadata: dict[str, str]) -> None:
        del metadata
        path, new = self._folder / key, self._folder.with_name(f"new-object-{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(body)
        new.rename(path)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: dict[str, str], require_may_proceed: Callable[[], None]
    ) -> None:
        require_may_proceed()
        file.seek(0)
        self.put_if_absent(key, file.read(), metadata=metadata)

    def list(self, prefix: str, *, first_page: int = 0) -> Iterator[ObjectInfo]:
        del first_page
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
            key, stat = str(path.relative_to(self._folder)), path.stat()
            if key.startswith(prefix):
                yield ObjectInfo(key=key, size_bytes=stat.st_size, modified_us=stat.st_mtime_ns // 1_000)

    def get(self, key: str) -> StoredObject | None:
        path = self._folder / key
        return StoredObject(key=key, body=path.read_bytes(), metadata={}) if path.exists() else None


@dataclass(frozen=True)
class ClusterJobs:
    """One Sexton: its catalog and files in a folder, and the cluster that it changes."""

    folder: Path
    zookeeper: str
    offloads: BucketAddress | None = None
    admin_url: str = ""

    def publish_plan(self, findings: list[Finding], *, ledgers: int, has_own_id: bool = False) -> None:
        """Store a finished plan of the cluster. Catalogs without an id of their own have the same one."""
        self.folder.mkdir(parents=True)
        if has_own_id:
            with closing(self._open_database()) as database:
                migrate_catalog(database)
        else:
            create_migrated_sqlite(self.folder / "catalog.db")
        bulk = FakeBulkJobs(self.folder / "bulk")
        bulk.cluster_findings, bulk.page = findings, _FINDINGS_PER_PAGE
        report = bulk.run_job(VerifyClusterJob(run_id=RUN_ID, has_offloads=False), lambda _: None).folder
        totals = FindingFiles(Path(report)).count_findings_and_bytes_by_kind(CLUSTER_KINDS)
        plan = PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=ledgers,
            before_us=1,
            report=report,
        )
        with self.open_catalog() as catalog:
            summary = {
                "catalog_id": catalog.identities.catalog_id(),
                "cluster": "east",
                "identity": PulsarClusterOfSettings(self.settings).read_identity(),
            }
            claim = Claim(workflow_id="plan", run_id="1", ttl_s=RUN_CLAIM_S)
            catalog.reconciliation.open_run(RUN_ID, RunKind.CLUSTER_PLAN, claim=claim, summary=summary)
            catalog.reconciliation.close_run(RUN_ID, {**summary, RESULT: asdict(plan)})

    def apply(self) -> ApplyCounts:
        with self.open_catalog() as catalog:
            activities = ApplyClusterActivities(
                catalog=catalog,
                records=cast("OwnedStore", self.records),
                cluster=PulsarClusterOfSettings(self.settings),
                bulk=FakeBulkJobs(self.folder / "bulk"),
                store_now_us=lambda: 1,
                finished_retention_s=0.0,
            )
            options: dict[str, Any] = {
                "include_irreversible": self.offloads is not None,
                "include_unconfirmed": self.offloads is not None,  # uploads
            }
            begin = BeginClusterApplyInput(run_id=RUN_ID, actor="tests", max_orphan_share=1.0, **options)
            scope = _run(activities.begin_cluster_apply, begin)
            stopped = ""
            for page in range(scope.pages):
                request = ApplyClusterPageInput(run_id=RUN_ID, page=page, **options)
                stopped = _run(activities.apply_cluster_page, request).stopped
                if stopped:
                    break
            conclude = ConcludeClusterApplyInput(run_id=RUN_ID, actor="tests", stopped=stopped, **options)
            counts: ApplyCounts = _run(activities.conclude_cluster_apply, conclude).counts
            return counts

    def undo(self) -> dict[str, int]:
        """Undo all applies of the plan. Return the counts of this run."""
        counts: dict[str, int] = {}
        with self.open_catalog() as catalog:
            activities = UndoClusterActivities(
                catalog=catalog,
                records=cast("OwnedStore", self.records),
                cluster=PulsarClusterOfSettings(self.settings),
            )
            _run(activities.begin_undo, BeginUndoInput(run_id=RUN_ID, actor="tests"))
            after: int | None = -1
            while after is not None:
                page = _run(activities.undo_page, UndoPageInput(run_id=RUN_ID, actor="tests", after=after))
                counts = {name: counts.get(name, 0) + page.counts.get(name, 0) for name in counts | page.counts}
                after = page.last
        return counts

    def read_journal(self) -> list[JournaledLedger]:
        with self.open_catalog() as catalog:
            return catalog.cluster_journal.list_ledgers(apply_run_id(RUN_ID), after=-1, limit=1_000)

    def list_removals(self) -> list[JournaledRemoval]:
        with self.open_catalog() as catalog:
            return catalog.cluster_journal.list_removals(apply_run_id(RUN_ID), after=-1, limit=1_000)

    def read_removal_copies(self) -> list[dict[str, Any]]:
        """Return the lines of all copies of removals, without their headers."""
        stored = [self.records.get(info.key) for info in self.records.list(REMOVAL_PREFIX)]
        return [json.loads(line) for each in stored if each for line in each.body.splitlines()[1:]]

    def read_journal_copies(self) -> list[JournaledLedger]:
        copies = JournalCopies(cast("OwnedStore", self.records)).read(apply_run_id(RUN_ID))
        return [ledger for _, _, ledgers in copies for ledger in ledgers]

    @property
    def records(self) -> FolderStore:
        return FolderStore(self.folder / "records")

    @property
    def settings(self) -> Settings:
        more: dict[str, Any] = {}
        if bucket := self.offloads:
            more = {
                "pulsar_admin_url": self.admin_url,
                "pulsar_offload_bucket": bucket.bucket,
                "pulsar_offload_bucket_exclusive": True,
                "pulsar_offload_endpoint": bucket.endpoint,
                "pulsar_offload_region": bucket.region,
                "pulsar_offload_access_key": SecretStr(bucket.access_key),
                "pulsar_offload_secret_key": SecretStr(bucket.secret_key),
            }
        return Settings(home=self.folder, pulsar_zookeeper=self.zookeeper, pulsar_bookkeeper_exclusive=True, **more)

    @contextmanager
    def open_catalog(self) -> Iterator[Catalog]:
        with closing(self._open_database()) as database:
            yield Catalog(database)

    def _open_database(self) -> Database:
        return Database(f"sqlite:///{self.folder / 'catalog.db'}")

    def die_in(self, job: Callable[["ClusterJobs"], object], point: str, nth: int) -> None:
        """Run a job in a process that is killed at a hit of a failpoint."""
        process = _processes.Process(target=_run_until_death, args=(self, job, point, nth))
        process.start()
        process.join(_DEATH_TIMEOUT_S)
        assert process.exitcode == -signal.SIGKILL, f"{point}@{nth}: expected a killed process, found {process}"

    def start_paused_apply(self) -> "PausedProcess":
        """Start an apply that stops itself (SIGSTOP) between its first look and the deletion."""
        errors = _processes.SimpleQueue()
        process = _processes.Process(target=_apply_with_a_pause, args=(self, errors))
        process.start()
        return PausedProcess(process, errors)


@dataclass(frozen=True)
class PausedProcess:
    process: Any  # of multiprocessing
    errors: Any  # queue of one text

    @property
    def is_paused(self) -> bool:
        state = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state == "T"

    def resume(self) -> str:
        """Let the process end, and return its error."""
        os.kill(self.process.pid, signal.SIGCONT)
        error: str = self.errors.get()
        self.process.join()
        return error


def free_lease_or_holder(client: KazooClient) -> str:
    """Return "" if the lease is free and has no mark, or its value."""
    marks = client.get_children(cluster_lease.LEASE_PATH)
    return str(client.get(cluster_lease.LEASE_PATH)[0].decode()) + "".join(marks)


def _run(method: Callable[[Any], Any], request: object) -> Any:
    return ActivityEnvironment().run(method, request)


def _run_until_death(jobs: ClusterJobs, job: Callable[[ClusterJobs], object], point: str, nth: int) -> None:
    failpoints.arm(point, "kill", nth=nth)
    job(jobs)


def _apply_with_a_pause(jobs: ClusterJobs, errors: Any) -> None:
    delete = LedgerChanges.delete

    def pause_and_delete(*arguments: Any) -> bool:
        os.kill(os.getpid(), signal.SIGSTOP)
        return delete(*arguments)

    LedgerChanges.delete = pause_and_delete  # type: ignore[method-assign, assignment]
    try:
        jobs.apply()
        errors.put("")
    except Exception as error:  # noqa: BLE001 - the test looks at it
        errors.put(f"{type(error).__name__}: {error}")
