"""`workflow list`: jobs as Temporal's visibility shows them."""

from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import OfTopic, encoded_topic
from workers.cli.output import Answer, note
from workers.cli.texts import topic_shown

if TYPE_CHECKING:
    from workers.client import Sexton

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


Type = Annotated[Kind | None, typer.Option("--type", help="Workflow type.")]
InStatus = Annotated[Status | None, typer.Option("--status", case_sensitive=False, help="Execution status.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, newest first.")]


@command(
    workflow,
    "list",
    examples=["sexton workflow list --type trim-topic --status Running", "sexton workflow list --json"],
)
def list_(
    context: CommandContext,
    *,
    type: Type = None,  # noqa: A002 - the option's name
    status: InStatus = None,
    topic: OfTopic = None,
    limit: Limit = 100,
) -> Answer:
    """List jobs, newest first."""
    encoded = encoded_topic(topic)

    async def ask(client: "Sexton") -> list[Any]:
        return list(
            await client.list_workflows(type.value if type else None, status.value if status else None, encoded, limit)
        )

    rows = [_row(found) for found in context.with_client(ask)]
    if not rows and (type or status or topic):
        note(f"Temporal knows no{_told(status)} workflow{_told(type, ' of type ')}{_told(topic, ' of topic ')}")
    shown = [row | {"topic": topic_shown(str(row["topic"]))} if row.get("topic") else row for row in rows]
    columns = ("workflow_id", "status", "started", "outcome", "topic")  # the id begins with the type
    narrow = [{name: row.get(name) for name in columns} for row in shown]
    return Answer(document=shown, shown=narrow, beneath=("topic",), empty="no workflows")


def _told(value: str | None, before: str = " ") -> str:
    return f"{before}{value}" if value else ""


def _row(found: Any) -> dict[str, object]:  # noqa: ANN401 - a dataclass or a mapping
    fields = asdict(found) if is_dataclass(found) and not isinstance(found, type) else dict(found)
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: object) -> object:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value
