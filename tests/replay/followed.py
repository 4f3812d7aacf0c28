"""Scenes of replicas' databases; see `record`. Their activity answers what a step came to."""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.records.follow_records import FollowInput
from logstore.records.job_results import FollowedRecords
from tests.replay.courses import Handle, Staged
from tests.workflows.workflow_harness import Gate, WorkflowHarness
from workflows.records.follow_records import FollowRecords
from workflows.records.job_definitions import FOLLOW_RECORDS, FollowRecordsInput

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


_STAGED = Staged(
    workflow=FollowRecords, job=FOLLOW_RECORDS, key=REPLICA, answers=lambda **how: [_Answers(**how).follow]
)
_REQUEST = FollowRecordsInput(replica=REPLICA)


async def follow_complete(house: WorkflowHarness) -> Handle:
    """A step with a seed."""
    return await _STAGED.ended(house, FollowRecordsInput(replica=REPLICA, seed=True))


async def follow_refused(house: WorkflowHarness) -> Handle:
    """The replica is STALE."""
    return await _STAGED.ended(house, _REQUEST, fault="PreconditionFailed")


async def follow_failed(house: WorkflowHarness) -> Handle:
    """A bug in a step."""
    return await _STAGED.ended(house, _REQUEST, fault="UnknownFault")


async def follow_running(house: WorkflowHarness) -> Handle:
    """It is at its step, and its worker is gone."""
    return await _STAGED.left_at_work(house, _REQUEST)
