"""Application of the record log to a replica database. The activity runs only in `sexton records follow`."""

import logging
import time
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from activities.heartbeats import define_activity, raise_if_cancelled, send_heartbeats
from logstore.records.job_results import FollowedRecords
from logstore.records.services.replicas import ReplicaFollower
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowInput(HasWatch):
    seed: bool = False  # empty the database first, and apply everything
    watch_s: float = 0.0  # seconds for which to look for changes; 0: apply once


_MIN_INTERVAL_S: Final = 0.05
_LOG: Final = logging.getLogger(__name__)


class FollowRecordsActivities:
    def __init__(self, follower: ReplicaFollower, *, interval_s: float) -> None:
        self._follower = follower
        self._interval_s = max(interval_s, _MIN_INTERVAL_S)  # seconds between two checks for changes

    @define_activity(name="records.follow")
    def follow_record_log(self, request: FollowInput) -> FollowedRecords:
        """Apply new manifests once. With `watch_s`, apply repeatedly for this time or until the worker shuts down.

        Idempotency: the transaction that applies a manifest also stores the manifest's number, so a manifest is applied
            once. If an attempt dies after it has seeded the database, the next attempt seeds again.
        Heartbeat: number of the applied manifest, and number of records written so far, every two seconds.
        Raises: PreconditionFailed, CatalogMismatch, CatalogVersionMismatch, MissingData, CorruptData, Unsupported
            (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        deadline_s, total = time.monotonic() + request.watch_s, FollowedRecords(replica="")
        with send_heartbeats(lambda: (total.manifest, total.records)):
            total = self._apply_new_manifests(seed=request.seed)
            while (remaining_s := deadline_s - time.monotonic()) > 0 and not activity.is_worker_shutdown():
                raise_if_stopped()
                activity.wait_for_worker_shutdown_sync(min(self._interval_s, remaining_s))
                total = total.plus(self._apply_new_manifests(seed=False))
        return total

    def _apply_new_manifests(self, *, seed: bool) -> FollowedRecords:
        step = self._follower.apply_new_manifests(seed=seed, proceed=raise_if_cancelled)
        if step.steps:
            _LOG.info(
                "replica %s has manifest %d: %d records and %d tombstones applied, %d topics and ledgers removed",
                *(step.replica, step.manifest, step.records, step.tombstones, step.removed),
            )
        return step
