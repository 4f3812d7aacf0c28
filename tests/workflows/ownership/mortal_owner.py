"""An owner in a process of its own, which begins a chunk and never ends it: to be killed.

Usage: `python -m tests.workflows.ownership.mortal_owner ADDRESS QUEUE`; it says `polling`, and `begun` once it has.
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities.deletion.inputs_and_results import ChunkInput


@activity.defn(name="deletion.delete_chunk")
async def delete_chunk(_: ChunkInput) -> None:
    """Beat for ever: nothing but death ends it."""
    _say("begun")
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.05)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(address: str, queue: str) -> None:
    """Serve the queue until killed."""
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    _say("polling")
    beats = timedelta(milliseconds=50)
    await Worker(client, task_queue=queue, activities=[delete_chunk], max_heartbeat_throttle_interval=beats).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
