"""Steps of a plan: list, read, compare, verify. A plan changes only rows and output of runs.

A bulk job publishes its output once. A run's row keeps the values and the result that are stored first. Steps may
therefore run twice, and attempts may overlap.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from temporalio import activity

from activities.bulk_jobs import RUN_CLAIM_S, OwnedBulkOutput, run_bulk_job
from activities.deletion.claims_and_causes import own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.reconciliation.inputs_and_results import (
    BeginPlanInput,
    BulkJobInput,
    BulkJobResult,
    EarlierPlanResult,
    PlanStepInput,
)
from logstore.errors import InvalidInput, UnknownObject
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog import CatalogIdentity, ReconciliationRun, ReconciliationRuns, RunKind
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import (
    LEFT_OUT,
    ROWS_BEFORE,
    BulkJob,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import RESULT, PlanOrScrubResult, plan_result
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.stop_checks import raise_if_stopped

_RUNS_PER_FORGET: Final = 100
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
        reconciliation: ReconciliationRuns,
        identities: CatalogIdentity,
        inspector: OrphanInspector,
        bulk: BulkJobRunner,
        store_now_us: Callable[[], int],
        finished_retention_s: float,
    ) -> None:
        self._runs, self._identities, self._inspector, self._bulk = reconciliation, identities, inspector, bulk
        self._output = OwnedBulkOutput(bulk=bulk, identities=identities)
        self._store_now_us, self._retention_s = store_now_us, finished_retention_s

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
        self._output.require_not_of_other_catalog(request.run_id)
        run = self._runs.open_run(
            request.run_id,
            RunKind.PLAN,
            claim=own_workflow_claim(RUN_CLAIM_S),
            summary=self._make_initial_values(request),
        )
        self._output.mark_as_own(request.run_id)
        self._forget_old_runs_and_output()
        return EarlierPlanResult(done=plan_result(run.summary) if run.finished_us is not None else None)

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

    def _forget_old_runs_and_output(self) -> None:
        while self._runs.remove_old_runs(older_than_s=self._retention_s, limit=_RUNS_PER_FORGET):
            raise_if_stopped()
        own = self._identities.catalog_id()
        for run_id in self._bulk.list_run_ids():
            raise_if_stopped()
            try:
                self._runs.get_run(run_id)
            except UnknownObject:
                if self._output.read_catalog_id_mark(run_id) == own:
                    self._output.remove_run_output(run_id)

    @define_activity(name="reconciliation.run_bulk")
    def run_plan_bulk_job(self, request: BulkJobInput) -> BulkJobResult:
        """Run one bulk job until its output is published.

        Idempotency: keyed by (run_id, job). If the output is published already, only its counts are returned. If
            attempts overlap, the output of the first complete attempt is published.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: InvalidInput, PreconditionFailed, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        summary = run_bulk_job(
            self._bulk,
            request.job,
            lambda: _make_bulk_job(request, self._renew_claim_and_read_summary(request.run_id)),
            master=request.master,
        )
        return BulkJobResult(counts=dict(summary.counts))

    @define_activity(name="reconciliation.check_sides")
    @send_heartbeats()
    def require_plausible_comparison(self, request: PlanStepInput) -> None:
        """Refuse a comparison with implausible counts, before the differences are verified.

        Idempotency: reads only.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        summary = self._runs.get_run(request.run_id).summary
        listed, read, compared = (
            self._output.require_published_summary(request.run_id, name).counts
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
        run = self._runs.get_run(request.run_id)
        if run.finished_us is None:
            result = self._make_plan_result(run)
            self._runs.close_run(request.run_id, {**run.summary, RESULT: asdict(result)})
            _count_findings_in_metric(result.findings)
            run = self._runs.get_run(request.run_id)
        return plan_result(run.summary)

    def _make_plan_result(self, run: ReconciliationRun) -> PlanOrScrubResult:
        published = {name: self._output.require_published_summary(run.run_id, name) for name in _STEPS}
        folder = published[VerifyFindingsJob.name].folder
        totals = FindingFiles(Path(folder)).count_findings_and_bytes_by_kind()
        facts = [fact for summary in published.values() for fact in summary.facts.items()]
        compared = published[CompareStorageWithCatalogJob.name]
        return PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=published[ReadLedgersAndIntentsJob.name].counts["ledgers"],
            before_us=int(run.summary["before_us"]),
            report=folder,
            rows_before_us=int(compared.facts.get(ROWS_BEFORE, run.summary["rows_before_us"])),
            young=compared.counts["young"],
            left_out=[
                f"{name.removeprefix(LEFT_OUT)}: {reason}"
                for name, reason in sorted(set(facts))
                if name.startswith(LEFT_OUT)
            ],
        )

    def _renew_claim_and_read_summary(self, run_id: str) -> Mapping[str, Any]:
        summary = self._runs.get_run(run_id).summary
        return self._runs.open_run(run_id, RunKind.PLAN, claim=own_workflow_claim(RUN_CLAIM_S), summary=summary).summary


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


def _count_findings_in_metric(findings: Mapping[str, int]) -> None:
    counter = activity.metric_meter().create_counter(
        "sexton_reconciliation_findings_total", "Findings of finished plans; the same one counts in every plan"
    )
    for kind, rows in findings.items():
        if rows:
            counter.add(rows, {"kind": kind})
