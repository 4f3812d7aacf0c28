"""`sweep-records`: `flush-records` runs, whatever ended it.

Destroys nothing. Invariant: none; what it misses, the next one finds. To stop it, pause the schedule `sexton-records`.

1. Start `flush-records`, unless it runs.

Source: as `sweep-transactions`; a schedule cannot start a workflow under an id without its time.
"""

from contextlib import suppress

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows.records.values import FLUSH_RECORDS, FlushRecordsInput, SweepRecordsInput, SweepRecordsResult


@workflow.defn(name="sweep-records", versioning_behavior=VersioningBehavior.PINNED)
class SweepRecords:
    """See the module's text."""

    @workflow.run
    async def run(self, request: SweepRecordsInput) -> SweepRecordsResult:
        """Do the numbered step."""
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
