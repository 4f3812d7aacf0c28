"""Inputs and results of the workflows of the record log, and their names and ids."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from logstore.deletion.intents import BatchCertificate, GuardRefusal
from logstore.records.jobs import (
    DefragmentedBlocks,
    FlushedRecords,
    FollowedRecords,
    RaidedTombstones,
    RebuildAdopted,
    SelectionPosition,
    ShippedBlocks,
)
from workflows.deletion.values import DeletionPolicy
from workflows.jobs import Job

HELD_RETRY_INTERVAL: Final = timedelta(seconds=5)
"""Time between two attempts of one flush while another job holds the record log."""

MAX_HELD_FLUSHES: Final = 24
"""Attempts of one flush while another job holds the record log. Together they outlast the claim of a dead job."""

NOW: Final = "now"
"""Key of the single flush that a caller waits for. The repeated flush has the empty key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsResult:
    """Counts of a flush, or its refusal."""

    done: FlushedRecords = field(default_factory=FlushedRecords)
    looks: int = 0  # completed activities
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsInput:
    """Input of a flush, repeated or once."""

    once: bool = False  # flush the present changes, and end
    watch_s: float = 60.0  # how long one activity looks for changes; 0: it flushes once, then a signal is waited for
    queue: str = ""  # of the activities, where a flush may wait; empty: where the workflow runs
    actor: str = ""
    reason: str = ""
    carried: FlushRecordsResult = field(default_factory=FlushRecordsResult)

    def details(self) -> str:
        how = "once" if self.once else "for ever, every `records_interval`"
        return f"Flushes changed records into blocks of the record log, {how}; `sexton records status` shows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsInput:
    """Input of one look whether `flush-records` runs."""

    watch_s: float = 60.0  # of the flush that it starts
    queue: str = ""  # of the activities of that flush
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        return "Starts `flush-records` where it does not run; `sexton records status` shows what is not flushed."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsResult:
    """Ids of workflows that the sweep has started."""

    started: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsInput:
    """Input of one pass over all blocks."""

    scheduled: bool = False  # run the job as a child, under its one id
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        return (
            "Rewrites blocks of the record log that are mostly dead, joins small ones, and removes what no manifest"
            " names any more; `sexton records status` shows blocks and bytes."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsResult:
    """Counts of a pass over all blocks, or its refusal."""

    done: DefragmentedBlocks = field(default_factory=DefragmentedBlocks)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesInput:
    """Input of a raid for tombstones that cover nothing."""

    eligible_age_s: float | None = None  # None: as the workers' settings say
    scheduled: bool = False  # run the job as a child, under its one id
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

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
    joined: bool = False  # another raid was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsInput:
    """Input of one shipment to every replica that the workers' settings name."""

    scheduled: bool = False  # run the job as a child, under its one id
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        return "Copies new blocks and the manifest into every replica's bucket; `sexton records replicas` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsResult:
    """Shipment of each replica, or the refusal."""

    shipped: list[ShippedBlocks] = field(default_factory=list)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsResult:
    """Counts of ended records, or the refusal."""

    records: int = 0  # closed ledgers that the function was asked about
    ended: int = 0  # ledgers that left their lists, or would leave them in a dry run
    kept: int = 0  # ledgers that the function ended, and that stay
    ledger_ids: list[int] = field(default_factory=list)  # ended ones: a sample
    because: list[str] = field(default_factory=list)  # why some stay: a sample
    certificate: BatchCertificate | None = (
        None  # of phase two; None: no phase two, or it ended early and its rows go on
    )
    stopped: GuardRefusal | None = None  # why no page after some page was asked, such as a failed function
    refused: GuardRefusal | None = None  # nothing changed

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of copies by outcome."""
        return dict(self.certificate.outcomes) if self.certificate else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsInput:
    """A function, the records about which it is asked, and the batch of ended ledgers."""

    function: str  # as the workers' setting `functions` names it
    batch_id: str  # of the intents; never used before
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded; the topic of that id must have this name
    dry_run: bool = False
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    catalog_epoch: int | None = None  # that the catalog must have; None: any
    actor: str = ""
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    page: int = 500  # ledgers; after a crash the function is asked again about one page at most
    now_us: int = 0  # start by the catalog's clock; 0: not started
    after: SelectionPosition = field(default_factory=SelectionPosition)
    carried: EndRecordsResult = field(default_factory=EndRecordsResult)

    @property
    def cause(self) -> str:
        """Reason in the audit log, with the function's name."""
        return f"function {self.function}: {self.reason}" if self.reason else f"function {self.function}"

    def details(self) -> str:
        topics = f"`{self.topic}`" if self.topic_id else "all topics"
        action = "Asks which records it would end" if self.dry_run else "Ends the records that it answers None for"
        return f"{action}: function `{self.function}` over {topics}; `sexton deletion inflight` shows how much is left."


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsInput:
    """Input of the steps of one replica's database."""

    replica: str  # the bucket that it follows, a slash, and a word of its own
    seed: bool = False  # empty the database first, and apply all
    watch_s: float = 0.0  # how long to look for changes; 0: apply once

    def details(self) -> str:
        return (
            "Applies the record log to the database of a replica. The command `sexton records follow` hosts its worker:"
            " run it again where it ended, and the job goes on. `sexton records replicas` shows how far it is."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsResult:
    """Counts of applied records, or the refusal."""

    done: FollowedRecords = field(default_factory=lambda: FollowedRecords(replica=""))
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogInput:
    """Input of a rebuild from one manifest into one database."""

    rebuild: str  # its id, as `logstore.records.rebuilding.RebuildId` writes it
    skip_unreadable: bool = False  # skip and name unreadable blocks, except those that hide messages
    master: str = ""  # the Spark cluster; empty: that of the settings
    max_absent_share: float = 0.05  # 0 to 1: of all listed ledgers, how many may be without objects
    take_over: bool = False  # processes of the old catalog may live: wait until they know of the new epoch

    def details(self) -> str:
        return (
            "Rebuilds a lost catalog from its record log and from what storage holds. The command `sexton records"
            " rebuild` hosts its worker: run it again where it ended, and the job goes on."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogProgress:
    """Current step of a rebuild, and its counts."""

    step: str = "beginning"  # then: finding rows, loading, looking, publishing, adopting, settling, letting go, ended
    shards: int = 0  # of 256, looked at in this step
    versions: int = 0  # in the blocks of the manifest
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogResult:
    """Counts of a rebuild, or its refusal."""

    rebuild: str
    manifest: int = 0  # of the new epoch
    records: int = 0
    tombstones: int = 0
    adopted: RebuildAdopted = field(default_factory=RebuildAdopted)
    skipped: list[str] = field(default_factory=list)
    skipped_blocks: int = 0
    flushed_us: int = 0  # later changes, up to the loss, return as far as storage holds them
    begun_us: int = 0
    refused: GuardRefusal | None = None


FLUSH_RECORDS = Job("flush-records", FlushRecordsInput, FlushRecordsResult, keys=("", NOW))
SWEEP_RECORDS = Job("sweep-records", SweepRecordsInput, SweepRecordsResult)
DEFRAGMENT_RECORDS = Job("defragment-records", DefragmentRecordsInput, DefragmentRecordsResult)
RAID_TOMBSTONES = Job("raid-tombstones", RaidTombstonesInput, RaidTombstonesResult)
REPLICATE_RECORDS = Job("replicate-records", ReplicateRecordsInput, ReplicateRecordsResult)
END_RECORDS = Job("end-records", EndRecordsInput, EndRecordsResult, keys=("{batch_id}",))
FOLLOW_RECORDS = Job(
    "follow-records",
    FollowRecordsInput,
    FollowRecordsResult,
    keys=("{replica}", "{replica}/seed", "{replica}/watch"),
)
REBUILD_CATALOG = Job("rebuild-catalog", RebuildCatalogInput, RebuildCatalogResult, keys=("{rebuild}",))
