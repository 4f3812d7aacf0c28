"""`ledger explain`: everything known of one ledger."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.deletion.intents import missing_property
from logstore.errors import InvalidInput, SextonError
from logstore.names import TopicName
from logstore.ownership import bundle_name, bundle_of
from logstore.ports.catalog import Decision, Fences, FiledIntent, KnownCopy, LedgerHistory
from logstore.positions import LedgerId
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.ledger.ledgers import ledger
from workers.cli.ledger.sections import in_sections
from workers.cli.ledger.verdicts import ExaminedCopy, verdict
from workers.cli.options import known_number
from workers.cli.output import Answer
from workers.cli.texts import shown_us, topic_shown

if TYPE_CHECKING:
    from logstore.deletion.intents import DeletionIntent
    from logstore.ports.storage import Storages

_DECISIONS = 20

Id = Annotated[
    int, typer.Argument(metavar="ID", callback=known_number, help="A ledger's id, whether it is still there or not.")
]


@command(ledger, "explain", examples=["sexton ledger explain 12", "sexton ledger explain 12 --json"])
def explain(context: CommandContext, ledger_id: Id) -> Answer:
    """Tell everything known of one ledger: what needs it, where its copies are, who decided what.

    It may be listed, on its way out, or long gone. Storage is asked as well; when it is down, that is said.
    """
    history = context.catalog.inspection.ledger(LedgerId(ledger_id), decisions=_DECISIONS)
    seen = [look(context.log.storages, copy) for copy in history.copies]
    found = document(history, seen, bundle=_bundle(context.catalog.fences, history))
    return Answer(document=found, text=in_sections(found))


def look(storages: "Storages", copy: KnownCopy) -> ExaminedCopy:
    """Ask storage what it holds of a copy; whatever keeps it from answering is told instead."""
    intent = copy.intent
    storage, missing = storages.get(intent.copy.value), intent.damage or missing_property(intent)
    if missing or storage is None:
        why = f"its row lacks {missing}" if missing else f"this build has no storage for {intent.copy.value}"
        return ExaminedCopy(copy=copy, finding=None, detail=f"not asked: {why}")
    try:
        stored = storage.inspect(intent)
        return ExaminedCopy(
            copy=copy,
            finding=stored.finding,
            objects=stored.objects,
            size_bytes=stored.size_bytes,
            statement=_fields(storage.statement(intent)),
            detail=stored.detail,
        )
    except SextonError as error:
        return ExaminedCopy(copy=copy, finding=None, detail=f"storage did not answer: {error}")


def _fields(statement: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if statement is None else dict(statement)


def _bundle(fences: Fences, history: LedgerHistory) -> dict[str, object] | None:
    """The bundle that the ledger's topic is in, as the catalog knows it: `owners list` asks ZooKeeper too."""
    try:
        topic = TopicName.from_encoded(history.copies[0].intent.topic) if history.copies else None
    except InvalidInput:  # a row that was damaged by hand
        topic = None
    if topic is None:
        return None
    count = fences.bundles()
    bundle = bundle_of(topic, bundles=count)
    last = fences.fence(bundle)
    return {
        "bundle": bundle_name(bundle, bundles=count),
        "number": int(bundle),
        "fence": last.counter if last else 0,
        "fenced_by": last.worker_id if last else None,
    }


def document(
    history: LedgerHistory, seen: list[ExaminedCopy], *, bundle: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """All of it, as `--json` prints it."""
    live, newest = history.live, history.copies[0].intent if history.copies else None
    return {
        "ledger_id": history.ledger_id,
        "verdict": verdict(history, seen),
        "owner": _owner(newest) if newest else None,
        "bundle": bundle,
        "state": live.state.value if live else _state(history),
        "entries": live.entries if live else None,
        "size_bytes": live.size_bytes if live else (newest.size_bytes if newest else None),
        "generation": live.generation if live else (newest.generation if newest else None),
        "references": [{"kind": one.kind.value, **one.facts} for one in history.references],
        "copies": [_copy(one) for one in seen],
        "intents": [_intent(one) for one in history.intents],
        "tombstone": None,
        "decisions": [decision_document(one) for one in history.decisions],
    }


def _owner(intent: "DeletionIntent") -> dict[str, object]:
    return {
        "application": intent.application,
        "component": intent.component,
        "topic": topic_shown(intent.topic),
        "topic_id": intent.topic_id,
        "keys": dict(intent.keys),
    }


def _state(history: LedgerHistory) -> str:
    """Of a ledger without a row: that of the intent that a person must look at first, or what is left of it."""
    states = {one.intent.state.value for one in history.intents}
    return next((one for one in ("DEAD_LETTERED", "PENDING", "DELETED") if one in states), "FORGOTTEN")


def _copy(one: ExaminedCopy) -> dict[str, object]:
    return {
        "kind": one.kind,
        "state": one.copy.state,
        "context": dict(one.copy.intent.context),
        "storage": {
            "finding": one.finding.value if one.finding else None,
            "objects": one.objects,
            "size_bytes": one.size_bytes,
            "statement": one.statement,
            "detail": one.detail,
        },
    }


def _intent(one: FiledIntent) -> dict[str, object]:
    intent = one.intent
    return {
        "id": intent.row_id,
        "copy": intent.copy.value,
        "generation": intent.generation,
        "state": intent.state.value,
        "outcome": intent.outcome.value if intent.outcome else None,
        "attempts": intent.attempts,
        "last_error": intent.last_error,
        "batch_id": intent.batch_id,
        "workflow_id": intent.handed_to,
        "trace_id": intent.trace_id,
        "stalled": one.stalled,
        "objects_deleted": one.objects_deleted,
        "bytes_deleted": one.bytes_deleted,
        "filed": shown_us(one.created_us),
        "finished": shown_us(one.finished_us) if one.finished_us is not None else None,
    }


def decision_document(one: Decision) -> dict[str, object]:
    """A row of the audit log as commands print it."""
    detail = dict(one.detail)
    trace_id = detail.pop("trace_id", None)
    return {
        "at": shown_us(one.at_us),
        "act": one.act,
        "actor": one.actor,
        "reason": one.reason,
        "workflow_id": one.workflow_id,
        "trace_id": trace_id,
        "topic": topic_shown(one.topic) if one.topic else None,
        "detail": detail,
    }
