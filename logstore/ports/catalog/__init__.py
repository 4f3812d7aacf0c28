"""Ports of the catalog. Every method is one transaction, decided under its own locks.

A method that writes may be called again after a crash or an unknown outcome. Its docstring says why a repetition is
harmless. Every method may raise `CatalogBusy` (contention) and `StoreUnavailable` (no connection).
"""

from typing import Protocol

from logstore.ports.bundle_owners import Fence, Fences
from logstore.ports.catalog.catalog_identity import Identities
from logstore.ports.catalog.catalog_rebuild import (
    Adoption,
    AdoptionOutcome,
    AdoptionReport,
    LoadedLedger,
    MissingRowCause,
    StagedLedger,
)
from logstore.ports.catalog.claims_and_batches import (
    Cause,
    Claim,
    DetachedBatch,
    FiledCount,
    Inflight,
    IntentResult,
    RowRange,
    Tally,
)
from logstore.ports.catalog.delayed_index import BucketSwitch, DelayedCounts, DelayedIndex, NewBucket, UnsealedCounts
from logstore.ports.catalog.group_commits import (
    Acknowledge,
    AcknowledgeResult,
    BeginTransaction,
    BeginTransactionResult,
    Commits,
    EndTransaction,
    EndTransactionResult,
    LedgerEnd,
    ProducerAdvance,
    RegisterSegment,
    RegisterSegmentResult,
    TransactionEntries,
    Write,
    WriteResult,
)
from logstore.ports.catalog.inspection_and_audit import (
    AuditEntry,
    AuditLog,
    InspectedCopy,
    InspectedIntent,
    Inspection,
    LedgerHistory,
    LiveLedger,
    Reference,
    ReferenceKind,
)
from logstore.ports.catalog.ledgers_and_segments import Components, Ledger, Ledgers, Segment, TopicTotals
from logstore.ports.catalog.phase_one import DetachChosenResult, PhaseOne, TopicContents
from logstore.ports.catalog.phase_two_queue import Deletions, ForgottenCounts, SweepBacklog, Upkeep
from logstore.ports.catalog.reconciliation_runs import (
    CatalogState,
    FiledCopy,
    FilingResult,
    FindingsToFile,
    OrphanCopy,
    PageOfFindings,
    Reconciliation,
    ReconciliationRun,
    RunKind,
)
from logstore.ports.catalog.record_log import (
    Changes,
    KnownManifest,
    RecordId,
    RecordLogState,
    Records,
    Tombstone,
    TombstoneCounts,
    Tombstones,
    UnrecordableRecord,
)
from logstore.ports.catalog.subscription_cursors import Cursors, SnapshotChange, StoredCursor
from logstore.ports.catalog.tiered_copies import OffloadAnswer, Offloads, OffloadStart, PublishedCopy, ReadableCopies
from logstore.ports.catalog.topics_and_schemas import (
    Schemas,
    SchemaVersion,
    SubscriptionSummary,
    Topic,
    Topics,
    TopicState,
    TopicSummary,
    TopicSummaryPage,
)
from logstore.ports.catalog.transactions import (
    SNAPSHOT_AFTER_S,
    SNAPSHOT_CHANGES,
    CoordinatorWork,
    FinishedTransaction,
    Frontier,
    Settlement,
    SnapshotSwitch,
    StoredParticipant,
    StoredSnapshot,
    StoredTransaction,
    TransactionCounts,
    Transactions,
    TransactionSnapshots,
)

__all__ = [
    "SNAPSHOT_AFTER_S",
    "SNAPSHOT_CHANGES",
    "Acknowledge",
    "AcknowledgeResult",
    "Adoption",
    "AdoptionOutcome",
    "AdoptionReport",
    "AuditEntry",
    "AuditLog",
    "BeginTransaction",
    "BeginTransactionResult",
    "BucketSwitch",
    "Catalog",
    "CatalogState",
    "Cause",
    "Changes",
    "Claim",
    "Commits",
    "Components",
    "CoordinatorWork",
    "Cursors",
    "DelayedCounts",
    "DelayedIndex",
    "Deletions",
    "DetachChosenResult",
    "DetachedBatch",
    "EndTransaction",
    "EndTransactionResult",
    "Fence",
    "Fences",
    "FiledCopy",
    "FiledCount",
    "FilingResult",
    "FindingsToFile",
    "FinishedTransaction",
    "ForgottenCounts",
    "Frontier",
    "Identities",
    "Inflight",
    "InspectedCopy",
    "InspectedIntent",
    "Inspection",
    "IntentResult",
    "KnownManifest",
    "Ledger",
    "LedgerEnd",
    "LedgerHistory",
    "Ledgers",
    "LiveLedger",
    "LoadedLedger",
    "MissingRowCause",
    "NewBucket",
    "OffloadAnswer",
    "OffloadStart",
    "Offloads",
    "OrphanCopy",
    "PageOfFindings",
    "PhaseOne",
    "ProducerAdvance",
    "PublishedCopy",
    "ReadableCopies",
    "Reconciliation",
    "ReconciliationRun",
    "RecordId",
    "RecordLogState",
    "Records",
    "Reference",
    "ReferenceKind",
    "RegisterSegment",
    "RegisterSegmentResult",
    "RowRange",
    "RunKind",
    "SchemaVersion",
    "Schemas",
    "Segment",
    "Settlement",
    "SnapshotChange",
    "SnapshotSwitch",
    "StagedLedger",
    "StoredCursor",
    "StoredParticipant",
    "StoredSnapshot",
    "StoredTransaction",
    "SubscriptionSummary",
    "SweepBacklog",
    "Tally",
    "Tombstone",
    "TombstoneCounts",
    "Tombstones",
    "Topic",
    "TopicContents",
    "TopicState",
    "TopicSummary",
    "TopicSummaryPage",
    "TopicTotals",
    "Topics",
    "TransactionCounts",
    "TransactionEntries",
    "TransactionSnapshots",
    "Transactions",
    "UnrecordableRecord",
    "UnsealedCounts",
    "Upkeep",
    "Write",
    "WriteResult",
]


class Catalog(Protocol):
    """All ports of the catalog. A consumer takes the ports that it needs."""

    @property
    def topics(self) -> Topics: ...
    @property
    def ledgers(self) -> Ledgers: ...
    @property
    def components(self) -> Components: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def schemas(self) -> Schemas: ...
    @property
    def commits(self) -> Commits: ...
    @property
    def phase_one(self) -> PhaseOne: ...
    @property
    def deletions(self) -> Deletions: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def fences(self) -> Fences: ...
    @property
    def offloads(self) -> Offloads: ...
    @property
    def audit_log(self) -> AuditLog: ...
    @property
    def identities(self) -> Identities: ...
    @property
    def inspection(self) -> Inspection: ...
    @property
    def reconciliation(self) -> Reconciliation: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def transaction_snapshots(self) -> TransactionSnapshots: ...
    @property
    def delayed(self) -> DelayedIndex: ...
    @property
    def records(self) -> Records: ...
    @property
    def tombstones(self) -> Tombstones: ...
