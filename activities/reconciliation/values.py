"""What travels to and from the activities of reconciliation. Findings and fates never do: they stay in Parquet."""

from dataclasses import dataclass, field

from logstore.reconciliation.findings import ApplyCounts, PlanResult
from logstore.reconciliation.jobs import SCRUB_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPlanInput:
    """A plan that is to begin."""

    run_id: str
    actor: str
    reason: str = ""
    older_than_s: float = 86_400.0
    unsafe_age: bool = False  # an age below the floor is meant
    inventories: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBegun:
    """A plan that has a run; what it began with stands in its row."""

    done: PlanResult | None = None  # it was finished before


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkInput:
    """One bulk job of a plan."""

    run_id: str
    job: str  # its name
    master: str = ""  # the cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What a bulk job published."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """A plan that has begun."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginApplyInput:
    """A plan that is to be applied."""

    run_id: str  # of the plan
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBegun:
    """A plan as apply meets it."""

    pages: int
    findings: int  # of kinds that apply acts upon
    before_us: int
    epoch: int
    done: ApplyCounts | None = None  # it was applied before


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInput:
    """One page of a plan's findings, as each step of an apply takes it."""

    run_id: str  # of the plan
    page: int
    before_us: int  # the plan's cut-off
    epoch: int  # of the catalog at the plan
    batch_id: str  # under which it is filed for phase two
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    actor: str
    reason: str = ""
    objects_per_s: float = 0.0  # at which single objects are deleted; 0: unlimited
    intents: int = 0  # rows that were filed for it, once it is filed


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledPage:
    """Counts for one page: intents filed for phase two, ledgers removed from the catalog, single objects."""

    intents: int  # rows for phase two
    detached: int  # ledgers that left the catalog
    objects: int  # findings of single objects and uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginScrubInput:
    """A scrub that is to begin, or to go on."""

    run_id: str  # of a new run
    actor: str
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: every topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubBegun:
    """A scrub that has a run."""

    run_id: str  # of an earlier scrub where that did not finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRunInput:
    """A scrub that has begun."""

    run_id: str
    master: str = ""  # the cluster; empty: that of the settings
    bytes_per_s: int = SCRUB_RATE  # of a page, which is cut to some minutes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPageInput:
    """One page of a scrub."""

    run_id: str
    page: int  # 0 or more
    bytes_per_s: int  # 1 or more
    master: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRead:
    """Counts of what is to be read, or of what a page has read."""

    pages: int = 0
    objects: int = 0
    size_bytes: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeScrubInput:
    """A scrub all of whose pages were read."""

    run_id: str
