"""Checks of the runs of plans, scrubs and applies."""

from pathlib import Path

from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
from logstore.errors import PreconditionFailed, StaleCatalog, UnknownObject
from logstore.ports.catalog.identity import CatalogIdentity
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.pulsar.plan_jobs import IDENTITY
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import (
    FATES_FOLDER,
    FindingKind,
    PlanOrScrubResult,
    apply_run_id,
    plan_result,
    plan_run_id,
)


def require_finished_plan(run: ReconciliationRun) -> PlanOrScrubResult:
    """Return the result of a finished plan of the own store, which may be applied.

    Raises:
        PreconditionFailed: The run is unfinished, of another kind, or a plan of a Pulsar cluster.
    """
    require_no_cluster_plan(run)
    if run.kind is not RunKind.PLAN:
        raise PreconditionFailed(f"run {run.run_id}: expected a plan, found a run of {run.kind.value}")
    return _require_finished(run, "plan")


def require_no_cluster_plan(run: ReconciliationRun) -> None:
    """Raise `PreconditionFailed` if the run is a plan of a Pulsar cluster, which has an apply of its own."""
    if run.kind is RunKind.CLUSTER_PLAN:
        incomplete = plan_result(run.summary).incomplete if run.finished_us is not None else []
        found = f"an incomplete plan of a Pulsar cluster ({incomplete[0]})" if incomplete else "one of a Pulsar cluster"
        raise PreconditionFailed(
            f"plan {run.run_id}: expected a plan of Sexton's own store, found {found}."
            f" Nothing was deleted. Read it: sexton orphans report {run.run_id}"
        )


def require_appliable_cluster_plan(
    runs: ReconciliationRuns, identities: CatalogIdentity, run_id: str
) -> tuple[PlanOrScrubResult, ReconciliationRun]:
    """Return the result of a complete plan of a Pulsar cluster, and its run.

    Raises:
        UnknownObject: No run has this id.
        PreconditionFailed: The run is not a finished plan of a cluster, the plan is incomplete, or of another catalog.
    """
    plan, run = _require_finished_cluster_plan(runs, run_id)
    if plan.incomplete:
        raise PreconditionFailed(f"plan {run_id}: expected a complete one, found this problem: {plan.incomplete[0]}")
    _require_own_catalog(run, identities)
    return plan, run


def require_applied_cluster_plan(
    runs: ReconciliationRuns, run_id: str
) -> tuple[PlanOrScrubResult | None, ReconciliationRun]:
    """Return the result of a plan of a Pulsar cluster, and the run of its apply, finished or not.

    The result is `None` if only the apply is in the catalog. A plan leaves it first.

    Raises:
        UnknownObject: Neither a plan nor its apply has this id.
        PreconditionFailed: The run is not a finished plan of a cluster, or the plan was not applied.
    """
    apply_run = find_apply(runs, run_id)
    try:
        plan, _ = _require_finished_cluster_plan(runs, run_id)
    except UnknownObject:
        if apply_run is None:
            raise
        if IDENTITY not in apply_run.summary:
            found = "one in Sexton's own store"
            raise PreconditionFailed(f"run {run_id}: expected an apply in a Pulsar cluster, found {found}") from None
        return None, apply_run
    if apply_run is None:
        raise PreconditionFailed(f"plan {run_id}: expected an applied one, found no apply")
    return plan, apply_run


def _require_finished_cluster_plan(
    runs: ReconciliationRuns, run_id: str
) -> tuple[PlanOrScrubResult, ReconciliationRun]:
    run = runs.get_run(run_id)
    if run.kind is not RunKind.CLUSTER_PLAN:
        raise PreconditionFailed(f"run {run_id}: expected a plan of a Pulsar cluster, found one of {run.kind.value}")
    return _require_finished(run, "plan"), run


def _require_own_catalog(run: ReconciliationRun, identities: CatalogIdentity) -> None:
    catalog_id, planned_catalog_id = identities.catalog_id(), run.summary["catalog_id"]
    if planned_catalog_id != catalog_id:
        raise PreconditionFailed(
            f"plan {run.run_id}: expected one of catalog {catalog_id}, found one of {planned_catalog_id}"
        )


def require_finished_plan_or_scrub(run: ReconciliationRun) -> PlanOrScrubResult:
    """Return the result of a finished run that has findings. Raise `PreconditionFailed` for any other run."""
    match run.kind:
        case RunKind.SCRUB:
            return _require_finished(run, "scrub")
        case RunKind.CLUSTER_PLAN:
            return _require_finished(run, "plan")
    return require_finished_plan(run)


def _require_finished(run: ReconciliationRun, name: str) -> PlanOrScrubResult:
    if run.finished_us is None:
        raise PreconditionFailed(f"{name} {run.run_id}: expected one that finished, found no summary; {name} again")
    return plan_result(run.summary)


def require_appliable_plan_and_epoch(
    runs: ReconciliationRuns, identities: CatalogIdentity, run_id: str
) -> tuple[PlanOrScrubResult, int]:
    """Return the result of a plan that may be applied, and the catalog's epoch.

    Raises:
        UnknownObject: No run has this id.
        PreconditionFailed: The run is not a finished plan of this catalog.
        StaleCatalog: The catalog was rebuilt after the plan.
    """
    run = runs.get_run(run_id)
    plan = require_finished_plan(run)
    _require_own_catalog(run, identities)
    epoch = int(run.summary["epoch"])
    require_epoch(runs, epoch, run_id)
    return plan, epoch


def require_epoch(runs: ReconciliationRuns, planned_epoch: int, run_id: str) -> None:
    epoch = runs.read_catalog_time_and_ids().epoch
    if planned_epoch != epoch:
        raise StaleCatalog(f"plan {run_id}: expected catalog epoch {epoch}, found {planned_epoch}; plan again")


def require_all_findings(files: FindingFiles, plan: PlanOrScrubResult, run_id: str) -> FindingFiles:
    """Return `files`. Raise `PreconditionFailed` if the counts by kind differ from the plan's result."""
    totals = files.count_findings_and_bytes_by_kind(FindingKind)
    counts = {kind.value: rows for kind, (rows, _) in totals.items() if rows}
    expected = {kind: rows for kind, rows in plan.findings.items() if rows}  # another build may have other kinds
    if counts != expected:
        raise PreconditionFailed(f"plan {run_id}: expected its findings, {expected}, found {counts}")
    return files


def open_finding_files(plan: PlanOrScrubResult, run_id: str) -> FindingFiles:
    """Open the findings of a plan or a scrub. Raise `PreconditionFailed` if this machine does not see the folder."""
    folder = Path(plan.report)
    if not folder.is_dir():
        where = "run this where the folder of bulk output is, the setting bulk_dir"
        raise PreconditionFailed(f"plan {run_id}: expected its findings in {folder}, found no such folder; {where}")
    return FindingFiles(folder)


def require_decisions_in_catalog(apply_run: ReconciliationRun | None) -> None:
    """Raise `PreconditionFailed` for an unfinished apply that an earlier build began.

    That build kept decisions in files. Repeating or continuing its steps without these files could contradict them.
    """
    if apply_run is not None and apply_run.finished_us is None and FATES_FOLDER in apply_run.summary:
        raise PreconditionFailed(
            f"apply of {plan_run_id(apply_run.run_id)}: expected its decisions in the catalog, found them in files of"
            " an earlier build. Deletions that have started continue. Plan again, and apply the new plan"
        )


def find_apply(runs: ReconciliationRuns, run_id: str) -> ReconciliationRun | None:
    """Return the run of a plan's apply, finished or not, or `None` if the plan was not applied."""
    return find_run(runs, apply_run_id(run_id))


def find_run(runs: ReconciliationRuns, run_id: str) -> ReconciliationRun | None:
    try:
        return runs.get_run(run_id)
    except UnknownObject:
        return None
