"""Values of the catalog: inspection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.records import Tombstone
from logstore.positions import LedgerId


class LedgerReferenceKind(StrEnum):
    LIST = "LIST"  # component, keys, place, and whether the ledger is the last of its list
    CURSOR = "CURSOR"  # a subscription that has not acknowledged all of the ledger, with its mark-delete position
    CURSOR_SNAPSHOT = "CURSOR_SNAPSHOT"  # a subscription whose state the ledger holds
    SCHEMA = "SCHEMA"  # the schema version that the ledger holds
    TXN_SNAPSHOT = "TXN_SNAPSHOT"  # the topic whose transaction buffer the ledger holds, and the buffer's last entry
    DELAYED_INDEX = "DELAYED_INDEX"  # an index bucket of the topic: first and last entry, and number of messages
    OFFLOAD = "OFFLOAD"  # a tiered copy that is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReference:
    kind: LedgerReferenceKind
    facts: Mapping[str, object]  # JSON values; their names depend on `kind`


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCopy:
    """Copy that the catalog has, or detached copy that an intent describes."""

    state: str  # state of the copy's row; for a detached copy, state of the intent
    intent: DeletionIntent  # parameters of a request to storage; the intent is filed only if the copy is detached


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedIntent:
    intent: DeletionIntent
    stalled: bool  # unfinished, and no workflow works on it
    objects_deleted: int
    bytes_deleted: int
    created_us: int
    finished_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    at_us: int
    act: str
    actor: str
    reason: str
    workflow_id: str
    topic: str | None  # encoded
    run_id: str | None  # id of the batch
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedLedger:
    state: LedgerState
    listed: bool
    entries: int
    size_bytes: int
    generation: int
    created_us: int
    closed_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHistory:
    """All rows of the catalog about a ledger. Some time after a deletion, only `decisions` are left."""

    ledger_id: LedgerId
    live: InspectedLedger | None
    references: Sequence[LedgerReference]
    copies: Sequence[InspectedCopy]  # newest generation: one of each kind, and for tiered copies one of each attempt
    intents: Sequence[InspectedIntent]  # newest first
    decisions: Sequence[AuditEntry]  # newest first
    tombstone: Tombstone | None = None
