"""Two-phase deletion: intents, outcomes, and the decision whether the copy of an intent may be deleted.

Source: PIP-186, which calls an intent PendingDeleteLedgerInfo.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from logstore.errors import CorruptData
from logstore.field_bounds import BatchId, CatalogNumber, CopyName, WorkerIdOrNothing
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement, require_named_topic
from logstore.offload.tiered_copy import CopyLocation, find_context_problem
from logstore.positions import LedgerId, TopicId
from logstore.subjects import HasBatch, HasOutcome, HasOutcomes, HasSubject, Subject

STUCK_AFTER_ATTEMPTS: Final = 5
"""If this number of consecutive attempts leaves the same number of keys, the intent becomes a dead letter.

Five attempts at intervals of 600 s take 40 minutes. That is longer than a restart or failover of a store, during which
single volumes refuse keys. An intent whose attempts make progress has ten attempts.
"""


class DeletionState(StrEnum):
    PENDING = "PENDING"
    DELETED = "DELETED"
    DEAD_LETTERED = "DEAD_LETTERED"


class Outcome(StrEnum):
    """Result of phase two for one intent. `RETRYING` is not final."""

    DELETED = "DELETED"
    ALREADY_GONE = "ALREADY_GONE"
    STILL_IN_USE = "STILL_IN_USE"  # the list references this copy
    INVALID = "INVALID"  # an essential property is missing
    METADATA_MISMATCH = "METADATA_MISMATCH"  # storage states another ledger owner
    STALE_CATALOG = "STALE_CATALOG"  # the request names another catalog epoch; nothing changed
    DEAD_LETTERED = "DEAD_LETTERED"  # attempts exhausted
    RETRYING = "RETRYING"  # a workflow of its own retries the row
    UNKNOWN = "UNKNOWN"  # no such intent

    @property
    def state(self) -> DeletionState:
        if self in _SUCCESSES:
            return DeletionState.DELETED
        return DeletionState.PENDING if self is Outcome.RETRYING else DeletionState.DEAD_LETTERED

    @property
    def is_success(self) -> bool:
        return self in _SUCCESSES


_SUCCESSES = frozenset({Outcome.DELETED, Outcome.ALREADY_GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionIntent:
    """Row of `pending_deletion`: one copy of one ledger, filed by one detach."""

    row_id: int
    batch_id: str
    ledger_id: LedgerId
    copy: CopyKind
    generation: int  # of the ledger at the detach
    openings: int = 0  # number of times that a late creator or writer reopened the ended intent
    durable: bool = False  # the ledger has a tombstone
    application: str
    component: str  # as stored; an unknown component makes the intent INVALID
    topic_id: TopicId
    topic: str
    keys: Mapping[str, str]
    context: Mapping[str, str] = field(default_factory=dict)  # offload context, unchanged
    segments: int = 0  # number of registered segments at the detach
    last_segment: int = -1  # highest segment number
    ledger_created_us: int = 0
    size_bytes: int = 0
    epoch: int = 0
    state: DeletionState = DeletionState.PENDING
    outcome: Outcome | None = None
    attempts: int = 0
    last_error: str | None = None
    keys_left_attempts: int = 0  # consecutive answered attempts that left the same number of keys
    handed_to: str | None = None  # `delete-ledger` that holds the claim; None: the batch works on the row
    actor: str = ""  # of the detach; empty: the creator gave the ledger up
    reason: str = ""
    damage: str | None = None  # unreadable column of the row; if set, nothing is deleted
    trace_id: str | None = None  # of the detach, or of the last attempt
    paused: bool = False  # the batch is paused; set only in listings
    referenced: bool = False  # a ledger list named this copy when the row was read

    @property
    def is_stuck(self) -> bool:
        return self.keys_left_attempts >= STUCK_AFTER_ATTEMPTS

    @property
    def owner(self) -> LedgerOwner:
        """Ledger owner. Use this property only if `find_missing_property` returned `None`."""
        return LedgerOwner(
            application=self.application,
            component=Component(self.component),
            topic_id=self.topic_id,
            topic=self.topic,
            keys=self.keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentKey:
    """Key of one intent. No other intent ever has this key."""

    ledger_id: CatalogNumber
    copy: CopyName
    generation: CatalogNumber
    openings: int = 0  # number of times that the ended intent was reopened

    @property
    def path(self) -> str:
        """Key of the workflow that deletes the copy. A new detach or a reopened intent gets another workflow."""
        openings = f"/{self.openings}" if self.openings else ""
        return f"{self.ledger_id}/{self.copy}/{self.generation}{openings}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteIntentResult(HasOutcome):
    outcome: Outcome
    objects: int = 0
    size_bytes: int = 0
    detail: str = ""
    stuck: bool = False  # storage kept the same number of keys at each of the last attempts; a person must look


class HasIntent(HasSubject):
    """Mix-in of requests about the copy of one intent."""

    __slots__ = ()
    key: IntentKey

    def subject(self) -> Subject:
        return replace(super().subject(), ledger_id=self.key.ledger_id, copy=self.key.copy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefusal:
    """Refusal of a request by a guard, before any change."""

    type: str  # `LedgerStillNeeded` or `UnknownObject`
    message: str
    details: list[Any] = field(default_factory=list)  # details of the activity's failure, including its trace id


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCertificate(HasBatch, HasOutcomes):
    """Batch certificate: counts of the batch's rows, and of the objects that storage confirmed as deleted."""

    batch_id: BatchId
    outcomes: dict[str, int]
    objects: int
    size_bytes: int
    owner: WorkerIdOrNothing = ""  # worker that owned the topic's bundle when the batch ended; empty: unknown
    refused: RequestRefusal | None = None  # if set, nothing was detached and there are no outcomes

    @property
    def deleted(self) -> int:
        """Number of copies of which nothing is left in storage."""
        return sum(count for name, count in self.outcomes.items() if name in _SUCCESSES)


_ESSENTIAL_KEYS = {
    Component.MANAGED_LEDGER: (),
    Component.MANAGED_CURSOR: ("cursor",),
    Component.SCHEMA_STORAGE: ("schema",),
    Component.DELAYED_INDEX: (),  # one list per topic
    Component.TXN_SNAPSHOT: (),  # one list per topic
}


def find_missing_property(intent: DeletionIntent) -> str | None:
    if intent.component not in _ESSENTIAL_KEYS:
        return f"component (found {intent.component!r})"
    if not intent.topic or not intent.application:
        return "topic" if not intent.topic else "application"
    for key in _ESSENTIAL_KEYS[Component(intent.component)]:
        if not intent.keys.get(key):
            return f"key {key!r} of {intent.component}"
    context_keys = ("uuid", "bucket") if intent.copy is CopyKind.OFFLOADED_LEDGER else ()
    return next((f"{key} of the offload context" for key in context_keys if not intent.context.get(key)), None)


def find_ownership_problem(intent: DeletionIntent, key: str, metadata: Mapping[str, str]) -> str | None:
    """Return why the object `key` does not belong to the intent's ledger, by its `metadata`, or `None` if it does."""
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
    ABSENT = "ABSENT"  # proved by independent reads
    OWN = "OWN"
    FOREIGN = "FOREIGN"  # a statement in storage contradicts the intent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopy:
    verdict: CopyVerdict
    data_keys: tuple[str, ...] = ()  # deleted first
    meta_keys: tuple[str, ...] = ()  # deleted last
    unseen_meta_keys: int = 0  # number of `meta_keys` that neither LIST nor HEAD shows
    size_bytes: int = 0
    objects: int = 0  # number of stored objects, of any ledger owner
    location: CopyLocation | None = None  # of a tiered copy
    uploads: tuple[str, ...] = ()  # keys with parts of an upload that died
    is_incomplete: bool = False  # fewer segments than registered; list again before the deletion of `meta_keys`
    detail: str = ""


def find_refusal(intent: DeletionIntent) -> tuple[Outcome, str] | None:
    """Return outcome and reason of the refusal if the intent's copy must not be deleted, otherwise `None`.

    A refusal is not retried. Source: PIP-186, second phase, steps 3 and 4.
    """
    if intent.damage:
        return Outcome.INVALID, f"damaged {intent.damage}"
    if intent.referenced:
        return Outcome.STILL_IN_USE, f"the ledger list references the {intent.copy.value} copy"
    if missing := find_missing_property(intent):
        return Outcome.INVALID, f"missing {missing}"
    if intent.copy is CopyKind.OFFLOADED_LEDGER and (problem := find_context_problem(intent.context)):
        return Outcome.INVALID, f"offload context: {problem}"
    return None


def require_topic(intent: DeletionIntent, topic: str | None) -> None:
    """Require that the intent belongs to `topic`. Check nothing if `topic` is `None` or `find_refusal` refuses it."""
    if find_refusal(intent) is None:
        require_named_topic(intent.ledger_id, intent.topic, topic)
