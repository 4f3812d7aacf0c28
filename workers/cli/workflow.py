"""`workflow list`, `schedule list` and `schedule apply`: jobs as Temporal has them."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import OfTopic, encoded_topic
from workers.cli.output import Answer, note
from workers.pages.texts import topic_shown

workflow = group("workflow", "Jobs in Temporal.")


class Status(StrEnum):
    """Execution states, by Temporal's own names."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"
    TERMINATED = "Terminated"
    CONTINUED_AS_NEW = "ContinuedAsNew"
    TIMED_OUT = "TimedOut"


class Kind(StrEnum):
    """Types of jobs, by the names that Temporal knows."""

    TRIM_TOPIC = "trim-topic"
    TRIM_TOPICS = "trim-topics"
    DELETE_TOPIC = "delete-topic"
    DELETE_LEDGERS = "delete-ledgers"
    DELETE_LEDGER = "delete-ledger"
    OFFLOAD_TOPIC = "offload-topic"
    OFFLOAD_LEDGER = "offload-ledger"
    SWEEP_DELETIONS = "sweep-deletions"
    TRANSACTION_COORDINATOR = "transaction-coordinator"
    BROADCAST_TRANSACTION = "broadcast-transaction"
    SWEEP_TRANSACTIONS = "sweep-transactions"
    BUILD_TRANSACTION_SNAPSHOTS = "build-transaction-snapshots"
    SEAL_BUCKETS = "seal-buckets"
    MERGE_BUCKETS = "merge-buckets"
    BUILD_DELAYED_INDEX = "build-delayed-index"
    RECONCILE_ORPHANS = "reconcile-orphans"
    APPLY_ORPHANS = "apply-orphans"
    END_RECORDS = "end-records"
    FLUSH_RECORDS = "flush-records"
    DEFRAGMENT_RECORDS = "defragment-records"
    RAID_TOMBSTONES = "raid-tombstones"
    REPLICATE_RECORDS = "replicate-records"
    REBUILD_CATALOG = "rebuild-catalog"
    FOLLOW_RECORDS = "follow-records"
    SWEEP_RECORDS = "sweep-records"


Type = Annotated[Kind | None, typer.Option("--type", help="Workflow type.")]
InStatus = Annotated[Status | None, typer.Option("--status", case_sensitive=False, help="Execution status.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most workflows to show, newest first.")]


@command(
    workflow,
    "list",
    examples=["sexton workflow list --type trim-topic --status Running", "sexton workflow list --json"],
)
def list_workflows(
    context: CommandContext,
    *,
    type: Type = None,  # noqa: A002 - the option's name
    status: InStatus = None,
    topic: OfTopic = None,
    limit: Limit = 100,
) -> Answer:
    """List jobs, newest first."""
    encoded = encoded_topic(topic)
    rows = [
        {name: _plain(value) for name, value in asdict(found).items()}
        for found in context.with_client(lambda client: client.list_workflows(type, status, encoded, limit))
    ]
    if not rows and (type or status or topic):
        note(f"Temporal knows no{_told(status)} workflow{_told(type, ' of type ')}{_told(topic, ' of topic ')}")
    shown = [row | {"topic": topic_shown(str(row["topic"]))} if row.get("topic") else row for row in rows]
    columns = ("workflow_id", "status", "started", "outcome", "topic")  # the id begins with the type
    narrow = [{name: row.get(name) for name in columns} for row in shown]
    return Answer(document=shown, shown=narrow, beneath=("topic",), empty="no workflows")


def _told(value: str | None, before: str = " ") -> str:
    return f"{before}{value}" if value else ""


def _plain(value: object) -> object:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


schedule = group("schedule", "Jobs that recur: sweep, trim, plan, and those of records.")


@command(schedule, "list", examples=["sexton schedule list", "sexton schedule list --json"])
def list_schedules(context: CommandContext) -> Answer:
    """List the recurring jobs that Temporal has, with their next and last runs."""
    rows: list[dict[str, object]] = []
    for found in context.with_client(lambda client: client.list_schedules()):
        fields = {name: _plain(value) for name, value in asdict(found).items()}
        rows.append({"id": fields.pop("schedule_id"), **fields})
    return Answer(
        document=rows, shown=[_narrow(row) for row in rows], empty="no schedules; `sexton schedule apply` creates them"
    )


def _narrow(row: Mapping[str, Any]) -> dict[str, object]:
    from workers.settings import format_duration  # noqa: PLC0415 - start-up time

    every = None if row["interval_s"] is None else format_duration(row["interval_s"])
    paused = "paused" if row["paused"] else None
    rest = {name: row[name] for name in ("next_run", "last_run")}
    return {"id": row["id"], "workflow": row["workflow"], "every": paused or every, **rest}


@command(schedule, "apply", examples=["sexton schedule apply", "SEXTON_TRIM_INTERVAL=1h sexton schedule apply"])
def apply(context: CommandContext) -> Answer:
    """Create or update the recurring jobs as the settings say; all other schedules are left alone.

    An interval of 0s leaves a job out, or pauses it. A schedule that was paused by hand stays paused.
    """
    applied = context.with_client(lambda client: client.apply_schedules())
    rows = [{"id": one.schedule_id, "change": one.change} for one in applied]
    return Answer(document=rows, empty="no recurring jobs: every interval is 0s")
