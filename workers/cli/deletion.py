"""Group `deletion`: pending deletions, dead letters, and control of batches."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import InvalidInput
from logstore.positions import LedgerId
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import Wait, command, create_command_group
from workers.cli.job_commands import (
    CommandLineJob,
    JobOrAnswer,
    announce_run,
    answer_deletion_outcomes,
    make_deletion_answer,
    wait_with_progress,
)
from workers.cli.output import Answer
from workers.cli.shared_options import (
    MAX_RATE,
    DryRun,
    LedgerFilter,
    Reason,
    TopicFilter,
    cut_rows_with_note,
    encode_topic,
    number_argument,
    print_empty_list_note,
)
from workers.human_readable_values import decode_topic_name, select_fields

if TYPE_CHECKING:
    from workers.client import Sexton
    from workers.client.deletion_batches import BatchProgress, DeletionBatchControl


deletion = create_command_group("deletion")

State = Annotated[DeletionState | None, typer.Option("--state", case_sensitive=False, help="Only rows in this state.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The most rows to show, newest first.")]


@command(deletion, "inflight", "--json")
def count_inflight_deletions(context: CommandContext) -> Answer:
    """Count unconfirmed deletions and dead letters. If both counts are 0, everything is deleted."""
    counts = context.catalog.deletions.count_undeleted_copies()
    return Answer(document=select_fields(counts, "estimated_inflight dead_lettered"))


@command(deletion, "list", "--state DEAD_LETTERED", "--topic TOPIC --json", "--ledger 12")
def list_deletions(
    context: CommandContext,
    *,
    state: State = None,
    topic: TopicFilter = None,
    ledger: LedgerFilter = None,
    limit: Limit = 100,
) -> Answer:
    """List deletions with outcome, attempts and last error, newest first."""
    encoded, ledger_id = encode_topic(topic), None if ledger is None else LedgerId(ledger)
    intents = context.catalog.deletions.list_intents(state, topic=encoded, ledger_id=ledger_id, limit=limit + 1)
    if not intents:
        print_empty_list_note(context, f"{state.value} deletion" if state else "deletion", topic=topic, ledger=ledger)
    rows = [_make_intent_row(intent) for intent in cut_rows_with_note(intents, limit, "newest")]
    display = [_make_intent_display_row(row) for row in rows]
    return Answer(document=rows, display=display, columns_below=("problem",), empty="no deletions")


def _make_intent_row(intent: DeletionIntent) -> dict[str, Any]:
    names = "ledger_id copy component generation state paused outcome attempts last_error size_bytes batch_id trace_id"
    return {"id": intent.row_id, "topic": decode_topic_name(intent.topic), **select_fields(intent, names)}


def _make_intent_display_row(row: dict[str, Any]) -> dict[str, object]:
    outcome = "paused" if row["paused"] else None if row["outcome"] == row["state"] else row["outcome"]
    problem = ": ".join(filter(None, (outcome, row["last_error"])))
    return {**select_fields(row, "id topic ledger=ledger_id copy state attempts"), "problem": problem}


WorkflowId = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW_ID", help="delete-ledgers/…, apply-orphans/… or apply-pulsar/…, as `workflow list` shows it."
    ),
]
Rate = Annotated[
    int | None,
    typer.Argument(
        metavar="[N]", help="Objects a second for the whole batch, or ledgers of apply-pulsar/…; 0 is unlimited."
    ),
]
_EXAMPLE_ID = "delete-ledgers/1-8c1d5f0e9a3b"


@command(deletion, "pause", f"{_EXAMPLE_ID}")
def pause_batch(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Start no further chunk of a batch, or no further page of an apply. Running chunks and pages are completed."""
    return _control_batch_and_answer_progress(context, workflow_id, lambda batches: batches.pause(workflow_id))


@command(deletion, "resume", f"{_EXAMPLE_ID}")
def resume_batch(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Resume a paused batch. If the batch has no workflow any more, the next sweep continues the batch."""
    return _control_batch_and_answer_progress(context, workflow_id, lambda batches: batches.resume(workflow_id))


@command(deletion, "rate", f"{_EXAMPLE_ID} 50", f"{_EXAMPLE_ID} 0", f"{_EXAMPLE_ID} --json")
def show_or_limit_batch_rate(context: CommandContext, workflow_id: WorkflowId, objects_per_s: Rate = None) -> Answer:
    """Limit how many objects a batch deletes per second. Without N, show the limit."""
    if objects_per_s is None:
        return _control_batch_and_answer_progress(context, workflow_id, lambda batches: batches.progress(workflow_id))
    if not 0 <= objects_per_s <= MAX_RATE:
        raise InvalidInput("rate", expected=f"0 (unlimited) to {MAX_RATE:,} objects a second", found=objects_per_s)
    return _control_batch_and_answer_progress(
        context, workflow_id, lambda batches: batches.set_rate(workflow_id, objects_per_s)
    )


def _control_batch_and_answer_progress(
    context: CommandContext, workflow_id: str, act: "Callable[[DeletionBatchControl], Awaitable[BatchProgress]]"
) -> Answer:
    progress = context.run_with_client(lambda client: act(client.batches))
    values = select_fields(progress, "paused rate intents done left outcomes objects size_bytes")
    return Answer(document={"workflow_id": workflow_id, **values})


Ids = Annotated[list[int] | None, number_argument("ID...", "Ids as `deletion list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter there is.")]


@command(deletion, "redrive", '12 15 --reason "permissions mended"', "--all --dry-run", "--all --no-wait --json")
def redrive_dead_letters(
    context: CommandContext,
    ids: Ids = None,
    *,
    all: All = False,  # noqa: A002 - the option's name
    reason: Reason = "",
    dry_run: DryRun = False,
    wait: Wait = True,
) -> Answer:
    """Make all given dead letters pending again, or none of them. Their attempts are counted from zero."""
    if all == bool(ids):
        raise InvalidInput("id", expected="ids of deletions or --all, one of the two", found=ids or [])
    row_ids = None if all else ids
    if dry_run:
        count = context.catalog.upkeep.count_redrivable_dead_letters(row_ids)
        return Answer(document={"dry_run": True, "started": count})
    context.require_store()

    async def redrive_and_answer(client: "Sexton") -> Answer:
        redriven = await client.redrive_dead_letters(row_ids, reason, context.actor)
        handle = redriven.handle
        if handle is None:
            return Answer(document={"started": 0, "outcomes": {}} if wait else {"started": 0})
        if not wait:
            return Answer(document={"started": redriven.started, **announce_run(client, handle)})
        result = await wait_with_progress(client, handle, "trying again")
        document = {"started": redriven.started, "workflow_id": handle.id}
        return answer_deletion_outcomes(context, document, result.outcomes, batch_id=result.batch_id)

    return context.run_with_client(redrive_and_answer)


@command(deletion, "sweep", "", "--dry-run", "--no-wait --json")
def sweep_deletions(context: CommandContext, *, reason: Reason = "", dry_run: DryRun = False) -> JobOrAnswer:
    """Continue deletions that no workflow works on, and remove old finished rows. A schedule does this, too."""
    if dry_run:
        due = context.catalog.upkeep.count_sweep_backlog(older_than_s=context.settings.finished_retention)
        return Answer(document={"dry_run": True, **asdict(due)})
    return CommandLineJob(
        lambda client: client.sweep_deletions(reason, context.actor),
        "sweeping",
        make_deletion_answer(context, "batches intents newborn uncertified forgotten"),
    )
