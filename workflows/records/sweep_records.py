"""`sweep-records`: start `flush-records` again after it has ended.

Destroys nothing. Invariant: none. If a sweep fails, the next sweep does the same work. To stop it, pause the schedule
`sexton-records`.

1. Start `flush-records` unless it runs.

Source: Temporal's schedules, which append the start time to workflow ids. A sweep starts the workflow under a fixed id.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from workflows import child_jobs
    from workflows.records.job_definitions import (
        FLUSH_RECORDS,
        FlushRecordsInput,
        SweepRecordsInput,
        SweepRecordsResult,
    )


@workflow.defn(name="sweep-records", versioning_behavior=VersioningBehavior.PINNED)
class SweepRecords:
    @workflow.run
    async def run(self, request: SweepRecordsInput) -> SweepRecordsResult:
        flush = FlushRecordsInput(watch_s=request.watch_s, queue=request.queue)
        is_started = await child_jobs.start_unless_running(FLUSH_RECORDS, flush)
        return SweepRecordsResult(started=[FLUSH_RECORDS.id()] if is_started else [])
