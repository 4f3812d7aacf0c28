"""Jobs that a workflow starts as children under their own ids."""

from collections.abc import Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows import search_attributes
    from workflows.job_definition import DescribedJobInput, JobDefinition

Q = TypeVar("Q", bound=DescribedJobInput)
R = TypeVar("R")


async def start_unless_running(
    job: JobDefinition[Q, Any], request: Q, *, attributes: Sequence[SearchAttributePair[Any]] = ()
) -> bool:
    """Start a job that continues when its parent ends. Return `False` if the job runs already."""
    try:
        await workflow.start_child_workflow(
            job.name,
            request,
            id=job.id_of_request(request),
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            static_summary=job.summary(request),
            static_details=request.details(),
            search_attributes=TypedSearchAttributes(
                [*search_attributes.list_attributes_of_request(request), *attributes]
            ),
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def run_unless_running(job: JobDefinition[Q, R], request: Q) -> R | None:
    """Run a job and return its result, or return `None` if the job runs already.

    A scheduled run does its work so, because a schedule appends the time of the start to the workflow id.
    """
    try:
        result: R = await workflow.execute_child_workflow(
            job.name,
            request,
            id=job.id_of_request(request),
            result_type=job.result,
            static_summary=job.summary(request),
            static_details=request.details(),
        )
    except WorkflowAlreadyStartedError:
        return None
    return result
