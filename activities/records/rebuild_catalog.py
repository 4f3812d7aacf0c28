"""Rebuild of a catalog: one activity for each step. The activities run only in the command `sexton records rebuild`.

Any step may run twice, and the process may die in any step.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from activities.bulk_jobs import run_bulk_job
from activities.heartbeats import define_activity, raise_if_cancelled, send_heartbeats
from logstore.catalog.records.outbox import RecordOutbox
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.errors import PreconditionFailed
from logstore.identity.bucket_markers import BucketRole
from logstore.identity.services.marker_checked_buckets import MAX_UNANSWERED_S
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.records import RebuiltCatalogStart
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.rebuild_job import (
    SKIPPED_BLOCK_PREFIX,
    RebuildId,
    RebuildRequest,
    RowFilesFolder,
    WriteCatalogRowsJob,
)
from logstore.records.services.flusher import Flusher
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.upload_adoption import UploadAdopter
from logstore.retrying_clock import Clock
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedManifestSummary:
    loaded: bool  # an earlier run of the command has loaded the database
    flushed_us: int  # time of the flush: the rebuild restores the lost catalog as of this time
    blocks: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRecordCounts:
    records: int
    tombstones: int
    skipped: list[str] = field(default_factory=list)  # `key: error` of the first 20 skipped blocks
    skipped_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareShardsInput(HasSubject):
    first: int  # inclusive
    end: int  # exclusive
    is_growing: bool = False  # whether the old catalog may still append


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShardCounts:
    objects: int
    staged: int  # ledgers whose objects differ from the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    manifest: int


_MAX_NAMED_BLOCKS: Final = 20  # maximum number of skipped blocks in a result
_MAX_UPLOAD_S: Final = 5.0  # from the last check by a process of the old catalog to the end of this process's upload


@dataclass(frozen=True, slots=True)
class LoadedCatalogServices:
    records: RecordOutbox
    adopter: UploadAdopter
    flusher: Flusher


class RebuildCatalogActivities:
    def __init__(
        self,
        *,
        bulk: BulkJobRunner,
        database: RebuildDatabase,
        manifests: RebuildManifests,
        markers: Callable[[], Sequence[tuple[BucketRole, str]]],
        open_loaded: Callable[[], LoadedCatalogServices],
        require_no_workers: Callable[[], None] | None,
        clock: Clock | None = None,
    ) -> None:
        """Store the ports.

        `markers` returns role and name of each configured bucket that has the catalog's marker. `open_loaded` opens the
        loaded catalog. `require_no_workers` raises an error if a worker of the old catalog lives. It is `None` if the
        rebuild takes over anyway.
        """
        self._clock = clock or Clock()
        self._bulk, self._database, self._manifests = bulk, database, manifests
        self._markers, self._open_loaded = markers, open_loaded
        self._require_no_workers = require_no_workers

    @define_activity(name="rebuild.begin")
    @send_heartbeats()
    def check_and_pin_manifest(self, request: RebuildRequest) -> PinnedManifestSummary:
        """Pin the manifest of the rebuild and its blocks. Check the buckets and the database.

        The database must be empty, or loaded by this rebuild. A loaded database is refused if the manifest after the
        pinned manifest belongs to another rebuild or to the old catalog.

        Idempotency: the pin is renewed, and nothing else is written.
        Raises: PreconditionFailed, CatalogMismatch, Unsupported, CorruptData (terminal); StoreUnavailable (retry).
        """
        number, is_loaded = RebuildId.parse(request.rebuild).manifest, self._is_loaded_by_this_rebuild(request)
        if is_loaded:
            self._manifests.require_no_foreign_successor(self._open_loaded().records, number)
        manifest = self._manifests.pin_manifest(request.rebuild, number, now_us=_now_us())
        self._markers()
        return PinnedManifestSummary(
            loaded=is_loaded,
            flushed_us=manifest.flushed_us,
            blocks=len(manifest.blocks),
            versions=sum(block.records for block in manifest.blocks),
        )

    @define_activity(name="rebuild.find_rows")
    def write_row_files(self, request: RebuildRequest) -> RebuiltRecordCounts:
        """Run the bulk job that writes the catalog's rows into files.

        Idempotency: keyed by the rebuild. If the output is published already, only its counts are returned.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: CorruptData, MissingData, Unsupported (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        rebuild = RebuildId.parse(request.rebuild)
        job = WriteCatalogRowsJob(
            run_id=_bulk_run_id(request),
            catalog_id=rebuild.catalog_id,
            manifest=rebuild.manifest,
            skip_unreadable=request.skip_unreadable,
        )
        summary = run_bulk_job(self._bulk, job.name, lambda: job, master=request.master)
        error_by_block = _error_by_skipped_block(summary)
        return RebuiltRecordCounts(
            records=summary.counts.get("records", 0),
            tombstones=summary.counts.get("tombstone", 0),
            skipped=[f"{key}: {error}" for key, error in sorted(error_by_block.items())[:_MAX_NAMED_BLOCKS]],
            skipped_blocks=len(error_by_block),
        )

    @define_activity(name="rebuild.load_rows")
    @send_heartbeats()
    def load_rows(self, request: RebuildRequest) -> None:
        """Load the rows into the empty database, all or nothing.

        Idempotency: a database that this rebuild has loaded is not changed. If the process dies, the database stays
            empty.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        if self._is_loaded_by_this_rebuild(request):
            return
        summary = self._read_published_summary(request)
        manifest = self._manifests.read_manifest(RebuildId.parse(request.rebuild).manifest)
        load = RebuiltCatalogStart(
            rebuild=request.rebuild,
            manifest=manifest,
            epoch=manifest.epoch + 1,
            highest_version=summary.counts["version"],
            stamp=uuid4().hex,
            markers=tuple(self._markers()),
            now_us=_now_us(),
        )
        self._database.load_rows(load, RowFilesFolder(Path(summary.folder)), raise_if_cancelled)

    @define_activity(name="rebuild.publish")
    @send_heartbeats()
    def publish_first_manifest(self, request: RebuildRequest) -> PublishedManifest:
        """Store the manifest of the new epoch, which makes this database the catalog.

        1. Refuse if too many ledgers are without objects. The old epoch then goes on.
        2. Refuse if a worker of the old catalog lives. Hours may have passed since the command checked this.
        3. Store the manifest.
        4. With `take_over`, wait for the longest time that a process of the old catalog may work without asking for the
           newest manifest. Appends that are answered in this time are in storage. The next steps adopt these appends.
        5. If an earlier attempt has stored the manifest, finish the wait of step 4, even without `take_over`. The
           earlier attempt may have died during this wait.

        Idempotency: keyed by the stamp of the load. A manifest with this stamp belongs to this rebuild.
        Raises: PreconditionFailed (terminal): too many ledgers are without objects, another rebuild won, or a worker
            lives; StoreUnavailable, CatalogBusy, ServiceFailed (retry).
        """
        base = self._manifests.read_manifest(RebuildId.parse(request.rebuild).manifest)
        skipped = _error_by_skipped_block(self._read_published_summary(request))
        loaded = self._open_loaded()
        is_followed = self._manifests.has_next_manifest(base.number)
        if not is_followed:
            loaded.adopter.require_few_absent_ledgers(request.max_absent_share)
            if self._require_no_workers:
                self._require_no_workers()
        number = self._manifests.publish_new_epoch(loaded.records, base, unreadable=skipped)
        if is_followed:
            self._await_old_processes(
                self._manifests.renew_pin_and_measure_age_s(request.rebuild, base, now_us=_now_us())
            )
        elif request.take_over or self._require_no_workers is None:
            self._await_old_processes(0.0)
        return PublishedManifest(manifest=number)

    def _await_old_processes(self, epoch_age_s: float) -> None:
        deadline_s = self._clock.monotonic_s() + MAX_UNANSWERED_S + _MAX_UPLOAD_S - max(epoch_age_s, 0.0)
        while self._clock.monotonic_s() < deadline_s:
            raise_if_stopped()
            self._clock.sleep(1.0)

    @define_activity(name="rebuild.adopt_shards")
    def compare_and_stage_shards(self, request: CompareShardsInput) -> ComparedShardCounts:
        """Compare some shards of the primary bucket with the loaded rows, and store the differences for the adoption.

        Each shard is compared twice. The first comparison precedes the manifest of the new epoch. It shows whether
        the rebuild can succeed, and checks only objects that the loaded rows name, because the old catalog may
        still append. The second comparison follows the manifest. It checks all objects.

        Idempotency: a repeated call replaces the stored differences of a shard.
        Heartbeat: shards done, every two seconds.
        Raises: CorruptData, CatalogMismatch (terminal); PreconditionFailed (terminal): a listing lacks an object that
            HEAD finds; StoreUnavailable, CatalogBusy (retry).
        """
        adopter = self._open_loaded().adopter
        unflushed_from = self._manifests.find_unflushed_id_starts(
            self._manifests.read_manifest(RebuildId.parse(self._database.read_target().rebuild).manifest)
        )
        objects = staged = shards = 0
        with send_heartbeats(lambda: (shards,)):
            for shard in range(request.first, request.end):
                raise_if_stopped()
                adopted = adopter.compare_and_stage_shard(
                    shard, unflushed_from=unflushed_from, is_growing=request.is_growing
                )
                objects, staged, shards = objects + adopted.objects, staged + adopted.staged, shards + 1
        return ComparedShardCounts(objects=objects, staged=staged)

    @define_activity(name="rebuild.finish_adoption")
    def finish_adoption(self, request: RebuildRequest) -> RebuildAdoptionResult:
        """Adopt, topic by topic, the ledgers that the comparison of shards found. Flush, and make the catalog READY.

        Idempotency: a settled topic is not settled again. Record versions that are flushed twice are equal. For a READY
            catalog, only the report is returned.
        Heartbeat: topics settled and record versions flushed, every two seconds.
        Raises: PreconditionFailed (terminal): too many ledgers have no objects, and no topic is settled; or the clocks
            of catalog and object store differ. CatalogOutdated (terminal): another rebuild won. StoreUnavailable,
            CatalogBusy, OutcomeUnknown (retry).
        """
        loaded, base = self._open_loaded(), self._manifests.read_manifest(RebuildId.parse(request.rebuild).manifest)
        settled_topics = flushed_versions = 0

        def add_settled(topics: int) -> None:
            nonlocal settled_topics
            settled_topics += topics

        def set_flushed(versions: int) -> None:
            nonlocal flushed_versions
            flushed_versions = versions

        with send_heartbeats(lambda: (settled_topics, flushed_versions)):
            return loaded.adopter.settle_and_finish(
                rows_epoch=self._manifests.find_rows_epoch(base),
                flush=partial(loaded.flusher.flush, cursors=True, progress=set_flushed, ends_adoption=True),
                max_absent_share=request.max_absent_share,
                on_progress=add_settled,
            )

    @define_activity(name="rebuild.let_go")
    @send_heartbeats()
    def unpin_and_remove_output(self, request: RebuildRequest) -> None:
        """Release the pin, and delete the output of the bulk job.

        Idempotency: a missing pin or output is no error.
        Raises: StoreUnavailable (retry).
        """
        self._manifests.unpin(request.rebuild)
        self._bulk.remove_run(_bulk_run_id(request))

    def _is_loaded_by_this_rebuild(self, request: RebuildRequest) -> bool:
        rebuild = self._database.read_target().rebuild
        if rebuild not in {"", request.rebuild}:
            raise PreconditionFailed(
                f"database: expected an empty one, found that of rebuild {rebuild}: finish that one"
            )
        return rebuild == request.rebuild

    def _read_published_summary(self, request: RebuildRequest) -> BulkJobSummary:
        job = WriteCatalogRowsJob.name
        summary = self._bulk.find_published_summary(_bulk_run_id(request), job)
        if summary is None:
            raise PreconditionFailed(f"rebuild {request.rebuild}: expected {job} to be published, found nothing")
        return summary


def _bulk_run_id(request: RebuildRequest) -> str:
    return f"rebuild-{request.rebuild}"


def _error_by_skipped_block(summary: BulkJobSummary) -> dict[str, str]:
    return {
        name.removeprefix(SKIPPED_BLOCK_PREFIX): error
        for name, error in summary.facts.items()
        if name.startswith(SKIPPED_BLOCK_PREFIX)
    }


def _now_us() -> int:
    return time.time_ns() // 1_000
