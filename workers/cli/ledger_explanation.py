"""`ledger explain`: all facts about one ledger, with a verdict as one sentence for an operator."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.deletion.intents import CopyVerdict, DeletionState, Outcome, find_missing_property
from logstore.errors import InvalidInput, SextonError
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState
from logstore.ownership import bundle_name, bundle_of_topic
from logstore.ports.catalog.inspection import (
    InspectedCopy,
    InspectedIntent,
    InspectedLedger,
    LedgerHistory,
    LedgerReference,
    LedgerReferenceKind,
)
from logstore.ports.catalog.log import Segment
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.ledgers import ledger, make_decision_row
from workers.cli.output import Answer
from workers.cli.shared_options import number_argument
from workers.human_readable_values import (
    decode_topic_name,
    escape_unprintable,
    format_table_cell,
    format_time_to_microsecond,
    select_fields,
)

if TYPE_CHECKING:
    from logstore.catalog.ownership.fences import Fences
    from logstore.ports.object_storage import ObjectStore, StorageByCopyKind


_MAX_NAMES = 3
_MAX_ERROR_LENGTH = 160
_MAX_DECISIONS = 20
_MAX_COMPARED_BYTES = 64 << 20
"""Maximum bytes of segments that are read without `--verify`, so that the command takes only some seconds."""


@dataclass(frozen=True, slots=True)
class CorruptSegment:
    """Segment whose stored object differs from the size or digest in the catalog."""

    number: int
    first_entry: int
    last_entry: int  # inclusive
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedCopy:
    copy: InspectedCopy
    finding: CopyVerdict | None  # None: storage could not be asked
    objects: int = 0
    size_bytes: int = 0
    statement: dict[str, str] | None = None
    detail: str = ""
    segments: int = 0  # number of registered segments, 0 if they were not checked
    absent: int = 0  # number of registered segments without an object
    compared: int = 0  # number of registered segments that were compared with their digests
    corrupt: tuple[CorruptSegment, ...] = ()

    @property
    def kind(self) -> str:
        return self.copy.intent.copy.value


Id = Annotated[int, number_argument("ID", "A ledger's id, whether it is still there or not.")]
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


def _describe_bundle_of_topic(fences: "Fences", history: LedgerHistory) -> dict[str, object] | None:
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
        "tombstone": tombstone and select_fields(tombstone, "generation epoch at=at_us raid"),
        "decisions": [make_decision_row(decision) for decision in history.decisions],
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
    names = "id=row_id copy generation state outcome attempts last_error batch_id workflow_id=handed_to trace_id"
    return {
        **select_fields(intent, names),
        **select_fields(filed, "stalled objects_deleted bytes_deleted filed=created_us finished=finished_us"),
    }


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


def describe_ledger_in_one_sentence(history: LedgerHistory, copies: Sequence[ExaminedCopy]) -> str:
    """Return one sentence: why the ledger is needed or how it was deleted, and what an operator should do."""
    if history.live is None:
        return _describe_deleted_ledger(history, copies)
    damage = _describe_first_damaged_copy(copies, is_open=history.live.state is LedgerState.OPEN)
    leftovers = [
        f"its {filed.intent.copy.value} copy of generation {filed.intent.generation}:"
        f" {_describe_pending_or_dead_letter(filed)}"
        for filed in _find_pending_and_dead_letters(history)
    ]
    return "; ".join([damage or _describe_need_for_ledger(history.live, history.references), *leftovers])


def _describe_first_damaged_copy(copies: Sequence[ExaminedCopy], *, is_open: bool) -> str | None:
    live = [copy for copy in copies if copy.copy.state == CopyState.LIVE]
    has_sound_copy = any(
        copy.finding is not CopyVerdict.ABSENT and not copy.absent and not copy.corrupt for copy in live
    )
    rest = "and it is read from its other copy" if has_sound_copy else "and no other copy: this is data loss"
    for copy in live:
        if copy.finding is CopyVerdict.ABSENT:
            return f"listed, but storage holds nothing of its {copy.kind} copy, {rest}"
        if copy.absent:
            count = f"{copy.absent:,} of {copy.segments:,} segments"
            return f"listed, but storage lacks {count} of its {copy.kind} copy, {rest}"
        if copy.corrupt:
            entries = _list_names([f"{segment.first_entry} to {segment.last_entry}" for segment in copy.corrupt])
            count = f"{len(copy.corrupt):,} of {copy.compared:,} segments"
            advice = _advise_on_corrupt_segments(copy, has_sound_copy=has_sound_copy, is_open=is_open)
            return (
                f"listed, but {count} of its {copy.kind} copy that were compared are corrupt (entries {entries}),"
                f" {rest}; {advice}"
            )
        if copy.finding is CopyVerdict.FOREIGN:
            return f"listed, but storage says that its {copy.kind} copy is somebody else's: {copy.detail}"
    return None


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


_REBUILD_COMMANDS: Final[Mapping[str, str]] = {
    Component.DELAYED_INDEX: "sexton delayed build {topic}",
    Component.TXN_SNAPSHOT: "sexton txn snapshot {topic}",
    Component.SCHEMA_STORAGE: "sexton topic schema set {topic} --file FILE",
    Component.MANAGED_CURSOR: "sexton topic seek {topic} SUB --to POSITION",
}
"""Commands that replace a damaged component ledger, by component."""


def _advise_on_corrupt_segments(copy: ExaminedCopy, *, has_sound_copy: bool, is_open: bool) -> str:
    restore = "put the named objects back from a backup, with their metadata"
    if has_sound_copy:
        return restore
    intent = copy.copy.intent
    topic = decode_topic_name(intent.topic)
    if intent.component in _REBUILD_COMMANDS:
        return f"`{_REBUILD_COMMANDS[intent.component].format(topic=topic)}` replaces it"
    delete = f"`sexton ledger delete {topic} {intent.ledger_id} --force --reason TEXT` moves subscriptions over it"
    close = f"`sexton topic roll {topic}` closes it, then " if is_open else ""
    return f"{restore}, or give the whole ledger up: {close}{delete}"


_NEEDS: Final[Mapping[LedgerReferenceKind, str]] = {
    LedgerReferenceKind.OFFLOAD: "listed; its tiered copy is being written",
    LedgerReferenceKind.CURSOR_SNAPSHOT: "listed: it holds the state of subscription {subscription}",
    LedgerReferenceKind.TXN_SNAPSHOT: "listed: it holds its topic's transactions up to {read_to}",
    LedgerReferenceKind.DELAYED_INDEX: "listed: it holds the delayed messages of the entries {from} to {to}",
    LedgerReferenceKind.SCHEMA: "listed: it holds version {version} of its topic's schema",
}
"""Sentences by kind of reference. A name in braces is replaced by the value in `LedgerReference.facts`."""


def _describe_need_for_ledger(live: InspectedLedger, references: Sequence[LedgerReference]) -> str:
    if live.state is LedgerState.CREATING:
        return "newborn and in no list yet; if its creator died, a sweep takes it away"
    if not live.listed:
        return "in no list, although its row exists: nothing reads it"
    if live.state is LedgerState.OPEN:
        return "listed and open: it takes entries"
    for reference in references:
        if reference.kind in _NEEDS:
            return _NEEDS[reference.kind].format_map(reference.facts)
    subscriptions = [
        str(reference.facts["subscription"]) for reference in references if reference.kind is LedgerReferenceKind.CURSOR
    ]
    if subscriptions:
        need = f"needed by subscription{'s' if len(subscriptions) > 1 else ''} {_list_names(subscriptions)}"
    elif any(reference.facts.get("last") for reference in references if reference.kind is LedgerReferenceKind.LIST):
        need = "the last of its list, which always stays"
    else:
        need = "needed by no subscription: retention lets it go"
    return f"listed and {need}"


def _find_pending_and_dead_letters(history: LedgerHistory) -> list[InspectedIntent]:
    return [filed for filed in history.intents if filed.intent.state is not DeletionState.DELETED]


def _describe_deleted_ledger(history: LedgerHistory, copies: Sequence[ExaminedCopy]) -> str:
    if unfinished := _find_pending_and_dead_letters(history):
        # A dead letter is first, because it needs a person.
        worst = min(unfinished, key=lambda filed: filed.intent.state is DeletionState.PENDING)
        more = f"; and {len(unfinished) - 1} more of its copies" if len(unfinished) > 1 else ""
        return _describe_pending_or_dead_letter(worst) + more
    if not history.intents:
        if history.decisions:
            return "gone: its deletion ended and was forgotten, and the audit log is all that is left"
        return "given out once, and nothing is known of it any more"
    deleted_at = _format_second(max(filed.finished_us or filed.created_us for filed in history.intents))
    stored = next((copy for copy in copies if copy.finding is CopyVerdict.OWN), None)
    if stored:
        return f"deleted on {deleted_at}, and yet storage holds {stored.objects} objects of its {stored.kind} copy now"
    if all(filed.intent.outcome is Outcome.ALREADY_GONE for filed in history.intents):
        return f"gone: on {deleted_at} storage held nothing of it any more"
    return f"deleted on {deleted_at}, confirmed by storage"


def _describe_pending_or_dead_letter(filed: InspectedIntent) -> str:
    intent, error = filed.intent, filed.intent.last_error or ""
    if error:
        error = f": {error if len(error) <= _MAX_ERROR_LENGTH else error[: _MAX_ERROR_LENGTH - 1] + '…'}"
    if intent.state is DeletionState.DEAD_LETTERED:
        outcome = intent.outcome.value if intent.outcome else "no outcome"
        return f"dead letter: {outcome}{error}; `sexton deletion redrive {intent.row_id}` tries again"
    detached = f"detached on {_format_second(filed.created_us)}"
    if filed.stalled:
        return f"{detached}, and no workflow is at work on it{error}; the next sweep takes it up"
    if intent.handed_to:
        return f"{detached}; {intent.handed_to} is at work on it, {intent.attempts} attempts so far{error}"
    return f"{detached}; batch {intent.batch_id} is to delete it"


def _format_second(moment_us: int) -> str:
    return format_time_to_microsecond(moment_us - moment_us % 1_000_000)
