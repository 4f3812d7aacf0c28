"""Inputs and results of the activities of the record log. `logstore/records/jobs.py` has more of the results."""

from dataclasses import dataclass, field

from logstore.records.jobs import SelectionPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushInput:
    """Input of `records.flush`."""

    watch_s: float = 0.0  # how long to look for changes; 0: flush all changes once, those of cursors too
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentInput:
    """Input of `records.defragment`."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidInput:
    """Input of `records.raid`."""

    run_id: str
    eligible_age_s: float | None = None  # None: as the workers' settings say
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateInput:
    """Input of `records.ship`."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEndingInput:
    """A function, and the records about which it will be asked."""

    function: str
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded; the topic of that id must have this name
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    catalog_epoch: int | None = None  # that the catalog must have; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingBegun:
    """Facts that hold for all pages of an ending."""

    now_us: int  # by the catalog's clock: the time that every record has
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPageInput:
    """One page of ledgers, and the batch that its ended ledgers join."""

    function: str
    topic_id: int  # 0: all topics
    after: SelectionPosition
    page: int  # ledgers; fewer if they are of many topics
    now_us: int
    catalog_epoch: int
    batch_id: str
    batch_workflow_id: str  # the workflow of phase two, which gets the claim
    dry_run: bool = False
    durable_delete: str | None = None
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPage:
    """Result of a page."""

    records: int = 0  # ledgers that the function was asked about
    ended: int = 0  # ledgers that left their lists, or would leave them in a dry run
    kept: int = 0  # ledgers that the function ended, and that stay
    ledger_ids: list[int] = field(default_factory=list)  # ended ones: a sample
    because: list[str] = field(default_factory=list)  # why some stay: a sample
    after: SelectionPosition | None = None  # start of the next page; None: this was the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep:
    """Input of most steps of a rebuild."""

    rebuild: str  # its id
    skip_unreadable: bool = False  # skip and name unreadable blocks, except those that hide messages
    master: str = ""  # of the Spark cluster; empty: that of the settings
    max_absent_share: float = 0.05  # 0 to 1: of all listed ledgers, how many may be without objects
    take_over: bool = False  # processes of the old catalog may live


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildBegun:
    """Source of a rebuild."""

    loaded: bool  # an earlier run of the command has loaded the database
    flushed_us: int  # the moment of the lost catalog that the manifest shows
    blocks: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRows:
    """Counts of the rows that the bulk job has written."""

    records: int
    tombstones: int
    skipped: list[str] = field(default_factory=list)  # `key: error` of skipped blocks, capped
    skipped_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptShardsInput:
    """Some shards of the primary bucket."""

    first: int  # inclusive
    end: int  # exclusive
    is_growing: bool = False  # whether the old catalog may still append


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedShards:
    """Counts of a look at some shards."""

    objects: int
    staged: int  # ledgers of which storage holds something else than the catalog says


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    """Number of the manifest of the new epoch."""

    manifest: int
