"""`schedule list` and `schedule apply`."""

from datetime import UTC, datetime

import pytest

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.client.schedules import ScheduleSummary, list_recurring_jobs
from workers.settings import Settings


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


def test_schedule_restart_tells_what_it_ended(run: Run) -> None:
    """By the ids of workflows."""
    told = document(run("schedule", "restart", "sexton-trim", "--json"))
    assert told == {"id": "sexton-trim", "ended": ["sexton-trim-2026-11-20T17:05:00Z"]}


def test_schedule_apply_with_an_interval_that_is_none_is_bad_input(run: Run, services: FakeCommandServices) -> None:
    """Refused, naming the setting, before Temporal is asked."""
    for value in ("-1s", "soon", "31d"):
        services.environ["SEXTON_TRIM_INTERVAL"] = value
        assert "trim_interval" in document(run("schedule", "apply", "--json"), 2)["error"]["message"]


def test_schedule_list_shows_every_name_whole_on_80_columns(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and workflows are what a person types again; times have no year there, and no line breaks."""
    jobs = list_recurring_jobs(Settings(home=services.cwd, replica_buckets="copy"))
    moment = datetime(2026, 11, 20, 17, 5, 9, tzinfo=UTC)

    async def list_schedules() -> list[ScheduleSummary]:
        return [
            ScheduleSummary(
                schedule_id=job.schedule_id,
                workflow=job.job.name,
                interval_s=job.interval_s or 60,
                next_run=moment,
                last_run=moment,
                paused=job.schedule_id == "sexton-raid",
            )
            for job in jobs
        ]

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(services.client, "list_schedules", list_schedules)
    _, _, *lines = run("schedule", "list").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[job.schedule_id, job.job.name] for job in jobs]
    assert max(map(len, lines)) <= 80
    assert all(line.endswith("  11-20 17:05  11-20 17:05") for line in lines)
