"""Options of the activities of the record log. They have their own queue: a flush holds a thread while it waits."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from workflows import options

GUARDS = ("CatalogAdopting", "CatalogMismatch", "CatalogOutdated", "PreconditionFailed")
"""Types of refusals by which such a job ends: nothing changed, and a person must look."""

_PASS = timedelta(hours=24)  # over every block, at least one of them a second


def of_flush(queue: str, watch_s: float) -> workflow.ActivityConfig:
    """Of a look for changes that lasts so long."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=30, seconds=watch_s),  # after that a flush puts no manifest
        heartbeat_timeout=options.NOTICED,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for catalog and storage
    )


def of_pass(queue: str) -> workflow.ActivityConfig:
    """Of a pass over all blocks."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=_PASS,
        heartbeat_timeout=options.NOTICED,
        retry_policy=RetryPolicy(
            maximum_interval=timedelta(minutes=1), maximum_attempts=10
        ),  # then the next one is due
    )
