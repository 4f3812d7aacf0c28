"""`deletion inflight` and `deletion list`: the queue of phase two and its dead letters."""

from collections.abc import Mapping
from typing import Annotated

import typer

from logstore.deletion.intents import DeletionIntent, DeletionState
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import OfLedger, OfTopic, encoded_topic, say_why_nothing, wanted_ledger
from workers.cli.output import Answer, note
from workers.cli.texts import topic_shown

deletion = group("deletion", "Deletions on their way, and those that failed.")

State = Annotated[DeletionState | None, typer.Option("--state", case_sensitive=False, help="Only rows in this state.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most so many, newest first.")]


@command(deletion, "inflight", examples=["sexton deletion inflight --json"])
def inflight(context: CommandContext) -> Answer:
    """Count deletions not yet confirmed and dead letters; only both at zero mean that all is deleted."""
    found = context.catalog.deletions.inflight()
    return Answer(
        document={"estimated_inflight": found.estimated_inflight, "dead_lettered": found.dead_lettered},
    )


@command(
    deletion,
    "list",
    examples=[
        "sexton deletion list --state DEAD_LETTERED",
        "sexton deletion list --topic persistent://public/default/orders --json",
        "sexton deletion list --ledger 12",
    ],
)
def list_(
    context: CommandContext, *, state: State = None, topic: OfTopic = None, ledger: OfLedger = None, limit: Limit = 100
) -> Answer:
    """List deletions with outcome, attempts and last error, newest first."""
    encoded, wanted = encoded_topic(topic), wanted_ledger(ledger)
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
    return {
        "id": row["id"],
        "topic": row["topic"],
        "ledger": row["ledger_id"],
        "copy": row["copy"],
        "state": row["state"],
        "attempts": row["attempts"],
        "problem": ": ".join(str(one) for one in (said, row["last_error"]) if one),
    }


def _row(intent: DeletionIntent) -> dict[str, object]:
    return {
        "id": intent.row_id,
        "topic": topic_shown(intent.topic),
        "ledger_id": intent.ledger_id,
        "copy": intent.copy.value,
        "component": intent.component,
        "generation": intent.generation,
        "state": intent.state.value,
        "paused": intent.paused,
        "outcome": intent.outcome.value if intent.outcome else None,
        "attempts": intent.attempts,
        "last_error": intent.last_error,
        "size_bytes": intent.size_bytes,
        "batch_id": intent.batch_id,
        "trace_id": intent.trace_id,
    }
