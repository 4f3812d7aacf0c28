"""Activity options of record log jobs. Each of these jobs runs at most once at a time.

The activities have a task queue of their own, because a flush occupies a thread while it waits. A schedule appends the
time of the start to the workflow id. A scheduled run therefore starts the job as a child under the id without a time.
"""

from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows import activity_options
    from workflows.job_definition import DescribedJobInput, JobDefinition

GUARDS = ("CatalogAdopting", "CatalogMismatch", "CatalogOutdated", "PreconditionFailed")
"""Error types that end a record log job as refused. A person must look at the cause."""

Q = TypeVar("Q", bound=DescribedJobInput)
R = TypeVar("R")


def flush_activity_options(queue: str, watch_s: float) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=30, seconds=watch_s),  # an older flush stores no manifest
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for catalog and storage
    )


def block_pass_options(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(hours=24),  # enough for 86,000 blocks at one block a second
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            maximum_interval=timedelta(minutes=1), maximum_attempts=10
        ),  # then the next pass is due
    )


async def run_as_only_child(job: JobDefinition[Q, R], request: Q, *, summary: str) -> R | None:
    """Run the job as a child under its id without a time. Return the result, or `None` if the job runs already."""
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
