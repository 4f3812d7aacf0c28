"""What travels to and from the activities of reconciliation. Findings and fates never do: they stay in Parquet."""

from dataclasses import dataclass, field

from logstore.reconciliation.results import ApplyCounts, PlanResult


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
    """The catalog and the store at the beginning of a plan; the same when it is begun again."""

    before_us: int  # objects that are younger are left out, by the store's clock
    rows_before_us: int  # rows that are younger are left out, by the catalog's clock
    next_ledger_id: int
    ledgers: int
    epoch: int
    done: PlanResult | None = None  # it was finished before


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkInput:
    """One bulk job of a plan."""

    run_id: str
    job: str  # its name
    before_us: int
    rows_before_us: int
    next_ledger_id: int
    inventories: list[str] = field(default_factory=list)
    master: str = ""  # the cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What a bulk job published."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesInput:
    """A comparison, to be judged."""

    run_id: str
    next_ledger_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludePlanInput:
    """A plan whose findings are published."""

    run_id: str
    begun: PlanBegun


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
class FindingsPage:
    """One page of a plan's findings."""

    run_id: str
    page: int
    before_us: int  # the plan's cut-off
    epoch: int  # of the catalog at the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePageInput:
    """A page that is to be filed for phase two."""

    findings: FindingsPage
    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledPage:
    """What a page has for whom."""

    intents: int  # rows for phase two
    detached: int  # ledgers that left the catalog
    objects: int  # findings of single objects and uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObjectsInput:
    """A page of which single objects are to be deleted."""

    findings: FindingsPage
    actor: str
    reason: str = ""
    objects_per_s: float = 0.0  # 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPageInput:
    """A page whose deletion is over, as far as it waits for it."""

    findings: FindingsPage
    batch_id: str
    intents: int = 0  # rows that were filed for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeApplyInput:
    """A plan of which every page was applied."""

    run_id: str
