"""Inputs and results of the activities of a plan for a Pulsar cluster. Findings stay in Parquet files."""

from dataclasses import dataclass, field

from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S
from logstore.reconciliation.findings import PlanOrScrubResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginClusterPlanInput:
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
