"""Everything that the catalog knows of one ledger, for people; nothing here is decided upon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.claims import Cause
from logstore.ports.catalog.records import Tombstone
from logstore.positions import LedgerId


class ReferenceKind(StrEnum):
    """What names a ledger, and so keeps it."""

    LIST = "LIST"  # component, keys, place, and whether it is the last
    CURSOR = "CURSOR"  # a subscription that has not acknowledged all of it, with its mark-delete
    CURSOR_SNAPSHOT = "CURSOR_SNAPSHOT"  # a subscription whose state it holds
    SCHEMA = "SCHEMA"  # the version of the topic's schema that it holds
    TXN_SNAPSHOT = "TXN_SNAPSHOT"  # its topic's transactions, of which it holds the buffer up to an entry
    DELAYED_INDEX = "DELAYED_INDEX"  # a bucket of its topic: from which entry to which, and how many messages
    OFFLOAD = "OFFLOAD"  # a tiered copy that is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One thing that names the ledger."""

    kind: ReferenceKind
    facts: Mapping[str, object]  # as JSON has them; by kind, as above


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCopy:
    """A copy that the catalog has, or had until it was detached."""

    state: str  # of the copy's row, or of its intent once it is detached
    intent: DeletionIntent  # what storage can be asked with; it is filed only if the copy is detached


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedIntent:
    """An intent with what only an operator asks for."""

    intent: DeletionIntent
    stalled: bool  # unfinished, and no workflow works on it
    objects_deleted: int
    bytes_deleted: int
    created_us: int
    finished_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A row of the audit log."""

    at_us: int
    act: str
    actor: str
    reason: str
    workflow_id: str
    topic: str | None  # encoded
    run_id: str | None  # the batch
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLedger:
    """The row of a ledger that was not detached."""

    state: LedgerState
    listed: bool
    entries: int
    size_bytes: int
    generation: int
    created_us: int
    closed_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHistory:
    """What is known. Of a ledger whose deletion was forgotten, only decisions may be left."""

    ledger_id: LedgerId
    live: LiveLedger | None
    references: Sequence[Reference]
    copies: Sequence[InspectedCopy]  # one of each kind and, offloaded, of each attempt: the newest generation
    intents: Sequence[InspectedIntent]  # newest first
    decisions: Sequence[AuditEntry]  # newest first
    tombstone: Tombstone | None = None


class Inspection(Protocol):
    """Reads for people."""

    def ledger(self, ledger_id: LedgerId, *, decisions: int) -> LedgerHistory:
        """What the catalog knows of the ledger at one moment, with at most `decisions` decisions.

        Raises:
            UnknownObject: No ledger of this id was ever created here.
        """

    def decisions(self, *, topic: str | None = None, ledger_id: LedgerId | None = None, limit: int) -> list[AuditEntry]:
        """The audit log, newest first: of a topic (encoded), or of what concerned one ledger.

        By name, so that a topic that was deleted is found, and every one that was ever called so.
        """


class AuditLog(Protocol):
    """Destructive acts, each with actor and reason. Those of the catalog itself are written with what they change."""

    def record(self, act: str, cause: Cause, *, detail: Mapping[str, object]) -> None:
        """Write down what is about to be done elsewhere, or what came of it: so no act is without a row.

        Idempotency: none, and none is needed. A repeated call leaves another row, which says the same.

        Args:
            act: What is done, in kebab-case.
            cause: Who and why.
            detail: What it is done to, as JSON has it.
        """
