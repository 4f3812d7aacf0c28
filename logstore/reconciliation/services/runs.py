"""Runs of plans and applies: whether a plan can be shown or applied, and how far its apply is."""

from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog import Reconciliation, ReconciliationRun, RunKind
from logstore.reconciliation.findings import PlanResult, apply_run_id, plan_result


def finished_plan(run: ReconciliationRun) -> PlanResult:
    """What a plan came to.

    Raises:
        PreconditionFailed: The run is an apply, or a plan that did not finish.
    """
    if run.kind is not RunKind.PLAN:
        raise PreconditionFailed(f"run {run.run_id}: expected a plan, found a run of {run.kind.value}")
    if run.finished_us is None:
        raise PreconditionFailed(f"plan {run.run_id}: expected one that finished, found no summary; plan again")
    return plan_result(run.summary)


def finished_findings(run: ReconciliationRun) -> PlanResult:
    """What a plan or a scrub came to: both have findings that can be shown.

    Raises:
        PreconditionFailed: The run is neither, or did not finish.
    """
    if run.kind is not RunKind.SCRUB:
        return finished_plan(run)
    if run.finished_us is None:
        raise PreconditionFailed(f"scrub {run.run_id}: expected one that finished, found no summary; scrub again")
    return plan_result(run.summary)


def apply_of(runs: Reconciliation, run_id: str) -> ReconciliationRun | None:
    """The apply of a plan, at work or finished; None where it was not applied."""
    try:
        return runs.run(apply_run_id(run_id))
    except UnknownObject:
        return None
