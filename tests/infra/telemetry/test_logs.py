"""Logs: one line per event, with the ids that lead to the workflow and to the trace."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from structlog.contextvars import bound_contextvars

from infra.telemetry.log_stream import configure_log_stream
from infra.telemetry.tracing import create_tracer_provider


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; the process's logging is put back at the end."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    configure_log_stream(level="INFO", stream=out)
    yield out
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_of_structlog_is_json_with_time_level_and_fields(stream: io.StringIO) -> None:
    """Fields are fields, not text."""
    structlog.get_logger("sexton.deletion").info("ledger deleted", ledger=7)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "ledger deleted", "level": "info", "logger": "sexton.deletion", "ledger": 7}


def test_a_line_of_the_standard_library_is_json_too(stream: io.StringIO) -> None:
    """Temporal, alembic and ours by either way end up in one form, once."""
    logging.getLogger("alembic.runtime").warning("upgrade %s", "a -> b", extra={"step": 1})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["step"]) == (
        "upgrade a -> b",
        "warning",
        "alembic.runtime",
        1,
    )


def test_bound_fields_are_on_every_line_until_the_block_ends(stream: io.StringIO) -> None:
    """Both kinds of logger carry the workflow's ids; after the block neither does."""
    with bound_contextvars(workflow_id="delete-ledger/7/1", run_id="r", activity="ledger.delete_one"):
        structlog.get_logger().info("one")
        logging.getLogger("botocore").warning("two")
        with bound_contextvars(activity="other"):
            structlog.get_logger().info("three")
        structlog.get_logger().info("four")
    structlog.get_logger().info("five")
    found = [(line["event"], line.get("workflow_id"), line.get("activity")) for line in lines(stream)]
    assert found == [
        ("one", "delete-ledger/7/1", "ledger.delete_one"),
        ("two", "delete-ledger/7/1", "ledger.delete_one"),
        ("three", "delete-ledger/7/1", "other"),
        ("four", "delete-ledger/7/1", "ledger.delete_one"),
        ("five", None, None),
    ]


def test_a_line_within_a_span_carries_its_trace_id(stream: io.StringIO, tmp_path: Path) -> None:
    """From a log line to its trace."""
    provider = create_tracer_provider("sexton-test", traces_dir=tmp_path)
    with provider.get_tracer("test").start_as_current_span("work") as span:
        structlog.get_logger().info("within")
        logging.getLogger("any").info("within")
    structlog.get_logger().info("outside")
    provider.shutdown()
    ids = {"trace_id": trace.format_trace_id(span.get_span_context().trace_id),
           "span_id": trace.format_span_id(span.get_span_context().span_id)}  # fmt: skip
    one, two, outside = lines(stream)
    assert ids.items() <= one.items()
    assert ids.items() <= two.items()
    assert "trace_id" not in outside


def test_a_line_of_temporals_loggers_shows_its_ids_by_our_names(stream: io.StringIO) -> None:
    """Temporal hands over a dictionary; a search for `workflow_id` finds its lines as well as ours."""
    details = {"workflow_id": "w", "workflow_run_id": "r", "activity_type": "a", "attempt": 1}
    logging.getLogger("temporalio.activity").info("done", extra={"temporal_activity": details})
    logging.getLogger("temporalio.workflow").info(
        "done", extra={"temporal_workflow": {"workflow_id": "w", "run_id": "r"}}
    )
    activity, workflow = lines(stream)
    assert (activity["workflow_id"], activity["run_id"], activity["activity"]) == ("w", "r", "a")
    assert (workflow["workflow_id"], workflow["run_id"]) == ("w", "r")
    assert "temporal_activity" not in activity


def test_an_exception_is_one_line_with_its_type(stream: io.StringIO) -> None:
    """A traceback does not break the lines."""
    try:
        int("boom")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("any").exception("failed")
    for line in lines(stream):
        assert line["level"] == "error"
        assert line["exception"][0]["exc_type"] == "ValueError"


def test_exceptions_show_no_values_of_local_variables(stream: io.StringIO) -> None:
    """Locals may hold credentials and payloads."""
    password = "hunter2" * 2
    people = io.StringIO()
    for as_json, out in ((True, stream), (False, people)):
        configure_log_stream(stream=out, as_json=as_json)
        try:
            int(f"{len(password)} letters")
        except ValueError:
            structlog.get_logger().exception("failed")
        assert "ValueError" in out.getvalue()
        assert "hunter2hunter2" not in out.getvalue()


def test_levels_below_the_chosen_one_and_chatter_of_libraries_are_silent() -> None:
    """Even at DEBUG, libraries that would log headers and parameters are not heard below WARNING."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    try:
        configure_log_stream(level="DEBUG", stream=out)
        structlog.get_logger().debug("ours")
        logging.getLogger("botocore.endpoint").debug("headers")
        configure_log_stream(level="WARNING", stream=out)
        structlog.get_logger().info("too low")
        logging.getLogger("any").info("too low")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    assert [line["event"] for line in lines(out)] == ["ours"]


def test_a_terminal_gets_lines_for_people(stream: io.StringIO) -> None:
    """JSON is for machines."""
    out = io.StringIO()
    configure_log_stream(stream=out, as_json=False)
    structlog.get_logger().info("ledger deleted", ledger=7)
    assert "ledger deleted" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_start_logs_twice_writes_each_line_once(stream: io.StringIO) -> None:
    """A second start replaces the first."""
    configure_log_stream(stream=stream)
    structlog.get_logger().info("once")
    assert len(lines(stream)) == 1
