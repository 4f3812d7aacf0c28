"""Upkeep of the record log: defragmentation of blocks, raids, and replication."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from temporalio import activity

from activities.heartbeats import define_activity, send_heartbeats
from activities.records import metrics
from activities.records.inputs_and_results import DefragmentInput, RaidInput, ShipToReplicasInput
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogMismatch, PreconditionFailed, SextonError
from logstore.records.job_results import DefragmentedBlocks, RaidedTombstones, ShippedBlocks
from logstore.records.services.bucket_upkeep import Defragmenter, RecordsBucketSweeper
from logstore.records.services.replicas import ReplicaShipments
from logstore.records.services.tombstone_raids import Raider
from logstore.stop_checks import raise_if_stopped

_LOG: Final = logging.getLogger(__name__)
_MAX_ERROR_CHARACTERS: Final = 300  # maximum length of the error of a replica bucket


class DefragmentRecordsActivities:
    def __init__(self, *, records: RecordOutbox, defragmenter: Defragmenter, sweeper: RecordsBucketSweeper) -> None:
        self._records, self._defragmenter, self._sweeper = records, defragmenter, sweeper

    @define_activity(name="records.defragment")
    def defragment_and_remove_old_objects(self, request: DefragmentInput) -> DefragmentedBlocks:
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
        metrics.count_defragmentation(total)
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
        metrics.count_raid(total)
        _LOG.info(
            "raid %s: %d tombstones were old enough, %d removed, %d kept; %d blocks with %d versions read in %.1f s",
            *(request.run_id, total.candidates, total.removed, total.kept, total.blocks, total.versions, total.seconds),
        )
        return total


class ReplicateRecordsActivities:
    def __init__(self, replication: ReplicaShipments) -> None:
        self._replication = replication

    @define_activity(name="records.ship")
    def ship_to_all_replicas(self, request: ShipToReplicasInput) -> list[ShippedBlocks]:
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
        metrics.count_shipment(shipped)
        if shipped.blocks:
            _LOG.info(
                "replica %s: %d blocks, %d bytes shipped, manifest %d",
                name,
                shipped.blocks,
                shipped.bytes,
                shipped.manifest,
            )
        return shipped
