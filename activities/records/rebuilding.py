"""A cold start, one step an activity. They run in the process of the command alone: there is no catalog to serve yet.

Any step may run twice, and the process may die in it: the bulk job publishes its output once, the load happens as a
whole or not at all, of the manifests with one number one is put, and adoption replaces what it found before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from activities.bulk import run_bulk_job
from activities.heartbeats import beating, defined, raise_if_cancelled
from activities.records.values import (
    AdoptedShards,
    AdoptShardsInput,
    PublishedManifest,
    RebuildBegun,
    RebuildStep,
    RebuiltRows,
)
from logstore.clock import Clock
from logstore.errors import PreconditionFailed
from logstore.identity.markers import Role
from logstore.identity.services.own_stores import MAX_UNANSWERED_S
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog.rebuilding import Load, Rebuild
from logstore.ports.catalog.records import Records
from logstore.reconciliation.jobs import BulkSummary
from logstore.records.jobs import RebuildAdopted
from logstore.records.rebuilding import SKIPPED, LoadFiles, RebuildId, RebuildRecords
from logstore.records.services.adopting import Adopter
from logstore.records.services.cold_start import ColdStart
from logstore.records.services.flushing import Flusher
from logstore.units import raise_if_stopped

_SHOWN: Final = 20  # blocks that were left out
_IN_FLIGHT_S: Final = 5.0  # from the last question of a process of the old catalog to the end of its upload


@dataclass(frozen=True, slots=True)
class Loaded:
    """The catalog once it is loaded."""

    records: Records
    adopter: Adopter
    flusher: Flusher


class Rebuilding:
    """The activities of the rebuild of one catalog into one database."""

    def __init__(
        self,
        *,
        bulk: BulkJobs,
        database: Rebuild,
        start: ColdStart,
        markers: Callable[[], Sequence[tuple[Role, str]]],
        opened: Callable[[], Loaded],
        require_no_workers: Callable[[], None] | None,
        clock: Clock | None = None,
    ) -> None:
        """Take the ports.

        Args:
            bulk: Bulk jobs.
            database: Into which it is rebuilt.
            start: The record log.
            markers: Buckets of the settings that carry the catalog's marker; refuses those of another catalog.
            opened: Opens the catalog in that database, once it is loaded.
            require_no_workers: Refuses while a worker of the old catalog lives; None: this command takes over.
            clock: For waiting.
        """
        self._clock = clock or Clock()
        self._bulk, self._database, self._start = bulk, database, start
        self._markers, self._opened = markers, opened
        self._require_no_workers = require_no_workers

    @defined(name="rebuild.begin")
    @beating()
    def begin(self, request: RebuildStep) -> RebuildBegun:
        """Hold the manifest with its blocks, and see that buckets and database are fit for the rebuild.

        A database that was loaded is refused at once if another manifest stands where its own has to stand.

        Idempotency: a pin is renewed; nothing else is written.
        Raises: PreconditionFailed, CatalogMismatch, Unsupported, CorruptData (terminal); StoreUnavailable (retry).
        """
        number, is_loaded = self._id(request).manifest, self._is_loaded(request)
        if is_loaded:
            self._start.require_own_successor(self._opened().records, number)
        manifest = self._start.pin(request.rebuild, number, now_us=_now_us())
        self._markers()
        return RebuildBegun(
            loaded=is_loaded,
            flushed_us=manifest.flushed_us,
            blocks=len(manifest.blocks),
            versions=sum(block.records for block in manifest.blocks),
        )

    @defined(name="rebuild.find_rows")
    def find_rows(self, request: RebuildStep) -> RebuiltRows:
        """Run the bulk job until its output is published.

        Idempotency: keyed by the rebuild; what was published is answered.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the job with all that it
            submits later.
        Raises: CorruptData, MissingData, Unsupported (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        known = self._id(request)
        job = RebuildRecords(
            run_id=_run_id(request),
            catalog_id=known.catalog_id,
            manifest=known.manifest,
            skip_unreadable=request.skip_unreadable,
        )
        summary = run_bulk_job(self._bulk, job.name, lambda: job, master=request.master)
        left_out = _left_out(summary)
        return RebuiltRows(
            records=summary.counts.get("records", 0),
            tombstones=summary.counts.get("tombstone", 0),
            skipped=[f"{key}: {why}" for key, why in sorted(left_out.items())[:_SHOWN]],
            skipped_blocks=len(left_out),
        )

    @defined(name="rebuild.load_rows")
    @beating()
    def load_rows(self, request: RebuildStep) -> None:
        """Load the rows into the empty database, in one transaction or one file.

        Idempotency: a database that this rebuild has loaded is left as it is. A load that dies leaves nothing.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        if self._is_loaded(request):
            return
        summary = self._published(request)
        manifest = self._start.manifest(self._id(request).manifest)
        load = Load(
            rebuild=request.rebuild,
            manifest=manifest,
            epoch=manifest.epoch + 1,
            version=summary.counts["version"],
            stamp=uuid4().hex,
            markers=tuple(self._markers()),
            now_us=_now_us(),
        )
        self._database.load(load, LoadFiles(Path(summary.folder)), raise_if_cancelled)

    @defined(name="rebuild.publish")
    @beating()
    def publish(self, request: RebuildStep) -> PublishedManifest:
        """Put the manifest of the new epoch, by which this database becomes the catalog.

        The looks at storage so far must be plausible, or the old epoch does not end. Right before the put no worker of
        the old catalog may live: hours may have gone by since the command asked. A rebuild that takes over waits behind
        the put until each process of the old catalog has asked for the newest manifest. What they answered until then
        is in storage, and is adopted. An attempt that finds the manifest waits for the rest of that time, with or
        without the option: an attempt that took over may have been ended within its wait.

        Idempotency: keyed by the stamp that was loaded: a manifest that carries it is ours, whichever attempt has put
            it.
        Raises: PreconditionFailed (terminal): too many ledgers are without objects, another rebuild won, or a worker
            lives; StoreUnavailable, CatalogBusy, ServiceFailed (retry).
        """
        base = self._start.manifest(self._id(request).manifest)
        skipped = _left_out(self._published(request))
        loaded = self._opened()
        is_followed = self._start.is_followed(base.number)
        if not is_followed:
            loaded.adopter.require_plausible(request.max_absent_share)
            if self._require_no_workers:
                self._require_no_workers()
        number = self._start.publish(loaded.records, base, unreadable=skipped)
        if is_followed:
            self._await_old_processes(self._start.find_epoch_age_s(request.rebuild, base, now_us=_now_us()))
        elif request.take_over or self._require_no_workers is None:
            self._await_old_processes(0.0)
        return PublishedManifest(manifest=number)

    def _await_old_processes(self, epoch_age_s: float) -> None:
        until_s = self._clock.monotonic_s() + MAX_UNANSWERED_S + _IN_FLIGHT_S - max(epoch_age_s, 0.0)
        while self._clock.monotonic_s() < until_s:
            raise_if_stopped()
            self._clock.sleep(1.0)

    @defined(name="rebuild.adopt_shards")
    def adopt_shards(self, request: AdoptShardsInput) -> AdoptedShards:
        """Look at what storage holds beyond the last flush, in some shards of the primary bucket.

        The look before the manifest of the new epoch only tells whether the rebuild can succeed. The old catalog may
        append meanwhile, so that look checks no object that the loaded rows do not name. The look behind the manifest
        checks all, and replaces what the first one has staged.

        Idempotency: what was found in a shard before is replaced.
        Heartbeat: shards done, every two seconds.
        Raises: CorruptData, CatalogMismatch (terminal); PreconditionFailed (terminal): listings do not show what HEAD
            finds; StoreUnavailable, CatalogBusy (retry).
        """
        adopter = self._opened().adopter
        unflushed_from = self._start.unflushed_from(
            self._start.manifest(RebuildId.parse(self._database.target().rebuild).manifest)
        )
        objects = staged = done = 0
        with beating(lambda: (done,)):
            for shard in range(request.first, request.end):
                raise_if_stopped()
                found = adopter.adopt(shard, unflushed_from=unflushed_from, is_growing=request.is_growing)
                objects, staged, done = objects + found.objects, staged + found.staged, done + 1
        return AdoptedShards(objects=objects, staged=staged)

    @defined(name="rebuild.finish_adoption")
    def finish_adoption(self, request: RebuildStep) -> RebuildAdopted:
        """Settle every topic with what was found, flush all of it, and let the catalog be READY.

        Idempotency: a topic that is settled is not settled again; what is flushed twice says the same; a catalog that
            is READY only reports.
        Heartbeat: topics settled and versions flushed, every two seconds.
        Raises: PreconditionFailed, CatalogOutdated (terminal): too many ledgers are without objects, and nothing was
            settled; or the clocks differ, or another rebuild won; StoreUnavailable, CatalogBusy, OutcomeUnknown
            (retry).
        """
        loaded, base = self._opened(), self._start.manifest(self._id(request).manifest)
        settled = flushed = 0

        def count(topics: int) -> None:
            nonlocal settled
            settled += topics

        def count_flushed(versions: int) -> None:
            nonlocal flushed
            flushed = versions

        with beating(lambda: (settled, flushed)):
            report = loaded.adopter.finish(
                rows_epoch=self._start.rows_epoch(base),
                flush=partial(loaded.flusher.flush, cursors=True, progress=count_flushed, ends_adoption=True),
                max_absent_share=request.max_absent_share,
                on_progress=count,
            )
        return RebuildAdopted(
            adopted_ledgers=report.adopted_ledgers,
            adopted_segments=report.adopted_segments,
            detached=report.detached,
            revived=report.revived,
            revived_ledgers=[int(one) for one in report.revived_ledgers],
            missing_data=report.missing_data,
            missing_ledgers=[int(one) for one in report.missing_ledgers],
            schemas_left_out=report.schemas_left_out,
            schemas_left_out_of=list(report.schemas_left_out_of),
        )

    @defined(name="rebuild.let_go")
    @beating()
    def let_go(self, request: RebuildStep) -> None:
        """Let the manifest's blocks go, and what the bulk job has written.

        Idempotency: what is gone is no error.
        Raises: StoreUnavailable (retry).
        """
        self._start.unpin(request.rebuild)
        self._bulk.forget(_run_id(request))

    def _id(self, request: RebuildStep) -> RebuildId:
        return RebuildId.parse(request.rebuild)

    def _is_loaded(self, request: RebuildStep) -> bool:
        found = self._database.target().rebuild
        if found not in {"", request.rebuild}:
            raise PreconditionFailed(f"database: expected an empty one, found that of rebuild {found}: finish that one")
        return found == request.rebuild

    def _published(self, request: RebuildStep) -> BulkSummary:
        """What the bulk job came to; where its output is gone, the job runs again."""
        job = RebuildRecords.name
        found = self._bulk.published_summary(_run_id(request), job)
        if found is None:
            raise PreconditionFailed(f"rebuild {request.rebuild}: expected {job} to be published, found nothing")
        return found


def _run_id(request: RebuildStep) -> str:
    return f"rebuild-{request.rebuild}"


def _left_out(summary: BulkSummary) -> dict[str, str]:
    return {name.removeprefix(SKIPPED): why for name, why in summary.facts.items() if name.startswith(SKIPPED)}


def _now_us() -> int:
    return time.time_ns() // 1_000
