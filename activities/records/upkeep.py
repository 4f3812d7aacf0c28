"""Upkeep of the record log: blocks are rewritten and joined, tombstones raided, replicas brought up to date.

Each is one activity over a service of `logstore/records/services`, which goes on for long and tells how far it is.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from temporalio import activity

from activities.heartbeats import beating, defined
from activities.records import metrics
from activities.records.values import DefragmentInput, RaidInput, ReplicateInput
from logstore.errors import CatalogMismatch, PreconditionFailed, SextonError
from logstore.ports.catalog import Records
from logstore.records.jobs import DefragmentedBlocks, RaidedTombstones, ShippedBlocks
from logstore.records.services.defragmenting import Defragmented, Defragmenter
from logstore.records.services.raiding import Raided, Raider
from logstore.records.services.replicating import Replication
from logstore.records.services.sweeping import Sweeper
from logstore.units import raise_if_stopped

_LOG: Final = logging.getLogger(__name__)
_TOLD: Final = 300  # characters of why a replica was left out


class RecordDefragmentation:
    """The activity, over its services."""

    def __init__(self, *, records: Records, defragmenter: Defragmenter, sweeper: Sweeper) -> None:
        """Take the catalog's side, what rewrites blocks, and what deletes those that no manifest names."""
        self._records, self._defragmenter, self._sweeper = records, defragmenter, sweeper

    @defined(name="records.defragment")
    def defragment(self, request: DefragmentInput) -> DefragmentedBlocks:
        """Go through all kinds once, then sweep manifests and blocks. Flushes may go on meanwhile.

        Idempotency: what was rewritten is not worth rewriting; blocks of an attempt that died are named by no manifest,
            and are swept a day later. Heartbeat: blocks rewritten so far and versions dropped, every two seconds.
        Raises: CatalogAdopting, CatalogOutdated, CatalogMismatch, MissingData, CorruptData, Unsupported (terminal);
            StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        del request  # actor and reason are in the workflow's input
        far = Defragmented()

        def told(so_far: Defragmented) -> None:
            nonlocal far
            far = so_far

        with beating(lambda: (far.rewritten, far.dropped)):
            done = self._defragmenter.defragment(progress=told)
            state = self._records.state()
            swept = self._sweeper.sweep(state.now_us, staged=state.staged)
        total = DefragmentedBlocks(
            manifest=done.manifest,
            rewritten=done.rewritten,
            written=done.written,
            dropped=done.dropped,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            manifests=swept.manifests,
            unlinked=swept.blocks,
            unlinked_bytes=swept.bytes,
        )
        metrics.defragmented(total)
        _LOG.info(
            "record log defragmented: %d blocks became %d, %d bytes became %d, %d versions dropped;"
            " %d manifests and %d blocks of %d bytes deleted; the newest manifest is %d",
            *(total.rewritten, total.written, total.bytes_before, total.bytes_after, total.dropped),
            *(total.manifests, total.unlinked, total.unlinked_bytes, total.manifest),
        )
        return total


class TombRaider:
    """The activity, over its service."""

    def __init__(self, raider: Callable[[float | None], Raider]) -> None:
        """Take how a raider is made that leaves tombstones of an age in seconds; None: as the settings say."""
        self._raider = raider

    @defined(name="records.raid")
    def raid(self, request: RaidInput) -> RaidedTombstones:
        """Mark tombstones that are old enough, scan every block for what they cover, and remove those that are left.

        Idempotency: keyed by run_id and attempt; a second attempt begins the scan anew, takes the marks of the first
        away, and finds fewer candidates.
        Heartbeat: candidates, blocks read and tombstones removed, every two seconds.
        Raises: InvalidInput, CatalogAdopting, CatalogOutdated, CatalogMismatch, PreconditionFailed, MissingData,
            CorruptData, Unsupported (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        begun, far = time.monotonic(), Raided()

        def told(so_far: Raided) -> None:
            nonlocal far
            far = so_far

        with beating(lambda: (far.candidates, far.blocks, far.removed)):
            done = self._raider(request.eligible_age_s).raid(
                request.run_id, attempt=activity.info().attempt, progress=told
            )
        total = RaidedTombstones(
            candidates=done.candidates,
            kept=done.kept,
            removed=done.removed,
            blocks=done.blocks,
            versions=done.versions,
            seconds=time.monotonic() - begun,
            held_by=list(done.held_by),
        )
        metrics.raided(total)
        _LOG.info(
            "raid %s: %d tombstones were old enough, %d removed, %d kept; %d blocks with %d versions read in %.1f s",
            *(request.run_id, total.candidates, total.removed, total.kept, total.blocks, total.versions, total.seconds),
        )
        return total


class RecordReplication:
    """The activity, over its service."""

    def __init__(self, replication: Replication) -> None:
        """Take the replicas."""
        self._replication = replication

    @defined(name="records.ship")
    def ship(self, request: ReplicateInput) -> list[ShippedBlocks]:
        """Bring every replica to the newest manifest.

        A replica that fails is logged and reported, and the others are still shipped to.

        Idempotency: a block that a replica has is not copied again, and a manifest is put once.
        Heartbeat: replicas done, every two seconds.
        Raises: nothing of its own; a cancellation ends it between two blocks.
        """
        del request  # actor and reason are in the workflow's input
        done: list[ShippedBlocks] = []
        with beating(lambda: (len(done),)):
            for name in self._replication.names:
                raise_if_stopped()
                done.append(self._one(name))
        return done

    def _one(self, name: str) -> ShippedBlocks:
        try:
            shipped = self._replication.ship(name)
        except SextonError as error:
            guarded = isinstance(error, PreconditionFailed | CatalogMismatch)
            (_LOG.error if guarded else _LOG.warning)("replica %s is not brought up to date: %s", name, error)
            shipped = ShippedBlocks(replica=name, error=f"{type(error).__name__}: {error}"[:_TOLD])
        metrics.shipped(shipped)
        if shipped.blocks:
            _LOG.info(
                "replica %s: %d blocks, %d bytes shipped, manifest %d",
                name,
                shipped.blocks,
                shipped.bytes,
                shipped.manifest,
            )
        return shipped
