"""`schedule list` and `schedule apply`: the recurring jobs."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.output import Answer
from workers.cli.texts import shown_us

if TYPE_CHECKING:
    from workers.client import Sexton
    from workers.client.schedules import AppliedSchedule, ScheduleRow

schedule = group("schedule", "Jobs that recur: sweep and trim.")


@command(schedule, "list", examples=["sexton schedule list", "sexton schedule list --json"])
def list_(context: CommandContext) -> Answer:
    """List the recurring jobs that Temporal has, with their next and last runs."""

    async def ask(client: "Sexton") -> "list[ScheduleRow]":
        return await client.list_schedules()

    rows = [_row(found) for found in context.with_client(ask)]
    return Answer(
        document=rows, shown=[_narrow(row) for row in rows], empty="no schedules; `sexton schedule apply` creates them"
    )


def _row(found: "ScheduleRow") -> dict[str, object]:
    return {
        "id": found.schedule_id,
        "workflow": found.workflow,
        "interval_s": found.interval_s,
        "next_run": _shown(found.next_run),
        "last_run": _shown(found.last_run),
        "paused": found.paused,
    }


def _narrow(row: Mapping[str, Any]) -> dict[str, object]:
    from workers.settings import format_duration  # noqa: PLC0415 - start-up time

    every = None if row["interval_s"] is None else format_duration(row["interval_s"])
    paused = "paused" if row["paused"] else None
    rest = {name: row[name] for name in ("next_run", "last_run")}
    return {"id": row["id"], "workflow": row["workflow"], "every": paused or every, **rest}


def _shown(time: datetime | None) -> str | None:
    return None if time is None else shown_us(int(time.timestamp()) * 1_000_000)


@command(schedule, "apply", examples=["sexton schedule apply", "SEXTON_TRIM_INTERVAL=1h sexton schedule apply"])
def apply(context: CommandContext) -> Answer:
    """Create or update the recurring jobs as the settings say; whatever else is scheduled is left alone.

    An interval of 0s leaves a job out, or pauses it. What was paused by hand stays paused.
    """

    async def work(client: "Sexton") -> "list[AppliedSchedule]":
        return await client.apply_schedules()

    rows: list[dict[str, object]] = [{"id": one.schedule_id, "change": one.change} for one in context.with_client(work)]
    return Answer(document=rows, empty="no recurring jobs: every interval is 0s")
