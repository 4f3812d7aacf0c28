"""Inputs and results of the activities of the record log. More results are in `logstore/records/job_results.py`."""

from dataclasses import dataclass, field

from logstore.records.job_results import SelectionPageStart
from logstore.subjects import HasBatch, HasEligibleAge, HasFunction, HasLedgers, HasRun, HasSubject, HasTopic, HasWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushInput(HasWatch):
    watch_s: float = 0.0  # seconds for which to look for changes; 0: flush all changes once, including cursors
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentInput(HasSubject):
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidInput(HasEligibleAge, HasRun):
    run_id: str
    eligible_age_s: float | None = None  # None: age in the workers' settings
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipToReplicasInput(HasSubject):
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEndRecordsInput(HasFunction, HasTopic):
    function: str
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded name, which must be the name of `topic_id`
    durable_delete: str | None = None  # a `DeleteDurability`; None: setting of the topic, or else durable
    catalog_epoch: int | None = None  # expected epoch of the catalog; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsStart:
    now_us: int  # start of the job by the catalog's clock; the function gets this time with every record
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsPageInput(HasFunction, HasBatch):
    function: str
    topic_id: int  # 0: all topics
    after: SelectionPageStart
    page: int  # maximum number of ledgers in the page
    now_us: int
    catalog_epoch: int
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    dry_run: bool = False
    durable_delete: str | None = None
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsPageResult(HasLedgers):
    records: int = 0  # closed ledgers for which the function was called
    ended: int = 0  # detached ledgers; in a dry run: ledgers that would be detached
    kept: int = 0  # ledgers that the function selected but that stay
    ledger_ids: list[int] = field(default_factory=list)  # sample of the detached ledgers
    because: list[str] = field(default_factory=list)  # sample of reasons why selected ledgers stay
    after: SelectionPageStart | None = None  # start of the next page; None: no next page


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStepInput(HasSubject):
    rebuild: str  # id of the rebuild
    skip_unreadable: bool = False  # skip and name unreadable blocks, except blocks that hide messages
    master: str = ""  # Spark cluster; empty: cluster of the settings
    max_absent_share: float = 0.05  # allowed share of listed ledgers without objects, 0 to 1
    take_over: bool = False  # processes of the old catalog may be alive


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedManifestSummary:
    loaded: bool  # an earlier run of the command has loaded the database
    flushed_us: int  # time of the flush: the rebuild restores the lost catalog as of this time
    blocks: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRecordCounts:
    records: int
    tombstones: int
    skipped: list[str] = field(default_factory=list)  # `key: error` of the first 20 skipped blocks
    skipped_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareShardsInput(HasSubject):
    first: int  # inclusive
    end: int  # exclusive
    is_growing: bool = False  # whether the old catalog may still append


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShardCounts:
    objects: int
    staged: int  # ledgers whose objects differ from the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    manifest: int
