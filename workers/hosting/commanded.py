"""The worker of a command that hosts its own job: on a queue of that job alone, because no other worker could do it.

Killed at any moment and run again the command goes on: the workflow waits in Temporal for a worker of its queue.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import Worker

from workers.hosting.inputs import CheckedRunner
from workers.hosting.interceptors import ActivityEdge
from workers.settings import Settings

_REMEMBERED: Final = timedelta(seconds=5)  # so long its task waits for the process that was killed


@asynccontextmanager
async def hosting(
    client: Client,
    queue: str,
    workflow: type,
    activities: Sequence[Callable[..., Any]],
    *,
    threads: int,
    settings: Settings,
) -> AsyncIterator[None]:
    """Serve one workflow and its activities, at most `threads` at a time, while the block runs."""
    with _telling_nothing(), ThreadPoolExecutor(threads, workflow.__name__) as pool:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=[workflow],
            activities=activities,
            activity_executor=pool,
            max_concurrent_activities=threads,
            workflow_runner=CheckedRunner(),
            interceptors=[ActivityEdge()],
            sticky_queue_schedule_to_start_timeout=_REMEMBERED,
            graceful_shutdown_timeout=timedelta(seconds=settings.drain_timeout),
        )
        async with worker:
            yield


@contextmanager
def _telling_nothing() -> Iterator[None]:
    """Without the SDK's traceback of each attempt that fails: the command says what it waits for, and how it ended."""
    log = logging.getLogger("temporalio.activity")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
