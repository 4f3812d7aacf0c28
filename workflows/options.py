"""Options of activities that several jobs call alike; a job that needs others says which, and why."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""A worker that was killed is noticed within this: the heartbeat timeout of every activity."""

CATALOG = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),  # phase one of 100,000 ledgers, or a page of rows, with room
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)
"""Transactions of the catalog, which is waited for without end: what they decide must be decided."""


def bulk_job(queue: str) -> workflow.ActivityConfig:
    """Of a bulk job, on a task queue of its own; on that of the workflow where `queue` is empty."""
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(hours=24),  # a billion objects or segments, some ten thousand a second
        heartbeat_timeout=timedelta(seconds=60),  # starting Java keeps a small machine from everything else for long
        retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=6),  # then a person looks
    )
