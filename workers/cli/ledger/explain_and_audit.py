"""`ledger explain`: all facts about one ledger. `audit list`: destructive acts with their reasons."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.catalog.ownership.fences import Fences
from logstore.deletion.intents import CopyVerdict, find_missing_property
from logstore.errors import InvalidInput, SextonError
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ownership import bundle_name, bundle_of_topic
from logstore.ports.catalog.inspection import AuditEntry, InspectedCopy, InspectedIntent, LedgerHistory
from logstore.ports.catalog.log import Segment
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from workers.cli.answer_output import Answer, select_columns
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.ledger.ledger_verdict import CorruptSegment, ExaminedCopy, describe_ledger_in_one_sentence
from workers.cli.ledger.ledgers import ledger
from workers.cli.shared_options import (
    LedgerFilter,
    TopicFilter,
    check_nonnegative_numbers,
    encode_topic,
    print_empty_list_note,
)
from workers.human_readable_values import (
    decode_topic_name,
    escape_unprintable,
    format_table_cell,
    format_time_to_microsecond,
    select_fields,
)

if TYPE_CHECKING:
    from logstore.ports.object_storage import ObjectStore, StorageByCopyKind


_MAX_DECISIONS = 20
_MAX_COMPARED_BYTES = 64 << 20
"""Maximum bytes of segments that are read without `--verify`, so that the command takes only some seconds."""

Id = Annotated[
    int,
    typer.Argument(
        metavar="ID", callback=check_nonnegative_numbers, help="A ledger's id, whether it is still there or not."
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read and compare all segments of the primary copy, not only the first 64 MiB.")
]


@command(ledger, "explain", "12", "12 --json", "12 --verify")
def explain_ledger(context: CommandContext, ledger_id: Id, *, verify_all_segments: Verify = False) -> Answer:
    """Show everything known about one ledger: what needs it, where its copies are, and decisions about it.

    The ledger may be listed, detached or deleted. If storage does not answer, the output says so. Segments of a live
    primary copy are read and compared with their digests. Corrupt segments are named.
    """
    history = context.catalog.inspection.get_ledger_history(LedgerId(ledger_id), max_decisions=_MAX_DECISIONS)
    segments = context.catalog.ledgers.list_segments(history.ledger_id)
    keys = [segment_key(history.ledger_id, segment.number) for segment in segments]
    copies = []
    for copy in history.copies:
        examined = _inspect_copy_in_storage(context.log.storages, copy, keys if copy.state == CopyState.LIVE else ())
        max_bytes = None if verify_all_segments else _MAX_COMPARED_BYTES
        copies.append(_find_corrupt_segments(context.log.objects, examined, segments, max_bytes=max_bytes))
    document = _make_ledger_document(history, copies, _describe_bundle_of_topic(context.catalog.fences, history))
    return Answer(document=document, text=_format_ledger_document(document))


def _inspect_copy_in_storage(storages: "StorageByCopyKind", copy: InspectedCopy, keys: Sequence[str]) -> ExaminedCopy:
    intent = copy.intent
    storage, missing = storages.get(intent.copy.value), intent.damage or find_missing_property(intent)
    if missing or storage is None:
        cause = f"its row lacks {missing}" if missing else f"this build has no storage for {intent.copy.value}"
        return ExaminedCopy(copy=copy, finding=None, detail=f"not asked: {cause}")
    try:
        stored, statement = storage.inspect_copy(intent), storage.read_statement(intent)
        own_keys = frozenset(keys if intent.copy is CopyKind.LEDGER else ())
        absent = len(own_keys.difference(stored.data_keys)) if stored.verdict is CopyVerdict.OWN else 0
        return ExaminedCopy(
            copy=copy,
            finding=stored.verdict,
            objects=stored.objects,
            size_bytes=stored.size_bytes,
            statement=None if statement is None else dict(statement),
            detail=f"{absent:,} of {len(own_keys):,} segments absent" if absent else stored.detail,
            segments=len(own_keys),
            absent=absent,
        )
    except SextonError as error:
        return ExaminedCopy(copy=copy, finding=None, detail=f"storage did not answer: {error}")


def _find_corrupt_segments(
    objects: "ObjectStore", copy: ExaminedCopy, segments: Sequence[Segment], *, max_bytes: int | None
) -> ExaminedCopy:
    is_live_primary = copy.kind == CopyKind.LEDGER and copy.copy.state == CopyState.LIVE
    if not is_live_primary or copy.finding is not CopyVerdict.OWN or copy.absent:
        return copy
    from logstore.log.services.segment_reader import find_segment_problem  # noqa: PLC0415 - start-up time

    compared, read_bytes, corrupt = 0, 0, list[CorruptSegment]()
    for segment in segments:
        if segment.sha256 is None or (max_bytes is not None and read_bytes + segment.size_bytes > max_bytes):
            continue
        try:
            error = find_segment_problem(objects, segment)
        except SextonError as fault:
            return replace(copy, detail=f"storage did not answer: {fault}", compared=compared, corrupt=tuple(corrupt))
        compared, read_bytes = compared + 1, read_bytes + segment.size_bytes
        if error:
            last = segment.first_entry + segment.entries - 1
            corrupt.append(CorruptSegment(segment.number, segment.first_entry, last, error))
    return replace(copy, compared=compared, corrupt=tuple(corrupt))


def _describe_bundle_of_topic(fences: Fences, history: LedgerHistory) -> dict[str, object] | None:
    try:
        topic = TopicName.from_encoded(history.copies[0].intent.topic) if history.copies else None
    except InvalidInput:  # a person has damaged the row in the catalog
        topic = None
    if topic is None:
        return None
    bundles = fences.count_bundles()
    bundle = bundle_of_topic(topic, bundle_count=bundles)
    newest_lease = fences.get_newest_lease(bundle)
    return {
        "bundle": bundle_name(bundle, bundle_count=bundles),
        "number": int(bundle),
        "fence": newest_lease.fence if newest_lease else 0,
        "fenced_by": newest_lease.worker_id if newest_lease else None,
    }


def _make_ledger_document(
    history: LedgerHistory, copies: list[ExaminedCopy], bundle: Mapping[str, object] | None
) -> dict[str, Any]:
    live, newest, tombstone = history.live, history.copies[0].intent if history.copies else None, history.tombstone
    owner = None
    if newest:
        topic = {"topic": decode_topic_name(newest.topic), "topic_id": newest.topic_id, "keys": dict(newest.keys)}
        owner = select_fields(newest, "application component") | topic
    # Without a ledger row, show the state of the intent that needs a person most.
    states = {filed.intent.state.value for filed in history.intents}
    state = next((state for state in ("DEAD_LETTERED", "PENDING", "DELETED") if state in states), "FORGOTTEN")
    return {
        "ledger_id": history.ledger_id,
        "verdict": describe_ledger_in_one_sentence(history, copies),
        "owner": owner,
        "bundle": bundle,
        "state": live.state.value if live else state,
        "entries": live.entries if live else None,
        "size_bytes": live.size_bytes if live else (newest.size_bytes if newest else None),
        "generation": live.generation if live else (newest.generation if newest else None),
        "references": [{"kind": reference.kind.value, **reference.facts} for reference in history.references],
        "copies": [_make_copy_row(copy) for copy in copies],
        "intents": [_make_intent_row(filed) for filed in history.intents],
        "tombstone": tombstone
        and {
            **select_fields(tombstone, "generation epoch"),
            "at": format_time_to_microsecond(tombstone.at_us),
            "raid": tombstone.raid,
        },
        "decisions": [_make_decision_row(decision) for decision in history.decisions],
    }


def _make_copy_row(copy: ExaminedCopy) -> dict[str, object]:
    return {
        "kind": copy.kind,
        "state": copy.copy.state,
        "context": dict(copy.copy.intent.context),
        "storage": {
            **select_fields(copy, "finding objects size_bytes statement detail segments compared"),
            "corrupt": [select_fields(segment, "number first_entry last_entry error") for segment in copy.corrupt],
        },
    }


def _make_intent_row(filed: InspectedIntent) -> dict[str, object]:
    intent = filed.intent
    return {
        "id": intent.row_id,
        **select_fields(intent, "copy generation state outcome attempts last_error batch_id"),
        "workflow_id": intent.handed_to,
        "trace_id": intent.trace_id,
        **select_fields(filed, "stalled objects_deleted bytes_deleted"),
        "filed": format_time_to_microsecond(filed.created_us),
        "finished": format_time_to_microsecond(filed.finished_us) if filed.finished_us is not None else None,
    }


def _make_decision_row(decision: AuditEntry) -> dict[str, object]:
    detail = dict(decision.detail)
    trace_id = detail.pop("trace_id", None)
    return {
        "at": format_time_to_microsecond(decision.at_us),
        **select_fields(decision, "act actor reason workflow_id"),
        "trace_id": trace_id,
        "topic": decode_topic_name(decision.topic) if decision.topic else None,
        "detail": detail,
    }


audit = create_command_group("audit", "Destructive acts, with actor and reason.")

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
    rows = [_make_decision_row(decision) for decision in decisions]
    display = select_columns(rows, "at act actor topic reason")
    return Answer(document=rows, display=display, columns_below=("reason",), empty="nothing was destroyed")


_WIDTH = 80
_LABEL_WIDTH = 16


def _format_ledger_document(document: Mapping[str, Any]) -> str:
    row = {name: document[name] for name in ("state", "entries", "size_bytes", "generation")}
    sections = [
        ("row", row),
        ("owner", document["owner"]),
        ("bundle of the topic", document["bundle"]),
        ("references", [_format_reference(reference) for reference in document["references"]]),
        ("copies", [_format_copy(copy) for copy in document["copies"]]),
        ("intents", [_format_intent(intent) for intent in document["intents"]]),
        ("tombstone", document["tombstone"]),
        ("decisions, newest first", [_format_decision(decision) for decision in document["decisions"]]),
    ]
    lines = [f"ledger {document['ledger_id']}", *_wrap_words(document["verdict"], indent="  ")]
    for title, content in sections:
        if isinstance(content, list):
            lines += ["", title, *([line for part in content for line in part] or ["  none"])]
        elif content:
            lines += ["", title, *_format_labelled_values(content)]
    return escape_unprintable("\n".join(lines)) + "\n"


def _format_reference(reference: Mapping[str, Any]) -> list[str]:
    facts = {name: value for name, value in reference.items() if name != "kind" and value != {}}
    return _format_labelled_values({reference["kind"].lower(): facts})


def _format_copy(copy: Mapping[str, Any]) -> list[str]:
    storage = copy["storage"]
    counts = f"{format_table_cell(storage['objects'])} objects, {format_table_cell(storage['size_bytes'])} bytes"
    segments = f"{storage['compared']:,} of {storage['segments']:,} segments" if storage["compared"] else None
    facts = {
        "context": copy["context"],
        "storage": f"{storage['finding']}, {counts}" if storage["finding"] else "unknown",
        "says": storage["detail"],
        "compared": segments,
    }
    lines = [f"  {copy['kind']}, {copy['state']}", *_format_labelled_values(facts, indent="    ")]
    for segment in storage["corrupt"]:
        entries = f"entries {segment['first_entry']} to {segment['last_entry']}"
        corrupt = f"segment {segment['number']}, {entries}: {segment['error']}"
        lines += _format_labelled_values({"corrupt": corrupt}, indent="    ")
    return lines + _format_labelled_values({"statement": storage["statement"]}, indent="    ")


def _format_intent(intent: Mapping[str, Any]) -> list[str]:
    outcome = f", {intent['outcome']}" if intent["outcome"] and intent["outcome"] != intent["state"] else ""
    stalled = ", stalled" if intent["stalled"] else ""
    state = f"generation {intent['generation']}, {intent['state']}{outcome}{stalled}"
    names = ("filed", "finished", "attempts", "last_error", "batch_id", "workflow_id", "trace_id", "objects_deleted")
    facts = _format_labelled_values({name: intent[name] for name in names}, indent="    ")
    return [f"  {intent['id']}: {intent['copy']}, {state}", *facts]


def _format_decision(decision: Mapping[str, Any]) -> list[str]:
    reason = f": {decision['reason']}" if decision["reason"] else ""
    act = f"{decision['at']} {decision['act']} by {decision['actor'] or 'nobody'}{reason}"
    facts = {name: decision[name] for name in ("workflow_id", "trace_id", "detail")}
    return _wrap_words(act, indent="  ") + _format_labelled_values(facts, indent="    ")


def _format_labelled_values(facts: Mapping[str, object], *, indent: str = "  ") -> list[str]:
    lines = []
    for name, value in facts.items():
        if value not in (None, "", {}, []):
            label = f"{indent}{name.replace('_', ' '):<{_LABEL_WIDTH + 2 - len(indent)}} "
            lines += _wrap_words(format_table_cell(value), indent=label, next_indent=" " * len(label))
    return lines


def _wrap_words(text: str, *, indent: str, next_indent: str | None = None) -> list[str]:
    """Wrap words. A name that is longer than a line stays whole, so that a user can copy it."""
    wrapper = textwrap.TextWrapper(
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if next_indent is None else next_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [indent]
