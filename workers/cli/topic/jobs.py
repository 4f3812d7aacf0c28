"""`topic trim`, `delete` and `offload`: jobs on one topic, started or tried out."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.deletion.intents import DeletionState
from logstore.positions import LedgerId
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode, code_of_outcomes
from workers.cli.jobs import Asked, Job, counted, ended, in_part, job, left_of
from workers.cli.jobs import why as why_failed
from workers.cli.options import DryRun, DurableDelete, Reason, TopicArgument, known_number
from workers.cli.output import Answer
from workers.cli.topic.topics import topic
from workers.pages.texts import select_fields

if TYPE_CHECKING:
    from logstore.ports.catalog import Topic
    from workflows.deletion.values import TrimTopicResult
    from workflows.offload.values import OffloadTopicResult

_BEFORE_ANY = LedgerId(-1)
_PREVIEW = 10_000  # ledgers that a dry run names


@job(topic, "trim", "TOPIC --dry-run", 'TOPIC --reason "end of day"')
def trim(context: CommandContext, name: TopicArgument, *, reason: Reason = "", dry_run: DryRun = False) -> Asked:
    """Delete ledgers that every subscription has consumed and that retention does not keep.

    First it rolls the last ledger if that is full or past its age. It also takes up copies that earlier jobs took out
    of the catalog and left in storage: --dry-run counts those that are not gone yet as pending.
    """
    found = context.topic(name)
    if dry_run:
        return _trim_preview(context, found)

    def answer(workflow_id: str, result: "TrimTopicResult") -> Answer:
        done = {"workflow_id": workflow_id, "detached": result.detached, "deleted": result.deleted}
        return ended(context, done, result.outcomes, topic=found)

    return Job(lambda client: client.trim_topic(found, reason, context.actor), "trimming", answer)


def _trim_preview(context: CommandContext, found: "Topic") -> Answer:
    """The ledgers that a trim would delete, with nothing changed: its roll of the last ledger is counted in."""
    last = context.catalog.ledgers.last(found.topic_id)
    is_due = last is not None and context.services.roll_policy(context.settings).due(
        last, now_us=time.time_ns() // 1_000
    )
    rolled = last.ledger_id if last is not None and is_due else None
    going = context.catalog.phase_one.preview(found.topic_id, None, force=False, rolled=rolled)
    pending = context.catalog.deletions.list(DeletionState.PENDING, topic=found.name, ledger_id=None, limit=_PREVIEW)
    document = {"dry_run": True, "rolled": rolled, "detached": len(going), "ledger_ids": [int(one) for one in going]}
    return Answer(document={**document, "pending": len(pending)})


@job(topic, "delete", "TOPIC --dry-run", 'TOPIC --reason "moved elsewhere"')
def delete(
    context: CommandContext,
    name: TopicArgument,
    *,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> Asked:
    """Delete a topic with its subscriptions, schemas, delayed messages and every ledger, needed or not.

    Transactions that have part in it go on without it. A deletion that runs is joined, one that was
    stopped goes on. Its name can be created again once it is gone.
    """
    found = context.topic(name)
    if dry_run:
        contents = context.catalog.phase_one.contents(found.topic_id)
        copies = {component: dict(kinds) for component, kinds in contents.copies.items()}
        going = {"ledgers": dict(contents.ledgers), "copies": copies, "subscriptions": contents.subscriptions}
        return Answer(document={"dry_run": True, **going})
    return Job(
        lambda client: client.delete_topic(found, reason, context.actor, durable_delete=durable_delete),
        "deleting the topic",
        lambda workflow_id, result: ended(context, {"workflow_id": workflow_id}, result.outcomes, topic=found),
    )


Ledgers = Annotated[
    list[int] | None,
    typer.Option("--ledger", metavar="ID", callback=known_number, help="Only this ledger; may be given several times."),
]
DeletePrimary = Annotated[
    bool, typer.Option("--delete-primary", help="Then delete primary copies; ledgers are read from their tiered ones.")
]


@job(topic, "offload", "TOPIC --dry-run", "TOPIC --ledger 4 --ledger 5", 'TOPIC --delete-primary --reason "cold"')
def offload(
    context: CommandContext,
    name: TopicArgument,
    *,
    ledger: Ledgers = None,
    delete_primary: DeletePrimary = False,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> Asked:
    """Copy closed ledgers to the tiered bucket, checked by reading them back; they stay readable all along."""
    found, wanted = context.topic(name), [LedgerId(one) for one in dict.fromkeys(ledger)] if ledger else None
    if wanted is not None:
        context.catalog.offloads.check(found.topic_id, wanted)
    if dry_run:
        return _offload_preview(context, found, wanted, delete_primary=delete_primary)
    return Job(
        lambda client: client.offload_topic(found, wanted, delete_primary, reason, context.actor),
        "offloading",
        lambda workflow_id, result: _offloaded(context, found, workflow_id, result, delete_primary=delete_primary),
    )


def _offload_preview(
    context: CommandContext, found: "Topic", wanted: list[LedgerId] | None, *, delete_primary: bool
) -> Answer:
    """The ledgers that would be copied and those that would go, with nothing changed."""
    offloads = context.catalog.offloads
    copied = offloads.candidates(found.topic_id, wanted, after=_BEFORE_ANY, limit=_PREVIEW)
    published = offloads.removable(found.topic_id, wanted, after=_BEFORE_ANY, limit=_PREVIEW)
    going = sorted({*copied, *(one.statement.ledger_id for one in published)}) if delete_primary else []
    document = {"dry_run": True, "offloaded": len(copied), "ledger_ids": [int(one) for one in copied]}
    return Answer(document={**document, "removed": [int(one) for one in going]})


def _offloaded(
    context: CommandContext, found: "Topic", workflow_id: str, result: "OffloadTopicResult", *, delete_primary: bool
) -> Answer:
    outcomes = counted(result.outcomes)
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
    told_below = {"failed", "errors", "doubts"}
    shown = {name: value for name, value in document.items() if name in always or (value and name not in told_below)}
    deleted_in_part = code_of_outcomes(outcomes) is ExitCode.PARTIAL
    if not (result.failed or result.running or result.unproved or result.refused or deleted_in_part):
        return Answer(document=document, shown=shown)
    told = [{"id": ledger, "error": why} for ledger, why in [*result.errors.items(), *result.doubts.items()]]
    left = left_of(context, topic=found) if deleted_in_part else ()
    kept = [{"id": one.ledger_id, "error": f"deletion {one.row_id}: {why_failed(one)}"} for one in left]
    return replace(in_part(document, [*told, *kept]), shown=shown)
