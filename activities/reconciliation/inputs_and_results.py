"""Inputs and results of the activities of reconciliation. Findings and fates stay in Parquet files."""

from dataclasses import dataclass, field

from logstore.reconciliation.bulk_job_inputs_and_results import SCRUB_RATE
from logstore.reconciliation.findings import ApplyCounts, PlanOrScrubResult
from logstore.subjects import HasBatch, HasPageOfRun, HasRun, HasSubject, HasTopics, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPlanInput(HasRun):
    run_id: str
    actor: str
    reason: str = ""
    older_than_s: float = 86_400.0
    unsafe_age: bool = False  # an age below the floor is allowed
    inventories: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPlanResult:
    done: PlanOrScrubResult | None = None  # result of the plan, if it is already finished


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobInput(HasSubject):
    run_id: str
    job: str  # name of the bulk job
    master: str = ""  # the Spark cluster; empty: the cluster of the settings

    def subject(self) -> Subject:
        return Subject(parts=(self.job,), run_id=self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobResult:
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStepInput(HasRun):
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginApplyInput(HasRun):
    run_id: str  # of the plan
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyScope:
    pages: int
    findings: int  # of removable kinds
    before_us: int  # the plan's cut-off
    epoch: int  # of the catalog
    done: ApplyCounts | None = None  # counts of the apply, if it is already finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPageInput(HasPageOfRun, HasBatch):
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
    intents: int  # rows for phase two
    detached: int  # ledgers that left the catalog
    objects: int  # findings of single objects and uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginScrubInput(HasTopics, HasRun):
    run_id: str  # of a new run
    actor: str
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # empty: every topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRunId(HasRun):
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutScrubInput(HasRun):
    run_id: str
    master: str = ""  # the Spark cluster; empty: the cluster of the settings
    bytes_per_s: int = SCRUB_RATE  # a page is some minutes at this rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPageInput(HasPageOfRun):
    run_id: str
    page: int  # 0 or more
    bytes_per_s: int  # 1 or more
    master: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubCounts:
    pages: int = 0
    objects: int = 0
    size_bytes: int = 0
    findings: int = 0
