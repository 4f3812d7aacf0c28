"""Whether this process can read what the schedules of its namespace start, asked before it takes a job."""

from temporalio.api.common.v1 import Payload
from temporalio.client import Client, ScheduleActionStartWorkflow

from workers.client.payload_codec import codec_of
from workers.client.schedules import described_schedules


async def require_readable(client: Client) -> None:
    """See that the client has the keys of scheduled jobs: a worker without them would fail each step of such a job.

    Raises:
        InvalidInput: It has not.
    """
    for found in await described_schedules(client):
        if isinstance(found.schedule.action, ScheduleActionStartWorkflow):
            await codec_of(client).decode([one for one in found.schedule.action.args if isinstance(one, Payload)])
