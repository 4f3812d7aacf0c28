"""`sweep-records`: start `flush-records` again after it has ended.

Destroys nothing. Invariant: none. If a sweep fails, the next sweep does the same work. To stop it, pause the schedule
`sexton-records`.

1. Start `flush-records` unless it runs.

Source: Temporal's schedules, which append the start time to workflow ids. A sweep starts the workflow under a fixed id.
"""

from contextlib import suppress

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
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
        started = list[str]()
        flush = FlushRecordsInput(watch_s=request.watch_s, queue=request.queue)
        with suppress(WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                FLUSH_RECORDS.name,
                flush,
                id=FLUSH_RECORDS.id(),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary="flush changed records",
                static_details=flush.details(),
            )
            started.append(FLUSH_RECORDS.id())
        return SweepRecordsResult(started=started)
