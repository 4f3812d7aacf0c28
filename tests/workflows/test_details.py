"""Every start of a job says in one sentence what the job will do, and by which command it is looked at."""

import ast
import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from logstore.deletion.intents import IntentKey
from workers.cli.root_command import app
from workflows.delayed.job_definitions import MergeBucketsInput, SealBucketsInput
from workflows.deletion.job_definitions import (
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeleteTopicInput,
    SweepDeletionsInput,
    TrimTopicInput,
    TrimTopicsInput,
)
from workflows.offload.job_definitions import OffloadLedgerInput, OffloadTopicInput
from workflows.pulsar.job_definitions import PlanPulsarInput
from workflows.reconciliation.job_definitions import ApplyOrphansInput, ReconcileOrphansInput
from workflows.records.job_definitions import (
    DefragmentRecordsInput,
    EndRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)
from workflows.transactions.job_definitions import BroadcastTransactionInput, CoordinatorInput, SweepTransactionsInput

_ROOT = Path(__file__).resolve().parents[2]
_STARTS = {"start_workflow", "start_child_workflow", "execute_child_workflow", "ScheduleActionStartWorkflow"}
_TOPIC = "persistent://public/default/orders"
_BY: Final[dict[str, Any]] = {"actor": "tests", "reason": "a test"}
_KEY = IntentKey(ledger_id=7, copy="LEDGER", generation=1)
_REQUESTS = (
    TrimTopicInput(topic_id=1, topic=_TOPIC, **_BY),
    TrimTopicsInput(**_BY),
    DeleteTopicInput(topic_id=1, topic=_TOPIC, catalog_epoch=1, **_BY),
    DeleteLedgersInput(batch_id="b", topic_id=1, topic=_TOPIC, catalog_epoch=1, **_BY),
    DeleteLedgersInput(batch_id="b", topic_id=0, topic="", catalog_epoch=1, **_BY),
    DeleteLedgerInput(key=_KEY, topic=_TOPIC, catalog_epoch=1),
    SweepDeletionsInput(**_BY),
    OffloadTopicInput(topic_id=1, topic=_TOPIC),
    OffloadLedgerInput(ledger_id=7, topic=_TOPIC),
    ReconcileOrphansInput(run_id="plan-1"),
    ReconcileOrphansInput(),
    ApplyOrphansInput(run_id="plan-1", **_BY),
    PlanPulsarInput(run_id="pulsar-1"),
    PlanPulsarInput(),
    CoordinatorInput(tc_id=3),
    BroadcastTransactionInput(txn="3:17"),
    SweepTransactionsInput(**_BY),
    SealBucketsInput(**_BY),
    SealBucketsInput(topic_id=1, topic=_TOPIC, **_BY),
    MergeBucketsInput(topic_id=1, topic=_TOPIC, **_BY),
    FlushRecordsInput(once=True, **_BY),
    FlushRecordsInput(),
    SweepRecordsInput(**_BY),
    DefragmentRecordsInput(**_BY),
    RaidTombstonesInput(**_BY),
    ReplicateRecordsInput(**_BY),
    EndRecordsInput(function="expired", batch_id="expired-1", **_BY),
    EndRecordsInput(function="expired", batch_id="expired-1", topic_id=1, topic=_TOPIC, dry_run=True, **_BY),
)


@pytest.mark.parametrize("request_", _REQUESTS, ids=lambda one: type(one).__name__)
def test_details_are_one_sentence_with_a_command_that_exists(request_: Any) -> None:
    """It is read by a person that opens the job in the Web UI before it has said anything else."""
    told = request_.details()
    assert re.fullmatch(r"[A-Z][^\n]*\.", told)
    (group, name) = re.findall(r"`sexton (\w+) (\w+)", told)[0]
    command = typer.main.get_command(app)
    context = typer.Context(command)
    found = command.get_command(context, group)  # type: ignore[attr-defined]
    assert found.get_command(context, name) is not None


def _starts() -> list[tuple[str, set[str | None]]]:
    """Every call in the product that starts a workflow, by place, with its keywords."""
    found = []
    for path in sorted(one for folder in ("workers", "workflows") for one in (_ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in _STARTS and len(node.args) > 1:
                    found.append((f"{path.name}:{node.lineno}", {one.arg for one in node.keywords}))
    return found


def test_every_start_of_a_workflow_has_a_summary_and_details() -> None:
    """By the client, by schedules and by parents."""
    starts = _starts()
    assert len(starts) >= 5
    assert [place for place, given in starts if not {"static_summary", "static_details"} <= given] == []
