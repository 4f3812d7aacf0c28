"""The verbs that builds of something of many topics are told in."""

from dataclasses import replace
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from tests.workflows.house import House
from workflows.building.values import BuildResult, BuildTopicsInput
from workflows.jobs import Job


def run_id(house: House, job: Job[Any, BuildResult]) -> str:
    """Of the house's one build."""
    return f"{job.request.runs}-{house.queue}"


async def build(house: House, job: Job[Any, BuildResult], **changes: Any) -> WorkflowHandle[Any, BuildResult]:
    """Start it, or join it."""
    request: BuildTopicsInput = replace(job.request(run_id=run_id(house, job), actor="tests"), **changes)
    return await house.client.start_workflow(
        job.name,
        request,
        id=job.id(request.run_id),
        task_queue=house.queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=request.builds,
    )
