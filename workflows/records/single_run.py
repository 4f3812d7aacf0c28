"""Jobs of which at most one run is at work at a time.

A schedule appends its time to the workflow id, and the start by a person does not. So the run that a schedule starts
does nothing itself: it runs the job as its child, under the id that the start by a person uses, too.
"""

from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows.jobs import Job, Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


async def run_single(job: Job[Q, R], request: Q, *, summary: str) -> R | None:
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
