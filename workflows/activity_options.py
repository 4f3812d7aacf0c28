"""Options of activities that several jobs share."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""Heartbeat timeout of most activities. The death of a worker is noticed within this time."""

CATALOG = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),  # phase one of 100,000 ledgers, or a page of rows
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)
"""Options of activities that change the catalog. Retries are unlimited, because the change must be made."""


def bulk_job_options(queue: str) -> workflow.ActivityConfig:
    """Return the options of a bulk job. An empty `queue` means the task queue of the workflow."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(hours=24),  # a billion objects or segments, some ten thousand a second
        heartbeat_timeout=timedelta(seconds=60),  # a start of Java blocks a small machine for long
        retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=6),  # then a person looks
    )
