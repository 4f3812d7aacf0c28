"""Commands `pulsar transactions` and `pulsar abort`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput
from workers.cli.answer_output import Answer, Row
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.exit_codes import ExitCode
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_partial_failure_if_any, job_command
from workers.cli.progress_bar import show_progress_bar
from workers.cli.pulsar import pulsar
from workers.cli.shared_options import DryRun, Reason, check_transaction
from workers.human_readable_values import format_time_to_second, select_fields
from workers.settings import format_duration, parse_duration

if TYPE_CHECKING:
    from logstore.pulsar.cluster_transactions import OpenTransaction, TransactionAbort, TransactionParticipant
    from workflows.pulsar.job_definitions import AbortTransactionsResult


def _check_transactions(texts: Sequence[str]) -> list[str]:
    """Return the ids without repetitions."""
    from workflows.pulsar.job_definitions import MAX_ABORTED_TRANSACTIONS  # noqa: PLC0415 - start-up time

    transactions = list(dict.fromkeys(str(check_transaction(text)) for text in texts))
    if len(transactions) > MAX_ABORTED_TRANSACTIONS:
        expected = f"at most {MAX_ABORTED_TRANSACTIONS} transactions"
        raise InvalidInput("txn", expected=expected, found=len(transactions))
    return transactions


_Transactions = Annotated[
    list[str],
    typer.Argument(metavar="TXN...", callback=_check_transactions, help="As `pulsar transactions` shows them: 3:17."),
]
_UnsafeAge = Annotated[
    bool, typer.Option("--unsafe-age", help="Also abort transactions younger than 10m, which clients may still use.")
]
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
    rows = [row for row in _make_rows(report.transactions) if row["age_s"] >= min_age_s]
    problems = "".join(f"not read: {problem}\n" for problem in report.problems)
    return Answer(
        document={"transactions": rows, "problems": list(report.problems)},
        display=[_make_display_row(row) for row in rows],
        columns_below=("messages", "acknowledgements"),
        empty="no open transactions",
        sections=(Answer(document={}, text=problems),) if problems else (),
        code=ExitCode.UNREACHABLE if problems else ExitCode.DONE,
    )


@job_command(pulsar, "abort", "0:17 --dry-run", '0:17 1:4 --reason "its client is gone" --json')
def abort_transactions(
    context: CommandContext,
    transactions: _Transactions,
    *,
    dry_run: DryRun = False,
    unsafe_age: _UnsafeAge = False,
    reason: Reason = "",
) -> JobOrAnswer:
    """Abort open transactions of the cluster, and check that they hold nobody back any more.

    Consumers never see the messages of an aborted transaction, and get again what it has acknowledged. If a transaction
    has ended, is being committed, or is younger than 10 minutes, the command is refused and nothing is aborted. Then
    each transaction is aborted on its own: if one fails, the exit code is 5. The answer says who still waits for which
    other transaction. With --dry-run, the command shows the transactions and changes nothing.
    """
    if dry_run:
        with show_progress_bar("asking coordinators of transactions"):
            abortable = context.services.require_abortable_pulsar_transactions(
                context.settings, transactions, unsafe_age=unsafe_age
            )
        rows = _make_rows(abortable)
        display = [_make_display_row(row) for row in rows]
        return Answer(
            document={"dry_run": True, "transactions": rows},
            display=display,
            columns_below=("messages", "acknowledgements"),
        )
    return CommandLineJob(
        lambda client: client.abort_transactions(
            transactions, unsafe_age=unsafe_age, reason=reason, actor=context.actor
        ),
        "aborting",
        partial(_answer_abort, context),
    )


def _answer_abort(context: CommandContext, workflow_id: str, result: "AbortTransactionsResult") -> Answer:
    from logstore.pulsar.cluster_transactions import (  # noqa: PLC0415 - start-up time
        AFTER_ABORT,
        BEFORE_ABORT,
        AbortOutcome,
        participant_from_document,
        transaction_from_document,
    )

    summary = context.catalog.reconciliation.get_run(result.run_id).summary
    rows = _make_rows([transaction_from_document(summary[BEFORE_ABORT][each.txn]) for each in result.transactions])
    for row, each in zip(rows, result.transactions, strict=True):
        participants = map(participant_from_document, summary[AFTER_ABORT][each.txn])
        row["outcome"], row["still_held"] = each.outcome, list(each.still_held)
        row["after"] = [_make_participant_row(participant) for participant in participants]
    failures = [
        {"id": each.txn, "error": each.problem} for each in result.transactions if each.outcome != AbortOutcome.ABORTED
    ]
    aborted = [each.txn for each in result.transactions if each.outcome == AbortOutcome.ABORTED]
    document = {"run_id": result.run_id, "workflow_id": workflow_id, "aborted": aborted, "transactions": rows}
    answer = answer_partial_failure_if_any(document, failures)
    display = [_make_abort_display_row(each) for each in result.transactions]
    return replace(answer, display=display, columns_below=("problem", "still held"), sections=())


def _make_abort_display_row(abort: "TransactionAbort") -> Row:
    return {
        "txn": abort.txn,
        "outcome": abort.outcome,
        "problem": abort.problem,
        "still held": "\n".join(abort.still_held),
    }


def _make_rows(transactions: "Sequence[OpenTransaction]") -> list[dict[str, Any]]:
    now_s = time.time()
    # The clock of a coordinator may be ahead of this machine's.
    return [_make_row(transaction, max(0.0, now_s - transaction.opened_ms / 1_000)) for transaction in transactions]


def _make_row(transaction: "OpenTransaction", age_s: float) -> dict[str, Any]:
    return {
        "txn": transaction.id,
        "coordinator": transaction.coordinator,
        "coordinator_loaded": transaction.coordinator_loaded,
        "state": transaction.state,
        "opened": format_time_to_second(transaction.opened_ms * 1_000),
        "age_s": round(age_s),
        "timeout_s": transaction.timeout_ms / 1_000,
        "participants": [_make_participant_row(participant) for participant in transaction.participants],
    }


def _make_participant_row(participant: "TransactionParticipant") -> dict[str, Any]:
    return select_fields(participant, "topic subscription loaded owes position max_read_position") | {
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
