"""Group `pulsar`: a real Pulsar cluster with BookKeeper. Only `abort` changes something in the cluster."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput
from logstore.pulsar.cluster_transactions import (
    AFTER_ABORT,
    BEFORE_ABORT,
    AbortOutcome,
    participant_from_document,
    transaction_from_document,
)
from logstore.pulsar.plan_jobs import require_safe_times
from logstore.pulsar.znode_names import MAX_LEDGER_ID
from logstore.reconciliation.findings import CLUSTER_KINDS
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer
from workers.cli.orphans import answer_started_plan, make_plan_answer
from workers.cli.output import (
    Answer,
    ConvertedRows,
    Row,
    SpooledRows,
    answer_partial_failure_if_any,
    print_note,
    show_progress_bar,
)
from workers.cli.shared_options import DryRun, Master, Reason, check_transaction
from workers.human_readable_values import format_time_to_microsecond, format_time_to_second, select_fields
from workers.settings import format_duration, parse_duration

if TYPE_CHECKING:
    from infra.pulsar.index_bucket_scan import ScannedIndexBucket
    from infra.pulsar.ledger_explanation import LedgerExplanation
    from infra.pulsar.scan_facts import ScanProblem
    from logstore.pulsar.cluster_transactions import OpenTransaction, TransactionParticipant
    from workflows.pulsar.job_definitions import AbortTransactionsResult, PlanPulsarResult


pulsar = create_command_group("pulsar")

_LedgerId = Annotated[
    int, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="Id of a BookKeeper ledger.")
]
_DelayedTopic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="tenant/namespace/topic, also with persistent://. Partitions are included."),
]
_MAX_REFERENCES_SHOWN: Final = 20
_NO_BUCKET: Final = {
    **dict.fromkeys(("first_ledger", "last_ledger", "ledger_id")),
    "state": "unreadable",
    **dict.fromkeys(("messages", "segments", "size_bytes", "next_due")),
}
"""Values of a row about something that cannot be read, and may have buckets."""


@command(pulsar, "check", "", "--json")
def check(context: CommandContext) -> Answer:
    """Check what a plan needs of the cluster in the setting pulsar_zookeeper, and print the cluster's identity.

    The checks cover the ledgers in ZooKeeper, bookies, brokers, the configuration store, and, if their settings are
    set, the admin API and the bucket of offloads. If a check fails, the exit code is 4. The command changes nothing.
    """
    with show_progress_bar("checking the cluster"):
        result = context.services.check_pulsar_cluster(context.settings)
    rows = [select_fields(each, "name ok detail") for each in result.capabilities]
    return Answer(
        document={**select_fields(result, "ok cluster identity"), "capabilities": rows},
        display=rows,
        footer=f"cluster {result.cluster or '(no name)'}, identity {result.identity}\n",
        code=ExitCode.DONE if result.ok else ExitCode.UNREACHABLE,
    )


_OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="Leave out younger ledgers and offloads; 24h or more. By default 24h for open ledgers and"
        " offloads, 2h for compacted ledgers, 1h for others.",
        show_default=False,
    ),
]
_Between = Annotated[
    str, typer.Option("--between", metavar="DURATION", help="Time between the two scans; 10m or more, at most 24h.")
]
_UnsafeAge = Annotated[
    bool,
    typer.Option("--unsafe-age", help="Allow shorter times. Only for a cluster that nothing writes to."),
]


@command(pulsar, "plan", "", "--older-than 3d --json", "--between 30m --no-wait")
def plan(
    context: CommandContext,
    *,
    older_than: _OlderThan = None,
    between: _Between = "10m",
    unsafe_age: _UnsafeAge = False,
    master: Master = None,
) -> JobOrAnswer:
    """Scan the cluster in the setting pulsar_zookeeper twice, and write findings. The cluster does not change.

    If something cannot be read, the plan is incomplete: its findings are shown, and no orphan is confirmed.
    Only a complete plan can be applied.
    """
    older_than_s = None if older_than is None else parse_duration(older_than, "older-than")
    between_s = parse_duration(between, "between")
    require_safe_times(between_s, older_than_s, unsafe=unsafe_age)
    context.services.require_pulsar_cluster(context.settings)
    return CommandLineJob(
        lambda client: client.plan_pulsar(
            older_than_s=older_than_s,
            between_s=between_s,
            unsafe_age=unsafe_age,
            master=master or "",
            actor=context.actor,
        ),
        "planning",
        _answer_plan,
        answer_started=answer_started_plan,
    )


def _answer_plan(workflow_id: str, result: "PlanPulsarResult") -> Answer:
    plan_result = result.found
    assert plan_result is not None, "a refusal was raised"
    for reason in plan_result.incomplete:
        print_note(f"incomplete: {reason}")
    facts = {
        "complete": not plan_result.incomplete,
        "incomplete": plan_result.incomplete,
        "scanned": select_fields(plan_result, "ledgers references"),
        "workflow_id": workflow_id,
    }
    display = {
        "ledgers of the cluster": plan_result.ledgers,
        "references": plan_result.references,
        "too young to be judged": plan_result.young,
        "complete": "no, so that no orphan is confirmed" if plan_result.incomplete else "yes",
    }
    return make_plan_answer(result.run_id, plan_result, CLUSTER_KINDS, facts=facts, display=display)


@command(pulsar, "explain", "1234", "1234 --json")
def explain(context: CommandContext, ledger_id: _LedgerId) -> Answer:
    """Explain a ledger: its owner, every znode that refers to it, its bookies, its age, and a verdict with a reason.

    The verdict on a ledger with a reference is `referenced`. Without one it is `young`, `replicated` or `doubtful`
    (something cannot be read that may refer to it), or it says what is wrong with the owner: `owner_absent`,
    `owner_not_listing`, `owner_gave_up`, `owner_unstated`, `owner_unreadable` or `owner_foreign`. It is that of one
    look at all references of one cluster. Do not delete the ledger because of it: a reference may be on its way. The
    command changes nothing.
    """
    with show_progress_bar("reading all references of the cluster"):
        explanation = context.services.explain_pulsar_ledger(context.settings, ledger_id)
    document = _make_explanation_document(explanation)
    references = document["references"]
    shown = [f"{each['path']} ({each['field']})" for each in references[:_MAX_REFERENCES_SHOWN]]
    if len(references) > _MAX_REFERENCES_SHOWN:
        shown.append(f"and {len(references) - _MAX_REFERENCES_SHOWN:,} more")
    facts = {
        "ledger": str(ledger_id),  # without separators, as the command takes it
        "owner": document["owner"] and document["owner"]["path"],
        "references": "\n".join(shown) or None,
        **(document["metadata"] or {}),
        **select_fields(document, "verdict reason"),
    }
    problems = Answer(document=document["problems"], empty="everything that may refer to a ledger was read")
    display = [{"fact": name, "value": value} for name, value in facts.items()]
    return Answer(document=document, display=display, sections=(problems,))


@command(pulsar, "delayed", "", "public/default/orders --json")
def list_delayed_buckets(context: CommandContext, topic: _DelayedTopic = None) -> Answer:
    """List the index buckets of delayed messages that subscriptions have, of one topic or of all topics.

    Only brokers with the bucket-based tracker of delayed messages write buckets. stored: a bookie has the bucket.
    dangling: its ledger does not exist, and the subscription's delayed delivery is slow until the bucket is removed.
    unreadable: no bookie answers, or the bucket is damaged. The count of messages includes those that were delivered
    since. The next due time is in the past if messages wait for a consumer. If a bucket is unreadable, the exit code
    is 4. The command changes nothing.
    """
    counts = Counter[str]()
    now_ms = round(time.time() * 1_000)

    def iterate_rows() -> Iterator[Row]:
        for item in context.services.scan_pulsar_index_buckets(context.settings, topic):
            row = _make_bucket_row(item, now_ms)
            counts[row["state"]] += 1
            yield row

    with show_progress_bar("reading index buckets"):
        rows = SpooledRows.from_rows(iterate_rows())
    summary = ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items())) or "none"
    return Answer(
        document=rows,
        display=ConvertedRows(rows, _make_bucket_display),
        columns_below=("topic", "problem"),
        empty="no subscription has index buckets",
        footer=f"index buckets: {summary}\n",
        code=ExitCode.UNREACHABLE if counts["unreadable"] else ExitCode.DONE,
    )


def _make_bucket_row(item: "ScannedIndexBucket | ScanProblem", now_ms: int) -> dict[str, Any]:
    """Make a row of a bucket, or one without a bucket of a subscription or a parent that cannot be read."""
    from infra.pulsar.scan_facts import ScanProblem  # noqa: PLC0415 - start-up time
    from logstore.pulsar.delayed_buckets import find_next_due_ms, name_topic_and_subscription  # noqa: PLC0415

    if isinstance(item, ScanProblem):
        topic, subscription = name_topic_and_subscription(item.path)
        return {"topic": topic, "subscription": subscription, **_NO_BUCKET, "problem": item.reason}
    topic, subscription = name_topic_and_subscription(item.cursor)
    is_stored = item.state == "stored"
    next_due_ms = find_next_due_ms(item.segments, now_ms)
    return {
        "topic": topic,
        "subscription": subscription,
        **select_fields(item.reference, "first_ledger last_ledger ledger_id"),
        "state": item.state.value,
        "messages": sum(segment.messages for segment in item.segments) if is_stored else None,
        "segments": len(item.segments) if is_stored else None,
        "size_bytes": item.size_bytes,
        "next_due": None if next_due_ms is None else format_time_to_microsecond(next_due_ms * 1_000),
        "problem": item.problem,
    }


def _make_bucket_display(row: Mapping[str, Any]) -> Row:
    first, last = row["first_ledger"], row["last_ledger"]
    return {
        "subscription": row["subscription"],
        "ledgers": first if first == last else f"{first} to {last}",
        **select_fields(row, "ledger=ledger_id state messages bytes=size_bytes next_due topic problem"),
    }


def _make_explanation_document(explanation: "LedgerExplanation") -> dict[str, Any]:
    ledger, owner, metadata = explanation.ledger, explanation.owner, explanation.ledger.metadata
    return {
        "ledger_id": ledger.ledger_id,
        "metadata": {
            **select_fields(metadata, "state bytes=size_bytes"),
            "bookies": sorted(metadata.bookie_ids),
            "created": format_time_to_second(ledger.znode.created_ms * 1_000),
            "version": ledger.znode.version,
        }
        if metadata
        else None,
        "owner": {"component": owner.component.value, "path": f"/{owner.path}"} if owner else None,
        "references": [{"path": f"/{each.path}", "field": each.source} for each in explanation.references],
        **select_fields(explanation, "verdict reason"),
        "problems": [{"path": f"/{each.path}", "reason": each.reason} for each in explanation.problems],
    }


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
_UnsafeTransactionAge = Annotated[
    bool, typer.Option("--unsafe-age", help="Also abort transactions younger than 10m, which clients may still use.")
]
_MinTransactionAge = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Leave out what is younger: 15m, 2h.")
]
_UNITS_S: Final = (86_400, 3_600, 60, 1)


@command(pulsar, "transactions", "", "--older-than 1h", "--json")
def list_transactions(context: CommandContext, *, older_than: _MinTransactionAge = "0s") -> Answer:
    """List the open transactions of the cluster, oldest first, with their participants and who waits for them.

    A topic does not deliver messages behind the first message of an open transaction. Subscriptions that have come so
    far wait. A participant owes its part until the transaction commits or aborts. If a coordinator gives no answer, its
    log is read from bookies. If a log or participant cannot be read either, the exit code is 4. The command changes
    nothing, and needs the setting pulsar_admin_url.
    """
    min_age_s = parse_duration(older_than, "older-than")
    with show_progress_bar("asking coordinators of transactions"):
        report = context.services.read_pulsar_transactions(context.settings)
    rows = [row for row in _make_transaction_rows(report.transactions) if row["age_s"] >= min_age_s]
    problems = "".join(f"not read: {problem}\n" for problem in report.problems)
    return Answer(
        document={"transactions": rows, "problems": report.problems},
        display=[_make_transaction_display_row(row) for row in rows],
        columns_below=("messages", "acknowledgements"),
        empty="no open transactions",
        footer=problems,
        code=ExitCode.UNREACHABLE if problems else ExitCode.DONE,
    )


@command(pulsar, "abort", "0:17 --dry-run", '0:17 1:4 --reason "its client is gone" --json')
def abort_transactions(
    context: CommandContext,
    transactions: _Transactions,
    *,
    dry_run: DryRun = False,
    unsafe_age: _UnsafeTransactionAge = False,
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
        rows = _make_transaction_rows(abortable)
        return Answer(
            document={"dry_run": True, "transactions": rows},
            display=[_make_transaction_display_row(row) for row in rows],
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
    summary = context.catalog.reconciliation.get_run(result.run_id).summary
    rows = _make_transaction_rows(
        [transaction_from_document(summary[BEFORE_ABORT][each.txn]) for each in result.transactions]
    )
    for row, each in zip(rows, result.transactions, strict=True):
        participants = map(participant_from_document, summary[AFTER_ABORT][each.txn])
        row.update(select_fields(each, "outcome still_held"))
        row["after"] = [_make_participant_row(participant) for participant in participants]
    aborted = [each.txn for each in result.transactions if each.outcome == AbortOutcome.ABORTED]
    failures = [{"id": each.txn, "error": each.problem} for each in result.transactions if each.txn not in aborted]
    document = {"run_id": result.run_id, "workflow_id": workflow_id, "aborted": aborted, "transactions": rows}
    answer = answer_partial_failure_if_any(document, failures)
    display = [
        {**select_fields(each, "txn outcome problem"), "still held": "\n".join(each.still_held)}
        for each in result.transactions
    ]
    return replace(answer, display=display, columns_below=("problem", "still held"), sections=())


def _make_transaction_rows(transactions: "Sequence[OpenTransaction]") -> list[dict[str, Any]]:
    now_s = time.time()
    return [
        {
            **select_fields(transaction, "txn=id coordinator coordinator_loaded state"),
            "opened": format_time_to_second(transaction.opened_ms * 1_000),
            "age_s": round(max(0.0, now_s - transaction.opened_ms / 1_000)),  # the coordinator's clock may be ahead
            "timeout_s": transaction.timeout_ms / 1_000,
            "participants": [_make_participant_row(participant) for participant in transaction.participants],
        }
        for transaction in transactions
    ]


def _make_participant_row(participant: "TransactionParticipant") -> dict[str, Any]:
    return select_fields(participant, "topic subscription loaded owes position max_read_position waiting")


def _make_transaction_display_row(row: dict[str, Any]) -> dict[str, Any]:
    topics = [each for each in row["participants"] if each["subscription"] is None]
    subscriptions = [each for each in row["participants"] if each["subscription"] is not None]
    return {
        **select_fields(row, "txn state opened"),
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
