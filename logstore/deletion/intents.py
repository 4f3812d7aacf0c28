"""Two-phase deletion: intents, outcomes, and the decision between them.

Phase one takes a ledger out of its list and files an intent in one SQL transaction. Phase two acts on the
intent: it compares what the catalog and what storage say *now*, and only then deletes.

Source: PIP-186; its PendingDeleteLedgerInfo is `DeletionIntent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from logstore.errors import CorruptData
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement, require_named_topic
from logstore.offload.tiered import CopyLocation, find_location_problem
from logstore.positions import LedgerId, TopicId

STUCK_AFTER_ATTEMPTS: Final = 5
"""Attempts in a row after which storage has kept as many keys as before: a person must look, and sooner than the end.

Five, 600 s apart, are forty minutes: longer than a store takes to restart or to fail over, so that no outage of one of
its volumes, which refuses keys one by one, fills the dead letters; and half of the ten attempts are spared. The third
would be within such an outage, the eighth, as in Temporal's own deletions, would spare but two attempts.
"""


class DeletionState(StrEnum):
    """Where an intent stands. Stored by name."""

    PENDING = "PENDING"
    DELETED = "DELETED"
    DEAD_LETTERED = "DEAD_LETTERED"


class Outcome(StrEnum):
    """How phase two ended for one intent, or what it is doing."""

    DELETED = "DELETED"
    ALREADY_GONE = "ALREADY_GONE"
    STILL_IN_USE = "STILL_IN_USE"  # the list references this copy
    INVALID = "INVALID"  # an essential property is missing
    METADATA_MISMATCH = "METADATA_MISMATCH"  # storage says that it is another owner's
    STALE_CATALOG = "STALE_CATALOG"  # the request speaks of another catalog epoch; nothing changed
    DEAD_LETTERED = "DEAD_LETTERED"  # attempts exhausted
    RETRYING = "RETRYING"  # handed to a workflow of its own
    UNKNOWN = "UNKNOWN"  # no such intent

    @property
    def state(self) -> DeletionState:
        """The state an intent with this outcome is in."""
        if self in _GONE:
            return DeletionState.DELETED
        return DeletionState.PENDING if self is Outcome.RETRYING else DeletionState.DEAD_LETTERED

    @property
    def is_success(self) -> bool:
        """Whether nothing of the copy is left in storage."""
        return self in _GONE


_GONE = frozenset({Outcome.DELETED, Outcome.ALREADY_GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionIntent:
    """One row of `pending_deletion`: one copy of one ledger, of one detach."""

    row_id: int
    batch_id: str
    ledger_id: LedgerId
    copy: CopyKind
    generation: int  # of the detach
    openings: int = 0  # how often a late creator or writer had it opened again after it had ended
    durable: bool = False  # a tombstone stands for its ledger
    application: str
    component: str  # as stored; an unknown one makes the intent INVALID
    topic_id: TopicId
    topic: str
    keys: Mapping[str, str]
    context: Mapping[str, str] = field(default_factory=dict)  # offload context, kept as found
    segments: int = 0  # registered when it was detached
    last_segment: int = -1  # the highest number of them
    ledger_created_us: int = 0
    size_bytes: int = 0
    epoch: int = 0
    state: DeletionState = DeletionState.PENDING
    outcome: Outcome | None = None
    attempts: int = 0
    last_error: str | None = None
    keys_left_attempts: int = 0  # the last ones in a row that storage answered, and that left the same number of keys
    handed_to: str | None = None  # workflow of its own that holds the claim, or None: its batch works on it
    actor: str = ""  # who decided that the ledger goes; empty: its creator gave it up
    reason: str = ""
    damage: str | None = None  # what of the row cannot be read: nothing is deleted on its word
    trace_id: str | None = None  # of the last act upon the row: its detach, or its last attempt
    paused: bool = False  # it waits for an operator to resume its batch; told of by a listing alone
    referenced: bool = False  # a ledger list named this very copy when the row was read

    @property
    def is_stuck(self) -> bool:
        """Whether storage keeps the same number of keys again and again; see `STUCK_AFTER`."""
        return self.keys_left_attempts >= STUCK_AFTER_ATTEMPTS

    @property
    def owner(self) -> LedgerOwner:
        """Whose ledger the intent says it is; ask `missing_property` first."""
        return LedgerOwner(
            application=self.application,
            component=Component(self.component),
            topic_id=self.topic_id,
            topic=self.topic,
            keys=self.keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentKey:
    """Names one intent for ever."""

    ledger_id: int
    copy: str
    generation: int
    openings: int = 0  # how often it was opened again after it had ended


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRefusal:
    """Why a guard refused what was asked; nothing changed."""

    type: str  # `LedgerStillNeeded` or `UnknownObject`
    message: str
    details: list[Any] = field(default_factory=list)  # of the activity's failure: the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCertificate:
    """A batch's outcome, counted from its rows and confirmed by storage: fit for an audit."""

    batch_id: str
    outcomes: dict[str, int]
    objects: int
    size_bytes: int
    owner: str = ""  # which worker owned the batch's topic at its end, as far as that was told
    refused: GuardRefusal | None = None  # then nothing was detached, and there are no outcomes

    @property
    def deleted(self) -> int:
        """Copies of which nothing is left."""
        return sum(count for name, count in self.outcomes.items() if name in _GONE)


_ESSENTIAL = {
    Component.MANAGED_LEDGER: (),
    Component.MANAGED_CURSOR: ("cursor",),
    Component.SCHEMA_STORAGE: ("schema",),
    Component.DELAYED_INDEX: (),  # a topic has one list of them, as of the next
    Component.TXN_SNAPSHOT: (),
}


def find_missing_property(intent: DeletionIntent) -> str | None:
    """Name the first essential property that the intent lacks, or None."""
    if intent.component not in _ESSENTIAL:
        return f"component (found {intent.component!r})"
    if not intent.topic or not intent.application:
        return "topic" if not intent.topic else "application"
    for key in _ESSENTIAL[Component(intent.component)]:
        if not intent.keys.get(key):
            return f"key {key!r} of {intent.component}"
    lacks = [
        key for key in ("uuid", "bucket") if intent.copy is CopyKind.OFFLOADED_LEDGER and not intent.context.get(key)
    ]
    return f"{lacks[0]} of the offload context" if lacks else None


def find_ownership_problem(intent: DeletionIntent, key: str, metadata: Mapping[str, str]) -> str | None:
    """Why an object's own metadata says that it is not of this ledger, or None when it says that it is."""
    try:
        statement = LedgerStatement.from_metadata(metadata)
    except CorruptData as error:
        return f"{key!r} states no owner ({error})"
    if statement.owner.digest != intent.owner.digest or statement.ledger_id != intent.ledger_id:
        return f"{key!r} states ledger {statement.ledger_id} of {statement.owner.topic}"
    if statement.created_us != intent.ledger_created_us:
        return f"{key!r} is of another ledger {statement.ledger_id}, of catalog epoch {statement.epoch}"
    return None


class CopyVerdict(StrEnum):
    """What storage holds of a copy."""

    ABSENT = "ABSENT"  # proved by independent reads
    OWN = "OWN"
    FOREIGN = "FOREIGN"  # storage's own statement contradicts the intent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopy:
    """One copy as storage shows it."""

    verdict: CopyVerdict
    data_keys: tuple[str, ...] = ()  # deleted first
    meta_keys: tuple[str, ...] = ()  # deleted last
    unseen_meta_keys: int = 0  # of `meta_keys`: asked to be deleted although neither LIST nor HEAD shows them
    size_bytes: int = 0
    objects: int = 0  # found, whosever they are
    location: CopyLocation | None = None  # of a tiered copy, which may be in one of several buckets
    uploads: tuple[str, ...] = ()  # keys with parts of an upload that will never be finished
    is_incomplete: bool = False  # fewer segments than were registered: look again before meta goes
    detail: str = ""


def find_refusal(intent: DeletionIntent) -> tuple[Outcome, str] | None:
    """Steps 3 and 4 of phase two: why the intent must not be acted on, or None.

    Source: PIP-186, section on the second phase; refusals are not retried.
    """
    if intent.damage:
        return Outcome.INVALID, f"damaged {intent.damage}"
    if intent.referenced:
        return Outcome.STILL_IN_USE, f"the ledger list references the {intent.copy.value} copy"
    missing = find_missing_property(intent)
    if missing:
        return Outcome.INVALID, f"missing {missing}"
    odd = find_location_problem(intent.context) if intent.copy is CopyKind.OFFLOADED_LEDGER else None
    if odd:
        return Outcome.INVALID, f"offload context: {odd}"
    return None


def require_topic(intent: DeletionIntent, topic: str | None) -> None:
    """Refuse an intent of another topic than was named; None names any, and a row that ends as INVALID bears none.

    Raises:
        InvalidInput: It bears another name.
    """
    if find_refusal(intent) is None:
        require_named_topic(intent.ledger_id, intent.topic, topic)
