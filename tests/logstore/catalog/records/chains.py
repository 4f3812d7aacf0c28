"""Rebuilds one after the other, each into a database of its own, over one store and one record log."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from temporalio.testing import ActivityEnvironment

from activities.records.rebuild_catalog import CompareShardsInput, LoadedCatalogServices, RebuildCatalogActivities
from logstore.catalog import Catalog, Database
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.identity.bucket_markers import BucketRole, NamedBucket
from logstore.identity.services.marker_checked_buckets import MAX_UNANSWERED_S, LostCatalogIdentity
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS, ledger_id_from_key
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.manifest import Manifest
from logstore.records.rebuild_job import RebuildId, RebuildRequest, WriteCatalogRowsJob
from logstore.records.services.flusher import Flusher
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from logstore.records.services.upload_adoption import UploadAdopter
from logstore.retrying_clock import Clock
from spark.published_output import PublishedOutputs
from spark.records.write_catalog_rows import write_catalog_rows
from tests.faults.simulated_world import World

_METHOD_BY_STEP: Final = {
    "begin": "check_and_pin_manifest",
    "find_rows": "write_row_files",
    "load_rows": "load_rows",
    "look": "compare_and_stage_shards",
    "publish": "publish_first_manifest",
    "adopt_shards": "compare_and_stage_shards",
    "finish_adoption": "finish_adoption",
    "let_go": "unpin_and_remove_output",
}
_BUCKET: Final = NamedBucket(role=BucketRole.RECORDS, bucket="records", address="")


class InlineBulk:
    """Bulk jobs of a rebuild in this process, their tasks one after the other."""

    def __init__(self, root: Path, world: World) -> None:
        """Publish under this folder."""
        self._publication, self._world = PublishedOutputs(root), world

    def run_job(
        self, job: WriteCatalogRowsJob, on_progress: Callable[[Any], None], *, master: str = ""
    ) -> BulkJobSummary:
        """See the port."""
        done = self.find_published_summary(job.run_id, job.name)
        if done:
            return done
        folder = self._publication.create_attempt_folder(job.run_id, job.name)
        run: Any = SimpleNamespace(
            folder=folder,
            spark=SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)),
            run_in_executors=lambda _what, tasks, work: [work(task) for task in tasks],
        )
        address: Any = SimpleNamespace(role="records", bucket="records", endpoint="", store=lambda: self._world.records)
        return self._publication.publish(job.run_id, job.name, folder, write_catalog_rows(address, run, job))

    def find_published_summary(self, run_id: str, name: str) -> BulkJobSummary | None:
        """See the port."""
        return self._publication.read_summary(run_id, name)

    def remove_run(self, run_id: str) -> None:
        """See the port."""
        self._publication.remove_run_outputs(run_id)


class Chain:
    """One catalog, the databases into which it is rebuilt, and what was answered."""

    def __init__(self, world: World, new_database: Callable[[], str], *, page: int = 500_000) -> None:
        """Begin as the world is.

        Args:
            world: Stores, and the first database.
            new_database: Makes the URL of an empty database.
            page: Changes that the flush of a rebuild takes at one moment.
        """
        self.world, self.new_database, self.page = world, new_database, page
        self.slept: list[float] = []  # waits of rebuilds, of a second each
        self.clock = Clock(monotonic_s=lambda: float(len(self.slept)), sleep=self.slept.append)
        self.require_no_workers: Callable[[], None] = lambda: None
        self.before_step: dict[str, Callable[[], None]] = {}
        with self.process() as log:
            self.catalog_id = log.catalog.identities.catalog_id()
        self.answered: dict[Position, str] = {}

    def append_while_it_waits(self, log: Any, topic: Topic) -> Callable[[], int]:
        """Let the waits of the next rebuild append by a process of the old catalog, as long as that may write.

        Each look at the clock is a second later. Return the count of waits.
        """
        waits, now = 0, iter(range(1_000))

        def append(_: float) -> None:
            nonlocal waits
            if waits < MAX_UNANSWERED_S:
                self.append_by(log, topic, "while it waits")
            waits += 1

        self.clock = Clock(monotonic_s=lambda: float(next(now)), sleep=append)
        return lambda: waits

    @contextmanager
    def process(self) -> Iterator[Any]:
        """A process over the newest database."""
        with self.world.process() as log:
            yield log

    def log(self) -> RecordLog:
        """The record log, as somebody reads it who has no catalog."""
        return RecordLog(LostCatalogIdentity(self.catalog_id).get_checked_bucket(_BUCKET, self.world.records))

    def manifests(self) -> list[Manifest]:
        """All that are there, ascending."""
        log = self.log()
        return [found for number in log.list_manifest_numbers() if (found := log.read_manifest(number))]

    def flush(self) -> None:
        """Flush the newest database, as a worker does."""
        with self.process() as log:
            log.records.flusher.flush(cursors=True)

    def append(self, topic: Topic, *payloads: str) -> None:
        """Append in a process of its own, and remember what was answered."""
        with self.process() as log:
            self.append_by(log, topic, *payloads)

    def append_by(self, log: Any, topic: Topic, *payloads: str) -> None:
        """Append, and remember what was answered."""
        entries = [NewEntry(payload=one.encode()) for one in payloads]
        first = log.topic_logs.append(topic, ProducedEntries(entries=entries)).first
        assert first is not None
        self.answered |= {Position(first.ledger_id, first.entry_id + at): one for at, one in enumerate(payloads)}

    def read(self, topic: Topic) -> Mapping[Position, str]:
        """What the newest database says."""
        with self.process() as log:
            return {one.position: (one.payload or b"").decode() for one in log.topic_logs.scan(topic)}

    def open_ledgers(self, topic: Topic) -> int:
        """Ledgers of the topic that take segments."""
        with self.process() as log:
            listed = log.catalog.ledgers.list_ledgers(topic.topic_id)
            return sum(one.state is LedgerState.OPEN for one in listed)

    def rebuild(
        self, url: str, *, step: str = "", dies_at: str = "", take_over: bool = False
    ) -> RebuildAdoptionResult | None:
        """Run the steps of `rebuild-catalog` into a database; None where the process died.

        Args:
            url: The database. One that a rebuild has loaded is gone on with.
            step: In which step the process dies.
            dies_at: At which failpoint.
            take_over: Whether processes of the old catalog may live.
        """
        with ExitStack() as opened:
            steps = self._steps(url, opened, take_over=take_over)
            try:
                return steps(step, dies_at)
            except SimulatedCrash:
                return None
            finally:
                disarm_all_and_take_hits()

    def adopt_newest(self, url: str) -> None:
        """Let processes use the database that was rebuilt."""
        self.world.url = url

    def _steps(self, url: str, opened: ExitStack, *, take_over: bool) -> Callable[[str, str], RebuildAdoptionResult]:
        log, database = self.log(), RebuildDatabase(url)
        start = RebuildManifests(log)
        activities = RebuildCatalogActivities(
            bulk=InlineBulk(self.world.database.parent / "rebuilds", self.world),  # type: ignore[arg-type]
            database=database,
            manifests=start,
            markers=lambda: ((BucketRole.RECORDS, "records"),),
            open_loaded=lambda: self._loaded(url, log, opened),
            require_no_workers=None if take_over else self.require_no_workers,
            clock=self.clock,
        )
        target = database.read_target()
        new = RebuildId.for_command(
            self.catalog_id, start.require_newest_manifest().number, database_url=url, skip_unreadable=False
        )
        request = RebuildRequest(rebuild=target.rebuild or str(new), take_over=take_over)

        def run(step: str, dies_at: str) -> RebuildAdoptionResult:
            adopted = RebuildAdoptionResult()
            for name, method in _METHOD_BY_STEP.items():
                looks = method == "compare_and_stage_shards"
                if looks and database.read_target().state == "READY":
                    continue  # the workflow is behind it
                self.before_step.get(name, lambda: None)()
                if name == step:
                    arm(dies_at, "crash")
                activity: Any = getattr(activities, method)
                for given in self._shard_inputs(is_growing=name == "look") if looks else [request]:
                    done = ActivityEnvironment().run(activity, given)
                adopted = done if name == "finish_adoption" else adopted
            return adopted

        return run

    def _shard_inputs(self, *, is_growing: bool) -> list[CompareShardsInput]:
        return [CompareShardsInput(first=shard, end=shard + 1, is_growing=is_growing) for shard in self._shards()]

    def _shards(self) -> list[int]:
        """Return the shards that hold objects. All 256 would take a second."""
        ledger_ids = [ledger_id for key in self.world.store.keys if (ledger_id := ledger_id_from_key(key)) is not None]
        return sorted({ledger_id % SHARDS for ledger_id in ledger_ids})

    def _loaded(self, url: str, log: RecordLog, opened: ExitStack) -> LoadedCatalogServices:
        database = Database(url)
        opened.callback(database.close)
        catalog = Catalog(database)
        stores = self.world._buckets(catalog)
        adopter = UploadAdopter(
            adoption=catalog.adoption,
            objects=stores.primary,
            buckets=stores.tiered,
            application="sexton",
            threads=2,
        )
        return LoadedCatalogServices(
            catalog.records, adopter, Flusher(catalog.records, log, clock_bound_s=10**10, page=self.page)
        )
