"""Inputs and results of the activities of plans, applies, undos and aborts for a Pulsar cluster.

Findings, and what became of them, stay in Parquet files.
"""

from dataclasses import dataclass, field

from logstore.pulsar.cluster_transactions import TransactionAbort
from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S
from logstore.reconciliation.findings import ApplyCounts, FindingPosition, PlanOrScrubResult
from logstore.subjects import HasLedgers, HasPageOfRun, HasRowLimit, HasRun, HasTransaction, HasTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginClusterPlanInput(HasRun):
    run_id: str
    actor: str
    reason: str = ""
    older_than_s: float | None = None  # one age floor for all ledgers; None: the floor of each state
    between_s: float = MIN_BETWEEN_SCANS_S  # least time between the two scans
    unsafe_age: bool = False  # shorter times than the defaults are allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunClusterPlan:
    jobs: list[str] = field(default_factory=list)  # names of the bulk jobs, in order
    done: PlanOrScrubResult | None = None  # result of the plan, if it is already finished


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginClusterApplyInput(HasRowLimit, HasRun):
    run_id: str  # of the plan
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05  # allowed share of orphans among all ledgers, 0 to 1
    limit: int = 0  # remove only so many of the oldest orphans that are left; 0: all
    include_unconfirmed: bool = False
    include_irreversible: bool = False
    last: FindingPosition | None = None  # youngest orphan to remove, if an earlier run of the workflow has chosen it
    is_continued: bool = False  # an earlier run of the workflow has begun the apply


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterApplyScope:
    pages: int
    findings: int  # of kinds that an apply removes
    shadow_topics: list[str] = field(default_factory=list)  # managed ledgers that list ledgers of other topics
    last: FindingPosition | None = None  # youngest orphan to remove, if there is a limit
    done: ApplyCounts | None = None  # if the apply has ended, or was stopped
    stopped: str = ""  # why it was stopped; a sentence
    certificate: str = ""  # its key, if the apply has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyClusterPageInput(HasPageOfRun):
    run_id: str  # of the plan
    page: int
    shadow_topics: list[str] = field(default_factory=list)
    last: FindingPosition | None = None
    include_unconfirmed: bool = False
    include_irreversible: bool = False
    removals_per_s: float = 0.0  # 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedClusterPage:
    counts: ApplyCounts  # of all findings of the page, also of those that an earlier apply has removed
    stopped: str = ""  # why nothing more may be deleted; a sentence
    can_go_on: bool = False  # whether a later apply of the plan may go on, although this one was stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeClusterApplyInput(HasRun):
    run_id: str  # of the plan
    actor: str
    reason: str = ""
    include_unconfirmed: bool = False
    include_irreversible: bool = False
    stopped: str = ""
    can_go_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludedClusterApply:
    counts: ApplyCounts
    certificate: str = ""  # its key in the records bucket; "": nothing was removed


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginUndoInput(HasLedgers, HasRun):
    run_id: str  # of the plan
    actor: str
    reason: str = ""
    ledger_ids: list[int] = field(default_factory=list)  # that the journal must have


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPageInput(HasLedgers, HasRun):
    run_id: str  # of the plan
    actor: str
    reason: str = ""
    after: int  # restore ledgers of the journal with higher ids
    ledger_ids: list[int] = field(default_factory=list)  # only these; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class UndonePage:
    counts: dict[str, int]  # by `Restoration` and by `StoredData`
    last: int | None  # highest ledger id of the page; None: nothing was left


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAbortInput(HasTransactions, HasRun):
    run_id: str
    transactions: list[str]  # as `coordinator:sequence`
    actor: str
    reason: str = ""
    unsafe_age: bool = False  # young transactions are allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunAbort:
    done: list[TransactionAbort] | None = None  # if the run has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionInput(HasTransaction, HasRun):
    run_id: str
    txn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAttempt:
    decided: bool = False  # the coordinator has decided the abort; all participants may have confirmed it, or not
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAbortsInput(HasRun):
    run_id: str
    attempts: dict[str, AbortAttempt]  # last attempts, by transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAborts:
    unsettled: int  # transactions that have not ended, or whose participants owe something
    open: list[str] = field(default_factory=list)  # transactions whose abort is not decided
    aborting: list[str] = field(default_factory=list)  # transactions whose participants are being told
