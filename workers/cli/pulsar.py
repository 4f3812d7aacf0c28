"""Group `pulsar`: a real Pulsar cluster with BookKeeper. The commands of this module change nothing in the cluster."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.pulsar.plan_jobs import require_safe_times
from logstore.pulsar.znode_names import MAX_LEDGER_ID
from logstore.reconciliation.findings import CLUSTER_KINDS
from workers.cli.answer_output import Answer, ConvertedRows, Row, SpooledRows, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.exit_codes import ExitCode
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, job_command
from workers.cli.orphans.plan_and_apply import make_plan_answer
from workers.cli.orphans.plan_runs import answer_started_plan
from workers.cli.progress_bar import show_progress_bar
from workers.cli.shared_options import Master
from workers.human_readable_values import format_time_to_microsecond, format_time_to_second, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from infra.pulsar.index_bucket_scan import ScannedIndexBucket
    from infra.pulsar.ledger_explanation import LedgerExplanation
    from infra.pulsar.scan_facts import ScanProblem
    from workflows.pulsar.job_definitions import PlanPulsarResult

pulsar = create_command_group("pulsar", "A Pulsar cluster: ledgers that nothing refers to, and stuck transactions.")

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
    document = {"ok": result.ok, "cluster": result.cluster, "identity": result.identity, "capabilities": rows}
    return Answer(
        document=document,
        display=rows,
        sections=(Answer(document={}, text=f"cluster {result.cluster or '(no name)'}, identity {result.identity}\n"),),
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


@job_command(pulsar, "plan", "", "--older-than 3d --json", "--between 30m --no-wait")
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
        "incomplete": list(plan_result.incomplete),
        "scanned": {"ledgers": plan_result.ledgers, "references": plan_result.references},
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
    document = _make_document(explanation)
    references = explanation.references
    shown = [f"/{each.path} ({each.source})" for each in references[:_MAX_REFERENCES_SHOWN]]
    if len(references) > _MAX_REFERENCES_SHOWN:
        shown.append(f"and {len(references) - _MAX_REFERENCES_SHOWN:,} more")
    facts = {
        "ledger": str(ledger_id),  # without separators, as the command takes it
        "owner": document["owner"] and document["owner"]["path"],
        "references": "\n".join(shown) or None,
        **(document["metadata"] or {}),
        "verdict": explanation.verdict.value,
        "reason": explanation.reason,
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
        sections=(Answer(document={}, text=f"index buckets: {summary}\n"),),
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
        "ledger": row["ledger_id"],
        "state": row["state"],
        "messages": row["messages"],
        "bytes": row["size_bytes"],
        **{name: row[name] for name in ("next_due", "topic", "problem")},
    }


def _make_document(explanation: "LedgerExplanation") -> dict[str, Any]:
    ledger, owner, metadata = explanation.ledger, explanation.owner, explanation.ledger.metadata
    return {
        "ledger_id": ledger.ledger_id,
        "metadata": {
            "state": metadata.state.value,
            "bytes": metadata.size_bytes,
            "bookies": sorted(metadata.bookie_ids),
            "created": format_time_to_second(ledger.znode.created_ms * 1_000),
            "version": ledger.znode.version,
        }
        if metadata
        else None,
        "owner": {"component": owner.component.value, "path": f"/{owner.path}"} if owner else None,
        "references": [{"path": f"/{each.path}", "field": each.source} for each in explanation.references],
        "verdict": explanation.verdict.value,
        "reason": explanation.reason,
        "problems": [{"path": f"/{each.path}", "reason": each.reason} for each in explanation.problems],
    }
