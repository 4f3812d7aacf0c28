"""Jobs of which one run is at work at a time: a schedule appends its time to an id, a person's start does not.

So the run of a schedule does nothing itself. It runs the job as its child, under the id that a person's start has, too.
"""

from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows.jobs import Job, Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


async def run_alone(job: Job[Q, R], request: Q, *, summary: str) -> R | None:
    """The result of the job under its one id; None where it runs already."""
    try:
        result: R = await workflow.execute_child_workflow(
            job.name,
            request,
            id=job.id(),
            result_type=job.result,
            static_summary=summary,
            static_details=request.details(),
        )
    except WorkflowAlreadyStartedError:
        return None
    return result
