"""Inputs and results of the activities of reconciliation. Findings and their fates stay in Parquet files."""

from dataclasses import dataclass, field

from logstore.reconciliation.findings import ApplyCounts, PlanResult
from logstore.reconciliation.jobs import SCRUB_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPlanInput:
    """Input of `begin_plan`."""

    run_id: str
    actor: str
    reason: str = ""
    older_than_s: float = 86_400.0
    unsafe_age: bool = False  # an age below the floor is allowed
    inventories: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBegun:
    """Result of `begin_plan`. The values that the plan began with are in its run."""

    done: PlanResult | None = None  # of a plan that is finished


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkInput:
    """One bulk job of a plan."""

    run_id: str
    job: str  # its name
    master: str = ""  # the cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """Counts that a bulk job published."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """Input of the steps of a plan that has begun."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginApplyInput:
    """Input of `begin_apply`."""

    run_id: str  # of the plan
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBegun:
    """Plan that is being applied."""

    pages: int
    findings: int  # of removable kinds
    before_us: int  # the plan's cut-off
    epoch: int  # of the catalog
    done: ApplyCounts | None = None  # of an apply that is finished


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInput:
    """One page of a plan's findings, for each step of an apply."""

    run_id: str  # of the plan
    page: int
    before_us: int  # the plan's cut-off
    epoch: int  # of the catalog at the plan
    batch_id: str  # of phase two
    batch_workflow_id: str  # workflow that does phase two and gets the claim
    actor: str
    reason: str = ""
    objects_per_s: float = 0.0  # rate of deletions of single objects; 0: unlimited
    intents: int = 0  # rows that were filed for the page


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledPage:
    """Counts for one page: intents filed for phase two, ledgers removed from the catalog, single objects."""

    intents: int  # rows for phase two
    detached: int  # ledgers that left the catalog
    objects: int  # findings of single objects and uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginScrubInput:
    """Input of `begin_scrub`."""

    run_id: str  # of a new run
    actor: str
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: every topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubBegun:
    """Run of a scrub, which may be an earlier unfinished one."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRunInput:
    """Input of `cut_scrub`."""

    run_id: str
    master: str = ""  # the cluster; empty: that of the settings
    bytes_per_s: int = SCRUB_RATE  # a page is some minutes at this rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPageInput:
    """One page of a scrub."""

    run_id: str
    page: int  # 0 or more
    bytes_per_s: int  # 1 or more
    master: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRead:
    """Counts of objects to be read, or of objects that a page has read."""

    pages: int = 0
    objects: int = 0
    size_bytes: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeScrubInput:
    """Input of `conclude_scrub`."""

    run_id: str
