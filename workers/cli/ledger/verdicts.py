"""Where a ledger stands, in one sentence for an operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logstore.deletion.intents import DeletionState, Finding, Outcome
from logstore.log.ledgers import Component, CopyState, LedgerState
from logstore.ports.catalog import FiledIntent, KnownCopy, LedgerHistory, LiveLedger, Reference, ReferenceKind
from workers.pages.texts import decode_topic_name, format_time_us

_MOST_NAMES = 3
_MOST_ERROR = 160


@dataclass(frozen=True, slots=True)
class CorruptSegment:
    """A segment whose object is not the one that was registered."""

    number: int
    first_entry: int
    last_entry: int  # inclusive
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedCopy:
    """A known copy, and what storage holds of it."""

    copy: KnownCopy
    finding: Finding | None  # None: storage could not be asked
    objects: int = 0
    size_bytes: int = 0
    statement: dict[str, str] | None = None
    detail: str = ""
    segments: int = 0  # that the catalog names in it, as far as that was asked
    absent: int = 0  # of them, those that storage does not hold
    compared: int = 0  # of them, those that were read and compared with their digest
    corrupt: tuple[CorruptSegment, ...] = ()

    @property
    def kind(self) -> str:
        """Which copy."""
        return self.copy.intent.copy.value


def verdict(history: LedgerHistory, seen: Sequence[ExaminedCopy]) -> str:
    """One sentence: what holds the ledger, or what became of it, and what to do if there is something to do."""
    if history.live:
        parts = [
            _lost(seen, is_open=history.live.state is LedgerState.OPEN) or _kept(history.live, history.references),
            *_left_of_copies(history.intents),
        ]
        return "; ".join(parts)
    return _gone(history, seen)


def _lost(seen: Sequence[ExaminedCopy], *, is_open: bool) -> str | None:
    """A contradiction of a LIVE copy's row comes before everything else."""
    live = [one for one in seen if one.copy.state == CopyState.LIVE]
    whole = any(one.finding is not Finding.ABSENT and not one.absent and not one.corrupt for one in live)
    there = "and it is read from its other copy" if whole else "and no other copy: this is data loss"
    for one in live:
        if one.finding is Finding.ABSENT:
            return f"listed, but storage holds nothing of its {one.kind} copy, {there}"
        if one.absent:
            return (
                f"listed, but storage lacks {one.absent:,} of {one.segments:,} segments of its {one.kind} copy, {there}"
            )
        if one.corrupt:
            entries = ", ".join(f"{gap.first_entry} to {gap.last_entry}" for gap in one.corrupt[:_MOST_NAMES])
            more = f" and {len(one.corrupt) - _MOST_NAMES} more" if len(one.corrupt) > _MOST_NAMES else ""
            what = f"{len(one.corrupt):,} of {one.compared:,} segments of its {one.kind} copy that were compared"
            advice = _what_to_do(one, whole=whole, is_open=is_open)
            return f"listed, but {what} are corrupt (entries {entries}{more}), {there}; {advice}"
        if one.finding is Finding.FOREIGN:
            return f"listed, but storage says that its {one.kind} copy is somebody else's: {one.detail}"
    return None


_REBUILD: Final[Mapping[str, str]] = {
    Component.DELAYED_INDEX: "sexton delayed build {topic}",
    Component.TXN_SNAPSHOT: "sexton txn snapshot {topic}",
    Component.SCHEMA_STORAGE: "sexton topic schema set {topic} --file FILE",
    Component.MANAGED_CURSOR: "sexton topic seek {topic} SUB --to POSITION",
}
"""Commands that replace the ledger of a component."""


def _what_to_do(corrupt: ExaminedCopy, *, whole: bool, is_open: bool) -> str:
    intent = corrupt.copy.intent
    back = "put the named objects back from a backup, with their metadata"
    if whole:
        return back
    topic = decode_topic_name(intent.topic)
    if intent.component in _REBUILD:
        return f"`{_REBUILD[intent.component].format(topic=topic)}` replaces it"
    force = f"`sexton ledger delete {topic} {intent.ledger_id} --force --reason TEXT` moves subscriptions over it"
    close = f"`sexton topic roll {topic}` closes it, then " if is_open else ""
    return f"{back}, or give the whole ledger up: {close}{force}"


def _kept(live: LiveLedger, references: Sequence[Reference]) -> str:
    if live.state is LedgerState.CREATING:
        return "newborn and in no list yet; if its creator died, a sweep takes it away"
    if not live.listed:
        return "in no list, although its row exists: nothing reads it"
    if live.state is LedgerState.OPEN:
        return "listed and open: it takes entries"
    said = (_REASONS[one.kind](one.facts) for one in references if one.kind in _REASONS)
    needed = [str(one.facts["subscription"]) for one in references if one.kind is ReferenceKind.CURSOR]
    last = any(one.facts.get("last") for one in references if one.kind is ReferenceKind.LIST)
    rest = "the last of its list, which always stays" if last else "needed by no subscription: retention lets it go"
    return next(said, f"listed and {_subscriptions(needed) if needed else rest}")


_REASONS: Mapping[ReferenceKind, Callable[[Mapping[str, object]], str]] = {
    ReferenceKind.OFFLOAD: lambda _: "listed; its tiered copy is being written",
    ReferenceKind.CURSOR_SNAPSHOT: lambda facts: f"listed: it holds the state of subscription {facts['subscription']}",
    ReferenceKind.TXN_SNAPSHOT: lambda facts: f"listed: it holds its topic's transactions up to {facts['read_to']}",
    ReferenceKind.DELAYED_INDEX: lambda facts: (
        f"listed: it holds the delayed messages of the entries {facts['from']} to {facts['to']}"
    ),
    ReferenceKind.SCHEMA: lambda facts: f"listed: it holds version {facts['version']} of its topic's schema",
}


def _subscriptions(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"needed by subscription{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMES])}{more}"


def _left_of_copies(intents: Sequence[FiledIntent]) -> list[str]:
    """Copies of a listed ledger that are not gone yet, such as a primary one that was offloaded."""
    left = [one for one in intents if one.intent.state is not DeletionState.DELETED]
    return [
        f"its {one.intent.copy.value} copy of generation {one.intent.generation}: {_unfinished(one)}" for one in left
    ]


def _gone(history: LedgerHistory, seen: Sequence[ExaminedCopy]) -> str:
    left = [one for one in history.intents if one.intent.state is not DeletionState.DELETED]
    if left:
        worst = min(left, key=lambda one: one.intent.state is DeletionState.PENDING)  # a dead letter needs a person
        return _unfinished(worst) + (f"; and {len(left) - 1} more of its copies" if len(left) > 1 else "")
    if not history.intents:
        if history.decisions:
            return "gone: its deletion ended and was forgotten, and the audit log is all that is left"
        return "given out once, and nothing is known of it any more"
    ended = _moment(max(one.finished_us or one.created_us for one in history.intents))
    back = next((one for one in seen if one.finding is Finding.OWN), None)
    if back:
        return f"deleted on {ended}, and yet storage holds {back.objects} objects of its {back.kind} copy now"
    if all(one.intent.outcome is Outcome.ALREADY_GONE for one in history.intents):
        return f"gone: on {ended} storage held nothing of it any more"
    return f"deleted on {ended}, confirmed by storage"


def _unfinished(one: FiledIntent) -> str:
    intent, error = one.intent, one.intent.last_error or ""
    if error:
        error = f": {error if len(error) <= _MOST_ERROR else error[: _MOST_ERROR - 1] + '…'}"
    if intent.state is DeletionState.DEAD_LETTERED:
        outcome = intent.outcome.value if intent.outcome else "no outcome"
        return f"dead letter: {outcome}{error}; `sexton deletion redrive {intent.row_id}` tries again"
    since = f"detached on {_moment(one.created_us)}"
    if one.stalled:
        return f"{since}, and no workflow is at work on it{error}; the next sweep takes it up"
    if intent.handed_to:
        return f"{since}; {intent.handed_to} is at work on it, {intent.attempts} attempts so far{error}"
    return f"{since}; batch {intent.batch_id} is to delete it"


def _moment(at_us: int) -> str:
    """To the second: the intents below have the rest."""
    return format_time_us(at_us - at_us % 1_000_000)
