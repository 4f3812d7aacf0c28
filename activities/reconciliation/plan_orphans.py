"""Runs of plans, and the steps of a plan of the own store: list, read, compare, verify.

A plan changes only rows and output of runs. A bulk job publishes its output once. A run's row keeps the values and the
result that are stored first. Steps may therefore run twice, and attempts may overlap.
"""

from collections.abc import Callable, Iterable, Mapping
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
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import InvalidInput, UnknownObject
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import (
    LEFT_OUT,
    ROWS_BEFORE,
    BulkJob,
    BulkJobSummary,
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


class PlanRuns:
    """Runs of plans of one kind. `findings_counter` names the metric that counts the findings of finished plans."""

    def __init__(
        self,
        kind: RunKind,
        *,
        catalog: Catalog,
        bulk: BulkJobRunner,
        finished_retention_s: float,
        findings_counter: str,
    ) -> None:
        self._kind, self._runs, self._identities, self._bulk = kind, catalog.reconciliation, catalog.identities, bulk
        self._retention_s, self._findings_counter = finished_retention_s, findings_counter
        self.output = OwnedBulkOutput(bulk=bulk, identities=catalog.identities)

    def open_run_and_forget_old_runs(
        self, run_id: str, make_initial_values: Callable[[], Mapping[str, Any]]
    ) -> ReconciliationRun:
        """Open the run, and return it. `make_initial_values` is called only if there is no run yet.

        Then remove old runs of every kind, and output of this catalog that has no run.
        """
        self.output.require_not_of_other_catalog(run_id)
        try:
            values = self._runs.get_run(run_id).summary
        except UnknownObject:
            values = make_initial_values()
        run = self._runs.open_run(run_id, self._kind, claim=own_workflow_claim(RUN_CLAIM_S), summary=values)
        self.output.mark_as_own(run_id)
        self._forget_old_runs_and_output()
        return run

    def _forget_old_runs_and_output(self) -> None:
        while self._runs.remove_old_runs(older_than_s=self._retention_s, limit=_RUNS_PER_FORGET):
            raise_if_stopped()
        own = self._identities.catalog_id()
        for run_id in self._bulk.list_run_ids():
            raise_if_stopped()
            try:
                self._runs.get_run(run_id)
            except UnknownObject:
                if self.output.read_catalog_id_mark(run_id) == own:
                    self.output.remove_run_output(run_id)

    def run_bulk_job(self, request: BulkJobInput, make_job: Callable[[Mapping[str, Any]], BulkJob]) -> BulkJobResult:
        """Run a bulk job until its output is published. `make_job` gets the values of the run."""
        summary = run_bulk_job(
            self._bulk,
            request.job,
            lambda: make_job(self._renew_claim_and_read_summary(request.run_id)),
            master=request.master,
        )
        return BulkJobResult(counts=dict(summary.counts))

    def _renew_claim_and_read_summary(self, run_id: str) -> Mapping[str, Any]:
        summary = self._runs.get_run(run_id).summary
        return self._runs.open_run(run_id, self._kind, claim=own_workflow_claim(RUN_CLAIM_S), summary=summary).summary

    def close_run(
        self, run_id: str, make_result: Callable[[ReconciliationRun], PlanOrScrubResult]
    ) -> PlanOrScrubResult:
        """Finish the run with a result. Return the result of the first call."""
        run = self._runs.get_run(run_id)
        if run.finished_us is None:
            result = make_result(run)
            self._runs.close_run(run_id, {**run.summary, RESULT: asdict(result)})
            self._count_findings_in_metric(result.findings)
            run = self._runs.get_run(run_id)
        return plan_result(run.summary)

    def _count_findings_in_metric(self, findings: Mapping[str, int]) -> None:
        counter = activity.metric_meter().create_counter(
            self._findings_counter, "Findings of finished plans; the same one counts in every plan"
        )
        for kind, rows in findings.items():
            if rows:
                counter.add(rows, {"kind": kind})


def find_result(run: ReconciliationRun) -> PlanOrScrubResult | None:
    """Return the result of a finished run, or `None`."""
    return plan_result(run.summary) if run.finished_us is not None else None


def describe_left_out(summaries: Iterable[BulkJobSummary]) -> list[str]:
    """Return sentences about what jobs did not compare, each once, ascending."""
    facts = {fact for summary in summaries for fact in summary.facts.items() if fact[0].startswith(LEFT_OUT)}
    return [f"{name.removeprefix(LEFT_OUT)}: {reason}" for name, reason in sorted(facts)]


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
