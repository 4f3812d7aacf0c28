"""Steps of a scrub. A scrub reads every stored object and writes only its own run.

Each page is a bulk job with its own output. Steps may therefore run twice. A new scrub of the same topics continues a
scrub that failed or was cancelled, at the first page without output.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from temporalio import activity

from activities.bulk_jobs import OwnedBulkOutput, run_bulk_job
from activities.deletion.claims_and_causes import own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.reconciliation.inputs_and_results import (
    BeginScrubInput,
    CutScrubInput,
    ScrubCounts,
    ScrubPageInput,
    ScrubRunId,
)
from activities.reconciliation.plan_orphans import describe_left_out
from logstore.atomic_files import replace_atomically
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import CorruptData
from logstore.failpoints import effect
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJobSummary,
    CutScrubIntoPagesJob,
    ScrubPageJob,
)
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import RESULT, PlanOrScrubResult, plan_result
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.stop_checks import raise_if_stopped

_CLAIM_S: Final = 300.0  # renewed with heartbeats; after it, another scrub may continue the run of a lost worker
_MAX_RUNS: Final = 100
_FINDINGS_FOLDER: Final = "findings"


class ScrubLedgersActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: OrphanInspector,
        bulk: BulkJobRunner,
    ) -> None:
        self._runs, self._identities = catalog.reconciliation, catalog.identities
        self._inspector, self._bulk = inspector, bulk
        self._output = OwnedBulkOutput(bulk=bulk, identities=catalog.identities)

    @define_activity(name="reconciliation.begin_scrub")
    @send_heartbeats()
    def begin_or_continue_scrub(self, request: BeginScrubInput) -> ScrubRunId:
        """Continue the newest unfinished scrub of the same topics, or open a new run.

        Idempotency: keyed by the topics. A second call continues the run that the first call opened.
        Raises: InvalidInput, PreconditionFailed, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._inspector.require_own_buckets()
        state = self._runs.read_catalog_time_and_ids()
        summary = {
            "actor": request.actor,
            "reason": request.reason,
            "topic_ids": sorted(request.topic_ids),
            "next_ledger_id": state.next_ledger_id,
            "epoch": state.epoch,
            "catalog_id": self._identities.catalog_id(),
            "begun_us": state.now_us,
        }
        runs = self._runs.list_runs(RunKind.SCRUB, limit=_MAX_RUNS)
        run_id = next((run.run_id for run in runs if self._can_continue(run, summary)), request.run_id)
        self._output.require_not_of_other_catalog(run_id)
        self._runs.open_run(run_id, RunKind.SCRUB, claim=own_workflow_claim(_CLAIM_S), summary=summary)
        self._output.mark_as_own(run_id)
        return ScrubRunId(run_id=run_id)

    def _can_continue(self, run: ReconciliationRun, summary: dict[str, Any]) -> bool:
        """Return whether the run is unfinished, has the topics and the catalog of `summary`, and has lost no output."""
        keys = ("topic_ids", "epoch", "catalog_id")
        if run.finished_us is not None or any(run.summary.get(key) != summary[key] for key in keys):
            return False
        try:
            cut = self._bulk.find_published_summary(run.run_id, CutScrubIntoPagesJob.name)
            for page in range(cut.counts["pages"] if cut else 0):
                raise_if_stopped()
                self._bulk.find_published_summary(run.run_id, _make_page_job(run.run_id, page).name)
        except CorruptData:
            return False
        return True

    @define_activity(name="reconciliation.cut_scrub")
    def cut_scrub_into_pages(self, request: CutScrubInput) -> ScrubCounts:
        """Cut the ledgers of the scrub into pages.

        Idempotency: keyed by `run_id`. If the output is published already, only its counts are returned.
        Heartbeat: (stage, tasks done, tasks), every two seconds.
        Raises: InvalidInput, PreconditionFailed, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """

        def job() -> CutScrubIntoPagesJob:
            summary = self._renew_claim_and_read_summary(request.run_id)
            return CutScrubIntoPagesJob(
                run_id=request.run_id,
                topics=tuple(summary["topic_ids"]),
                next_ledger_id=int(summary["next_ledger_id"]),
                bytes_per_s=request.bytes_per_s,
            )

        renew = lambda: self._renew_claim_and_read_summary(request.run_id)  # noqa: E731 - a name for it says no more
        return _to_scrub_counts(
            run_bulk_job(self._bulk, CutScrubIntoPagesJob.name, job, master=request.master, renew_claims=renew)
        )

    @define_activity(name="reconciliation.scrub_page")
    def scrub_page(self, request: ScrubPageInput) -> ScrubCounts:
        """Read all objects of a page, and compare digests.

        Idempotency: keyed by (`run_id`, `page`). If the output is published already, only its counts are returned.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: PreconditionFailed, CatalogMismatch, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """

        def job() -> ScrubPageJob:
            self._inspector.require_own_buckets()  # absence in another store says nothing about this catalog's data
            self._renew_claim_and_read_summary(request.run_id)
            return _make_page_job(request.run_id, request.page, request.bytes_per_s)

        name = _make_page_job(request.run_id, request.page).name
        renew = lambda: self._renew_claim_and_read_summary(request.run_id)  # noqa: E731 - a name for it says no more
        return _to_scrub_counts(run_bulk_job(self._bulk, name, job, master=request.master, renew_claims=renew))

    @define_activity(name="reconciliation.conclude_scrub")
    @send_heartbeats()
    def conclude_scrub(self, request: ScrubRunId) -> PlanOrScrubResult:
        """Finish the run with the counts of the findings of all pages.

        Idempotency: each file of findings is copied atomically. The result of the first call stays.
        Raises: PreconditionFailed, CatalogMismatch, CorruptData (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._inspector.require_own_buckets()
        run = self._runs.get_run(request.run_id)
        if run.finished_us is None:
            folder = self._bulk.create_run_folder(request.run_id) / _FINDINGS_FOLDER
            folder.mkdir(exist_ok=True)
            pages = self._output.require_published_summary(request.run_id, CutScrubIntoPagesJob.name).counts["pages"]
            left_out = set[str]()
            for page in range(pages):
                raise_if_stopped()
                summary = self._output.require_published_summary(
                    request.run_id, _make_page_job(request.run_id, page).name
                )
                left_out |= set(describe_left_out([summary]))
                with effect("reconciliation.keep_findings"):
                    _copy_findings(Path(summary.folder), folder, page)
            result = self._make_scrub_result(run, folder, sorted(left_out))
            self._runs.close_run(request.run_id, {**run.summary, RESULT: asdict(result)})
            _count_findings_in_metric(result.findings)
            run = self._runs.get_run(request.run_id)
        return plan_result(run.summary)

    def _make_scrub_result(self, run: ReconciliationRun, folder: Path, left_out: list[str]) -> PlanOrScrubResult:
        totals = FindingFiles(folder).count_findings_and_bytes_by_kind()
        return PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=self._output.require_published_summary(run.run_id, CutScrubIntoPagesJob.name).counts["ledgers"],
            before_us=int(run.summary["begun_us"]),
            report=str(folder),
            left_out=left_out,
        )

    def _renew_claim_and_read_summary(self, run_id: str) -> Mapping[str, Any]:
        summary = self._runs.get_run(run_id).summary
        self._runs.open_run(run_id, RunKind.SCRUB, claim=own_workflow_claim(_CLAIM_S), summary=summary)
        return summary


def _make_page_job(run_id: str, page: int, bytes_per_s: int = 1) -> ScrubPageJob:
    return ScrubPageJob(run_id=run_id, page=page, bytes_per_s=bytes_per_s)


def _copy_findings(source: Path, folder: Path, page: int) -> None:
    for path in sorted(source.glob("*.parquet")):
        with replace_atomically(folder / f"page-{page:06d}-{path.name}") as new:
            shutil.copyfile(path, new)


def _to_scrub_counts(summary: BulkJobSummary) -> ScrubCounts:
    counts = summary.counts
    return ScrubCounts(
        pages=counts.get("pages", 0),
        objects=counts["objects"],
        size_bytes=counts["size_bytes"],
        findings=counts.get("findings", 0),
    )


def _count_findings_in_metric(findings: dict[str, int]) -> None:
    counter = activity.metric_meter().create_counter(
        "sexton_scrub_findings_total", "Findings of finished scrubs; the same one counts in every scrub"
    )
    for kind, rows in findings.items():
        if rows:
            counter.add(rows, {"kind": kind})
