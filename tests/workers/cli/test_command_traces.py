"""Every command that fails names its trace, and its span says how it ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from infra.telemetry.span_reader import SpanReader
from logstore.errors import StoreUnavailable
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FAKE_TRACE_ID, ORDERS_TOPIC, FakeCommandServices, FakeDeletionResult

_THEIRS = "0af7651916cd43dd8448eb211c80319c"
_SEE = f"see it: sexton trace {FAKE_TRACE_ID}"


def _failed(**more: object) -> WorkflowFailureError:
    """A job whose activity failed."""
    cause = ApplicationError("needed", *more.values(), type="LedgerStillNeeded", non_retryable=True)
    activity = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="deletion.detach",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    activity.__cause__ = cause
    return WorkflowFailureError(cause=activity)


def test_a_command_that_is_used_badly_names_its_trace_in_json_and_its_span_says_why(
    run: Run, services: FakeCommandServices
) -> None:
    """The span has exit code, topic, type and sentence; people are not sent there, for it says no more."""
    told = run("topic", "show", ORDERS_TOPIC, "--json")
    assert document(told, 2)["error"]["trace_id"] == FAKE_TRACE_ID
    assert "see it" not in told.stderr
    ((code, facts, failure),) = services.told
    assert (code, facts) == (2, {"sexton.topic": ORDERS_TOPIC})
    assert (failure.type, failure.field) == ("UnknownObject", "topic")


@pytest.mark.usefixtures("orders")
def test_a_command_that_is_done_names_its_trace_in_json_alone(run: Run, services: FakeCommandServices) -> None:
    """One more field than the contract's; people are not told of it."""
    services.told.clear()
    told = run("topic", "trim", ORDERS_TOPIC, "--json")
    assert set(json.loads(told.stdout)) == {"workflow_id", "detached", "deleted", "outcomes", "trace_id"}
    assert json.loads(told.stdout)["trace_id"] == FAKE_TRACE_ID
    assert services.told == [(0, {"sexton.topic": ORDERS_TOPIC}, None)]
    shown = run("topic", "trim", ORDERS_TOPIC)
    assert FAKE_TRACE_ID not in told.stderr + shown.stdout + shown.stderr


@pytest.mark.usefixtures("orders")
def test_a_command_that_is_done_in_part_names_its_trace(run: Run, services: FakeCommandServices) -> None:
    """Exit code 5 is a failure of some rows."""
    services.client.result = FakeDeletionResult({"DELETED": 1, "METADATA_MISMATCH": 2})
    told = run("topic", "trim", ORDERS_TOPIC, "--json")
    assert document(told, 5)["trace_id"] == FAKE_TRACE_ID
    assert _SEE in told.stderr
    assert services.told[-1][0] == 5
    shown = run("topic", "trim", ORDERS_TOPIC)
    assert _SEE in shown.stderr
    assert FAKE_TRACE_ID not in shown.stdout


@pytest.mark.usefixtures("orders")
def test_a_job_that_fails_names_its_own_trace_where_the_command_only_joined_it(
    run: Run, services: FakeCommandServices
) -> None:
    """A trim that runs already is of the trace of whoever started it."""
    for details, trace_id in (({"trace_id": _THEIRS}, _THEIRS), ({"rows": 3}, FAKE_TRACE_ID)):
        services.client.result = _failed(details=details)
        told = run("topic", "trim", ORDERS_TOPIC, "--json")
        assert document(told, 3)["error"]["trace_id"] == trace_id
        assert f"see it: sexton trace {trace_id}" in told.stderr


def test_a_command_that_fails_before_it_is_traced_gets_a_trace_where_there_is_a_home(
    run: Run, services: FakeCommandServices
) -> None:
    """And leaves no folder where there is none: a typing error in any directory is no reason for one."""
    services.raised = StoreUnavailable("s3")
    assert "trace_id" not in document(run("down", "--json"), 4)["error"]
    assert not (services.cwd / ".sexton").exists()
    (services.cwd / ".sexton").mkdir()
    assert document(run("down", "--json"), 4)["error"]["trace_id"] == FAKE_TRACE_ID


def test_an_interrupted_command_says_so_in_its_span(run: Run, services: FakeCommandServices) -> None:
    """130, and no error of ours."""
    (services.cwd / ".sexton").mkdir()
    services.raised = KeyboardInterrupt()
    run("down")
    assert services.told == [(130, {}, None)]


def test_a_real_process_leaves_the_span_that_it_names(tmp_path: Path) -> None:
    """From the command's first moment, with the status of an error."""
    (tmp_path / "home").mkdir()
    database = f"sqlite:///{tmp_path}/none.db"
    done = subprocess.run(
        [sys.executable, "-m", "workers", "topic", "show", ORDERS_TOPIC, "--json"],
        env={"PATH": os.environ["PATH"], "SEXTON_HOME": str(tmp_path / "home"), "SEXTON_DATABASE_URL": database},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    trace_id = done.stderr.partition("sexton trace ")[2].split()[0]
    assert trace_id in done.stdout
    rows = SpanReader(tmp_path / "home" / "traces").read_trace(trace_id)
    (span,) = [one for one in rows.spans.values() if one.name == "sexton topic show"]
    assert span.error is not None
    assert span.error.startswith("ServiceFailed: database: ")
    assert span.attributes["error.type"] == "ServiceFailed"
    assert span.attributes["sexton.exit_code"] == done.returncode == 4
