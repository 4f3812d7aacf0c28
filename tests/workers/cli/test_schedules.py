"""`schedule list` and `schedule apply`."""

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeServices


def test_schedule_list_tells_when_each_runs(run: Run) -> None:
    """Times are RFC 3339 or null."""
    assert document(run("schedule", "list", "--json")) == [
        {
            "id": "sexton-trim",
            "workflow": "trim-topics",
            "interval_s": 300,
            "next_run": "2026-11-20T17:05:00Z",
            "last_run": None,
            "paused": False,
        }
    ]


def test_schedule_apply_tells_what_became_of_each(run: Run) -> None:
    """One row a schedule."""
    assert document(run("schedule", "apply", "--json")) == [
        {"id": "sexton-sweep", "change": "created"},
        {"id": "sexton-trim", "change": "unchanged"},
    ]


def test_schedule_apply_with_an_interval_that_is_none_is_bad_input(run: Run, services: FakeServices) -> None:
    """Refused, naming the setting, before Temporal is asked."""
    for value in ("-1s", "soon", "31d"):
        services.environ["SEXTON_TRIM_INTERVAL"] = value
        assert "trim_interval" in document(run("schedule", "apply", "--json"), 2)["error"]["message"]
