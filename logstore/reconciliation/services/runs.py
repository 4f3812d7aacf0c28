"""Runs of plans and applies: whether a plan can be shown or applied, and how far its apply is."""

from pathlib import Path

from logstore.errors import PreconditionFailed, StaleCatalog, UnknownObject
from logstore.ports.catalog import Identities, Reconciliation, ReconciliationRun, RunKind
from logstore.reconciliation.files import FindingFiles
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


def appliable_plan(runs: Reconciliation, identities: Identities, run_id: str) -> tuple[PlanResult, int]:
    """Return a plan that may be applied, with the catalog's epoch.

    Raises:
        UnknownObject: No run has this id.
        PreconditionFailed: It is no finished plan, or one of another catalog.
        StaleCatalog: The catalog was rebuilt since.
    """
    run = runs.run(run_id)
    plan = finished_plan(run)
    catalog_id, planned_for = identities.catalog_id(), run.summary["catalog_id"]
    if planned_for != catalog_id:
        raise PreconditionFailed(f"plan {run_id}: expected one of catalog {catalog_id}, found one of {planned_for}")
    epoch = int(run.summary["epoch"])
    require_epoch(runs, epoch, run_id)
    return plan, epoch


def require_epoch(runs: Reconciliation, planned: int, run_id: str) -> None:
    """Raise `StaleCatalog` if the catalog has another epoch than the plan."""
    epoch = runs.standing().epoch
    if planned != epoch:
        raise StaleCatalog(f"plan {run_id}: expected catalog epoch {epoch}, found {planned}; plan again")


def require_counted(files: FindingFiles, plan: PlanResult, run_id: str) -> FindingFiles:
    """Return the files, if they hold as many findings of each kind as the plan's summary counts.

    Raises:
        PreconditionFailed: They do not.
    """
    counted = {kind.value: rows for kind, (rows, _) in files.totals().items() if rows}
    expected = {kind: rows for kind, rows in plan.findings.items() if rows}  # another build names other kinds
    if counted != expected:
        raise PreconditionFailed(f"plan {run_id}: expected its findings, {expected}, found {counted}")
    return files


def open_report(plan: PlanResult, run_id: str) -> FindingFiles:
    """Open the findings of a plan or a scrub in the folder that its summary names.

    Raises:
        PreconditionFailed: This machine does not see the folder.
    """
    folder = Path(plan.report)
    if not folder.is_dir():
        where = "run this where the folder of bulk output is, the setting bulk_dir"
        raise PreconditionFailed(f"plan {run_id}: expected its findings in {folder}, found no such folder; {where}")
    return FindingFiles(folder)


def apply_of(runs: Reconciliation, run_id: str) -> ReconciliationRun | None:
    """The apply of a plan, at work or finished; None where it was not applied."""
    try:
        return runs.run(apply_run_id(run_id))
    except UnknownObject:
        return None
