"""`flush-records`: what changes in the catalog is in blocks of the record log some seconds later.

Destroys nothing. Invariant: a change leaves the outbox only once a manifest names a block with it; SQL is the queue, so
that neither a lost signal nor a restart loses one. It runs for as long as the catalog does. To stop it, pause the
schedule `sexton-records` and terminate it: changes wait in the outbox, and so do the deletions that are durable.

1. Flush: again and again for a while, in one activity; or once.
2. Asked to flush once: end, unless it was asked for meanwhile or another job was at work on the record log.
3. Otherwise start `defragment-records` where many blocks have come since it was started last, unless it runs; go on
from 1.

Source: Aerospike's write queue to its device; ADR 15.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from activities.records.flushing import RecordFlushing
    from activities.records.values import FlushInput
    from logstore.records.jobs import FlushedRecords
    from workflows import refusals, search_attributes
    from workflows.records import passes
    from workflows.records.values import (
        DEFRAGMENT_RECORDS,
        HELD,
        HELD_TIMES,
        DefragmentRecordsInput,
        FlushRecordsInput,
        FlushRecordsResult,
    )


_MANY = 1_000
"""Blocks that flushes may add before they are joined: each manifest names all of them."""


@workflow.defn(name="flush-records", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class FlushRecords:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: FlushRecordsInput) -> None:
        """Start from what an earlier run carried over; the first flush finds all that it may have missed."""
        self._request = request
        self._result = request.carried
        self._woken = True
        self._few: int | None = None  # the fewest blocks that a manifest named since the last start of that job

    @workflow.run
    async def run(self, request: FlushRecordsInput) -> FlushRecordsResult:
        """Do the numbered steps."""
        held = 0
        while (done := await self._flush()) is not None:
            if request.once:
                held = held + 1 if done.held else 0
                if held >= HELD_TIMES or not (held or self._woken):
                    break
                await asyncio.sleep(HELD.total_seconds() if held else 0)
                continue
            await self._join_many(done.named)
            if not request.watch_s:
                await workflow.wait_condition(lambda: self._woken)
            if workflow.info().is_continue_as_new_suggested():  # a signal that comes now is in the next run's history
                workflow.continue_as_new(replace(request, carried=self._result))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([_outcome(self._result)])])
        return self._result

    @workflow.signal
    def wake(self) -> None:
        """Something is to be flushed that the flush in hand may not have seen."""
        self._woken = True

    @workflow.query
    def progress(self) -> FlushRecordsResult:
        """What was flushed since it was started."""
        return self._result

    async def _join_many(self, named: int) -> None:
        self._few = named if self._few is None else min(self._few, named)
        if named - self._few < _MANY:
            return
        self._few = named
        request = DefragmentRecordsInput(queue=self._request.queue, actor="flush-records", reason="many blocks")
        with suppress(WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                DEFRAGMENT_RECORDS.name,
                request,
                id=DEFRAGMENT_RECORDS.id(),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary="defragment the record log",
                static_details=request.details(),
            )

    async def _flush(self) -> FlushedRecords | None:
        """What one activity flushed; None where a guard refused it."""
        self._woken = False
        request = self._request
        watch_s = 0.0 if request.once else request.watch_s
        look = FlushInput(watch_s=watch_s, actor=request.actor, reason=request.reason)
        options = passes.of_flush(request.queue, watch_s)
        try:
            done = await workflow.execute_activity_method(RecordFlushing.flush, look, **options)
        except ActivityError as error:
            refusal = refusals.require_refusal(error, passes.GUARDS)
            self._result = replace(self._result, refused=refusal)
            workflow.set_current_details(refusals.format_refusal(refusal))
            return None
        self._result = replace(self._result, done=self._result.done.plus(done), looks=self._result.looks + 1)
        workflow.set_current_details(shown(self._result))
        return done


def shown(result: FlushRecordsResult) -> str:
    """What was flushed, as the Web UI shows it."""
    done = result.done
    waits = "\n\nAnother job is at work on the record log." if done.held else ""
    if done.refused:
        waits += f"\n\nNo block can hold {done.refused:,} records, which are left out: {done.refusal}"
    return (
        f"{done.records:,} records in {done.blocks:,} blocks, {done.tombstones:,} of them tombstones;"
        f" {done.flushes:,} manifests put, the newest is **{done.manifest}**; {done.left:,} changes wait{waits}"
    )


def _outcome(result: FlushRecordsResult) -> str:
    if result.refused:
        return "REFUSED"
    if result.done.held:
        return "HELD"
    return "FLUSHED" if result.done.flushes else "NOTHING"
