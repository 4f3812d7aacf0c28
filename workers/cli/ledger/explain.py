"""`ledger explain`: everything known of one ledger; `audit list`: destructive acts with their reasons."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.deletion.intents import Finding, missing_property
from logstore.errors import InvalidInput, SextonError
from logstore.log.ledgers import CopyKind, CopyState, segment_key
from logstore.names import TopicName
from logstore.ownership import bundle_name, bundle_of
from logstore.ports.catalog import Decision, Fences, FiledIntent, KnownCopy, LedgerHistory, Segment, Tombstone
from logstore.positions import LedgerId
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.ledger.ledgers import ledger
from workers.cli.ledger.verdicts import CorruptSegment, ExaminedCopy, verdict
from workers.cli.options import OfLedger, OfTopic, encoded_topic, known_number, say_why_nothing
from workers.cli.output import Answer
from workers.pages.texts import decode_topic_name, escape_unprintable, format_time_us, format_value, select_fields

if TYPE_CHECKING:
    from logstore.ports.objects import ObjectStore, Storages


_DECISIONS = 20
_COMPARED_BYTES = 64 << 20
"""Of segments that are read without `--verify`: some seconds, whatever the size of the ledger."""

Id = Annotated[
    int, typer.Argument(metavar="ID", callback=known_number, help="A ledger's id, whether it is still there or not.")
]


Verify = Annotated[
    bool, typer.Option("--verify", help="Read and compare all segments of the primary copy, not only the first 64 MiB.")
]


@command(ledger, "explain", "12", "12 --json", "12 --verify")
def explain(context: CommandContext, ledger_id: Id, *, verify: Verify = False) -> Answer:
    """Tell everything known of one ledger: what needs it, where its copies are, and decisions on it.

    It may be listed, on its way out, or long gone. Storage is asked as well; when it is down, that is said. Segments
    in use are read and compared with their digests: one that is corrupt is named.
    """
    history = context.catalog.inspection.ledger(LedgerId(ledger_id), decisions=_DECISIONS)
    segments = context.catalog.ledgers.segments(history.ledger_id)
    named = [segment_key(history.ledger_id, one.number) for one in segments]
    seen = [look(context.log.storages, copy, named if copy.state == CopyState.LIVE else ()) for copy in history.copies]
    seen = [
        compare_digests(context.log.objects, one, segments, max_bytes=None if verify else _COMPARED_BYTES)
        for one in seen
    ]
    found = document(history, seen, bundle=_bundle(context.catalog.fences, history))
    return Answer(document=found, text=in_sections(found))


def look(storages: "Storages", copy: KnownCopy, named: Sequence[str]) -> ExaminedCopy:
    """Ask storage what it holds of a copy; an error in its place is told.

    Args:
        storages: Where copies stand.
        copy: One that the catalog knows.
        named: Keys of the segments that a primary copy consists of, as the catalog registered them.
    """
    intent = copy.intent
    storage, missing = storages.get(intent.copy.value), intent.damage or missing_property(intent)
    if missing or storage is None:
        why = f"its row lacks {missing}" if missing else f"this build has no storage for {intent.copy.value}"
        return ExaminedCopy(copy=copy, finding=None, detail=f"not asked: {why}")
    try:
        stored, stated = storage.inspect(intent), storage.statement(intent)
        mine = frozenset(named if intent.copy is CopyKind.LEDGER else ())
        absent = len(mine.difference(stored.data_keys)) if stored.finding is Finding.OWN else 0
        return ExaminedCopy(
            copy=copy,
            finding=stored.finding,
            objects=stored.objects,
            size_bytes=stored.size_bytes,
            statement=None if stated is None else dict(stated),
            detail=f"{absent:,} of {len(mine):,} segments absent" if absent else stored.detail,
            segments=len(mine),
            absent=absent,
        )
    except SextonError as error:
        return ExaminedCopy(copy=copy, finding=None, detail=f"storage did not answer: {error}")


def compare_digests(
    objects: "ObjectStore", seen: ExaminedCopy, segments: Sequence[Segment], *, max_bytes: int | None
) -> ExaminedCopy:
    """Read segments of a LIVE primary copy, and add which of them are corrupt.

    Args:
        objects: The primary bucket.
        seen: What storage was found to hold.
        segments: As the catalog registered them. One without a digest is not compared.
        max_bytes: Read no further than this; None: read all.
    """
    of_this_copy = seen.kind == CopyKind.LEDGER and seen.copy.state == CopyState.LIVE
    if not of_this_copy or seen.finding is not Finding.OWN or seen.absent:
        return seen
    from logstore.log.services.segment_file import compare_segment  # noqa: PLC0415 - start-up time

    compared, read_bytes, corrupt = 0, 0, list[CorruptSegment]()
    for segment in segments:
        if segment.sha256 is None or (max_bytes is not None and read_bytes + segment.size_bytes > max_bytes):
            continue
        try:
            error = compare_segment(objects, segment)
        except SextonError as silence:
            return replace(seen, detail=f"storage did not answer: {silence}", compared=compared, corrupt=tuple(corrupt))
        compared, read_bytes = compared + 1, read_bytes + segment.size_bytes
        if error:
            last = segment.first_entry + segment.entries - 1
            corrupt.append(CorruptSegment(segment.number, segment.first_entry, last, error))
    return replace(seen, compared=compared, corrupt=tuple(corrupt))


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
    owner = None
    if newest:
        of_topic = {"topic": decode_topic_name(newest.topic), "topic_id": newest.topic_id, "keys": dict(newest.keys)}
        owner = select_fields(newest, "application component") | of_topic
    states = {one.intent.state.value for one in history.intents}
    # without a row: the state of the intent that a person must look at first, or what is left of it
    left = next((one for one in ("DEAD_LETTERED", "PENDING", "DELETED") if one in states), "FORGOTTEN")
    return {
        "ledger_id": history.ledger_id,
        "verdict": verdict(history, seen),
        "owner": owner,
        "bundle": bundle,
        "state": live.state.value if live else left,
        "entries": live.entries if live else None,
        "size_bytes": live.size_bytes if live else (newest.size_bytes if newest else None),
        "generation": live.generation if live else (newest.generation if newest else None),
        "references": [{"kind": one.kind.value, **one.facts} for one in history.references],
        "copies": [_copy(one) for one in seen],
        "intents": [_intent(one) for one in history.intents],
        "tombstone": _tombstone(history.tombstone) if history.tombstone else None,
        "decisions": [decision_document(one) for one in history.decisions],
    }


def _tombstone(found: Tombstone) -> dict[str, object]:
    return {"generation": found.generation, "epoch": found.epoch, "at": format_time_us(found.at_us), "raid": found.raid}


def _copy(one: ExaminedCopy) -> dict[str, object]:
    return {
        "kind": one.kind,
        "state": one.copy.state,
        "context": dict(one.copy.intent.context),
        "storage": {
            **select_fields(one, "finding objects size_bytes statement detail segments compared"),
            "corrupt": [select_fields(segment, "number first_entry last_entry error") for segment in one.corrupt],
        },
    }


def _intent(one: FiledIntent) -> dict[str, object]:
    intent = one.intent
    return {
        "id": intent.row_id,
        **select_fields(intent, "copy generation state outcome attempts last_error batch_id"),
        "workflow_id": intent.handed_to,
        "trace_id": intent.trace_id,
        **select_fields(one, "stalled objects_deleted bytes_deleted"),
        "filed": format_time_us(one.created_us),
        "finished": format_time_us(one.finished_us) if one.finished_us is not None else None,
    }


def decision_document(one: Decision) -> dict[str, object]:
    """A row of the audit log as commands print it."""
    detail = dict(one.detail)
    trace_id = detail.pop("trace_id", None)
    return {
        "at": format_time_us(one.at_us),
        **select_fields(one, "act actor reason workflow_id"),
        "trace_id": trace_id,
        "topic": decode_topic_name(one.topic) if one.topic else None,
        "detail": detail,
    }


audit = group("audit", "Destructive acts, with actor and reason.")

Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The most decisions to show, newest first.")]


@command(audit, "list", "--topic TOPIC", "--ledger 12 --json")
def list_(context: CommandContext, *, topic: OfTopic = None, ledger: OfLedger = None, limit: Limit = 100) -> Answer:
    """List destructive acts with actor, reason, workflow and outcome, newest first."""
    encoded, wanted = encoded_topic(topic), None if ledger is None else LedgerId(ledger)
    found = context.catalog.inspection.decisions(topic=encoded, ledger_id=wanted, limit=limit)
    if not found:
        say_why_nothing(context, "destructive act", topic=topic, ledger=ledger)
    rows = [decision_document(one) for one in found]
    shown = [{name: row[name] for name in ("at", "act", "actor", "topic", "reason")} for row in rows]
    return Answer(document=rows, shown=shown, beneath=("reason",), empty="nothing was destroyed")


_WIDTH = 80
_LABEL = 16


def in_sections(found: Mapping[str, Any]) -> str:
    """The document of `ledger explain` as text."""
    lines = [f"ledger {found['ledger_id']}", *_wrapped(found["verdict"], indent="  ")]
    for title, facts in _sections(found):
        lines += ["", title, *facts]
    return escape_unprintable("\n".join(lines)) + "\n"


def _sections(found: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    shown = ("state", "entries", "size_bytes", "generation")
    yield "row", [line for name in shown for line in _fact(name, found[name])]
    if found["owner"]:
        yield "owner", [line for name, value in found["owner"].items() for line in _fact(name, value)]
    if found["bundle"]:
        yield "bundle of the topic", [line for name, value in found["bundle"].items() for line in _fact(name, value)]
    yield "references", _each(found["references"], _reference_lines)
    yield "copies", _each(found["copies"], _copy_lines)
    yield "intents", _each(found["intents"], _intent_lines)
    if found["tombstone"]:
        yield "tombstone", [line for name, value in found["tombstone"].items() for line in _fact(name, value)]
    yield "decisions, newest first", _each(found["decisions"], _decision_lines)


def _each(rows: Sequence[Mapping[str, Any]], write: Any) -> list[str]:  # noqa: ANN401 - one of the functions below
    return [line for row in rows for line in write(row)] or ["  none"]


def _reference_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield from _fact(
        row["kind"].lower(), {name: value for name, value in row.items() if name != "kind" and value != {}}
    )


def _copy_lines(row: Mapping[str, Any]) -> Iterator[str]:
    storage = row["storage"]
    yield f"  {row['kind']}, {row['state']}"
    yield from _fact("context", row["context"], deeper="  ")
    held = (
        f"{storage['finding']}, {format_value(storage['objects'])} objects, {format_value(storage['size_bytes'])} bytes"
    )
    yield from _fact("storage", held if storage["finding"] else "unknown", deeper="  ")
    yield from _fact("says", storage["detail"], deeper="  ")
    if storage["compared"]:
        yield from _fact("compared", f"{storage['compared']:,} of {storage['segments']:,} segments", deeper="  ")
    for segment in storage["corrupt"]:
        entries = f"entries {segment['first_entry']} to {segment['last_entry']}"
        yield from _fact("corrupt", f"segment {segment['number']}, {entries}: {segment['error']}", deeper="  ")
    yield from _fact("statement", storage["statement"], deeper="  ")


def _intent_lines(row: Mapping[str, Any]) -> Iterator[str]:
    outcome = f", {row['outcome']}" if row["outcome"] and row["outcome"] != row["state"] else ""
    stalled = ", stalled" if row["stalled"] else ""
    yield f"  {row['id']}: {row['copy']}, generation {row['generation']}, {row['state']}{outcome}{stalled}"
    names = ("filed", "finished", "attempts", "last_error", "batch_id", "workflow_id", "trace_id", "objects_deleted")
    for name in names:
        yield from _fact(name, row[name], deeper="  ")


def _decision_lines(row: Mapping[str, Any]) -> Iterator[str]:
    reason = f": {row['reason']}" if row["reason"] else ""
    yield from _wrapped(f"{row['at']} {row['act']} by {row['actor'] or 'nobody'}{reason}", indent="  ")
    yield from _fact("workflow_id", row["workflow_id"], deeper="  ")
    yield from _fact("trace_id", row["trace_id"], deeper="  ")
    yield from _fact("detail", row["detail"], deeper="  ")


def _fact(name: str, value: object, *, deeper: str = "") -> Iterator[str]:
    """A name and its value; one that is empty is left out."""
    if value in (None, "", {}, []):
        return
    label = f"  {deeper}{name.replace('_', ' '):<{_LABEL - len(deeper)}} "
    yield from _wrapped(format_value(value), indent=label, then=" " * len(label))


def _wrapped(text: str, *, indent: str, then: str | None = None) -> list[str]:
    """Lines of words; a name that is longer than a line stays whole, so that it can be copied."""
    rest = indent if then is None else then
    shape = textwrap.TextWrapper(
        _WIDTH, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return shape.wrap(text) or [indent]
