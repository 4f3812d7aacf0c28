"""A database that follows the record log, step by step. It runs only in the process of its command."""

import logging
import time
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from activities.heartbeats import beating, defined, raise_if_cancelled
from logstore.records.jobs import FollowedRecords
from logstore.records.services.following import Follower
from logstore.units import raise_if_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowInput:
    """What is new in the record log is to be in the replica's database."""

    seed: bool = False  # empty the database first, and apply all
    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now


_LEAST_S: Final = 0.05  # between two looks
_LOG: Final = logging.getLogger(__name__)


class RecordFollowing:
    """The activity, over one replica."""

    def __init__(self, follower: Follower, *, interval_s: float) -> None:
        """Take the replica, and how long to wait between two looks."""
        self._follower, self._interval_s = follower, max(interval_s, _LEAST_S)

    @defined(name="records.follow")
    def follow(self, request: FollowInput) -> FollowedRecords:
        """Apply what is new: once, or whenever something is, for `watch_s`; a worker that ends does not wait.

        Idempotency: what was applied is not applied again, because its manifest stands in the same transaction. An
            attempt that died after it had seeded the database seeds it once more. Heartbeat: the manifest that it has
            and the records written so far, every two seconds.
        Raises: PreconditionFailed, CatalogMismatch, CatalogVersionMismatch, MissingData, CorruptData, Unsupported
            (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        until, done = time.monotonic() + request.watch_s, FollowedRecords(replica="")
        with beating(lambda: (done.manifest, done.records)):
            done = self._step(seed=request.seed)
            while (left_s := until - time.monotonic()) > 0 and not activity.is_worker_shutdown():
                raise_if_stopped()
                activity.wait_for_worker_shutdown_sync(min(self._interval_s, left_s))
                done = done.plus(self._step(seed=False))
        return done

    def _step(self, *, seed: bool) -> FollowedRecords:
        done = self._follower.step(seed=seed, proceed=raise_if_cancelled)
        if done.steps:
            _LOG.info(
                "replica %s has manifest %d: %d records and %d tombstones applied, %d topics and ledgers removed",
                *(done.replica, done.manifest, done.records, done.tombstones, done.removed),
            )
        return done
