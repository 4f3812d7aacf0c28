"""Ports of the catalog. Most methods are one transaction, which locks the rows on which its result depends.

A method that writes may be called again after a crash or an unknown outcome. Its docstring says why a repetition is
harmless. Every method may raise `CatalogBusy` (contention) and `StoreUnavailable` (no connection).
"""

from typing import Protocol

from logstore.ports.bundle_owners import Fence, Fences
from logstore.ports.catalog.catalog_identity import CatalogIdentity
from logstore.ports.catalog.catalog_rebuild import (
    AdoptionCounts,
    AdoptionOutcome,
    CatalogAdoption,
    LedgerDiscrepancy,
    LoadedLedger,
    MissingRowCause,
)
from logstore.ports.catalog.claims_and_deletion_results import (
    AuditCause,
    Claim,
    DetachedBatch,
    FiledIntentCount,
    IntentResult,
    IntentRowRange,
    IntentTally,
    UndeletedCopyCounts,
)
from logstore.ports.catalog.cluster_journal import (
    ClusterJournal,
    JournaledLedger,
    JournaledRemoval,
    iterate_journal,
    iterate_removals,
)
from logstore.ports.catalog.delayed_index import (
    CatalogDelayedMessageCounts,
    DelayedIndex,
    IndexBucketSwitch,
    NewIndexBucket,
    UnsealedEntryCounts,
)
from logstore.ports.catalog.group_commits import (
    AcknowledgeResult,
    AcknowledgeWrite,
    BeginTransactionResult,
    BeginTransactionWrite,
    EndTransactionResult,
    EndTransactionWrite,
    GroupCommitResult,
    GroupCommits,
    GroupCommitWrite,
    LedgerAppendState,
    ProducerSequenceRange,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    TransactionEntryRange,
)
from logstore.ports.catalog.inspection_and_audit import (
    AuditEntry,
    AuditLogWriter,
    InspectedCopy,
    InspectedIntent,
    InspectedLedger,
    LedgerHistory,
    LedgerInspection,
    LedgerReference,
    LedgerReferenceKind,
)
from logstore.ports.catalog.ledgers_and_segments import (
    Ledger,
    LedgersOfAllComponents,
    MessageLedgers,
    Segment,
    TopicLedgerTotals,
)
from logstore.ports.catalog.phase_one import DetachChosenResult, PhaseOne, TopicContentCounts
from logstore.ports.catalog.phase_two_queue import (
    PhaseTwoQueue,
    PhaseTwoQueueUpkeep,
    RemovedRowCounts,
    SweepBacklogCounts,
)
from logstore.ports.catalog.reconciliation_runs import (
    CatalogTimeAndIds,
    FiledCopyRow,
    FindingsFilingRequest,
    FindingsFilingResult,
    FindingsToFile,
    OrphanCopy,
    ReconciliationRun,
    ReconciliationRuns,
    RunKind,
)
from logstore.ports.catalog.record_log import (
    KnownManifest,
    OutboxChanges,
    RecordLogState,
    RecordOutbox,
    Tombstone,
    TombstoneCounts,
    TombstonedRecordId,
    Tombstones,
    UnrecordableRecord,
)
from logstore.ports.catalog.subscription_cursors import Cursors, CursorSnapshotCondition, StoredCursor
from logstore.ports.catalog.tiered_copies import (
    Offloads,
    OffloadStart,
    OffloadStartOutcome,
    PublishedTieredCopy,
    ReadableCopies,
)
from logstore.ports.catalog.topics_and_schemas import (
    SchemaVersion,
    SchemaVersions,
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
    BufferSnapshotReplacement,
    CoordinatorWorkStatus,
    FinishedTransaction,
    Frontier,
    SettlementReason,
    StoredBufferSnapshot,
    StoredParticipant,
    StoredTransaction,
    TransactionBufferSnapshots,
    Transactions,
    UnfinishedTransactionCounts,
)

__all__ = [
    "SNAPSHOT_AFTER_S",
    "SNAPSHOT_CHANGES",
    "AcknowledgeResult",
    "AcknowledgeWrite",
    "AdoptionCounts",
    "AdoptionOutcome",
    "AuditCause",
    "AuditEntry",
    "AuditLogWriter",
    "BeginTransactionResult",
    "BeginTransactionWrite",
    "BufferSnapshotReplacement",
    "Catalog",
    "CatalogAdoption",
    "CatalogDelayedMessageCounts",
    "CatalogIdentity",
    "CatalogTimeAndIds",
    "Claim",
    "ClusterJournal",
    "CoordinatorWorkStatus",
    "CursorSnapshotCondition",
    "Cursors",
    "DelayedIndex",
    "DetachChosenResult",
    "DetachedBatch",
    "EndTransactionResult",
    "EndTransactionWrite",
    "Fence",
    "Fences",
    "FiledCopyRow",
    "FiledIntentCount",
    "FindingsFilingRequest",
    "FindingsFilingResult",
    "FindingsToFile",
    "FinishedTransaction",
    "Frontier",
    "GroupCommitResult",
    "GroupCommitWrite",
    "GroupCommits",
    "IndexBucketSwitch",
    "InspectedCopy",
    "InspectedIntent",
    "InspectedLedger",
    "IntentResult",
    "IntentRowRange",
    "IntentTally",
    "JournaledLedger",
    "JournaledRemoval",
    "KnownManifest",
    "Ledger",
    "LedgerAppendState",
    "LedgerDiscrepancy",
    "LedgerHistory",
    "LedgerInspection",
    "LedgerReference",
    "LedgerReferenceKind",
    "LedgersOfAllComponents",
    "LoadedLedger",
    "MessageLedgers",
    "MissingRowCause",
    "NewIndexBucket",
    "OffloadStart",
    "OffloadStartOutcome",
    "Offloads",
    "OrphanCopy",
    "OutboxChanges",
    "PhaseOne",
    "PhaseTwoQueue",
    "PhaseTwoQueueUpkeep",
    "ProducerSequenceRange",
    "PublishedTieredCopy",
    "ReadableCopies",
    "ReconciliationRun",
    "ReconciliationRuns",
    "RecordLogState",
    "RecordOutbox",
    "RegisterSegmentResult",
    "RegisterSegmentWrite",
    "RemovedRowCounts",
    "RunKind",
    "SchemaVersion",
    "SchemaVersions",
    "Segment",
    "SettlementReason",
    "StoredBufferSnapshot",
    "StoredCursor",
    "StoredParticipant",
    "StoredTransaction",
    "SubscriptionSummary",
    "SweepBacklogCounts",
    "Tombstone",
    "TombstoneCounts",
    "TombstonedRecordId",
    "Tombstones",
    "Topic",
    "TopicContentCounts",
    "TopicLedgerTotals",
    "TopicState",
    "TopicSummary",
    "TopicSummaryPage",
    "Topics",
    "TransactionBufferSnapshots",
    "TransactionEntryRange",
    "Transactions",
    "UndeletedCopyCounts",
    "UnfinishedTransactionCounts",
    "UnrecordableRecord",
    "UnsealedEntryCounts",
    "iterate_journal",
    "iterate_removals",
]


class Catalog(Protocol):
    """All ports of the catalog. Each service gets only the ports that it needs."""

    @property
    def topics(self) -> Topics: ...
    @property
    def ledgers(self) -> MessageLedgers: ...
    @property
    def components(self) -> LedgersOfAllComponents: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def schemas(self) -> SchemaVersions: ...
    @property
    def commits(self) -> GroupCommits: ...
    @property
    def phase_one(self) -> PhaseOne: ...
    @property
    def deletions(self) -> PhaseTwoQueue: ...
    @property
    def upkeep(self) -> PhaseTwoQueueUpkeep: ...
    @property
    def fences(self) -> Fences: ...
    @property
    def offloads(self) -> Offloads: ...
    @property
    def audit_log(self) -> AuditLogWriter: ...
    @property
    def identities(self) -> CatalogIdentity: ...
    @property
    def inspection(self) -> LedgerInspection: ...
    @property
    def reconciliation(self) -> ReconciliationRuns: ...
    @property
    def cluster_journal(self) -> ClusterJournal: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def transaction_snapshots(self) -> TransactionBufferSnapshots: ...
    @property
    def delayed(self) -> DelayedIndex: ...
    @property
    def records(self) -> RecordOutbox: ...
    @property
    def tombstones(self) -> Tombstones: ...
