"""Runs of plans: their rows, claims, bulk output and results.

A bulk job publishes its output once. A run's row keeps the values and the result that are stored first. Steps may
therefore run twice, and attempts may overlap.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from temporalio import activity

from activities.bulk_jobs import RUN_CLAIM_S, OwnedBulkOutput, run_bulk_job
from activities.deletion.claims_and_causes import own_workflow_claim
from activities.reconciliation.inputs_and_results import BulkJobInput, BulkJobResult
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import UnknownObject
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import LEFT_OUT, BulkJob, BulkJobSummary
from logstore.reconciliation.findings import RESULT, PlanOrScrubResult, plan_result
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
