"""`topic trim`, `delete` and `offload`: jobs on one topic, and their previews."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.deletion.intents import DeletionState
from logstore.positions import LedgerId
from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.exit_codes import ExitCode, get_exit_code_of_outcomes
from workers.cli.job_commands import (
    CommandLineJob,
    JobOrAnswer,
    answer_deletion_outcomes,
    answer_partial_failure,
    describe_failure,
    find_failed_deletions_and_advise,
    job_command,
    sort_counts,
)
from workers.cli.shared_options import DryRun, DurableDelete, Reason, TopicArgument, check_nonnegative_numbers
from workers.cli.topic.topics import topic
from workers.human_readable_values import select_fields

if TYPE_CHECKING:
    from logstore.ports.catalog.log import Topic
    from workflows.deletion.job_definitions import TrimTopicResult
    from workflows.offload.job_definitions import OffloadTopicResult

_BEFORE_FIRST_LEDGER = LedgerId(-1)
_MAX_PREVIEW_LEDGERS = 10_000


@job_command(topic, "trim", "TOPIC --dry-run", 'TOPIC --reason "end of day"')
def trim_topic(
    context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False
) -> JobOrAnswer:
    """Delete ledgers that every subscription has consumed and that retention does not keep.

    The job first rolls the last ledger if this ledger is full or past its age. It also continues unfinished deletions
    of the topic that no workflow works on. --dry-run counts all unfinished deletions of the topic as pending.
    """
    topic = context.get_topic(name)
    if dry_run:
        return _preview_trim(context, topic)

    def answer(workflow_id: str, result: "TrimTopicResult") -> Answer:
        document = {"workflow_id": workflow_id, "detached": result.detached, "deleted": result.deleted}
        return answer_deletion_outcomes(context, document, result.outcomes, topic=topic)

    return CommandLineJob(lambda client: client.trim_topic(topic, reason, context.actor), "trimming", answer)


def _preview_trim(context: CommandContext, topic: "Topic") -> Answer:
    last = context.catalog.ledgers.last_ledger(topic.topic_id)
    policy = context.services.roll_policy(context.settings)
    is_due = last is not None and policy.is_due(last, now_us=time.time_ns() // 1_000)
    rolled = last.ledger_id if last is not None and is_due else None
    detached = context.catalog.phase_one.preview_detach(topic.topic_id, None, force=False, rolled=rolled)
    pending = context.catalog.deletions.list_intents(
        DeletionState.PENDING, topic=topic.name, ledger_id=None, limit=_MAX_PREVIEW_LEDGERS
    )
    counts = {"detached": len(detached), "ledger_ids": [int(ledger_id) for ledger_id in detached]}
    return Answer(document={"dry_run": True, "rolled": rolled, **counts, "pending": len(pending)})


@job_command(topic, "delete", "TOPIC --dry-run", 'TOPIC --reason "moved elsewhere"')
def delete_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Delete a topic with its subscriptions, schemas, delayed messages and every ledger, needed or not.

    Transactions in which the topic takes part continue without it. A running deletion is joined, and a stopped deletion
    is continued. After the deletion, you can create a topic of the same name.
    """
    topic = context.get_topic(name)
    if dry_run:
        contents = context.catalog.phase_one.count_topic_contents(topic.topic_id)
        copies = {component: dict(kinds) for component, kinds in contents.copies.items()}
        counts = {"ledgers": dict(contents.ledgers), "copies": copies, "subscriptions": contents.subscriptions}
        return Answer(document={"dry_run": True, **counts})
    return CommandLineJob(
        lambda client: client.delete_topic(topic, reason, context.actor, durable_delete=durable_delete),
        "deleting the topic",
        lambda workflow_id, result: answer_deletion_outcomes(
            context, {"workflow_id": workflow_id}, result.outcomes, topic=topic
        ),
    )


Ledgers = Annotated[
    list[int] | None,
    typer.Option(
        "--ledger",
        metavar="ID",
        callback=check_nonnegative_numbers,
        help="Only this ledger; may be given several times.",
    ),
]
DeletePrimary = Annotated[
    bool, typer.Option("--delete-primary", help="Then delete primary copies; ledgers are read from their tiered ones.")
]


@job_command(
    topic, "offload", "TOPIC --dry-run", "TOPIC --ledger 4 --ledger 5", 'TOPIC --delete-primary --reason "cold"'
)
def offload_topic(
    context: CommandContext,
    name: TopicArgument,
    *,
    ledger: Ledgers = None,
    delete_primary: DeletePrimary = False,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Copy closed ledgers to the tiered bucket, and check the copies by reading them. Ledgers stay readable."""
    topic = context.get_topic(name)
    ledger_ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledger)] if ledger else None
    offloads = context.catalog.offloads
    if ledger_ids is not None:
        offloads.require_offloadable(topic.topic_id, ledger_ids)
    if dry_run:
        after, limit = _BEFORE_FIRST_LEDGER, _MAX_PREVIEW_LEDGERS
        offloaded = offloads.list_offload_candidates(topic.topic_id, ledger_ids, after=after, limit=limit)
        published = offloads.list_removable_primaries(topic.topic_id, ledger_ids, after=after, limit=limit)
        removed = {*offloaded, *(copy.statement.ledger_id for copy in published)} if delete_primary else set()
        counts = {"offloaded": len(offloaded), "ledger_ids": [int(ledger_id) for ledger_id in offloaded]}
        return Answer(document={"dry_run": True, **counts, "removed": sorted(int(ledger_id) for ledger_id in removed)})

    def answer(workflow_id: str, result: "OffloadTopicResult") -> Answer:
        return _answer_offload(context, topic, workflow_id, result, delete_primary=delete_primary)

    return CommandLineJob(
        lambda client: client.offload_topic(topic, ledger_ids, delete_primary, reason, context.actor),
        "offloading",
        answer,
    )


def _answer_offload(
    context: CommandContext, topic: "Topic", workflow_id: str, result: "OffloadTopicResult", *, delete_primary: bool
) -> Answer:
    outcomes = sort_counts(result.outcomes)
    document: dict[str, object] = {
        "workflow_id": workflow_id,
        "offloaded": result.offloaded,
        "bytes": result.size_bytes,
        **select_fields(result, "already gone running"),
        "failed": [],
        "failed_count": result.failed,
        "refused": result.refused,
        "refusals": list(result.refusals),
        "errors": {str(ledger_id): error for ledger_id, error in sorted(result.errors.items())},
    }
    if delete_primary:
        doubts = {str(ledger_id): doubt for ledger_id, doubt in sorted(result.doubts.items())}
        document |= {"removed": result.removed, "unproved": result.unproved, "doubts": doubts, "outcomes": outcomes}
    always = {"workflow_id", "offloaded", "bytes", *(["removed"] if delete_primary else [])}
    in_table = {"failed", "errors", "doubts"}
    display = {name: value for name, value in document.items() if name in always or (value and name not in in_table)}
    has_failed_deletions = get_exit_code_of_outcomes(outcomes) is ExitCode.PARTIAL
    if not (result.failed or result.running or result.unproved or result.refused or has_failed_deletions):
        return Answer(document=document, display=display)
    errors = [*result.errors.items(), *result.doubts.items()]
    if has_failed_deletions:
        intents = find_failed_deletions_and_advise(context, topic=topic)
        errors += [(intent.ledger_id, f"deletion {intent.row_id}: {describe_failure(intent)}") for intent in intents]
    failures = [{"id": ledger_id, "error": error} for ledger_id, error in errors]
    return replace(answer_partial_failure(document, failures), display=display)
