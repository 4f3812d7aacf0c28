"""Groups `workflow` and `schedule` for jobs in Temporal, and `replay` of their histories."""

from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.atomic_files import read_regular_file
from logstore.errors import InvalidInput
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode
from workers.cli.command_registration import command, create_command_group
from workers.cli.output import Answer, print_note
from workers.cli.shared_options import TopicFilter, encode_topic
from workers.human_readable_values import decode_topic_name, select_fields

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory


workflow = create_command_group("workflow")


class ExecutionStatus(StrEnum):
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"
    TERMINATED = "Terminated"
    CONTINUED_AS_NEW = "ContinuedAsNew"
    TIMED_OUT = "TimedOut"


class WorkflowType(StrEnum):
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
    SCRUB_LEDGERS = "scrub-ledgers"
    APPLY_ORPHANS = "apply-orphans"
    PLAN_PULSAR = "plan-pulsar"
    APPLY_PULSAR = "apply-pulsar"
    UNDO_PULSAR = "undo-pulsar"
    ABORT_TRANSACTIONS = "abort-transactions"
    END_RECORDS = "end-records"
    FLUSH_RECORDS = "flush-records"
    DEFRAGMENT_RECORDS = "defragment-records"
    RAID_TOMBSTONES = "raid-tombstones"
    REPLICATE_RECORDS = "replicate-records"
    REBUILD_CATALOG = "rebuild-catalog"
    FOLLOW_RECORDS = "follow-records"
    SWEEP_RECORDS = "sweep-records"


Type = Annotated[WorkflowType | None, typer.Option("--type", help="Workflow type.")]
InStatus = Annotated[ExecutionStatus | None, typer.Option("--status", case_sensitive=False, help="Execution status.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most workflows to show, newest first.")]
All = Annotated[bool, typer.Option("--all", help="Also completed runs of recurring jobs, several each minute.")]


@command(workflow, "list", "--type trim-topic --status Running", "--all --json")
def list_workflows(
    context: CommandContext,
    *,
    type: Type = None,  # noqa: A002 - the option's name
    status: InStatus = None,
    topic: TopicFilter = None,
    limit: Limit = 100,
    all_runs: All = False,
) -> Answer:
    """List jobs, newest first.

    Completed runs of recurring jobs are left out unless a person started them. --all and --type show them. `sexton
    schedule list` says when each recurring job ran last. Temporal keeps closed runs for the retention of its namespace.
    """
    encoded, finished_recurring = encode_topic(topic), all_runs or type is not None
    workflows = context.run_with_client(
        lambda client: client.list_workflows(type, status, encoded, limit, finished_recurring=finished_recurring)
    )
    rows = [_row_from_dataclass(row) for row in workflows]
    if not rows and (type or status or topic):
        filters = [f" {status}" if status else "", " workflow", f" of type {type}" if type else ""]
        print_note(f"Temporal knows no{''.join(filters)}{f' of topic {topic}' if topic else ''}")
    if not rows and not finished_recurring and status in {None, ExecutionStatus.COMPLETED}:
        print_note("completed runs of recurring jobs are left out: --all shows them")
    for row in rows:
        if row.get("topic"):
            row["topic"] = decode_topic_name(row["topic"])
    # The type has no column, because the workflow id starts with it.
    columns = ("workflow_id", "status", "started", "outcome", "topic")
    display = [{name: row.get(name) for name in columns} for row in rows]
    return Answer(document=rows, display=display, columns_below=("topic",), empty="no workflows")


def _row_from_dataclass(source: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    return {
        name: value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value
        for name, value in asdict(source).items()
    }


schedule = create_command_group("schedule")


@command(schedule, "list", "", "--json")
def list_schedules(context: CommandContext) -> Answer:
    """List the recurring jobs that Temporal has, with their next and last runs."""
    from workers.settings import format_duration  # noqa: PLC0415 - start-up time

    rows, display = [], []
    for row in map(_row_from_dataclass, context.run_with_client(lambda client: client.list_schedules())):
        rows.append({"id": row.pop("schedule_id"), **row})
        interval = None if row["interval_s"] is None else format_duration(row["interval_s"])
        values = {"id": rows[-1]["id"], "workflow": row["workflow"], "every": "paused" if row["paused"] else interval}
        # Without the year, a line of 80 columns has room for every name.
        times = {name: row[name] and f"{row[name][5:10]} {row[name][11:16]}" for name in ("next_run", "last_run")}
        display.append(values | times)
    return Answer(document=rows, display=display, empty="no schedules; `sexton schedule apply` creates them")


@command(schedule, "apply", "", "SEXTON_TRIM_INTERVAL=1h sexton schedule apply")
def apply_schedules(context: CommandContext) -> Answer:
    """Create or update the schedules of recurring jobs as the settings say. Other schedules stay as they are.

    A job with an interval of 0s gets no schedule, and an existing schedule is paused. A pause by a person stays.
    """
    schedules = context.run_with_client(lambda client: client.apply_schedules())
    rows = [{"id": schedule.schedule_id, "change": schedule.change} for schedule in schedules]
    return Answer(document=rows, empty="no recurring jobs: every interval is 0s")


ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE_ID", help="As `sexton schedule list` shows it.")]


@command(schedule, "restart", "sexton-records")
def restart_schedule(context: CommandContext, schedule_id: ScheduleId) -> Answer:
    """Restart a recurring job that `sexton doctor` calls stuck: end its running workflows, and start a new run.

    Endless jobs of the schedule (`flush-records` and coordinators) are ended only if they are stuck. No work is lost,
    because each run finds in the catalog what is left to do. A paused schedule starts no run.
    """
    ended_runs = context.run_with_client(lambda client: client.restart_schedule(schedule_id))
    return Answer(document={"id": schedule_id, "ended": ended_runs})


replays = create_command_group("replays", path="")

_MAX_HISTORY_BYTES = 256 * 1024 * 1024  # a history has at most 50 MB, which is less than this limit as JSON

JobId = Annotated[str, typer.Argument(metavar="WORKFLOW_ID", help="The job, as `sexton workflow list` shows it.")]
RunId = Annotated[
    str | None, typer.Option("--run-id", metavar="ID", help="An earlier run of it; the newest by default.")
]
From = Annotated[
    Path | None,
    typer.Option("--history", metavar="FILE", help="Its history as JSON, of the Web UI or `temporal workflow show`."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Stop in Python's debugger at the first line of the workflow.")]


@command(replays, "replay", "trim-topic/7", "trim-topic/7 --history trim-topic.json", "trim-topic/7 --debug")
def replay_job(
    context: CommandContext, workflow_id: JobId, *, history: From = None, run_id: RunId = None, debug: Debug = False
) -> Answer:
    """Replay a job's history against the workflows of this build. Report the first different decision.

    No activity runs again: the replay takes the results from the history. The report names the event where this build
    decides differently from the history. Without `--history`, the history is read from Temporal.
    """
    if history is not None and run_id is not None:
        raise InvalidInput("run-id", expected="none with --history, because a file is of one run", found=run_id)
    if history is None:
        events = context.run_with_client(lambda client: client.fetch_history(workflow_id, run_id))
    else:
        events = _read_history_file(workflow_id, history)
    if debug:
        print_note("h lists the debugger's commands; b FILE:LINE stops elsewhere too, c goes on")
    replayed = context.services.replay(events, debug=debug, settings=context.settings)
    is_replayed = replayed.failure is None
    document = {"replayed": is_replayed, "workflow_id": workflow_id, **select_fields(replayed, "run_id type events")}
    if not is_replayed:
        document["nondeterminism" if replayed.nondeterministic else "failure"] = replayed.failure
    return Answer(document=document, code=ExitCode.DONE if is_replayed else ExitCode.FAILED)


def _read_history_file(workflow_id: str, file: Path) -> "WorkflowHistory":
    from temporalio.client import WorkflowHistory  # noqa: PLC0415 - start-up time

    try:
        text = read_regular_file(file, max_bytes=_MAX_HISTORY_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("history", expected=f"a file that can be read ({error})", found=file) from error
    try:
        history = WorkflowHistory.from_json(workflow_id, text)
    except Exception as error:  # the SDK's parsers raise many types of errors
        expected = "a history as JSON, of the Web UI or of `temporal workflow show --output json`"
        raise InvalidInput("history", expected=expected, found=f"{file} ({type(error).__name__})") from error
    for event in history.events[:1]:
        recorded_id = event.workflow_execution_started_event_attributes.workflow_id
        if recorded_id not in {"", workflow_id}:  # empty: old servers do not record the id
            raise InvalidInput("history", expected=f"one of {workflow_id}", found=f"{file} of {recorded_id}")
    return history
