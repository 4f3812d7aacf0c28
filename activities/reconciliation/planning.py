"""A plan, one step an activity: it lists, reads, compares and verifies, and writes nothing but its own run.

Any step may run twice, and two attempts may overlap: what a bulk job publishes is published once, and a run's row
keeps what it began with and what it came to first. A run without a summary is not finished, and apply refuses it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from temporalio import activity

from activities.bulk import RUN_CLAIM_S, OwnedBulkOutput, run_bulk_job
from activities.deletion.claims import own_claim
from activities.heartbeats import beating, defined
from activities.reconciliation.values import (
    BeginPlanInput,
    BulkInput,
    BulkResult,
    PlanBegun,
    PlanInput,
)
from logstore.errors import InvalidInput, UnknownObject
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Identities, Reconciliation, ReconciliationRun, RunKind
from logstore.reconciliation import rules
from logstore.reconciliation.files import FindingFiles
from logstore.reconciliation.findings import RESULT, PlanResult, plan_result
from logstore.reconciliation.jobs import (
    LEFT_OUT,
    ROWS_BEFORE,
    BulkJob,
    CompareSides,
    ListStorage,
    ReadReferences,
    VerifyFindings,
)
from logstore.reconciliation.services.orphans import StoredOrphans
from logstore.units import raise_if_stopped

_MOST_FORGOTTEN: Final = 100
_STEPS: Final = (ListStorage.name, ReadReferences.name, CompareSides.name, VerifyFindings.name)


class Planning:
    """The activities of a plan, over ports."""

    def __init__(
        self,
        *,
        reconciliation: Reconciliation,
        identities: Identities,
        stored: StoredOrphans,
        bulk: BulkJobs,
        store_now_us: Callable[[], int],
        finished_retention_s: float,
    ) -> None:
        """Take the ports.

        Args:
            reconciliation: Of the catalog.
            identities: Of the catalog.
            stored: The buckets of the catalog.
            bulk: Bulk jobs.
            store_now_us: The object store's own clock, in microseconds since 1970: what ages are judged by.
            finished_retention_s: After which runs and their output are forgotten.
        """
        self._runs, self._identities, self._stored, self._bulk = reconciliation, identities, stored, bulk
        self._output = OwnedBulkOutput(bulk=bulk, identities=identities)
        self._store_now_us, self._retention_s = store_now_us, finished_retention_s

    @defined(name="reconciliation.begin_plan")
    @beating()
    def begin_plan(self, request: BeginPlanInput) -> PlanBegun:
        """Open the run with the cut-off that every later step agrees on, in a store that is the catalog's.

        Old runs and output of this catalog that is of no run go at this occasion.

        Idempotency: keyed by `run_id`; a second call answers with what the first one wrote into the run's row.
        Raises: InvalidInput, PreconditionFailed, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        rules.check_age(request.older_than_s, unsafe=request.unsafe_age)
        self._stored.confirm()
        self._output.require(request.run_id)
        run = self._runs.open_run(
            request.run_id, RunKind.PLAN, claim=own_claim(RUN_CLAIM_S), summary=self._beginning(request)
        )
        self._output.mark(request.run_id)
        self._forget_old_runs()
        return PlanBegun(done=plan_result(run.summary) if run.finished_us is not None else None)

    def _beginning(self, request: BeginPlanInput) -> Mapping[str, Any]:
        """What a run begins with; ages are by the clock of the side that they are of."""
        standing, older_us = self._runs.standing(), round(request.older_than_s * 1_000_000)
        return {
            "actor": request.actor,
            "reason": request.reason,
            "before_us": self._store_now_us() - older_us,
            "rows_before_us": standing.now_us - older_us,
            "next_ledger_id": standing.next_ledger_id,
            "epoch": standing.epoch,
            "catalog_id": self._identities.catalog_id(),
            "inventories": list(request.inventories),
        }

    def _forget_old_runs(self) -> None:
        while self._runs.forget(older_than_s=self._retention_s, limit=_MOST_FORGOTTEN):
            raise_if_stopped()
        own = self._identities.catalog_id()
        for run_id in self._bulk.list_runs():
            raise_if_stopped()
            try:
                self._runs.run(run_id)
            except UnknownObject:
                if self._output.owner(run_id) == own:
                    self._output.forget(run_id)

    @defined(name="reconciliation.run_bulk")
    def run_bulk(self, request: BulkInput) -> BulkResult:
        """Run one bulk job until its output is published.

        Idempotency: keyed by (run_id, job); what was published is answered, and of attempts that overlap the first
            complete one is published.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the job with all that it
            submits later.
        Raises: InvalidInput, PreconditionFailed, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        summary = run_bulk_job(
            self._bulk, request.job, lambda: _job(request, self._held(request.run_id)), master=request.master
        )
        return BulkResult(counts=dict(summary.counts))

    @defined(name="reconciliation.check_sides")
    @beating()
    def check_sides(self, request: PlanInput) -> None:
        """Refuse a comparison whose sides cannot both be right, before anything is made of what it found.

        Idempotency: reads only.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        begun = self._runs.run(request.run_id).summary
        listed, read, compared = (
            self._output.published_summary(request.run_id, name).counts
            for name in (ListStorage.name, ReadReferences.name, CompareSides.name)
        )
        rules.check_sides(
            rules.Sides(
                objects=listed["objects"],
                ledgers=read["ledgers"],
                ledgers_counted=self._runs.count_ledgers(below=int(begun["next_ledger_id"])),
                primary=_overlap(compared, ""),
                tiered=_overlap(compared, "tiered_"),
                expected=compared["expected"],
            )
        )

    @defined(name="reconciliation.conclude_plan")
    @beating()
    def conclude_plan(self, request: PlanInput) -> PlanResult:
        """Finish the run with what was found, as the very last: no run is applied without a summary.

        That the buckets are the catalog's is asked once more, because all absence was read out of them since.

        Idempotency: the first summary stays; what it says is counted from published files, which do not change.
        Raises: PreconditionFailed, CatalogMismatch, CorruptData (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._stored.confirm()
        run = self._runs.run(request.run_id)
        if run.finished_us is None:
            result = self._counted(run)
            self._runs.close_run(request.run_id, {**run.summary, RESULT: asdict(result)})
            _count(result.findings)
            run = self._runs.run(request.run_id)
        return plan_result(run.summary)

    def _counted(self, run: ReconciliationRun) -> PlanResult:
        published = {name: self._output.published_summary(run.run_id, name) for name in _STEPS}
        folder = published[VerifyFindings.name].folder
        totals = FindingFiles(Path(folder)).totals()
        facts = [fact for one in published.values() for fact in one.facts.items()]
        compared = published[CompareSides.name]
        return PlanResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=published[ReadReferences.name].counts["ledgers"],
            before_us=int(run.summary["before_us"]),
            report=folder,
            rows_before_us=int(compared.facts.get(ROWS_BEFORE, run.summary["rows_before_us"])),
            young=compared.counts["young"],
            left_out=[
                f"{name.removeprefix(LEFT_OUT)}: {why}" for name, why in sorted(set(facts)) if name.startswith(LEFT_OUT)
            ],
        )

    def _held(self, run_id: str) -> Mapping[str, Any]:
        """What the run began with; it is held further."""
        begun = self._runs.run(run_id).summary
        return self._runs.open_run(run_id, RunKind.PLAN, claim=own_claim(RUN_CLAIM_S), summary=begun).summary


def _job(request: BulkInput, begun: Mapping[str, Any]) -> BulkJob:
    run_id, before_us = request.run_id, int(begun["before_us"])
    match request.job:
        case ListStorage.name:
            return ListStorage(run_id=run_id, inventories=tuple(begun["inventories"]))
        case ReadReferences.name:
            return ReadReferences(run_id=run_id)
        case CompareSides.name:
            return CompareSides(
                run_id=run_id,
                before_us=before_us,
                rows_before_us=int(begun["rows_before_us"]),
                next_ledger_id=int(begun["next_ledger_id"]),
            )
        case VerifyFindings.name:
            return VerifyFindings(run_id=run_id, before_us=before_us)
    raise InvalidInput("job", expected=f"one of {', '.join(_STEPS)}", found=request.job)


def _overlap(compared: Mapping[str, int], kind: str) -> rules.Overlap:
    return rules.Overlap(
        stored=compared[f"{kind}stored"], named=compared[f"{kind}named"], matched=compared[f"{kind}matched"]
    )


def _count(findings: Mapping[str, int]) -> None:
    counter = activity.metric_meter().create_counter(
        "sexton_reconciliation_findings_total", "Findings of finished plans; the same one counts in every plan"
    )
    for kind, rows in findings.items():
        if rows:
            counter.add(rows, {"kind": kind})
