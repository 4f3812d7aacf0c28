"""Scenes of replicas' databases; see `record`. Their activity answers what a step came to."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.records.follow_values import FollowInput
from logstore.records.jobs import FollowedRecords
from tests.replay.courses import Handle
from tests.workflows.house import Gate, House, assert_eventually
from workflows.records.follow_records import FollowRecords
from workflows.records.follow_values import FOLLOW_RECORDS, FollowRecordsInput

REPLICA = "copy/0123abcd"


class _Answers:
    def __init__(self, *, fault: str = "", gate: Gate | None = None) -> None:
        self._fault, self._gate = fault, gate

    @activity.defn(name="records.follow")
    def follow(self, request: FollowInput) -> FollowedRecords:
        if self._gate:
            self._gate.wait()
        if self._fault:
            raise ApplicationError(f"replica {REPLICA}: expected, found", type=self._fault, non_retryable=True)
        return FollowedRecords(replica=REPLICA, manifest=8, steps=1, seeded=int(request.seed), records=3, tombstones=1)


@asynccontextmanager
async def _worker(house: House, answers: _Answers) -> AsyncIterator[None]:
    with ThreadPoolExecutor(2) as threads:
        async with Worker(
            house.client,
            task_queue=house.queue,
            workflows=[FollowRecords],
            activities=[answers.follow],
            activity_executor=threads,
        ):
            yield


async def _start(house: House, *, seed: bool = False) -> Handle:
    handle: Handle = await house.client.start_workflow(
        FOLLOW_RECORDS.name,
        FollowRecordsInput(replica=REPLICA, seed=seed),
        id=f"{FOLLOW_RECORDS.id(REPLICA)}-{house.queue}",
        task_queue=house.queue,
        result_type=FOLLOW_RECORDS.result,
    )
    return handle


async def _ended(house: House, answers: _Answers, *, seed: bool = False) -> Handle:
    handle = await _start(house, seed=seed)
    async with _worker(house, answers):
        with suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def follow_complete(house: House) -> Handle:
    """A step with a seed."""
    return await _ended(house, _Answers(), seed=True)


async def follow_refused(house: House) -> Handle:
    """The replica is STALE."""
    return await _ended(house, _Answers(fault="PreconditionFailed"))


async def follow_failed(house: House) -> Handle:
    """A bug in a step."""
    return await _ended(house, _Answers(fault="UnknownFault"))


async def follow_running(house: House) -> Handle:
    """It is at its step, and its worker is gone."""
    gate = Gate()
    async with _worker(house, _Answers(gate=gate)):
        handle = await _start(house)
        await assert_eventually(gate.reached.is_set)
        gate.open()
    return handle
