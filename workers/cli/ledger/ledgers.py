"""`ledger list`, `ledger delete` and `ledger operate`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.log.ledgers import Component, CopyKind
from logstore.positions import LedgerId
from logstore.records.tombstones import Compound
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import Asked, Job, ended, job
from workers.cli.options import DryRun, DurableDelete, Reason, TopicArgument, known_names, known_number
from workers.cli.output import Answer, note
from workers.cli.rows import ConvertedRows, SpooledRows
from workers.pages.texts import select_fields

if TYPE_CHECKING:
    from logstore.deletion.intents import Certificate
    from logstore.ports.catalog import Ledger, Tombstone, Topic

_TOMBSTONES_PER_PAGE = 1_000

ledger = group("ledger", "Ledgers of a topic.")

OfComponent = Annotated[
    Component | None, typer.Option("--component", case_sensitive=False, help="Only ledgers of this component.")
]
Tombstones = Annotated[bool, typer.Option("--tombstones", help="Those too that left a tombstone.")]
Ids = Annotated[list[int], typer.Argument(metavar="ID...", callback=known_number, help="Ledger ids.")]
OneId = Annotated[int, typer.Argument(metavar="ID", callback=known_number, help="The ledger's id.")]
RemoveCopy = Annotated[
    list[CopyKind],
    typer.Option("--remove-copy", case_sensitive=False, help="A copy to take away; several times for several."),
]
PassOver = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-over",
        metavar="SUB",
        callback=known_names,
        help="A subscription that need not have acknowledged it, if it ends.",
    ),
]
Generation = Annotated[
    int | None,
    typer.Option("--generation", metavar="N", callback=known_number, help="Refuse it of another generation."),
]
Force = Annotated[bool, typer.Option("--force", help="Delete what subscriptions still need; they move over the hole.")]


@command(ledger, "list", "TOPIC --json")
def list_(
    context: CommandContext, name: TopicArgument, *, component: OfComponent = None, tombstones: Tombstones = False
) -> Answer:
    """List a topic's ledgers: those of messages in order, then those of cursors and schemas."""
    topic = context.topic(name)

    def ledgers() -> Iterator[dict[str, object]]:
        for page in context.catalog.components.pages(topic.topic_id, component=component):
            yield from map(_row, page)
        if tombstones:
            yield from map(_tombstone, _tombstones_of(context, topic, component))

    rows = SpooledRows.of(ledgers())
    if not rows and component is not None:
        note(f"no ledger of topic {name} is of component {component.value}")
    return Answer(document=rows, shown=ConvertedRows(rows, _shown), beneath=("keys",), empty="no ledgers")


def _tombstones_of(context: CommandContext, topic: "Topic", component: Component | None) -> "Iterator[Tombstone]":
    """Read the topic's tombstones a page at a time."""
    stones, after = context.catalog.tombstones, -1
    while page := stones.of_topic(topic.topic_id, component=component, after=after, limit=_TOMBSTONES_PER_PAGE):
        yield from page
        after = page[-1].id


def _shown(row: Mapping[str, object]) -> dict[str, object]:
    names = {"ledger_id": "ledger", "component": "component", "state": "state", "entries": "entries"}
    names |= {"size_bytes": "bytes", "copies": "copies", "keys": "keys"}
    return {shorter: row[name] for name, shorter in names.items()}


def _row(found: "Ledger") -> dict[str, object]:
    return {
        **select_fields(found, "ledger_id component state entries size_bytes"),
        "copies": [copy.value for copy in found.copies],
        "generation": found.generation,
        "tombstone": False,
        "keys": dict(found.keys),
    }


def _tombstone(found: "Tombstone") -> dict[str, object]:
    of_a_ledger: dict[str, object] = {"entries": None, "size_bytes": None, "copies": [], "keys": {}}
    told = {"ledger_id": found.id, "component": found.component, "state": "TOMBSTONE", **of_a_ledger}
    return {**told, "generation": found.generation, "tombstone": True}


@job(ledger, "delete", "TOPIC 4 5 --dry-run", 'TOPIC 4 5 --reason "bad import"')
def delete(
    context: CommandContext,
    name: TopicArgument,
    ids: Ids,
    *,
    force: Force = False,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> Asked:
    """Delete ledgers in two phases: out of the list in one transaction, then from storage, confirmed.

    A ledger that something still needs is refused without --force, one that is open always.
    """
    topic, wanted = context.topic(name), [LedgerId(one) for one in dict.fromkeys(ids)]
    if dry_run:
        return preview(context, topic, wanted, force=force)

    def answer(workflow_id: str, result: "Certificate") -> Answer:
        return ended(context, {"workflow_id": workflow_id}, result.outcomes, topic=topic, ledger_ids=wanted)

    return Job(
        lambda client: client.delete_ledgers(
            topic, wanted, force, reason, context.actor, durable_delete=durable_delete
        ),
        "deleting ledgers",
        answer,
    )


@job(
    ledger,
    "operate",
    "TOPIC 4 --remove-copy OFFLOADED_LEDGER",
    "TOPIC 4 --remove-copy LEDGER --pass-over audit --dry-run",
)
def operate(
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
) -> Asked:
    """Take copies of one ledger away in one transaction; once none is left the ledger ends.

    All of it happens, or it is refused and nothing does.
    """
    topic = context.topic(name)
    operation = Compound(
        ledger_id=LedgerId(ledger_id),
        remove=frozenset(remove_copy),
        pass_over=frozenset(pass_over or ()),
        generation=generation,
    )
    if dry_run:
        return _operation_preview(context, topic, operation)

    def answer(workflow_id: str, result: "Certificate") -> Answer:
        document = {"workflow_id": workflow_id}
        return ended(context, document, result.outcomes, topic=topic, ledger_ids=[operation.ledger_id])

    return Job(
        lambda client: client.operate(topic, operation, reason, context.actor, durable_delete=durable_delete),
        "taking copies away",
        answer,
    )


def _operation_preview(context: CommandContext, topic: "Topic", operation: Compound) -> Answer:
    """The copies that would be deleted, with nothing changed, and the ledger if none were left."""
    ends = context.catalog.phase_one.would_end(topic.topic_id, operation)
    ids = [int(operation.ledger_id)] if ends else []
    copies = sorted(one.value for one in operation.remove)
    return Answer(document={"dry_run": True, "copies": copies, "detached": len(ids), "ledger_ids": ids})


def preview(context: CommandContext, topic: "Topic", ledger_ids: list[LedgerId] | None, *, force: bool) -> Answer:
    """The ledgers that would be deleted, with nothing changed; None asks for those that retention does not keep."""
    going = context.catalog.phase_one.preview(topic.topic_id, ledger_ids, force=force)
    return Answer(document={"dry_run": True, "detached": len(going), "ledger_ids": [int(one) for one in going]})
