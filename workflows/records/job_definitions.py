"""Inputs and results of the workflows of the record log, with their names and ids."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from logstore.deletion.intents import BatchCertificate, RequestRefusal
from logstore.field_bounds import (
    FUNCTION_NAME_FORM,
    Actor,
    AgeS,
    BatchId,
    CatalogNumber,
    Durability,
    EncodedTopicNameOrNothing,
    FromOutside,
    PageSize,
    Reason,
    WatchS,
    bound_where,
)
from logstore.records.job_results import (
    DefragmentedBlocks,
    EndedRecords,
    FlushedRecords,
    FollowedRecords,
    RaidedTombstones,
    RebuildAdoptionResult,
    SelectionPageStart,
    ShippedBlocks,
)
from logstore.records.rebuild_job import RebuildId, RebuildRequest
from logstore.subjects import (
    HasBatch,
    HasEligibleAge,
    HasFunction,
    HasSubject,
    HasTopic,
    HasWatch,
    Subject,
)
from workflows.deletion.job_definitions import DELETE_LEDGERS, DeletionPolicy
from workflows.job_definition import JobDefinition, JobSchedule
from workflows.task_queues import RecordsQueue, records_queue

HELD_RETRY_INTERVAL: Final = timedelta(seconds=5)
"""Time between two attempts of a flush with `once` while another job has claimed the record log."""

MAX_HELD_FLUSHES: Final = 24
"""Maximum number of attempts of a flush with `once`. All pauses together last longer than the claim of a dead job."""

NOW: Final = "now"
"""Key in the workflow id of a flush with `once`. The workflow id of the repeated flush has no key."""

FunctionName = Annotated[
    str,
    FromOutside(
        bound_where(
            "the name of a function, 1 to 64 of A-Z, a-z, 0-9 and _",
            lambda name: re.fullmatch(FUNCTION_NAME_FORM, name) is not None,
        )
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsResult:
    """Counts of a flush, or its refusal."""

    done: FlushedRecords = field(default_factory=FlushedRecords)
    looks: int = 0  # number of completed activities
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsInput(HasWatch):
    """Input of `flush-records`, which flushes repeatedly or once."""

    once: bool = False  # flush the present changes once, then end
    watch_s: WatchS = 60.0  # seconds for which one activity looks for changes; 0: one flush, then wait for a signal
    queue: RecordsQueue = ""  # task queue of the activities; empty: the workflow's own task queue
    actor: Actor = ""
    reason: Reason = ""
    carried: FlushRecordsResult = field(default_factory=FlushRecordsResult)

    def details(self) -> str:
        how = "once" if self.once else "for ever, every `records_interval`"
        return f"Flushes changed records into blocks of the record log, {how}; `sexton records status` shows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsInput(HasWatch):
    """Input of a sweep that starts `flush-records` unless it runs."""

    watch_s: WatchS = 60.0  # `watch_s` of the started flush
    queue: RecordsQueue = ""  # `queue` of the started flush
    actor: Actor = ""
    reason: Reason = ""

    def details(self) -> str:
        return "Starts `flush-records` where it does not run; `sexton records status` shows what is not flushed."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsResult:
    """Ids of workflows that the sweep has started."""

    started: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordUpkeepInput(HasSubject):
    """Input of an upkeep pass over the record log. Each job has a subclass."""

    does: ClassVar[str]  # description of the job, and the command that shows its work

    scheduled: bool = False  # set by a schedule: run the job as a child under the id without a time
    queue: RecordsQueue = ""  # task queue of the activity; empty: the workflow's own task queue
    actor: Actor = ""
    reason: Reason = ""

    def details(self) -> str:
        return self.does


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordUpkeepResult:
    """Result of an upkeep pass, or its refusal. Each job has a subclass."""

    joined: bool = False  # another run was active, and this run did nothing
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsInput(RecordUpkeepInput):
    """Input of one pass over all blocks."""

    does = (
        "Rewrites blocks of the record log that contain few live records, joins small blocks, and removes blocks"
        " that no manifest names; `sexton records status` shows blocks and bytes."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsResult(RecordUpkeepResult):
    """Counts of a pass over all blocks, or its refusal."""

    done: DefragmentedBlocks = field(default_factory=DefragmentedBlocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesInput(RecordUpkeepInput, HasEligibleAge):
    """Input of a raid."""

    does = (
        "Removes tombstones that are old enough and cover no version of their record on disk;"
        " `sexton tombstones stats` shows how many there are."
    )

    eligible_age_s: AgeS | None = None  # None: age in the workers' settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesResult(RecordUpkeepResult):
    """Counts of a raid, or its refusal."""

    run_id: str = ""
    done: RaidedTombstones = field(default_factory=RaidedTombstones)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsInput(RecordUpkeepInput):
    """Input of one shipment to every replica bucket in the workers' settings."""

    does = "Copies new blocks and the manifest into every replica's bucket; `sexton records replicas` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsResult(RecordUpkeepResult):
    """Shipment to each replica bucket, or the refusal."""

    shipped: list[ShippedBlocks] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsResult(EndedRecords):
    """Counts of deleted records, or the refusal."""

    certificate: BatchCertificate | None = None  # None: nothing was detached, or other jobs finish the batch
    stopped: RequestRefusal | None = None  # why the job stopped after some pages, such as a failed function
    refused: RequestRefusal | None = None  # why nothing was done

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of copies by outcome."""
        return dict(self.certificate.outcomes) if self.certificate else {}

    def subject(self) -> Subject:
        outcome = self.certificate.subject().outcome if self.certificate else ""
        return Subject(ledger_ids=self.ledger_ids, outcome=outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsInput(HasFunction, HasBatch, HasTopic):
    """Input of `end-records`: the record function, the topics, and the batch of detached ledgers."""

    function: FunctionName  # name in the workers' setting `functions`
    batch_id: BatchId  # id of a new batch, never used before
    topic_id: CatalogNumber = 0  # 0: all topics
    topic: EncodedTopicNameOrNothing = ""  # encoded name, which must be the name of `topic_id`
    dry_run: bool = False
    durable_delete: Durability | None = None  # a `DeleteDurability`; None: the topic's setting; without one: durable
    catalog_epoch: CatalogNumber | None = None  # expected epoch of the catalog; None: any
    actor: Actor = ""
    reason: Reason = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    page: PageSize = 500  # ledgers in a page; after a crash the function is called again for one page at most
    now_us: CatalogNumber = 0  # time of the start by the catalog's clock; 0: not started
    after: SelectionPageStart = field(default_factory=SelectionPageStart)  # first ledger of the next page
    carried: EndRecordsResult = field(default_factory=EndRecordsResult)

    @property
    def cause(self) -> str:
        """Reason in the audit log, with the name of the function."""
        return f"function {self.function}: {self.reason}" if self.reason else f"function {self.function}"

    def details(self) -> str:
        topics = f"`{self.topic}`" if self.topic_id else "all topics"
        action = "Asks which records it would end" if self.dry_run else "Ends the records that it answers None for"
        return f"{action}: function `{self.function}` over {topics}; `sexton deletion inflight` shows how much is left."


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsInput(HasWatch):
    """Input of `follow-records` for one replica database."""

    replica: str  # name of the followed bucket, a slash, and a name for this replica
    seed: bool = False  # empty the database first, and apply everything
    watch_s: WatchS = 0.0  # seconds for which to look for changes; 0: apply once

    def details(self) -> str:
        return (
            "Applies the record log to the database of a replica. The command `sexton records follow` hosts its worker:"
            " run it again where it ended, and the job goes on. `sexton records replicas` shows how far it is."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsResult:
    """Counts of applied records, or the refusal."""

    done: FollowedRecords = field(default_factory=lambda: FollowedRecords(replica=""))
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogInput(RebuildRequest):
    """Input of a rebuild from one manifest into one database."""

    def details(self) -> str:
        return (
            "Rebuilds a lost catalog from its record log and from what storage holds. The command `sexton records"
            " rebuild` hosts its worker: run it again where it ended, and the job goes on."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogProgress:
    """Current step of a rebuild, and its counts."""

    step: str = "beginning"  # then: finding rows, loading, looking, publishing, adopting, settling, letting go, ended
    shards: int = 0  # shards done in this step, of 256
    versions: int = 0  # record versions in the blocks of the manifest
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogResult:
    """Counts of a rebuild, or its refusal."""

    rebuild: str
    manifest: int = 0  # manifest number of the new epoch
    records: int = 0
    tombstones: int = 0
    adopted: RebuildAdoptionResult = field(default_factory=RebuildAdoptionResult)
    skipped: list[str] = field(default_factory=list)
    skipped_blocks: int = 0
    flushed_us: int = 0  # time of the loaded rows; later changes return only if storage has them
    begun_us: int = 0
    refused: RequestRefusal | None = None


def _name_replica_and_mode(request: FollowRecordsInput) -> str:
    """Return a key for each mode, so that a command joins only a run of the same mode."""
    mode = "/seed" if request.seed else "/watch" if request.watch_s else ""
    return f"{request.replica}{mode}"


GUARDS: Final = ("CatalogAdopting", "CatalogMismatch", "CatalogOutdated", "PreconditionFailed")
"""Error types that end a record log job as refused. A person must look at the cause."""

_ADVICE_AFTER_END_OF_COMMAND: Final = "run the command again, and it goes on where it was"

FLUSH_RECORDS: Final = JobDefinition(
    "flush-records",
    FlushRecordsInput,
    FlushRecordsResult,
    summary=lambda request: f"flush changed records{' now' if request.once else ''}",
    keys=("", NOW),
    choose_key=lambda request: NOW if request.once else "",
    queue=records_queue,
    starts_jobs=True,
    advice_after_stop="what it had flushed stays flushed; ask for the rest again",
    activities=("records.flush",),
    guards=GUARDS,
    failures=("CorruptData",),
)
SWEEP_RECORDS: Final = JobDefinition(
    "sweep-records",
    SweepRecordsInput,
    SweepRecordsResult,
    summary=lambda _: "see that changed records are flushed",
    queue=records_queue,
    schedule=JobSchedule(id="sexton-records", interval="sweep_interval", triggers_immediately=True),
    starts_jobs=True,
    advice_after_stop="the next sweep does the same",
)
DEFRAGMENT_RECORDS: Final = JobDefinition(
    "defragment-records",
    DefragmentRecordsInput,
    DefragmentRecordsResult,
    summary=lambda _: "defragment the record log",
    queue=records_queue,
    schedule=JobSchedule(id="sexton-defragment", interval="defragment_interval", fields={"scheduled": True}),
    starts_jobs=True,
    advice_after_stop="what it had published stays; ask for the rest again",
    activities=("records.defragment",),
    guards=GUARDS,
    failures=("CorruptData", "MissingData", "Unsupported"),
)
RAID_TOMBSTONES: Final = JobDefinition(
    "raid-tombstones",
    RaidTombstonesInput,
    RaidTombstonesResult,
    summary=lambda _: "raid tombstones that cover nothing",
    queue=records_queue,
    schedule=JobSchedule(id="sexton-raid", interval="raid_interval", fields={"scheduled": True}),
    starts_jobs=True,
    advice_after_stop="tombstones that it had removed are gone; ask for the rest again",
    activities=("records.raid",),
    guards=GUARDS,
    failures=("CorruptData", "MissingData", "Unsupported"),
)
REPLICATE_RECORDS: Final = JobDefinition(
    "replicate-records",
    ReplicateRecordsInput,
    ReplicateRecordsResult,
    summary=lambda _: "replicate the record log",
    queue=records_queue,
    schedule=JobSchedule(
        id="sexton-replicate",
        interval="replicate_interval",
        required_setting="replica_buckets",
        fields={"scheduled": True},
    ),
    starts_jobs=True,
    advice_after_stop="blocks that it had copied stay copied; ask for the rest again",
    activities=("records.ship",),
    guards=GUARDS,
)
END_RECORDS: Final = JobDefinition(
    "end-records",
    EndRecordsInput,
    EndRecordsResult,
    summary=lambda request: f"end records of {request.topic or 'all topics'} by {request.function}",
    keys=("{batch_id}",),
    starts_jobs=True,
    advice_after_stop=DELETE_LEDGERS.advice_after_stop,
    activities=("records.begin_ending", "records.end_page", "trimming.count_batch"),
    guards=(
        *GUARDS,
        "ClaimHeld",
        "FunctionFailed",
        "InvalidInput",
        "StaleCatalog",
        "UnknownObject",
        "Unsupported",
    ),  # at the start or at a page
)
REBUILD_CATALOG: Final = JobDefinition(
    "rebuild-catalog",
    RebuildCatalogInput,
    RebuildCatalogResult,
    summary=lambda request: f"rebuild the catalog from manifest {RebuildId.parse(request.rebuild).manifest}",
    keys=("{rebuild}",),
    command="sexton records rebuild",
    advice_after_stop=_ADVICE_AFTER_END_OF_COMMAND,
    activities=(
        "rebuild.begin",
        "rebuild.find_rows",
        "rebuild.load_rows",
        "rebuild.adopt_shards",
        "rebuild.publish",
        "rebuild.finish_adoption",
        "rebuild.let_go",
    ),
    guards=(  # the rebuild has published nothing, unless the message says otherwise
        "AlreadyExists",
        "CatalogMismatch",
        "CatalogOutdated",
        "CatalogVersionMismatch",
        "CorruptData",
        "InvalidInput",
        "MissingData",
        "PreconditionFailed",
        "Unsupported",
    ),
)
FOLLOW_RECORDS: Final = JobDefinition(
    "follow-records",
    FollowRecordsInput,
    FollowRecordsResult,
    summary=lambda request: f"apply the record log to replica {request.replica}",
    keys=("{replica}", "{replica}/seed", "{replica}/watch"),
    choose_key=_name_replica_and_mode,
    command="sexton records follow",
    advice_after_stop=_ADVICE_AFTER_END_OF_COMMAND,
    activities=("records.follow",),
    guards=(
        "CatalogMismatch",
        "CatalogVersionMismatch",
        "CorruptData",
        "InvalidInput",
        "MissingData",
        "PreconditionFailed",
        "Unsupported",
    ),
)
