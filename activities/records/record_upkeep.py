"""Upkeep of the record log: flushes, defragmentation of blocks, raids, and replication, with their counters.

Several flushes may run at once, because only one of them can store the next manifest. Claims only avoid repeated work.
If the worker dies before it counts a change, the counters miss the change.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from temporalio import activity

from activities.deletion.claims_and_causes import own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats, send_heartbeats_and_renew
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogMismatch, PreconditionFailed, SextonError
from logstore.records.job_results import DefragmentedBlocks, FlushedRecords, RaidedTombstones, ShippedBlocks
from logstore.records.services.bucket_upkeep import Defragmenter, RecordsBucketSweeper
from logstore.records.services.flusher import Flusher, raise_low_ceilings
from logstore.records.services.replicas import ReplicaShipments
from logstore.records.services.tombstone_raids import Raider
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasEligibleAge, HasRun, HasSubject, HasWatch

_MIN_INTERVAL_S: Final = 0.05
_LOG: Final = logging.getLogger(__name__)
_MAX_ERROR_CHARACTERS: Final = 300  # maximum length of the error of a replica bucket

RAID_SECONDS: Final = "sexton_tombstones_raid_seconds"

HISTOGRAM_BOUNDS_S: Final = {RAID_SECONDS: (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0)}
"""Upper bounds of histogram buckets by metric, in seconds, inclusive. Temporal's default bounds are in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPassInput(HasSubject):
    """Who asks for a pass over the record log, and why."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushInput(RecordPassInput, HasWatch):
    watch_s: float = 0.0  # seconds for which to look for changes; 0: flush all changes once, including cursors


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidInput(RecordPassInput, HasEligibleAge, HasRun):
    run_id: str
    eligible_age_s: float | None = None  # None: age in the workers' settings


class FlushRecordsActivities:
    def __init__(self, *, records: RecordOutbox, flusher: Flusher, interval_s: float) -> None:
        self._records, self._flusher = records, flusher
        self._interval_s = max(interval_s, _MIN_INTERVAL_S)  # seconds between two checks for changes

    @define_activity(name="records.flush")
    def flush_record_log(self, request: FlushInput) -> FlushedRecords:
        """Flush changes once. With `watch_s`, flush repeatedly for this time or until the worker shuts down.

        In the result, `held` means that another job has claimed the record log.

        Idempotency: flushed changes are not flushed again. `defragment-records` removes blocks of dead attempts.
        Heartbeat: records written so far, every two seconds. Heartbeats also renew the claim of the record log.
        Raises: CatalogAdopting, CatalogOutdated, CatalogMismatch, PreconditionFailed, CorruptData (terminal);
            StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        total = FlushedRecords()
        deadline_s = time.monotonic() + request.watch_s

        def progress() -> tuple[int]:
            return (total.records,)

        with send_heartbeats(progress):
            while True:
                raise_if_stopped()
                total = total.plus(self._flush_if_changed(with_all_cursors=not request.watch_s, progress=progress))
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or activity.is_worker_shutdown():
                    return total
                activity.wait_for_worker_shutdown_sync(min(self._interval_s, remaining_s))

    def _flush_if_changed(self, *, with_all_cursors: bool, progress: Callable[[], tuple[int]]) -> FlushedRecords:
        """Flush if there are changes. With `with_all_cursors`, also flush changes of cursors that could still wait."""
        state = self._records.read_state()
        has_changes = (
            bool(state.outbox_changes or state.staged_blocks)
            or raise_low_ceilings(state.ceilings, state.next_ids) != state.ceilings
        )
        if state.manifest and not has_changes and not with_all_cursors:
            return FlushedRecords(manifest=state.manifest)
        with _claim_record_log(self._records, progress) as is_claimed:
            if not is_claimed:
                return FlushedRecords(manifest=state.manifest, left=state.outbox_changes, held=True)
            flushed = self._flusher.flush(cursors=with_all_cursors)
        _count_flush(flushed)
        return flushed


@contextmanager
def _claim_record_log(records: RecordOutbox, progress: Callable[[], tuple[int]]) -> Iterator[bool]:
    """Claim the record log during the `with` block. Yield whether this workflow has the claim."""
    claim = own_workflow_claim()
    if not records.claim_record_log(claim):
        yield False
        return
    try:
        with send_heartbeats_and_renew(lambda: records.claim_record_log(claim), progress):
            yield True
    finally:
        with suppress(SextonError):  # the claim then expires
            records.release_record_log(claim.workflow_id)


class DefragmentRecordsActivities:
    def __init__(self, *, records: RecordOutbox, defragmenter: Defragmenter, sweeper: RecordsBucketSweeper) -> None:
        self._records, self._defragmenter, self._sweeper = records, defragmenter, sweeper

    @define_activity(name="records.defragment")
    def defragment_and_remove_old_objects(self, request: RecordPassInput) -> DefragmentedBlocks:
        """Defragment the blocks of each kind once. Then delete old manifests, and blocks that no manifest names.

        Flushes may run at the same time.

        Idempotency: a rewritten block is not rewritten again. If an attempt dies, no manifest names its new blocks. A
            call that is at least a day later removes these blocks.
        Heartbeat: blocks rewritten and record versions dropped so far, every two seconds.
        Raises: CatalogAdopting, CatalogOutdated, CatalogMismatch, MissingData, CorruptData, Unsupported (terminal);
            StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        del request  # actor and reason are in the workflow's input
        progress = DefragmentedBlocks()

        def set_progress(so_far: DefragmentedBlocks) -> None:
            nonlocal progress
            progress = so_far

        with send_heartbeats(lambda: (progress.rewritten, progress.dropped)):
            defragmented = self._defragmenter.defragment(progress=set_progress)
            state = self._records.read_state()
            swept = self._sweeper.remove_old_manifests_and_blocks(state.now_us, staged_blocks=state.staged_blocks)
        total = replace(defragmented, manifests=swept.manifests, unlinked=swept.blocks, unlinked_bytes=swept.bytes)
        _count_defragmentation(total)
        _LOG.info(
            "record log defragmented: %d blocks became %d, %d bytes became %d, %d versions dropped;"
            " %d manifests and %d blocks of %d bytes deleted; the newest manifest is %d",
            *(total.rewritten, total.written, total.bytes_before, total.bytes_after, total.dropped),
            *(total.manifests, total.unlinked, total.unlinked_bytes, total.manifest),
        )
        return total


class RaidTombstonesActivities:
    def __init__(self, make_raider: Callable[[float | None], Raider]) -> None:
        self._make_raider = make_raider

    @define_activity(name="records.raid")
    def mark_and_remove_tombstones(self, request: RaidInput) -> RaidedTombstones:
        """Mark tombstones that are old enough. Remove the marked tombstones that are no longer needed.

        Idempotency: keyed by `run_id` and attempt. A second attempt removes the marks of the first attempt, and begins
            from the start.
        Heartbeat: numbers of marked tombstones, read blocks and removed tombstones, every two seconds.
        Raises: InvalidInput, CatalogAdopting, CatalogOutdated, CatalogMismatch, PreconditionFailed, MissingData,
            CorruptData, Unsupported (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        start_s, progress = time.monotonic(), RaidedTombstones()

        def set_progress(so_far: RaidedTombstones) -> None:
            nonlocal progress
            progress = so_far

        with send_heartbeats(lambda: (progress.candidates, progress.blocks, progress.removed)):
            raided = self._make_raider(request.eligible_age_s).raid_tombstones(
                request.run_id, attempt=activity.info().attempt, progress=set_progress
            )
        total = replace(raided, seconds=time.monotonic() - start_s)
        _count_raid(total)
        _LOG.info(
            "raid %s: %d tombstones were old enough, %d removed, %d kept; %d blocks with %d versions read in %.1f s",
            *(request.run_id, total.candidates, total.removed, total.kept, total.blocks, total.versions, total.seconds),
        )
        return total


class ReplicateRecordsActivities:
    def __init__(self, replication: ReplicaShipments) -> None:
        self._replication = replication

    @define_activity(name="records.ship")
    def ship_to_all_replicas(self, request: RecordPassInput) -> list[ShippedBlocks]:
        """Ship the newest manifest and its blocks to every replica bucket.

        A failed shipment does not stop other shipments.

        Idempotency: blocks that are already in a replica bucket are not copied again. A manifest is stored once.
        Heartbeat: replica buckets done, every two seconds.
        Raises: nothing. The results contain the errors.
        """
        del request  # actor and reason are in the workflow's input
        shipments: list[ShippedBlocks] = []
        with send_heartbeats(lambda: (len(shipments),)):
            for name in self._replication.replica_names:
                raise_if_stopped()
                shipments.append(self._try_ship_to_replica(name))
        return shipments

    def _try_ship_to_replica(self, name: str) -> ShippedBlocks:
        try:
            shipped = self._replication.ship_to_replica(name)
        except SextonError as error:
            needs_person = isinstance(error, PreconditionFailed | CatalogMismatch)
            (_LOG.error if needs_person else _LOG.warning)("replica %s is not brought up to date: %s", name, error)
            shipped = ShippedBlocks(replica=name, error=f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS])
        _count_shipment(shipped)
        if shipped.blocks:
            _LOG.info(
                "replica %s: %d blocks, %d bytes shipped, manifest %d",
                name,
                shipped.blocks,
                shipped.bytes,
                shipped.manifest,
            )
        return shipped


def _count_flush(flushed: FlushedRecords) -> None:
    """Count a flush. A record that no block can hold is counted as refused in each flush."""
    _add_to_counter("sexton_records_flushes_total", "Manifests that flushes put", flushed.flushes)
    _add_to_counter(
        "sexton_records_flushed_total", "Versions of records that were written into blocks", flushed.records
    )
    _add_to_counter("sexton_records_flushed_tombstones_total", "Of these, tombstones", flushed.tombstones)
    _add_to_counter("sexton_records_flushed_bytes_total", "Bytes of blocks that flushes wrote", flushed.bytes)
    _add_to_counter(
        "sexton_records_refused_total", "Records that a flush left out, because no block can hold them", flushed.refused
    )


def _count_defragmentation(defragmented: DefragmentedBlocks) -> None:
    _add_to_counter(
        "sexton_records_defragmented_blocks_total", "Blocks that were rewritten or joined", defragmented.rewritten
    )
    _add_to_counter("sexton_records_dropped_total", "Versions that defragmentation dropped", defragmented.dropped)
    _add_to_counter(
        "sexton_records_unlinked_blocks_total", "Objects of blocks that were deleted", defragmented.unlinked
    )


def _count_raid(raided: RaidedTombstones) -> None:
    _add_to_counter("sexton_tombstones_raids_total", "Raids that came to their end", 1)
    _add_to_counter("sexton_tombstones_removed_total", "Tombstones that raids removed", raided.removed)
    _add_to_counter("sexton_tombstones_kept_total", "Tombstones that were old enough and stayed", raided.kept)
    seconds = activity.metric_meter().create_histogram_float(RAID_SECONDS, "How long a raid took", "s")
    seconds.record(max(0.0, raided.seconds))


def _count_shipment(shipped: ShippedBlocks) -> None:
    _add_to_counter("sexton_records_shipped_blocks_total", "Blocks that were copied into replicas", shipped.blocks)
    _add_to_counter("sexton_records_shipped_bytes_total", "Bytes of these", shipped.bytes)
    failures = int(bool(shipped.error))
    _add_to_counter("sexton_records_ship_failures_total", "Replicas that could not be brought up to date", failures)


def _add_to_counter(name: str, description: str, count: int) -> None:
    if count:
        activity.metric_meter().create_counter(name, description).add(count)
