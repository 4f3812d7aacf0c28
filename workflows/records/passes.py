"""How jobs of the record log run: the options of their activities, and at most one run of a job at a time.

The activities have their own queue: a flush holds a thread while it waits.

A schedule appends its time to the workflow id, and the start by a person does not. So the run that a schedule starts
does nothing itself: it runs the job as its child, under the id that the start by a person uses, too.
"""

from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows import options
    from workflows.jobs import Job, JobRequest

GUARDS = ("CatalogAdopting", "CatalogMismatch", "CatalogOutdated", "PreconditionFailed")
"""Types of refusals by which such a job ends: nothing changed, and a person must look."""

Q = TypeVar("Q", bound=JobRequest)
R = TypeVar("R")


def of_flush(queue: str, watch_s: float) -> workflow.ActivityConfig:
    """Of a look for changes that lasts so long."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=30, seconds=watch_s),  # after that a flush puts no manifest
        heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for catalog and storage
    )


def of_pass(queue: str) -> workflow.ActivityConfig:
    """Of a pass over all blocks."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(hours=24),  # over every block, at least one of them a second
        heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=10),  # then the next is due
    )


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
