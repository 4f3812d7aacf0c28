"""`audit list`: who destroyed what, and why."""

from typing import Annotated

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.ledger.explain import decision_document
from workers.cli.options import OfLedger, OfTopic, encoded_topic, say_why_nothing, wanted_ledger
from workers.cli.output import Answer

audit = group("audit", "Who destroyed what, and why.")

Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many, newest first.")]


@command(
    audit,
    "list",
    examples=["sexton audit list --topic persistent://public/default/orders", "sexton audit list --ledger 12 --json"],
)
def list_(context: CommandContext, *, topic: OfTopic = None, ledger: OfLedger = None, limit: Limit = 100) -> Answer:
    """List destructive acts with who, why, workflow and outcome, newest first."""
    encoded, wanted = encoded_topic(topic), wanted_ledger(ledger)
    found = context.catalog.inspection.decisions(topic=encoded, ledger_id=wanted, limit=limit)
    if not found:
        say_why_nothing(context, "destructive act", topic=topic, ledger=ledger)
    rows = [decision_document(one) for one in found]
    shown = [{name: row[name] for name in ("at", "act", "actor", "topic", "reason")} for row in rows]
    return Answer(document=rows, shown=shown, beneath=("reason",), empty="nothing was destroyed")
