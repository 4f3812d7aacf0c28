"""`ledger list`, `delete` and `operate`, and `audit list`: destructive acts with their reasons."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.log.ledgers import Component, CopyKind
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, make_deletion_answer
from workers.cli.output import Answer, SpooledRows, print_note
from workers.cli.shared_options import (
    DryRun,
    DurableDelete,
    LedgerFilter,
    Reason,
    TopicArgument,
    TopicFilter,
    check_names,
    encode_topic,
    number_argument,
    number_option,
    print_empty_list_note,
)
from workers.human_readable_values import decode_topic_name, select_fields

if TYPE_CHECKING:
    from logstore.ports.catalog.inspection import AuditEntry
    from logstore.ports.catalog.log import Ledger, Topic
    from logstore.ports.catalog.records import Tombstone

_TOMBSTONES_PER_PAGE = 1_000

ledger = create_command_group("ledger")

OfComponent = Annotated[
    Component | None, typer.Option("--component", case_sensitive=False, help="Only ledgers of this component.")
]
Tombstones = Annotated[bool, typer.Option("--tombstones", help="Those too that left a tombstone.")]
Ids = Annotated[list[int], number_argument("ID...", "Ledger ids.")]
OneId = Annotated[int, number_argument("ID", "The ledger's id.")]
RemoveCopy = Annotated[
    list[CopyKind],
    typer.Option("--remove-copy", case_sensitive=False, help="A copy to take away; several times for several."),
]
_SKIPPED_HELP = "A subscription that need not have acknowledged it, if it ends."
PassOver = Annotated[
    list[str] | None, typer.Option("--pass-over", metavar="SUB", callback=check_names, help=_SKIPPED_HELP)
]
Generation = Annotated[int | None, number_option("--generation", "Refuse it of another generation.")]
Force = Annotated[bool, typer.Option("--force", help="Delete what subscriptions still need; they move over the hole.")]


@command(ledger, "list", "TOPIC --json")
def list_ledgers(
    context: CommandContext, name: TopicArgument, *, component: OfComponent = None, with_tombstones: Tombstones = False
) -> Answer:
    """List a topic's ledgers: message ledgers in the order of their list, then component ledgers."""
    topic = context.get_topic(name)

    def iterate_rows() -> Iterator[dict[str, object]]:
        for page in context.catalog.components.iterate_ledger_pages(topic.topic_id, component=component):
            yield from map(_make_ledger_row, page)
        if with_tombstones:
            yield from map(_make_tombstone_row, _iterate_tombstones(context, topic, component))

    rows = SpooledRows.from_rows(iterate_rows())
    if not rows and component is not None:
        print_note(f"no ledger of topic {name} is of component {component.value}")
    columns = "ledger=ledger_id component state entries bytes=size_bytes copies keys"
    return Answer(document=rows, columns=columns, columns_below=("keys",), empty="no ledgers")


def _iterate_tombstones(context: CommandContext, topic: "Topic", component: Component | None) -> "Iterator[Tombstone]":
    tombstones, after = context.catalog.tombstones, -1
    while page := tombstones.list_topic_tombstones(
        topic.topic_id, component=component, after=after, limit=_TOMBSTONES_PER_PAGE
    ):
        yield from page
        after = page[-1].id


def _make_ledger_row(ledger: "Ledger") -> dict[str, object]:
    values = select_fields(ledger, "ledger_id component state entries size_bytes copies generation")
    return values | {"tombstone": False, "keys": dict(ledger.keys)}


def _make_tombstone_row(tombstone: "Tombstone") -> dict[str, object]:
    return {
        "ledger_id": tombstone.id,
        "component": tombstone.component,
        "state": "TOMBSTONE",
        "entries": None,
        "size_bytes": None,
        "copies": [],
        "keys": {},
        "generation": tombstone.generation,
        "tombstone": True,
    }


@command(ledger, "delete", "TOPIC 4 5 --dry-run", 'TOPIC 4 5 --reason "bad import"')
def delete_ledgers(
    context: CommandContext,
    name: TopicArgument,
    ids: Ids,
    *,
    force: Force = False,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Delete ledgers in two phases: one transaction takes them out of the list, then their objects are deleted.

    Without --force, a ledger that something still needs is refused. An open ledger is always refused.
    """
    topic, ledger_ids = context.get_topic(name), [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ids)]
    if dry_run:
        detached = context.catalog.phase_one.preview_detach(topic.topic_id, ledger_ids, force=force)
        return Answer(document={"dry_run": True, "detached": len(detached), "ledger_ids": detached})
    return CommandLineJob(
        lambda client: client.delete_ledgers(
            topic, ledger_ids, force, reason, context.actor, durable_delete=durable_delete
        ),
        "deleting ledgers",
        make_deletion_answer(context, topic=topic, ledger_ids=ledger_ids),
    )


@command(
    ledger,
    "operate",
    "TOPIC 4 --remove-copy OFFLOADED_LEDGER",
    "TOPIC 4 --remove-copy LEDGER --pass-over audit --dry-run",
)
def remove_ledger_copies(
    context: CommandContext,
    name: TopicArgument,
    ledger_id: OneId,
    *,
    remove_copy: RemoveCopy,
    pass_over: PassOver = None,
    generation: Generation = None,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Remove all given copies of one ledger, or none of them. If no copy is left, the ledger is deleted."""
    topic = context.get_topic(name)
    operation = CompoundOperation(
        ledger_id=LedgerId(ledger_id),
        remove=frozenset(remove_copy),
        pass_over=frozenset(pass_over or ()),
        generation=generation,
    )
    if dry_run:
        ledger_ids = [ledger_id] if context.catalog.phase_one.would_end_ledger(topic.topic_id, operation) else []
        copies = sorted(copy.value for copy in operation.remove)
        counts = {"detached": len(ledger_ids), "ledger_ids": ledger_ids}
        return Answer(document={"dry_run": True, "copies": copies, **counts})
    return CommandLineJob(
        lambda client: client.run_compound_operation(
            topic, operation, reason, context.actor, durable_delete=durable_delete
        ),
        "taking copies away",
        make_deletion_answer(context, topic=topic, ledger_ids=[operation.ledger_id]),
    )


audit = create_command_group("audit")

Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The most decisions to show, newest first.")]


@command(audit, "list", "--topic TOPIC", "--ledger 12 --json")
def list_destructive_acts(
    context: CommandContext, *, topic: TopicFilter = None, ledger: LedgerFilter = None, limit: Limit = 100
) -> Answer:
    """List destructive acts with actor, reason, workflow and outcome, newest first."""
    encoded, ledger_id = encode_topic(topic), None if ledger is None else LedgerId(ledger)
    decisions = context.catalog.inspection.list_audit_entries(topic=encoded, ledger_id=ledger_id, limit=limit)
    if not decisions:
        print_empty_list_note(context, "destructive act", topic=topic, ledger=ledger)
    rows = [make_decision_row(decision) for decision in decisions]
    columns = "at act actor topic reason"
    return Answer(document=rows, columns=columns, columns_below=("reason",), empty="nothing was destroyed")


def make_decision_row(decision: "AuditEntry") -> dict[str, object]:
    detail = dict(decision.detail)
    trace_id = detail.pop("trace_id", None)
    return {
        **select_fields(decision, "at=at_us act actor reason workflow_id"),
        "trace_id": trace_id,
        "topic": decode_topic_name(decision.topic) if decision.topic else None,
        "detail": detail,
    }
