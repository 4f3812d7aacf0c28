"""What travels to and from the activities of the record log; `logstore/records/jobs.py` has more of their results."""

from dataclasses import dataclass, field

from logstore.records.jobs import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushInput:
    """Changes that are in no block are to be in one."""

    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now, those of cursors too
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentInput:
    """One pass over all blocks."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidInput:
    """A raid for tombstones that cover nothing."""

    run_id: str
    eligible_age_s: float | None = None  # None: as the workers' settings say
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateInput:
    """Every replica that the workers' settings name is to have the newest manifest."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEndingInput:
    """A function is to be asked of a selection of records."""

    function: str
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded; the topic of that id must bear it
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable
    catalog_epoch: int | None = None  # required to be the catalog's, where the request names one


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingBegun:
    """What holds for the whole selection."""

    now_us: int  # by the catalog's clock: what records say of the time
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPageInput:
    """One page of the selection, and the batch that its ledgers join."""

    function: str
    topic_id: int  # 0: all topics
    after: Place
    page: int  # ledgers; fewer where they are of many topics
    now_us: int
    catalog_epoch: int
    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    dry_run: bool = False
    durable_delete: str | None = None
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPage:
    """What became of a page."""

    records: int = 0  # that the function was asked of
    ended: int = 0  # of them, that left their lists; in a dry run, that would
    kept: int = 0  # that the function ended, and that stay
    ledger_ids: list[int] = field(default_factory=list)  # of those that ended: a sample
    because: list[str] = field(default_factory=list)  # why some stay: a sample
    after: Place | None = None  # where the next page begins; None: this was the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep:
    """One step of one rebuild."""

    rebuild: str  # its id
    skip_unreadable: bool = False  # blocks that cannot be read are left out, and named
    master: str = ""  # of the Spark cluster; empty: that of the settings
    max_absent_share: float = 0.05  # 0 to 1: of all listed ledgers, how many may be without objects
    take_over: bool = False  # processes of the old catalog may live


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildBegun:
    """From what the catalog is rebuilt."""

    loaded: bool  # an earlier run of the command got so far
    flushed_us: int  # the moment of the lost catalog that the manifest shows
    blocks: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRows:
    """What the blocks came to."""

    records: int
    tombstones: int
    skipped: list[str] = field(default_factory=list)  # `key: why` of blocks that were left out, capped
    skipped_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptShardsInput:
    """Some shards of the primary bucket."""

    first: int  # inclusive
    end: int  # exclusive
    is_growing: bool = False  # whether the old catalog may still append


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedShards:
    """What they held."""

    objects: int
    staged: int  # ledgers of which storage holds something else than the catalog says


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    """The manifest of the new epoch."""

    manifest: int
