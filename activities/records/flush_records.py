"""Flushes of the record log: changes of the catalog are written into blocks.

Several flushes may run at once, because only one of them can store the next manifest. Claims only avoid repeated work.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from temporalio import activity

from activities.deletion.claims_and_causes import own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats, send_heartbeats_and_renew
from activities.records import metrics
from activities.records.inputs_and_results import FlushInput
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import SextonError
from logstore.records.job_results import FlushedRecords
from logstore.records.services.flusher import Flusher, raise_low_ceilings
from logstore.stop_checks import raise_if_stopped

_MIN_INTERVAL_S: Final = 0.05


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
        metrics.count_flush(flushed)
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
