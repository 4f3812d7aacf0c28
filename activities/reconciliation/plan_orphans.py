"""Steps of a plan of the own store: list, read, compare, verify. A plan changes only rows and output of runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from activities.heartbeats import define_activity, send_heartbeats
from activities.reconciliation.inputs_and_results import (
    BeginPlanInput,
    BulkJobInput,
    BulkJobResult,
    EarlierPlanResult,
    PlanStepInput,
)
from activities.reconciliation.plan_runs import PlanRuns, describe_left_out, find_result
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import InvalidInput
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import (
    ROWS_BEFORE,
    BulkJob,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import PlanOrScrubResult
from logstore.reconciliation.services.orphan_inspection import OrphanInspector

_STEPS: Final = (
    ListStorageJob.name,
    ReadLedgersAndIntentsJob.name,
    CompareStorageWithCatalogJob.name,
    VerifyFindingsJob.name,
)


class PlanOrphansActivities:
    """Activities of a plan. `store_now_us` returns the time of the object store's clock, for ages of objects."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: OrphanInspector,
        bulk: BulkJobRunner,
        store_now_us: Callable[[], int],
        finished_retention_s: float,
    ) -> None:
        self._runs, self._identities, self._inspector = catalog.reconciliation, catalog.identities, inspector
        self._store_now_us = store_now_us
        self._plans = PlanRuns(
            RunKind.PLAN,
            catalog=catalog,
            bulk=bulk,
            finished_retention_s=finished_retention_s,
            findings_counter="sexton_reconciliation_findings_total",
        )

    @define_activity(name="reconciliation.begin_plan")
    @send_heartbeats()
    def begin_plan_and_remove_old_runs(self, request: BeginPlanInput) -> EarlierPlanResult:
        """Check that the buckets belong to the catalog. Open the run with the cut-offs of all later steps.

        Also remove old runs, and output of this catalog that has no run.

        Idempotency: keyed by `run_id`. The values that the first call stores in the run's row stay.
        Raises: InvalidInput, PreconditionFailed, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        plausibility_guards.require_min_age(request.older_than_s, unsafe=request.unsafe_age)
        self._inspector.require_own_buckets()
        run = self._plans.open_run_and_forget_old_runs(request.run_id, lambda: self._make_initial_values(request))
        return EarlierPlanResult(done=find_result(run))

    def _make_initial_values(self, request: BeginPlanInput) -> Mapping[str, Any]:
        """Return the initial values of a run. The cut-offs for objects and for rows are by different clocks."""
        state, older_us = self._runs.read_catalog_time_and_ids(), round(request.older_than_s * 1_000_000)
        return {
            "actor": request.actor,
            "reason": request.reason,
            "before_us": self._store_now_us() - older_us,
            "rows_before_us": state.now_us - older_us,
            "next_ledger_id": state.next_ledger_id,
            "epoch": state.epoch,
            "catalog_id": self._identities.catalog_id(),
            "inventories": list(request.inventories),
        }

    @define_activity(name="reconciliation.run_bulk")
    def run_plan_bulk_job(self, request: BulkJobInput) -> BulkJobResult:
        """Run one bulk job until its output is published.

        Idempotency: keyed by (run_id, job). If the output is published already, only its counts are returned. If
            attempts overlap, the output of the first complete attempt is published.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: InvalidInput, PreconditionFailed, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        return self._plans.run_bulk_job(request, lambda values: _make_bulk_job(request, values))

    @define_activity(name="reconciliation.check_sides")
    @send_heartbeats()
    def require_plausible_comparison(self, request: PlanStepInput) -> None:
        """Refuse a comparison with implausible counts, before the differences are verified.

        Idempotency: reads only.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        summary = self._runs.get_run(request.run_id).summary
        listed, read, compared = (
            self._plans.output.require_published_summary(request.run_id, name).counts
            for name in (ListStorageJob.name, ReadLedgersAndIntentsJob.name, CompareStorageWithCatalogJob.name)
        )
        plausibility_guards.require_plausible_counts(
            plausibility_guards.ComparisonCounts(
                objects=listed["objects"],
                ledgers=read["ledgers"],
                ledgers_counted=self._runs.count_ledgers(below=int(summary["next_ledger_id"])),
                primary=_to_overlap(compared, ""),
                tiered=_to_overlap(compared, "tiered_"),
                expected=compared["expected"],
            )
        )

    @define_activity(name="reconciliation.conclude_plan")
    @send_heartbeats()
    def conclude_plan(self, request: PlanStepInput) -> PlanOrScrubResult:
        """Finish the run with the counts of findings.

        Check again that the buckets belong to the catalog, because any other bucket lacks the catalog's objects.

        Idempotency: the result of the first call stays. Counts come from published files, which do not change.
        Raises: PreconditionFailed, CatalogMismatch, CorruptData (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._inspector.require_own_buckets()
        return self._plans.close_run(request.run_id, self._make_plan_result)

    def _make_plan_result(self, run: ReconciliationRun) -> PlanOrScrubResult:
        published = {name: self._plans.output.require_published_summary(run.run_id, name) for name in _STEPS}
        folder = published[VerifyFindingsJob.name].folder
        totals = FindingFiles(Path(folder)).count_findings_and_bytes_by_kind()
        compared = published[CompareStorageWithCatalogJob.name]
        return PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=published[ReadLedgersAndIntentsJob.name].counts["ledgers"],
            before_us=int(run.summary["before_us"]),
            report=folder,
            rows_before_us=int(compared.facts.get(ROWS_BEFORE, run.summary["rows_before_us"])),
            young=compared.counts["young"],
            left_out=describe_left_out(published.values()),
        )


def _make_bulk_job(request: BulkJobInput, summary: Mapping[str, Any]) -> BulkJob:
    run_id, before_us = request.run_id, int(summary["before_us"])
    match request.job:
        case ListStorageJob.name:
            return ListStorageJob(run_id=run_id, inventories=tuple(summary["inventories"]))
        case ReadLedgersAndIntentsJob.name:
            return ReadLedgersAndIntentsJob(run_id=run_id)
        case CompareStorageWithCatalogJob.name:
            return CompareStorageWithCatalogJob(
                run_id=run_id,
                before_us=before_us,
                rows_before_us=int(summary["rows_before_us"]),
                next_ledger_id=int(summary["next_ledger_id"]),
            )
        case VerifyFindingsJob.name:
            return VerifyFindingsJob(run_id=run_id, before_us=before_us)
    raise InvalidInput("job", expected=f"one of {', '.join(_STEPS)}", found=request.job)


def _to_overlap(compared: Mapping[str, int], kind: str) -> plausibility_guards.CopyOverlap:
    return plausibility_guards.CopyOverlap(
        stored=compared[f"{kind}stored"], named=compared[f"{kind}named"], matched=compared[f"{kind}matched"]
    )
