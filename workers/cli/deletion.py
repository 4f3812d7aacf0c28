"""The group `deletion`: the queue of phase two, its dead letters, and batches under an operator's hand."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import InvalidInput
from logstore.positions import LedgerId
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import Asked, Job, ended, finished, job, started
from workers.cli.options import DryRun, OfLedger, OfTopic, Reason, Wait, encoded_topic, known_number, say_why_nothing
from workers.cli.output import Answer, note
from workers.pages.texts import decode_topic_name, select_fields

if TYPE_CHECKING:
    from workers.client import Sexton
    from workers.client.deletion_batches import BatchProgress, DeletionBatches
    from workflows.deletion.values import SweepDeletionsResult


deletion = group("deletion", "Deletions on their way, and those that failed.")

State = Annotated[DeletionState | None, typer.Option("--state", case_sensitive=False, help="Only rows in this state.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The most rows to show, newest first.")]


@command(deletion, "inflight", "--json")
def inflight(context: CommandContext) -> Answer:
    """Count deletions not yet confirmed and dead letters; only both at zero mean that all is deleted."""
    found = context.catalog.deletions.inflight()
    return Answer(document={"estimated_inflight": found.estimated_inflight, "dead_lettered": found.dead_lettered})


@command(deletion, "list", "--state DEAD_LETTERED", "--topic TOPIC --json", "--ledger 12")
def list_(
    context: CommandContext, *, state: State = None, topic: OfTopic = None, ledger: OfLedger = None, limit: Limit = 100
) -> Answer:
    """List deletions with outcome, attempts and last error, newest first."""
    encoded, wanted = encoded_topic(topic), None if ledger is None else LedgerId(ledger)
    found = context.catalog.deletions.list(state, topic=encoded, ledger_id=wanted, limit=limit + 1)
    if not found:
        say_why_nothing(context, f"{state.value} deletion" if state else "deletion", topic=topic, ledger=ledger)
    if len(found) > limit:
        note(f"there are more: shown are the newest {limit:,}; --limit shows as many as you say")
    rows = [_row(intent) for intent in found[:limit]]
    return Answer(document=rows, shown=[_shown(row) for row in rows], beneath=("problem",), empty="no deletions")


def _shown(row: Mapping[str, object]) -> dict[str, object]:
    """A row as people see it: how it ended, and why, stand beneath where that says more than the state."""
    said = "paused" if row["paused"] else None if row["outcome"] in {None, row["state"]} else row["outcome"]
    problem = ": ".join(str(one) for one in (said, row["last_error"]) if one)
    names = {"id": "id", "topic": "topic", "ledger_id": "ledger", "copy": "copy", "state": "state"}
    return {names.get(name, name): row[name] for name in (*names, "attempts")} | {"problem": problem}


def _row(intent: DeletionIntent) -> dict[str, object]:
    told = "ledger_id copy component generation state paused outcome attempts last_error size_bytes batch_id trace_id"
    return {"id": intent.row_id, "topic": decode_topic_name(intent.topic), **select_fields(intent, told)}


WorkflowId = Annotated[
    str, typer.Argument(metavar="WORKFLOW_ID", help="delete-ledgers/… or apply-orphans/…, as `workflow list` shows it.")
]
Rate = Annotated[
    int | None, typer.Argument(metavar="[N]", help="Objects a second for the whole batch; 0 is unlimited.")
]
_ID = "delete-ledgers/1-8c1d5f0e9a3b"


@command(deletion, "pause", f"{_ID}")
def pause(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Let a batch delete no more for now: chunks (of an apply: pages) in hand end, none is started."""
    return _asked(context, workflow_id, lambda batches: batches.pause(workflow_id))


@command(deletion, "resume", f"{_ID}")
def resume(context: CommandContext, workflow_id: WorkflowId) -> Answer:
    """Resume a paused batch. The rest of one whose workflow is gone is taken up by the next sweep."""
    return _asked(context, workflow_id, lambda batches: batches.resume(workflow_id))


@command(deletion, "rate", f"{_ID} 50", f"{_ID} 0", f"{_ID} --json")
def rate(context: CommandContext, workflow_id: WorkflowId, objects_per_s: Rate = None) -> Answer:
    """Limit how many objects a second a batch deletes, from its next slice on; without N, show the limit."""
    if objects_per_s is None:
        return _asked(context, workflow_id, lambda batches: batches.progress(workflow_id))
    most = 1_000_000
    if not 0 <= objects_per_s <= most:
        raise InvalidInput("rate", expected=f"0 (unlimited) to {most:,} objects a second", found=objects_per_s)
    return _asked(context, workflow_id, lambda batches: batches.set_rate(workflow_id, objects_per_s))


def _asked(
    context: CommandContext, workflow_id: str, ask: "Callable[[DeletionBatches], Awaitable[BatchProgress]]"
) -> Answer:
    progress = context.with_client(lambda client: ask(client.batches))
    told = select_fields(progress, "paused rate intents done left outcomes objects size_bytes")
    return Answer(document={"workflow_id": workflow_id, **told})


Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", callback=known_number, help="Ids as `deletion list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="Every dead letter there is.")]


@command(deletion, "redrive", '12 15 --reason "permissions mended"', "--all --dry-run", "--all --no-wait --json")
def redrive(
    context: CommandContext,
    ids: Ids = None,
    *,
    all: All = False,  # noqa: A002 - the option's name
    reason: Reason = "",
    dry_run: DryRun = False,
    wait: Wait = True,
) -> Answer:
    """Try dead letters again, as if they had never been tried. All or none of the ids given."""
    if all == bool(ids):
        raise InvalidInput("id", expected="ids of deletions or --all, one of the two", found=ids or [])
    wanted = None if all else ids
    if dry_run:
        return Answer(document={"dry_run": True, "started": context.catalog.upkeep.redrivable(wanted)})
    context.require_store()

    async def work(client: "Sexton") -> Answer:
        found = await client.redrive(wanted, reason, context.actor)
        if found.handle is None:
            return Answer(document={"started": 0, "outcomes": {}} if wait else {"started": 0})
        if not wait:
            return Answer(document={"started": found.started, **started(client, found.handle)})
        result = await finished(client, found.handle, "trying again")
        done = {"started": found.started, "workflow_id": found.handle.id}
        return ended(context, done, result.outcomes, batch_id=result.batch_id)

    return context.with_client(work)


@job(deletion, "sweep", "", "--dry-run", "--no-wait --json")
def sweep(context: CommandContext, *, reason: Reason = "", dry_run: DryRun = False) -> Asked:
    """Take up deletions that no workflow works on, and forget those that ended long ago; a schedule does so too."""
    if dry_run:
        due = context.catalog.upkeep.due(older_than_s=context.settings.finished_retention)
        return Answer(document={"dry_run": True, **asdict(due)})

    def answer(workflow_id: str, result: "SweepDeletionsResult") -> Answer:
        done = select_fields(result, "batches intents newborn uncertified forgotten")
        return ended(context, {"workflow_id": workflow_id, **done}, result.outcomes)

    return Job(lambda client: client.sweep_deletions(reason, context.actor), "sweeping", answer)
