"""Inputs, results, names and ids of the offload workflows."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from logstore.field_bounds import (
    MAX_INTERVAL_S,
    UPLOAD_PARALLELISM,
    UPLOAD_TIMEOUT_S,
    Actor,
    CatalogNumber,
    EncodedTopicName,
    FromOutside,
    LastVisitedId,
    Reason,
    between,
    id_list,
)
from logstore.subjects import HasLedger, HasOutcome, HasOutcomes, HasTopic
from workflows.deletion.job_definitions import DeletionPolicy
from workflows.job_definition import JobDefinition
from workflows.task_queues import UploadsQueue

MAX_OFFLOAD_LEDGERS: Final = 4_000
"""Maximum number of ledgers in one request to offload. Waiting requests share 100 KB of one workflow payload."""

UploadTimeoutS = Annotated[int, between(1, MAX_INTERVAL_S), FromOutside(UPLOAD_TIMEOUT_S)]
OffloadedLedgerIds = Annotated[list[int], FromOutside(id_list(MAX_OFFLOAD_LEDGERS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLimits:
    """Limits of offload, from the settings of the starter."""

    timeout_s: UploadTimeoutS = 45 * 60  # timeout of one upload attempt
    attempts: Annotated[int, between(1, 1_000_000)] = 5  # upload attempts before the workflow fails
    parallelism: Annotated[int, UPLOAD_PARALLELISM] = 2  # ledgers of one topic at the same time
    queue: UploadsQueue = ""  # task queue of uploads, so that deletions keep their threads; empty: the queue of the
    # workflow


class OffloadOutcome(StrEnum):
    """Outcome of offloading one ledger."""

    OFFLOADED = "OFFLOADED"  # this run made the copy
    ALREADY = "ALREADY"  # an earlier run made the copy; its objects were proved again
    GONE = "GONE"  # the ledger was deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerInput(HasLedger, HasTopic):
    """Input of `offload-ledger`."""

    ledger_id: CatalogNumber
    topic: EncodedTopicName  # encoded name that the ledger's topic must have
    policy: OffloadLimits = field(default_factory=OffloadLimits)

    def details(self) -> str:
        return (
            f"Copies ledger {self.ledger_id} to the tiered bucket, and `sexton ledger explain {self.ledger_id}` "
            "shows its copies."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerResult(HasOutcome):
    """Outcome of offloading one ledger, and the copy that storage has proved."""

    outcome: OffloadOutcome
    uuid: str = ""
    entries: int = 0
    size_bytes: int = 0  # size of the data object
    sha256: str = ""  # SHA-256 of the data object


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLedgerProgress:
    """Progress of offloading one ledger."""

    step: str  # uploading, publishing, ended
    turn: int = 1  # number of the attempt, from 1
    size_bytes: int = 0  # size of the proved copy


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadAsk:
    """Request to offload ledgers of the topic, and with `delete_primary` to remove the ledgers' primary copies."""

    actor: Actor
    reason: Reason
    ledger_ids: OffloadedLedgerIds | None = None  # 1 to 4,000; None: every closed ledger
    delete_primary: bool = False  # remove the primary copies afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTopicResult(HasOutcomes):
    """Numbers of ledgers by result, for all requests."""

    offloaded: int = 0
    already: int = 0  # offloaded by another run in the meantime
    gone: int = 0  # deleted in the meantime
    running: int = 0  # another workflow still offloads the ledger
    failed: int = 0
    size_bytes: int = 0  # size of the uploaded data objects
    errors: dict[int, str] = field(default_factory=dict)  # reason by failed ledger, at most 20
    removed: int = 0  # ledgers whose primary copy was detached
    outcomes: dict[str, int] = field(default_factory=dict)  # deletions of primary copies, by outcome
    unproved: int = 0  # ledgers that keep their primary copy, because storage did not prove their tiered copy
    doubts: dict[int, str] = field(default_factory=dict)  # reason by unproved ledger, at most 20
    refused: int = 0  # requests that were not completed
    refusals: list[str] = field(default_factory=list)  # reasons, at most 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTopicInput(HasTopic):
    """Input of `offload-topic`. Further requests arrive by the signal `ask`."""

    topic_id: CatalogNumber
    topic: EncodedTopicName  # encoded; for filters and people
    policy: OffloadLimits = field(default_factory=OffloadLimits)
    deletion: DeletionPolicy = field(default_factory=DeletionPolicy)
    asks: list[OffloadAsk] = field(default_factory=list)  # unfinished requests, in order
    after: LastVisitedId = -1  # the first request in `asks` is done for all ledgers up to this id
    removed_after: LastVisitedId = -1  # the first request has removed primary copies of all ledgers up to this id
    carried: OffloadTopicResult = field(default_factory=OffloadTopicResult)

    def details(self) -> str:
        return (
            f"Copies closed ledgers of `{self.topic}` to the tiered bucket, and `sexton ledger list {self.topic}` "
            "shows which copies each has."
        )


_ADVICE_AFTER_STOP: Final = "what was copied stays copied; ask for the rest again"

OFFLOAD_TOPIC: Final = JobDefinition(
    "offload-topic",
    OffloadTopicInput,
    OffloadTopicResult,
    summary=lambda request: f"offload {request.topic}",
    keys=("{topic_id}",),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("offload.candidates", "offload.remove_primaries"),
    handled_errors=("PreconditionFailed", "UnknownObject"),
)
OFFLOAD_LEDGER: Final = JobDefinition(
    "offload-ledger",
    OffloadLedgerInput,
    OffloadLedgerResult,
    summary=lambda request: f"ledger {request.ledger_id} of {request.topic}",
    keys=("{ledger_id}",),
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("offload.upload", "offload.publish"),
    failures=("CorruptData", "MissingData", "OffloadOvertaken", "PreconditionFailed"),
)
