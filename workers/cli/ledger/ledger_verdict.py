"""Verdict on a ledger, as one sentence for an operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logstore.deletion.intents import CopyVerdict, DeletionState, Outcome
from logstore.log.ledgers import Component, CopyState, LedgerState
from logstore.ports.catalog.inspection import (
    InspectedCopy,
    InspectedIntent,
    InspectedLedger,
    LedgerHistory,
    LedgerReference,
    LedgerReferenceKind,
)
from workers.human_readable_values import decode_topic_name, format_time_to_microsecond

_MAX_NAMES = 3
_MAX_ERROR_LENGTH = 160


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
