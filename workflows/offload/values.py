"""Inputs, results, names and ids of the offload workflows."""

from dataclasses import dataclass, field
from enum import StrEnum

from workflows.deletion.values import DeletionPolicy
from workflows.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicy:
    """Limits of offload, from the settings of the starter."""

    timeout_s: int = 45 * 60  # of one attempt
    attempts: int = 5  # of one upload, before the workflow fails
    parallelism: int = 2  # ledgers of one topic at once
    queue: str = ""  # where uploads run, so that they take no thread from deletions; empty: where the workflow does


class OffloadOutcome(StrEnum):
    """Outcome of offloading one ledger."""

    OFFLOADED = "OFFLOADED"  # by this run
    ALREADY = "ALREADY"  # by an earlier one; its objects were looked at again
    GONE = "GONE"  # the ledger was deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerInput:
    """Input of `offload-ledger`."""

    ledger_id: int
    topic: str  # encoded; the ledger's topic must bear it
    policy: OffloadPolicy = field(default_factory=OffloadPolicy)

    def details(self) -> str:
        """Return the *static details*: what the job does, and the command that shows its progress."""
        return (
            f"Copies ledger {self.ledger_id} to the tiered bucket, and `sexton ledger explain {self.ledger_id}` "
            "shows its copies."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerResult:
    """Outcome, and the proven content of storage."""

    outcome: OffloadOutcome
    uuid: str = ""
    entries: int = 0
    size_bytes: int = 0  # of the data object
    sha256: str = ""  # of the data object


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerProgress:
    """Progress of offloading one ledger."""

    step: str  # uploading, publishing, ended
    turn: int = 1
    size_bytes: int = 0  # proved


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadAsk:
    """Request: ledgers of the topic, and whether their primary copies are removed."""

    actor: str
    reason: str
    ledger_ids: list[int] | None = None  # 1 to 4,000; None: every closed ledger
    delete_primary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTopicResult:
    """Result of all asks, in numbers of ledgers."""

    offloaded: int = 0
    already: int = 0  # by another run, meanwhile
    gone: int = 0  # deleted meanwhile
    running: int = 0  # another workflow was at work on it, and still is
    failed: int = 0
    size_bytes: int = 0  # of data objects uploaded
    errors: dict[int, str] = field(default_factory=dict)  # by ledger, at most 20
    removed: int = 0  # primary copies taken out of the catalog
    outcomes: dict[str, int] = field(default_factory=dict)  # of their deletion
    unproved: int = 0  # primary copies kept: storage did not show the tiered one
    doubts: dict[int, str] = field(default_factory=dict)  # why, by ledger, at most 20
    refused: int = 0  # asks that were not done, or not to their end
    refusals: list[str] = field(default_factory=list)  # why, at most 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTopicInput:
    """Input of `offload-topic`. Asks are in it or come by the signal `ask`."""

    topic_id: int
    topic: str  # encoded; for filters and people
    policy: OffloadPolicy = field(default_factory=OffloadPolicy)
    deletion: DeletionPolicy = field(default_factory=DeletionPolicy)
    asks: list[OffloadAsk] = field(default_factory=list)
    after: int = -1  # every ledger up to this id was visited for the first of the asks
    removed_after: int = -1  # as `after`, for the removal of primary copies
    carried: OffloadTopicResult = field(default_factory=OffloadTopicResult)

    def details(self) -> str:
        """Return the *static details*: what the job does, and the command that shows its progress."""
        return (
            f"Copies closed ledgers of `{self.topic}` to the tiered bucket, and `sexton ledger list {self.topic}` "
            "shows which copies each has."
        )


OFFLOAD_TOPIC = Job("offload-topic", OffloadTopicInput, OffloadTopicResult, keys=("{topic_id}",))
OFFLOAD_LEDGER = Job("offload-ledger", OffloadLedgerInput, OffloadLedgerResult, keys=("{ledger_id}",))
