"""Inputs and results of the workflows of the record log, with their names and ids."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final

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
    Share,
    SparkMasterOrNothing,
    WatchS,
    bound_where,
)
from logstore.records.job_results import (
    DefragmentedBlocks,
    FlushedRecords,
    FollowedRecords,
    RaidedTombstones,
    RebuildAdoptionResult,
    SelectionPageStart,
    ShippedBlocks,
)
from logstore.subjects import (
    HasBatch,
    HasEligibleAge,
    HasFunction,
    HasSubject,
    HasTopic,
    HasWatch,
    Subject,
)
from workflows.deletion.job_definitions import DeletionPolicy
from workflows.job_definition import JobDefinition
from workflows.task_queues import RecordsQueue

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
class DefragmentRecordsInput(HasSubject):
    """Input of one pass over all blocks."""

    scheduled: bool = False  # set by a schedule: run the job as a child under the id without a time
    queue: RecordsQueue = ""  # task queue of the activity; empty: the workflow's own task queue
    actor: Actor = ""
    reason: Reason = ""

    def details(self) -> str:
        return (
            "Rewrites blocks of the record log that contain few live records, joins small blocks, and removes blocks"
            " that no manifest names; `sexton records status` shows blocks and bytes."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsResult:
    """Counts of a pass over all blocks, or its refusal."""

    done: DefragmentedBlocks = field(default_factory=DefragmentedBlocks)
    joined: bool = False  # another run was active, and this run did nothing
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesInput(HasEligibleAge):
    """Input of a raid."""

    eligible_age_s: AgeS | None = None  # None: age in the workers' settings
    scheduled: bool = False  # set by a schedule: run the job as a child under the id without a time
    queue: RecordsQueue = ""  # task queue of the activity; empty: the workflow's own task queue
    actor: Actor = ""
    reason: Reason = ""

    def details(self) -> str:
        return (
            "Removes tombstones that are old enough and cover no version of their record on disk;"
            " `sexton tombstones stats` shows how many there are."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesResult:
    """Counts of a raid, or its refusal."""

    run_id: str = ""
    done: RaidedTombstones = field(default_factory=RaidedTombstones)
    joined: bool = False  # another raid was active, and this run did nothing
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsInput(HasSubject):
    """Input of one shipment to every replica bucket in the workers' settings."""

    scheduled: bool = False  # set by a schedule: run the job as a child under the id without a time
    queue: RecordsQueue = ""  # task queue of the activity; empty: the workflow's own task queue
    actor: Actor = ""
    reason: Reason = ""

    def details(self) -> str:
        return "Copies new blocks and the manifest into every replica's bucket; `sexton records replicas` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsResult:
    """Shipment to each replica bucket, or the refusal."""

    shipped: list[ShippedBlocks] = field(default_factory=list)
    joined: bool = False  # another run was active, and this run did nothing
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsResult(HasSubject):
    """Counts of deleted records, or the refusal."""

    records: int = 0  # closed ledgers for which the function was called
    ended: int = 0  # detached ledgers; in a dry run: ledgers that would be detached
    kept: int = 0  # ledgers that the function selected but that stay
    ledger_ids: list[int] = field(default_factory=list)  # sample of the detached ledgers
    because: list[str] = field(default_factory=list)  # sample of reasons why selected ledgers stay
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
class RebuildCatalogInput(HasSubject):
    """Input of a rebuild from one manifest into one database."""

    rebuild: str  # id of the rebuild, as text of `logstore.records.rebuild_job.RebuildId`
    skip_unreadable: bool = False  # skip and name unreadable blocks, except blocks that hide messages
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: cluster of the settings
    max_absent_share: Share = 0.05  # allowed share of listed ledgers without objects, 0 to 1
    take_over: bool = False  # wait until processes of the old catalog, which may be alive, notice the new epoch

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


FLUSH_RECORDS = JobDefinition("flush-records", FlushRecordsInput, FlushRecordsResult, keys=("", NOW))
SWEEP_RECORDS = JobDefinition("sweep-records", SweepRecordsInput, SweepRecordsResult)
DEFRAGMENT_RECORDS = JobDefinition("defragment-records", DefragmentRecordsInput, DefragmentRecordsResult)
RAID_TOMBSTONES = JobDefinition("raid-tombstones", RaidTombstonesInput, RaidTombstonesResult)
REPLICATE_RECORDS = JobDefinition("replicate-records", ReplicateRecordsInput, ReplicateRecordsResult)
END_RECORDS = JobDefinition("end-records", EndRecordsInput, EndRecordsResult, keys=("{batch_id}",))
FOLLOW_RECORDS = JobDefinition(
    "follow-records",
    FollowRecordsInput,
    FollowRecordsResult,
    keys=("{replica}", "{replica}/seed", "{replica}/watch"),
)
REBUILD_CATALOG = JobDefinition("rebuild-catalog", RebuildCatalogInput, RebuildCatalogResult, keys=("{rebuild}",))
