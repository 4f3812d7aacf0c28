"""The verbs that builds of snapshots are told in."""

from dataclasses import replace
from typing import Any, Final

from pyroaring import BitMap
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from logstore.positions import LedgerId, Position
from logstore.transactions.buffer import Buffer
from tests.workflows.house import House
from workflows.transactions.build_transaction_snapshots import BuildTransactionSnapshots
from workflows.transactions.values import (
    BUILD_TRANSACTION_SNAPSHOTS,
    BuildTransactionSnapshotsInput,
    BuildTransactionSnapshotsResult,
)

BUFFER: Final = Buffer(read_to=Position(LedgerId(1), 9), hidden={LedgerId(1): BitMap([3, 4])})


def buffer_of_topic(house: House) -> None:
    """What the bulk job finds."""
    house.world.bulk.buffers = {house.world.topic.topic_id: BUFFER}


def run_id(house: House) -> str:
    """Of the house's one build."""
    return f"snapshots-{house.queue}"


async def build(house: House, **changes: Any) -> WorkflowHandle[Any, BuildTransactionSnapshotsResult]:
    """Start it, or join it."""
    request = replace(BuildTransactionSnapshotsInput(run_id=run_id(house), actor="tests"), **changes)
    return await house.client.start_workflow(
        BuildTransactionSnapshots.run,
        request,
        id=BUILD_TRANSACTION_SNAPSHOTS.id(run_id(house)),
        task_queue=house.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary="snapshots",
    )
