"""`flush-records`: write changes of the catalog into blocks of the record log within seconds.

Destroys nothing. Invariant: a change stays in the outbox until a manifest names a block that contains the change. The
outbox is a table, so neither a lost signal nor a restart loses a change. Unless `once` is set, the workflow runs as
long as the catalog exists. To stop it, pause the schedule `sexton-records` and terminate the workflow. Changes and
durable deletions then wait until the workflow runs again.

1. Flush in one activity: one time if `once` is set or `watch_s` is 0, otherwise repeatedly for `watch_s` seconds.
2. If `once` is set, repeat step 1 if a signal has arrived or another job had claimed the record log; otherwise end.
3. If there are many new blocks, start `defragment-records` unless that workflow runs. If `watch_s` is 0, wait for a
   signal. Repeat from step 1.

Source: Aerospike's write queue to its device; ADR 15.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.record_upkeep import FlushInput, FlushRecordsActivities
    from logstore.records.job_results import FlushedRecords
    from workflows import activity_options, child_jobs, guard_refusal_results, search_attributes
    from workflows.records.job_definitions import (
        DEFRAGMENT_RECORDS,
        FLUSH_RECORDS,
        HELD_RETRY_INTERVAL,
        MAX_HELD_FLUSHES,
        DefragmentRecordsInput,
        FlushRecordsInput,
        FlushRecordsResult,
    )


_MAX_NEW_BLOCKS = 1_000
"""Number of new blocks after which a defragmentation starts. Each manifest names all blocks, so manifests grow."""


def _flush_options(queue: str, watch_s: float) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=30, seconds=watch_s),  # an older flush stores no manifest
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for catalog and storage
    )


@workflow.defn(name="flush-records", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class FlushRecords:
    @workflow.init
    def __init__(self, request: FlushRecordsInput) -> None:
        self._request = request
        self._result = request.carried
        self._is_woken = True  # the first flush writes changes that an earlier run may have missed
        self._min_blocks: int | None = None  # lowest number of named blocks since `defragment-records` was started

    @workflow.run
    async def run(self, request: FlushRecordsInput) -> FlushRecordsResult:
        held_flushes = 0
        while (flushed := await self._flush_unless_refused()) is not None:
            if request.once:
                held_flushes = held_flushes + 1 if flushed.held else 0
                if held_flushes >= MAX_HELD_FLUSHES or not (held_flushes or self._is_woken):
                    break
                await asyncio.sleep(HELD_RETRY_INTERVAL.total_seconds() if held_flushes else 0)
                continue
            await self._defragment_if_many(flushed.named)
            if not request.watch_s:
                await workflow.wait_condition(lambda: self._is_woken)
            if workflow.info().is_continue_as_new_suggested():  # a signal that comes now is in the next run's history
                workflow.continue_as_new(replace(request, carried=self._result))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([_outcome(self._result)])])
        return self._result

    @workflow.signal
    def wake(self) -> None:
        """Flush once more, because the running flush may have missed a change."""
        self._is_woken = True

    @workflow.query
    def progress(self) -> FlushRecordsResult:
        """Return the sum of all flushes since the workflow was started."""
        return self._result

    async def _defragment_if_many(self, named_blocks: int) -> None:
        self._min_blocks = named_blocks if self._min_blocks is None else min(self._min_blocks, named_blocks)
        if named_blocks - self._min_blocks < _MAX_NEW_BLOCKS:
            return
        self._min_blocks = named_blocks
        request = DefragmentRecordsInput(queue=self._request.queue, actor="flush-records", reason="many blocks")
        await child_jobs.start_unless_running(DEFRAGMENT_RECORDS, request)

    async def _flush_unless_refused(self) -> FlushedRecords | None:
        self._is_woken = False
        request = self._request
        watch_s = 0.0 if request.once else request.watch_s
        flush_input = FlushInput(watch_s=watch_s, actor=request.actor, reason=request.reason)
        try:
            flushed = await workflow.execute_activity_method(
                FlushRecordsActivities.flush_record_log, flush_input, **_flush_options(request.queue, watch_s)
            )
        except ActivityError as error:
            refusal = guard_refusal_results.refusal_from_error_or_raise(error, FLUSH_RECORDS.guards)
            self._result = replace(self._result, refused=refusal)
            workflow.set_current_details(guard_refusal_results.format_refusal(refusal))
            return None
        self._result = replace(self._result, done=self._result.done.plus(flushed), looks=self._result.looks + 1)
        workflow.set_current_details(describe_result(self._result))
        return flushed


def describe_result(result: FlushRecordsResult) -> str:
    flushed = result.done
    notes = "\n\nAnother job is at work on the record log." if flushed.held else ""
    if flushed.refused:
        notes += f"\n\nNo block can hold {flushed.refused:,} records, which are left out: {flushed.refusal}"
    return (
        f"{flushed.records:,} records in {flushed.blocks:,} blocks, {flushed.tombstones:,} of them tombstones;"
        f" {flushed.flushes:,} manifests put, the newest is **{flushed.manifest}**;"
        f" {flushed.left:,} changes wait{notes}"
    )


def _outcome(result: FlushRecordsResult) -> str:
    if result.refused:
        return "REFUSED"
    if result.done.held:
        return "HELD"
    return "FLUSHED" if result.done.flushes else "NOTHING"
