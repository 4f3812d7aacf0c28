"""Inputs, results and job definitions of the deletion workflows."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final

from logstore.deletion.intents import BatchCertificate, DeleteIntentResult, HasIntent, IntentKey, Outcome
from logstore.field_bounds import (
    DELETION_ATTEMPTS,
    DELETION_PARALLELISM,
    INTERVAL_S,
    MAX_INTERVAL_S,
    MAX_LEDGER_IDS,
    POSITIVE,
    RETRY_INTERVAL_S,
    ROWS_PER_CHUNK,
    Actor,
    BatchId,
    BatchIdOrNothing,
    CatalogNumber,
    Durability,
    EncodedTopicName,
    EncodedTopicNameOrNothing,
    FromOutside,
    LastVisitedId,
    PageSize,
    PauseS,
    Reason,
    WorkerIdOrNothing,
    between,
    bound_from_check,
    bound_where,
    id_list,
)
from logstore.log.ledgers import CopyKind
from logstore.subjects import HasBatch, HasOutcomes, HasSubject, HasTopic, Subject
from logstore.validated_names import check_producer_or_actor_name
from workflows.job_definition import JobDefinition, JobSchedule

MAX_OBJECTS_PER_S = 1_000_000
"""Highest rate of a batch, inclusive. No store is nearly as fast, so a higher number is a typing error."""

_MAX_PASSED_SUBSCRIPTIONS: Final = 100  # by one operation
_SUBSCRIPTION_NAME: Final = bound_from_check(partial(check_producer_or_actor_name, "name"))

ObjectsPerS = Annotated[int, FromOutside(between(0, MAX_OBJECTS_PER_S))]
OwnerPatienceS = Annotated[int, between(1, MAX_INTERVAL_S)]
CopyNames = Annotated[
    list[str],
    FromOutside(
        bound_where(
            f"out of {', '.join(CopyKind)}, each once",
            lambda names: len(names) == len(set(names)) and set(names) <= set(CopyKind),
        )
    ),
]
SubscriptionNames = Annotated[
    list[str],
    FromOutside(
        bound_where(
            f"at most {_MAX_PASSED_SUBSCRIPTIONS} names of subscriptions",
            lambda names: (
                len(names) <= _MAX_PASSED_SUBSCRIPTIONS and not any(map(_SUBSCRIPTION_NAME.find_problem, names))
            ),
        )
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPolicy:
    """Policy of phase two, from the settings of the program that starts the job."""

    parallelism: Annotated[int, DELETION_PARALLELISM] = 4  # chunks at once
    chunk: Annotated[int, POSITIVE, FromOutside(ROWS_PER_CHUNK)] = 100  # rows in a chunk
    max_attempts: Annotated[int, DELETION_ATTEMPTS] = 10
    retry_interval_s: Annotated[int, RETRY_INTERVAL_S] = 600
    owner_patience_s: OwnerPatienceS = 10  # longest wait for the topic's bundle owner, before another worker gets the
    # work
    alone: Annotated[int, between(1, 1_500)] = 500  # children after which the run continues as new; the server refuses
    # 2,000 pending children


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerInput(HasIntent, HasTopic):
    """Intent to finish, and the bounds of its retries."""

    key: IntentKey
    topic: EncodedTopicNameOrNothing  # encoded; for filters, and to find the bundle owner
    catalog_epoch: CatalogNumber
    max_attempts: Annotated[int, DELETION_ATTEMPTS] = 10  # includes the attempt in the batch
    retry_interval_s: Annotated[int, RETRY_INTERVAL_S] = 600
    owner_patience_s: OwnerPatienceS = 10  # longest wait for the topic's bundle owner, before another worker gets the
    # work

    def details(self) -> str:
        key = self.key
        return (
            f"Deletes the `{key.copy}` copy of ledger {key.ledger_id} from storage, trying again where that fails, and "
            f"`sexton ledger explain {key.ledger_id}` shows all that is known of it."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerProgress:
    """Progress of the deletion of one copy."""

    step: str  # deleting, giving up, ended
    outcome: Outcome | None = None  # None: not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitDetach:
    """Phase one for given ledgers."""

    ledger_ids: Annotated[list[int], FromOutside(id_list(MAX_LEDGER_IDS))]  # 1 to 10,000
    force: bool = False
    durable_delete: Durability | None = None  # a `DeleteDurability`; None: the topic's setting; without one: durable
    remove: CopyNames = field(default_factory=list)  # kinds of copies to remove; empty: delete the ledger
    pass_over: SubscriptionNames = field(default_factory=list)  # subscriptions that do not keep the ledger
    generation: CatalogNumber | None = None  # required generation of the ledger; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersProgress:
    """Progress of a batch: rows by outcome, and objects that storage confirmed as deleted."""

    intents: int = 0
    after: LastVisitedId = 0  # all rows up to this id were visited
    outcomes: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    size_bytes: int = 0
    detached: int = 0  # ledgers
    finished: dict[str, int] = field(default_factory=dict)  # requested rows that had ended before the batch, by outcome
    paused: bool = False  # running chunks are completed, and no other chunk starts
    rate: ObjectsPerS = 0  # objects a second for the whole batch; 0: unlimited
    done: int = 0  # rows that ended, or got a `delete-ledger`
    left: int = 0  # rows that are not done


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRateInput:
    """New rate of a batch or of an apply."""

    objects_per_s: int  # 0 to `MAX_OBJECTS_PER_S`; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersInput(HasSubject):
    """Batch for phase two. If `detach` is set, the workflow does phase one first."""

    batch_id: BatchId
    topic_id: CatalogNumber
    topic: EncodedTopicNameOrNothing  # encoded
    catalog_epoch: CatalogNumber
    actor: Actor
    reason: Reason
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    detach: ExplicitDetach | None = None
    carried: DeleteLedgersProgress = field(default_factory=DeleteLedgersProgress)
    owner: WorkerIdOrNothing = ""  # bundle owner that detached the ledgers; empty: the workflow looks up the bundle
    # owner

    def details(self) -> str:
        whose = f"`{self.topic}`" if self.topic else "several topics"
        return f"Deletes ledgers of {whose} from storage, and `sexton deletion list` shows each with its outcome."

    def subject(self) -> Subject:
        ledger_ids = self.detach.ledger_ids if self.detach else ()
        return Subject(ledger_ids=ledger_ids, batch_id=self.batch_id, topic=self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsResult(HasOutcomes):
    """Numbers of rows, copies and objects of one sweep."""

    batches: int = 0
    intents: int = 0  # stalled intents that the sweep took over, and new intents of newborn ledgers
    newborn: int = 0  # abandoned newborn ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies in batches that ended in time
    deleted: int = 0  # copies of which nothing is left in storage
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: int = 0  # batches that failed or took longer than `patience_s`; their rows are finished later
    forgotten: int = 0  # removed finished rows
    forgotten_runs: int = 0  # removed batch runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsInput(HasSubject):
    """Actor and reason of a sweep, and its policy of phase two."""

    actor: Actor = "schedule"
    reason: Reason = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: PauseS = 300.0  # maximum wait for one batch, so that a paused batch does not delay other batches
    carried: SweepDeletionsResult = field(default_factory=SweepDeletionsResult)

    def details(self) -> str:
        return "Takes up stalled deletions and forgets old ones; `sexton deletion inflight` shows how many are left."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicResult(HasOutcomes):
    """Numbers of ledgers, copies and objects since the deletion of the topic began."""

    step: str = "beginning"  # detaching, deleting, removing, ended
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies; RETRYING: a `delete-ledger` works on the copy
    deleted: int = 0  # copies of which nothing is left in storage
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInput(HasTopic):
    """Topic to delete, actor and reason."""

    topic_id: CatalogNumber
    topic: EncodedTopicName  # encoded; must be the name of `topic_id`
    actor: Actor
    reason: Reason
    catalog_epoch: CatalogNumber | None = None  # expected epoch of the catalog; None: any
    durable_delete: Durability | None = None  # a `DeleteDurability`; None: the topic's setting; without one: durable
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: DeleteTopicResult = field(default_factory=DeleteTopicResult)

    def details(self) -> str:
        return f"Deletes `{self.topic}` with every ledger of every component, and `sexton deletion list` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicResult(HasOutcomes):
    """Numbers of ledgers, copies and objects of all passes."""

    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left in storage
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicInput(HasTopic):
    """Topic to trim, actor and reason."""

    topic_id: CatalogNumber
    topic: EncodedTopicName  # encoded; for filters and people
    actor: Actor
    reason: Reason
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: TrimTopicResult = field(default_factory=TrimTopicResult)

    def details(self) -> str:
        return (
            f"Deletes the ledgers that retention lets go of `{self.topic}`, and `sexton topic show {self.topic}` "
            "shows those that are left."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsResult(HasOutcomes):
    """Numbers of ledgers, copies and objects of all topics."""

    topics: int = 0  # visited
    failed: int = 0  # topics that were skipped; the next trim visits them again
    troubles: list[str] = field(default_factory=list)  # a sample of the errors
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left in storage
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: bool = False  # phase two failed or took longer than `patience_s`; its rows are finished later


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsInput(HasBatch):
    """Actor and reason of a trim of all topics, and its policy of phase two."""

    actor: Actor = "schedule"
    reason: Reason = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: Annotated[int, FromOutside(INTERVAL_S)] = 300  # maximum wait for phase two, so that a paused batch does
    # not delay the next trim
    page: PageSize = 50  # topics per page; a page takes less than an hour even if each topic waits a minute for locks
    batch_id: BatchIdOrNothing = ""  # empty: the trim creates one
    after: LastVisitedId = 0  # all topics up to this id were visited
    carried: TrimTopicsResult = field(default_factory=TrimTopicsResult)

    def details(self) -> str:
        return "Deletes what retention lets go, of all topics; `sexton deletion inflight` shows how much is left."


FAILED_OUTCOMES: Final = tuple(
    outcome.value for outcome in Outcome if not outcome.is_success and outcome is not Outcome.RETRYING
)
"""Outcomes with which `delete-ledger` fails."""

_ADVICE_AFTER_STOP: Final = (
    "what it had detached stays listed, and the next sweep takes it up (`sexton deletion sweep`)"
)


def _summarize_batch(request: DeleteLedgersInput) -> str:
    if request.detach:
        return f"delete {len(request.detach.ledger_ids)} ledgers of {request.topic}"
    return f"{request.carried.intents} copies of {request.topic or 'several topics'}"


SWEEP_DELETIONS: Final = JobDefinition(
    "sweep-deletions",
    SweepDeletionsInput,
    SweepDeletionsResult,
    summary=lambda _: "sweep deletions that nobody works on",
    schedule=JobSchedule(id="sexton-sweep", interval="sweep_interval"),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("deletion.adopt", "deletion.forget"),
)
TRIM_TOPICS: Final = JobDefinition(
    "trim-topics",
    TrimTopicsInput,
    TrimTopicsResult,
    summary=lambda _: "trim all topics",
    schedule=JobSchedule(id="sexton-trim", interval="trim_interval"),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("trimming.next_pages", "trimming.trim_page", "trimming.count_batch"),
)
DELETE_LEDGER: Final = JobDefinition(
    "delete-ledger",
    DeleteLedgerInput,
    DeleteIntentResult,
    summary=lambda request: f"ledger {request.key.ledger_id} of {request.topic}",
    keys=("{ledger_id}/{copy}/{generation}", "{ledger_id}/{copy}/{generation}/{openings}"),
    choose_key=lambda request: request.key.path,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("deletion.delete_one", "deletion.dead_letter"),
    failures=("LookupRefused", "NoProgress", *FAILED_OUTCOMES),
    handled_errors=("ClaimHeld", "NotOwner", "UnknownObject"),
)
DELETE_LEDGERS: Final = JobDefinition(
    "delete-ledgers",
    DeleteLedgersInput,
    BatchCertificate,
    summary=_summarize_batch,
    keys=("{batch_id}",),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    explains_waits=True,
    activities=(
        "deletion.detach",
        "deletion.next_ranges",
        "deletion.hold_batch",
        "deletion.pause_batch",
        "deletion.delete_chunk",
        "deletion.hand_over_chunk",
        "deletion.certify",
    ),
    guards=("LedgerStillNeeded", "UnknownObject"),
    failures=("ClaimHeld", "LookupRefused", "PreconditionFailed", "StaleCatalog", "Unsupported"),
    handled_errors=("NotOwner",),
)
TRIM_TOPIC: Final = JobDefinition(
    "trim-topic",
    TrimTopicInput,
    TrimTopicResult,
    summary=lambda request: f"trim {request.topic}",
    keys=("{topic_id}",),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("retention.roll_idle", "deletion.detach"),
    failures=("LedgerStillNeeded", "UnknownObject", *DELETE_LEDGERS.failures),
    handled_errors=("NotOwner",),
)
DELETE_TOPIC: Final = JobDefinition(
    "delete-topic",
    DeleteTopicInput,
    DeleteTopicResult,
    summary=lambda request: f"delete {request.topic}",
    keys=("{topic_id}",),
    starts_jobs=True,
    advice_after_stop=_ADVICE_AFTER_STOP,
    activities=("topic.set_deleting", "topic.detach_all", "topic.remove"),
    failures=("PreconditionFailed", "StaleCatalog", "UnknownObject", "Unsupported"),
)
