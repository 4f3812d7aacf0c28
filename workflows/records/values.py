"""What travels to and from the workflows of the record log, and by which names and ids programs know them."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from logstore.deletion.intents import BatchCertificate, GuardRefusal
from logstore.records.jobs import (
    DefragmentedBlocks,
    FlushedRecords,
    FollowedRecords,
    Place,
    RaidedTombstones,
    RebuildAdopted,
    ShippedBlocks,
)
from workflows.deletion.values import DeletionPolicy
from workflows.jobs import Job

HELD: Final = timedelta(seconds=5)
"""Until the record log, on which another job works, is asked for again."""

HELD_TIMES: Final = 24
"""So often: longer than a claim outlives the job that had it."""

NOW: Final = "now"
"""Key of the flush that a caller waits for, beside the one that goes on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsResult:
    """What was flushed, or why a guard refused it."""

    done: FlushedRecords = field(default_factory=FlushedRecords)
    looks: int = 0  # activities that were run
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsInput:
    """Once, or for ever."""

    once: bool = False  # flush what there is, and end
    watch_s: float = 60.0  # for so long one activity looks for changes; 0: it flushes once, and a signal is waited for
    queue: str = ""  # of the activities, where a flush may wait; empty: where the workflow runs
    actor: str = ""
    reason: str = ""
    carried: FlushRecordsResult = field(default_factory=FlushRecordsResult)

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        how = "once" if self.once else "for ever, every `records_interval`"
        return f"Flushes changed records into blocks of the record log, {how}; `sexton records status` shows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsInput:
    """A look whether the jobs of the record log run that are to run always."""

    watch_s: float = 60.0  # of the flush that it starts
    queue: str = ""  # of the activities of the jobs that it starts
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return "Starts `flush-records` where it does not run; `sexton records status` shows what is not flushed."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsResult:
    """What the look did."""

    started: list[str] = field(default_factory=list)  # ids of workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsInput:
    """One pass over all blocks."""

    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return (
            "Rewrites blocks of the record log that are mostly dead, joins small ones, and removes what no manifest"
            " names any more; `sexton records status` shows blocks and bytes."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsResult:
    """What the pass did, or why a guard refused it."""

    done: DefragmentedBlocks = field(default_factory=DefragmentedBlocks)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesInput:
    """A raid for tombstones that cover nothing."""

    eligible_age_s: float | None = None  # None: as the workers' settings say
    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return (
            "Removes tombstones that are old enough and cover no version of their record on disk;"
            " `sexton tombstones stats` shows how many there are."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesResult:
    """What the raid did, or why a guard refused it."""

    run_id: str = ""
    done: RaidedTombstones = field(default_factory=RaidedTombstones)
    joined: bool = False  # another raid was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsInput:
    """Every replica that the workers' settings name is to have the newest manifest."""

    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return "Copies new blocks and the manifest into every replica's bucket; `sexton records replicas` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsResult:
    """What each replica was sent, or why a guard refused it."""

    shipped: list[ShippedBlocks] = field(default_factory=list)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsResult:
    """What became of the records of a selection."""

    records: int = 0  # closed ledgers that the function was asked of
    ended: int = 0  # that left their lists; in a dry run, that would
    kept: int = 0  # that the function ended, and that stay
    ledger_ids: list[int] = field(default_factory=list)  # of those that ended: a sample
    because: list[str] = field(default_factory=list)  # why some stay: a sample
    certificate: BatchCertificate | None = None  # None: there was no phase two, or it ended early, and its rows go on
    stopped: GuardRefusal | None = None  # why nothing more ended from some page on: the function failed, say
    refused: GuardRefusal | None = None  # nothing changed

    @property
    def outcomes(self) -> dict[str, int]:
        """Copies, counted by what became of them."""
        return dict(self.certificate.outcomes) if self.certificate else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsInput:
    """Which function is asked of which records."""

    function: str  # as the workers' setting `functions` names it
    batch_id: str  # never used before: under it the intents are filed
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded; the topic of that id must bear it
    dry_run: bool = False
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    catalog_epoch: int | None = None  # required to be the catalog's, where the request names one
    actor: str = ""
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    page: int = 500  # ledgers; of no more than one page a function is asked again after a crash
    now_us: int = 0  # when the selection began by the catalog's clock, once it has
    after: Place = field(default_factory=Place)
    carried: EndRecordsResult = field(default_factory=EndRecordsResult)

    @property
    def cause(self) -> str:
        """The reason as the audit log keeps it, with the function's name."""
        return f"function {self.function}: {self.reason}" if self.reason else f"function {self.function}"

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        whose = f"`{self.topic}`" if self.topic_id else "all topics"
        what = "Asks which records it would end" if self.dry_run else "Ends the records that it answers None for"
        return f"{what}: function `{self.function}` over {whose}; `sexton deletion inflight` shows how much is left."


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsInput:
    """Steps of one replica's database."""

    replica: str  # the bucket that it follows, a slash, and a word of its own
    seed: bool = False  # empty the database first, and apply all
    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            "Applies the record log to the database of a replica. The command `sexton records follow` hosts its worker:"
            " run it again where it ended, and the job goes on. `sexton records replicas` shows how far it is."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecordsResult:
    """What was applied, or why a guard refused it."""

    done: FollowedRecords = field(default_factory=lambda: FollowedRecords(replica=""))
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogInput:
    """A rebuild from one manifest into one database."""

    rebuild: str  # its id, as `logstore.records.rebuilding.RebuildId` writes it
    skip_unreadable: bool = False
    master: str = ""  # the Spark cluster; empty: that of the settings
    max_absent_share: float = 0.05  # 0 to 1: of all listed ledgers, how many may be without objects
    take_over: bool = False  # processes of the old catalog may live: what they still answer is waited for

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            "Rebuilds a lost catalog from its record log and from what storage holds. The command `sexton records"
            " rebuild` hosts its worker: run it again where it ended, and the job goes on."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogProgress:
    """Where a rebuild is."""

    step: str = "beginning"  # then: finding rows, loading, looking, publishing, adopting, settling, letting go, ended
    shards: int = 0  # of 256 that were looked at in this step
    versions: int = 0  # in the blocks of the manifest
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogResult:
    """What a rebuild came to, or why it was refused."""

    rebuild: str
    manifest: int = 0  # of the new epoch
    records: int = 0
    tombstones: int = 0
    adopted: RebuildAdopted = field(default_factory=RebuildAdopted)
    skipped: list[str] = field(default_factory=list)
    skipped_blocks: int = 0
    flushed_us: int = 0  # changes since then and before the loss come back as far as storage tells of them
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
