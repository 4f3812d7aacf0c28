"""The tomb raid: one activity, paced, under the run id of its workflow."""

import logging
import time
from collections.abc import Callable
from typing import Final

from temporalio import activity

from activities.heartbeats import beating, defined
from activities.records import metrics
from activities.records.values import RaidInput
from logstore.records.jobs import RaidedTombstones
from logstore.records.services.raiding import Raided, Raider

_LOG: Final = logging.getLogger(__name__)


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
        )
        metrics.raided(total)
        _LOG.info(
            "raid %s: %d tombstones were old enough, %d removed, %d kept; %d blocks with %d versions read in %.1f s",
            *(request.run_id, total.candidates, total.removed, total.kept, total.blocks, total.versions, total.seconds),
        )
        return total
