"""Command `pulsar transactions`."""

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.exit_codes import ExitCode
from workers.cli.progress_bar import show_progress_bar
from workers.cli.pulsar import pulsar
from workers.human_readable_values import format_time_to_second, select_fields
from workers.settings import format_duration, parse_duration

if TYPE_CHECKING:
    from infra.pulsar.open_transactions import OpenTransaction, TransactionParticipant

_OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="Leave out what is younger: 15m, 2h.")]
_UNITS_S: Final = (86_400, 3_600, 60, 1)


@command(pulsar, "transactions", "", "--older-than 1h", "--json")
def list_transactions(context: CommandContext, *, older_than: _OlderThan = "0s") -> Answer:
    """List the open transactions of the cluster, oldest first, with their participants and who waits for them.

    A topic does not deliver messages behind the first message of an open transaction. Subscriptions that have come so
    far wait. A participant owes its part until the transaction commits or aborts. If a coordinator gives no answer, its
    log is read from bookies. If a log or participant cannot be read either, the exit code is 4. The command changes
    nothing, and needs the setting pulsar_admin_url.
    """
    min_age_s = parse_duration(older_than, "older-than")
    with show_progress_bar("asking coordinators of transactions"):
        report = context.services.read_pulsar_transactions(context.settings)
    now_s = time.time()
    # The clock of a coordinator may be ahead of this machine's.
    ages_s = [max(0.0, now_s - transaction.opened_ms / 1_000) for transaction in report.transactions]
    rows = [
        _make_row(transaction, age_s)
        for transaction, age_s in zip(report.transactions, ages_s, strict=True)
        if age_s >= min_age_s
    ]
    problems = "".join(f"not read: {problem}\n" for problem in report.problems)
    return Answer(
        document={"transactions": rows, "problems": list(report.problems)},
        display=[_make_display_row(row) for row in rows],
        columns_below=("messages", "acknowledgements"),
        empty="no open transactions",
        sections=(Answer(document={}, text=problems),) if problems else (),
        code=ExitCode.UNREACHABLE if problems else ExitCode.DONE,
    )


def _make_row(transaction: "OpenTransaction", age_s: float) -> dict[str, Any]:
    return {
        "txn": transaction.id,
        "coordinator": transaction.coordinator,
        "state": transaction.state,
        "opened": format_time_to_second(transaction.opened_ms * 1_000),
        "age_s": round(age_s),
        "timeout_s": transaction.timeout_ms / 1_000,
        "participants": [_make_participant_row(participant) for participant in transaction.participants],
    }


def _make_participant_row(participant: "TransactionParticipant") -> dict[str, Any]:
    return select_fields(participant, "topic subscription loaded owes position") | {
        "waiting": list(participant.waiting)
    }


def _make_display_row(row: dict[str, Any]) -> dict[str, Any]:
    topics, subscriptions = (
        [each for each in row["participants"] if (each["subscription"] is None) is is_topic]
        for is_topic in (True, False)
    )
    return {
        "txn": row["txn"],
        "state": row["state"],
        "opened": row["opened"],
        "age": _format_age(row["age_s"]),
        "timeout": _format_age(round(row["timeout_s"])),
        "waiting": len({(each["topic"], name) for each in topics for name in each["waiting"]}),
        "messages": "\n".join(map(_describe_messages, topics)),
        "acknowledgements": "\n".join(map(_describe_acknowledgements, subscriptions)),
    }


def _describe_messages(participant: dict[str, Any]) -> str:
    if participant["position"] is None:
        state = "" if participant["loaded"] else "not loaded, "
        return f"{participant['topic']}: {state}owes {participant['owes']}"
    waiting = f"; waiting: {', '.join(participant['waiting'])}" if participant["waiting"] else ""
    return f"{participant['topic']}: messages from {participant['position']} on, owes {participant['owes']}{waiting}"


def _describe_acknowledgements(participant: dict[str, Any]) -> str:
    extent = f"up to {participant['position']}" if participant["position"] else "single ones"
    extent = extent if participant["loaded"] else "not loaded"
    subject = f"{participant['topic']}, subscription {participant['subscription']}"
    return f"{subject}: acknowledgements ({extent}), owes {participant['owes']}"


def _format_age(seconds: int) -> str:
    """Format a duration in its two largest units, rounded down: 90 minutes are `1h 30m`."""
    sizes = next((sizes for sizes in pairwise(_UNITS_S) if seconds >= sizes[0]), _UNITS_S[-1:])
    parts = [seconds // sizes[0] * sizes[0], *(seconds % larger // size * size for larger, size in pairwise(sizes))]
    return " ".join(format_duration(part) for part in parts if part) or "0s"
