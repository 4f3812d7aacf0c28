"""What the workers of one process serve belongs together."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from temporalio import activity

from workers.assembly.activities import WorkerActivities
from workflows.job_definition import JobDefinition
from workflows.jobs import JOB_BY_NAME


def _name(function: object) -> str | None:
    definition = activity._Definition.from_callable(function) if callable(function) else None
    return definition.name if definition else None


def _served() -> set[str]:
    """Names of all activities of a worker's services."""
    log = MagicMock()
    log.policies.flush_interval_s = 5.0
    return {name for method in WorkerActivities(log, MagicMock()).all() if (name := _name(method))}


@pytest.mark.parametrize("job", JOB_BY_NAME.values(), ids=lambda job: job.name)
def test_worker_has_the_activities_of_each_workflow_that_it_serves(job: JobDefinition[Any, Any]) -> None:
    """A run whose activity nobody has would wait for ever: the worker refuses the workflows that commands host."""
    missing = {*job.activities} - _served()
    assert bool(missing) is bool(job.command), missing
