"""Every recorded history goes the same way through today's workflows. No server is needed."""

import asyncio
import base64
import json
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from activities.deletion.inputs_and_results import RowRangesInput
from activities.deletion.ledger_deletion import LedgerDeletionActivities
from tests.replay.record import HISTORIES, scrubbed
from workers.hosting.temporal_workers import WORKFLOWS
from workers.hosting.workflow_input_checks import InputCheckingRunner
from workflows.deletion.job_definitions import DeleteLedgerInput, DeleteLedgersInput, TrimTopicInput

COUNTS = {
    "trim-topic/v1": 8,
    "delete-ledgers/v1": 10,
    "delete-topic/v1": 4,
    "trim-topics/v1": 5,
    "delete-ledger/v1": 9,
    "sweep-deletions/v1": 6,
    "offload-ledger/v1": 5,
    "offload-topic/v1": 5,
    "reconcile-orphans/v1": 4,
    "apply-orphans/v1": 6,
    "scrub-ledgers/v1": 6,
    "plan-pulsar/v1": 5,
    "apply-pulsar/v1": 7,
    "undo-pulsar/v1": 4,
    "abort-transactions/v1": 5,
    "transaction-coordinator/v1": 3,
    "broadcast-transaction/v1": 3,
    "sweep-transactions/v1": 3,
    "build-transaction-snapshots/v1": 3,
    "seal-buckets/v1": 5,
    "merge-buckets/v1": 6,
    "build-delayed-index/v1": 4,
    "rebuild-catalog/v1": 6,
    "follow-records/v1": 4,
    "flush-records/v1": 4,
    "sweep-records/v1": 3,
    "defragment-records/v1": 5,
    "raid-tombstones/v1": 5,
    "replicate-records/v1": 4,
    "end-records/v1": 6,
}
RECORDED = sorted(HISTORIES.glob("*/*/*.json"))
_MINUTE = timedelta(minutes=1)
ENDINGS = {"COMPLETED", "FAILED", "CANCELED", "CONTINUED_AS_NEW"}


def name_of(path: Path) -> str:
    return str(path.relative_to(HISTORIES).with_suffix(""))


def history_at(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json("recorded", path.read_text())


def ending_of(path: Path) -> str:
    """How the run ended, or RUNNING."""
    events = json.loads(path.read_text())["events"]
    last = events[-1]["eventType"].removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_")
    return last if last in ENDINGS else "RUNNING"


def test_histories_are_those_that_are_expected() -> None:
    """An extra history that nobody counted, or a missing one, fails."""
    found = [name_of(path).rpartition("/")[0] for path in RECORDED]
    assert {name: found.count(name) for name in found} == COUNTS
    assert {name.partition("/")[0] for name in COUNTS} == {
        workflow._Definition.must_from_class(w).name for w in WORKFLOWS
    }


@pytest.mark.parametrize("type_", sorted(name.partition("/")[0] for name in COUNTS))
def test_histories_of_each_type_cover_how_a_run_can_stand(type_: str) -> None:
    """Complete, failed and still running, and continued as new where a run can be; a coordinator never ends."""
    endings = {ending_of(path) for path in RECORDED if name_of(path).startswith(f"{type_}/")}
    if type_ == "transaction-coordinator":
        assert endings == {"RUNNING", "CONTINUED_AS_NEW"}
        return
    wanted = {"COMPLETED", "FAILED", "RUNNING"} | (
        {"CONTINUED_AS_NEW"}
        if type_ in {"trim-topic", "trim-topics", "delete-ledgers", "offload-topic", "apply-orphans"}
        else set()
    )
    assert wanted <= endings


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_history_replays_against_the_workflows_of_today(path: Path) -> None:
    """A run that began before an upgrade goes on after it."""
    replayer = Replayer(
        workflows=WORKFLOWS, workflow_runner=InputCheckingRunner(), data_converter=pydantic_data_converter
    )
    asyncio.run(replayer.replay_workflow(history_at(path)))


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_history_names_no_machine(path: Path) -> None:
    """No path, process or host of whoever recorded it."""
    texts = list(_texts(json.loads(path.read_text())))
    host = socket.gethostname()
    assert not [one for one in texts if re.search(r"(^|[\s\"'(])/[a-z]+/|site-packages|\d+@\w", one)]
    assert len(host) < 4 or not [one for one in texts if host in one]


def _texts(value: Any) -> Iterator[str]:
    """Every string, payloads decoded."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "data" and isinstance(one, str):
                yield base64.b64decode(one).decode()
            else:
                yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def test_scrubbing_takes_identities_queues_and_stack_traces_out() -> None:
    """What a server records of a worker's process does not reach the repository."""
    raw = {"events": [{"identity": "me", "name": "1@host-7", "failure": {"stackTrace": "/home/x", "message": "m"}}]}
    assert scrubbed(raw) == {"events": [{"identity": "recorded", "name": "recorded", "failure": {"message": "m"}}]}


@workflow.defn(name="trim-topic")
class TrimThatDetachesFirst:
    """`trim-topic` with its first two steps in another order."""

    @workflow.run
    async def run(self, request: TrimTopicInput) -> None:
        """Not what was recorded."""
        await workflow.execute_activity("deletion.detach", request, start_to_close_timeout=_MINUTE)

    @workflow.signal
    def again(self) -> None:
        """As before."""


@workflow.defn(name="delete-ledgers")
class DeleteLedgersThatWaits:
    """`delete-ledgers` with a timer before everything else."""

    @workflow.run
    async def run(self, request: DeleteLedgersInput) -> None:
        """Not what was recorded."""
        await workflow.sleep(1)
        page = RowRangesInput(batch_id=request.batch_id, catalog_epoch=1, after=0, rows=1, limit=1)
        await workflow.execute_activity_method(
            LedgerDeletionActivities.list_ranges_and_renew_claim, page, start_to_close_timeout=_MINUTE
        )


@workflow.defn(name="delete-ledger")
class DeleteLedgerThatGivesUp:
    """`delete-ledger` that writes the dead letter at once."""

    @workflow.run
    async def run(self, request: DeleteLedgerInput) -> None:
        """Not what was recorded."""
        await workflow.execute_activity("deletion.dead_letter", request, start_to_close_timeout=_MINUTE)


@pytest.mark.parametrize(
    ("changed", "recorded"),
    [
        (TrimThatDetachesFirst, "trim-topic/v1/trim_complete"),
        (DeleteLedgersThatWaits, "delete-ledgers/v1/delete_complete"),
        (DeleteLedgerThatGivesUp, "delete-ledger/v1/one_complete"),
    ],
)
def test_history_met_by_a_changed_workflow_is_refused(changed: type, recorded: str) -> None:
    """The suite sees a change: another order, a new timer or another activity is no replay of what was recorded."""
    replayer = Replayer(
        workflows=[changed], data_converter=pydantic_data_converter, workflow_runner=UnsandboxedWorkflowRunner()
    )
    with pytest.raises(NondeterminismError):
        asyncio.run(replayer.replay_workflow(history_at(HISTORIES / f"{recorded}.json")))
