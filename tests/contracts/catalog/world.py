"""What the suite runs on: a catalog, and what a test may do to it that no port allows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from logstore.catalog.audit_log import AuditLogWriter
from logstore.catalog.cursors.cursors import Cursors
from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.catalog.deletion.phase_one import PhaseOne
from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.catalog.deletion.queue_upkeep import PhaseTwoQueueUpkeep
from logstore.catalog.log.component_ledgers import LedgersOfAllComponents, SchemaVersions
from logstore.catalog.log.group_commit import GroupCommits
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.log.topics import Topics
from logstore.catalog.offload.tiered_copies import Offloads
from logstore.catalog.ownership.fences import Fences
from logstore.catalog.reconciliation.cluster_journal import ClusterJournal
from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ownership import Lease
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.identity import CatalogIdentity
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId

CAUSE = AuditCause(actor="tests", reason="a test", workflow_id="w")


def claim(workflow_id: str = "w", *, ttl_s: float = 60.0) -> Claim:
    """A claim, live by default; a negative time is a claim that ended."""
    return Claim(workflow_id=workflow_id, run_id=f"{workflow_id}-run", ttl_s=ttl_s)


class Parts(Protocol):
    """The parts of a catalog that every implementation has."""

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
    def upkeep(self) -> PhaseTwoQueueUpkeep: ...
    @property
    def deletions(self) -> PhaseTwoQueue: ...
    @property
    def offloads(self) -> Offloads: ...
    @property
    def fences(self) -> Fences: ...
    @property
    def transactions(self) -> Any: ...
    @property
    def delayed(self) -> DelayedIndex: ...
    @property
    def identities(self) -> CatalogIdentity: ...
    @property
    def audit_log(self) -> AuditLogWriter: ...
    @property
    def reconciliation(self) -> ReconciliationRuns: ...
    @property
    def cluster_journal(self) -> ClusterJournal: ...


class Rows(NamedTuple):
    """What a catalog holds that no port shows whole; each ascending."""

    ledgers: list[LedgerId]
    copies: list[LedgerId]  # one for each copy
    segments: list[LedgerId]  # one for each segment
    versions: list[int]  # of ledger lists, by the order in which they were made
    runs: list[str]


class Audited(NamedTuple):
    """A row of the audit log."""

    act: str
    actor: str
    reason: str
    workflow_id: str
    detail: Mapping[str, Any]


class World(ABC):
    """A catalog and the hand of fate."""

    def __init__(self) -> None:
        """Begin before the first batch."""
        self.batches = 0

    @property
    @abstractmethod
    def catalog(self) -> Parts:
        """What is tested."""

    @abstractmethod
    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """Let the topic be deleted, or not."""

    @abstractmethod
    def intents(self) -> list[LedgerId]:
        """Ledgers that an intent was filed for, ascending, one for each copy."""

    @abstractmethod
    def rows(self) -> Rows:
        """What the catalog holds."""

    @abstractmethod
    def audited(self, act: str) -> list[Audited]:
        """What was destroyed in that way, in order."""

    @abstractmethod
    def start_ids_at(self, ledger_id: LedgerId) -> None:
        """Let the next ledger have that id."""

    @abstractmethod
    def age(self, ledger_id: LedgerId, *, seconds: int) -> None:
        """Let the ledger have been created, and closed if it is, so much earlier."""

    @abstractmethod
    def close_ledger(self, ledger_id: LedgerId) -> None:
        """Close an open ledger that nothing follows."""

    @abstractmethod
    def add_copy(self, ledger_id: LedgerId, state: CopyState, **context: str) -> None:
        """Give the ledger a tiered copy."""

    @abstractmethod
    def remove_copy(self, ledger_id: LedgerId, kind: CopyKind) -> None:
        """Forget one copy."""

    @abstractmethod
    def let_upload_end(self, ledger_id: LedgerId) -> None:
        """Let so much time pass that nothing of any upload of the ledger can land any more."""

    @abstractmethod
    def say_upload_ends(self, ledger_id: LedgerId, until: str) -> None:
        """Let the context of the ledger's tiered copy name this as its end, whatever it means."""

    @abstractmethod
    def swell(self, row_id: int, *, segments: int) -> None:
        """Let the intent be of a ledger with so many segments."""

    @abstractmethod
    def forge(self, row_id: int, ledger_id: LedgerId, copy: CopyKind, *, generation: int = 1, **context: str) -> None:
        """Let an intent speak of a copy that it was not filed for, as no detach would."""

    @abstractmethod
    def forget_intents(self) -> None:
        """Remove every intent."""

    @abstractmethod
    def left_of(self, topic_id: TopicId) -> dict[str, int]:
        """Rows that name the topic, by table; intents, runs, tombstones and the audit log are left out."""

    @abstractmethod
    def everything(self) -> object:
        """All that a call which does nothing must leave alone; equal as long as it did."""

    @abstractmethod
    def lapse(self, batch_id: str) -> None:
        """Let the batch's claim have ended long ago."""

    @abstractmethod
    def end_earlier(self, *, days: int) -> None:
        """Let whatever ended have ended so much earlier."""

    @abstractmethod
    def exhaust(self, row_id: int) -> None:
        """Let ten attempts of the intent have failed."""

    @abstractmethod
    def unlist(self, ledger_id: LedgerId) -> None:
        """Take the ledger out of its list, and leave its row, as no build of ours does."""

    @abstractmethod
    def remove_topic(self, topic_id: TopicId) -> None:
        """Remove the topic's own row."""

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """Phase one by force."""
        self.phase_one(topic_id, list(ledger_ids), force=True)

    def phase_one(
        self,
        topic_id: TopicId,
        ledger_ids: list[LedgerId] | None = None,
        *,
        force: bool = False,
        batch_id: str = "",
        ttl_s: float = 60.0,
        by: str = "w",
        lease: Lease | None = None,
    ) -> DetachedBatch:
        """Detach, under a batch id of its own unless one is given."""
        self.batches += 1
        return self.catalog.phase_one.with_lease(lease).detach_ledgers(
            topic_id,
            ledger_ids,
            force=force,
            batch_id=batch_id or f"batch-{self.batches}",
            claim=claim(by, ttl_s=ttl_s),
            cause=CAUSE,
        )
