"""Search for live workers of a catalog that is about to be rebuilt. The rebuild ends the old catalog."""

import time
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.stack.stack_home import StackHome
from infra.stack.worker_records import find_crashed_worker_ids, read_live_workers
from logstore.errors import PreconditionFailed
from workers.client.task_queue_pollers import list_live_pollers
from workers.settings import Settings
from workflows.records.job_definitions import FLUSH_RECORDS
from workflows.task_queues import bulk_queue, records_queue, transactions_queue, uploads_queue

_MAX_HEARTBEAT_AGE_S: Final = 15.0  # activities heartbeat every two seconds, but on a busy machine later
_MAX_NAMES_IN_MESSAGE: Final = 5


async def require_no_workers(client: Client, settings: Settings) -> None:
    """Raise `PreconditionFailed` if a worker of the catalog runs in this home, polls a queue, or flushes records."""
    names = sorted(await _find_live_workers_of_catalog(client, settings))
    if names:
        listed_names = ", ".join(names[:_MAX_NAMES_IN_MESSAGE])
        if len(names) > _MAX_NAMES_IN_MESSAGE:
            listed_names += f" and {len(names) - _MAX_NAMES_IN_MESSAGE} more"
        raise PreconditionFailed(
            f"workers: expected none of the catalog that is to be rebuilt, found {listed_names}:"
            " its database is not lost. Stop them (Temporal tells of one that was killed for 90 s), or give"
            " --take-over: appends are adopted until they know that their catalog has ended, other changes are lost"
        )


async def _find_live_workers_of_catalog(client: Client, settings: Settings) -> set[str]:
    home = StackHome.at(settings.home)
    dead, names = find_crashed_worker_ids(home), {worker.worker_id for worker in read_live_workers(home)}
    queue = settings.task_queue
    for name in (
        queue,
        *(name_queue(queue) for name_queue in (uploads_queue, transactions_queue, records_queue, bulk_queue)),
    ):
        pollers = await list_live_pollers(client, name, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, dead_identities=dead)
        names |= {poller.identity for poller in pollers}
    return names | (await _find_flushing_workers(client) - dead)


async def _find_flushing_workers(client: Client) -> set[str]:
    try:
        description = await client.get_workflow_handle(FLUSH_RECORDS.id()).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return set()
        raise
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    oldest = time.time() - _MAX_HEARTBEAT_AGE_S
    return {
        pending.last_worker_identity
        for pending in description.raw_description.pending_activities
        if pending.state == started and pending.last_heartbeat_time.ToNanoseconds() / 1e9 >= oldest
    }
