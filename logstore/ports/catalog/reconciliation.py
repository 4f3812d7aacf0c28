"""Values of the catalog: reconciliation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from logstore.deletion.intents import Outcome
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import RemovalPart


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledLedger:
    """Znode of a ledger, as it was right before its deletion."""

    ledger_id: int
    path: str  # below the root of the cluster's ledgers
    version: int
    czxid: int  # transaction that created the znode
    data: bytes
    deleted_us: int | None = None  # None: its deletion is not confirmed
    restoration: str | None = None  # result of the last undo, a `Restoration`; None: there was none
    stored_data: str | None = None  # what the last undo saw on bookies, a `StoredData`


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRemoval:
    """Finding that an apply removes for good, as it was right before. No undo puts it back."""

    number: int  # of the finding
    kind: str  # `FindingKind`
    path: str  # of a managed ledger, or key of an offload
    bucket: str  # "" for a managed ledger
    parts: list[RemovalPart]
    removed_us: int | None = None  # None: its removal is not confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTimeAndIds:
    now_us: int
    epoch: int
    next_ledger_id: int  # higher than every ledger id of this catalog


class RunKind(StrEnum):
    """Kind of a reconciliation run. The catalog stores the value."""

    PLAN = "reconcile-orphans"
    APPLY = "apply-orphans"
    SNAPSHOTS = "build-transaction-snapshots"
    INDEXES = "build-delayed-index"
    SCRUB = "scrub-ledgers"
    CLUSTER_PLAN = "plan-pulsar"
    ABORT = "abort-transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationRun:
    run_id: str
    kind: RunKind
    created_us: int
    finished_us: int | None  # None: unfinished, or failed
    summary: Mapping[str, Any]  # arguments of the run, and the result of a finished run


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCopy:
    """Copy in storage that no row of the catalog names."""

    number: int  # number of the finding
    copy: CopyKind
    statement: LedgerStatement  # statement in storage, read right before the call
    context: Mapping[str, str] = field(default_factory=dict)  # offload context of a tiered copy
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsToFile:
    batch_id: str
    orphans: Sequence[OrphanCopy]
    unreferenced: Mapping[int, LedgerId]  # ledger by number of the finding
    stalled: Mapping[int, int]  # row id of the intent, by number of the finding


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsFilingRequest(FindingsToFile):
    run_id: str  # run of the apply
    page: int
    kept: Mapping[int, str]  # reasons of storage to keep other copies of the page, by number of the finding
    claim: Claim  # claim on the batch, of the workflow that does phase two
    cause: AuditCause  # actor, reason and workflow of the apply


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleObjectAnswers:
    """Answers of storage about the single objects of a page, by number of the finding."""

    segments: Mapping[int, tuple[LedgerId, int]]  # orphaned segments: ledger and number
    uploads: frozenset[int]  # unfinished uploads that may be aborted
    kept: Mapping[int, str]  # reasons to keep all other single objects


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledCopyRow:
    row_id: int
    ledger_id: LedgerId
    copy: CopyKind
    uuid: str  # uuid of the tiered copy
    outcome: Outcome | None  # None: unfinished
    error: str | None
    objects: int  # number of objects whose deletion storage confirmed
    size_bytes: int
