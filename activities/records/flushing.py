"""Flushes of the record log: what has changed in the catalog is written into blocks.

Any number of flushes may run at once: the store decides by the number of the manifest which of them counts, and what
was flushed twice is equal. Claims spare work alone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from temporalio import activity

from activities.deletion.claims import own_claim
from activities.heartbeats import beating, defined, renewing
from activities.records import metrics
from activities.records.values import FlushInput
from logstore.errors import SextonError
from logstore.ports.catalog import Records
from logstore.records.jobs import FlushedRecords
from logstore.records.services.flushing import Flusher, raised
from logstore.units import raise_if_stopped

_LEAST_S: Final = 0.05  # between two looks


class RecordFlushing:
    """The activity, over ports."""

    def __init__(self, *, records: Records, flusher: Flusher, interval_s: float) -> None:
        """Take the outbox, what flushes it, and how long to wait between two looks."""
        self._records, self._flusher = records, flusher
        self._interval_s = max(interval_s, _LEAST_S)

    @defined(name="records.flush")
    def flush(self, request: FlushInput) -> FlushedRecords:
        """Flush what has changed: once, or whenever something has, for `watch_s`; a worker that ends does not wait.

        While another job is at work on the record log, a look finds nothing to do: `held`.

        Idempotency: what is flushed is not flushed again; what an attempt that died had written is swept later.
        Heartbeat: records written so far, every two seconds; the claim of the record log is renewed with it.
        Raises: CatalogAdopting, CatalogOutdated, CatalogMismatch, PreconditionFailed, CorruptData (terminal);
            StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        done = FlushedRecords()
        until = time.monotonic() + request.watch_s

        def far() -> tuple[int]:
            return (done.records,)

        with beating(far):
            while True:
                raise_if_stopped()
                done = done.plus(self._look(now=not request.watch_s, far=far))
                left_s = until - time.monotonic()
                if left_s <= 0 or activity.is_worker_shutdown():
                    return done
                activity.wait_for_worker_shutdown_sync(min(self._interval_s, left_s))

    def _look(self, *, now: bool, far: Callable[[], tuple[int]]) -> FlushedRecords:
        """One look; with `now`, what no job would wait for is flushed too: cursors that are not due yet."""
        state = self._records.state()
        nothing = not (state.outbox or state.staged) and raised(state.ceilings, state.next_ids) == state.ceilings
        if not now and nothing and state.manifest:
            return FlushedRecords(manifest=state.manifest)
        with _own_turn(self._records, far) as mine:
            if not mine:
                return FlushedRecords(manifest=state.manifest, left=state.outbox, held=True)
            done = flushed(self._flusher, now=now)
        metrics.flushed(done)
        return done


def flushed(flusher: Flusher, *, now: bool) -> FlushedRecords:
    """One flush, as it is told."""
    found = flusher.flush(cursors=now)
    return FlushedRecords(
        manifest=found.manifest,
        flushes=int(bool(found.blocks or found.changes)),
        records=found.records,
        tombstones=found.tombstones,
        blocks=found.blocks,
        bytes=found.bytes,
        left=found.left,
        named=found.named,
        refused=len(found.refused),
        refusal=str(found.refused[0]) if found.refused else "",
    )


@contextmanager
def _own_turn(records: Records, far: Callable[[], tuple[int]]) -> Iterator[bool]:
    """Whether the record log is this workflow's to work on; while the block runs, if so.

    It spares work alone: two that put the same manifest's number are told apart by the store.
    """
    claim = own_claim()
    if not records.claim(claim):
        yield False
        return
    try:
        with renewing(lambda: records.claim(claim), far):
            yield True
    finally:
        with suppress(SextonError):  # it lapses
            records.release(claim.workflow_id)
