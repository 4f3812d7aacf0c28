"""Apply of a finished plan, page by page. Each finding is checked again before anything is removed.

Orphaned copies, unreferenced ledgers and stalled deletions are filed for phase two. Single objects are deleted without
intents. A step may run twice, even after a long time. Each decision is therefore stored before its first effect.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from activities.bulk_jobs import RUN_CLAIM_S
from activities.deletion import metrics as deletion_metrics
from activities.deletion.claims_and_causes import batch_workflow_claim, own_workflow_cause, own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.reconciliation import finding_fates
from activities.reconciliation.delete_single_objects import SingleObjectDeletion
from activities.reconciliation.inputs_and_results import (
    ApplyPageInput,
    ApplyScope,
    BeginApplyInput,
    FiledPage,
    PlanStepInput,
)
from activities.reconciliation.recheck_page import (
    has_rows_to_file,
    inspect_copies,
    select_findings_to_file,
    select_single_objects,
)
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import PreconditionFailed
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.reconciliation import FiledCopyRow, FindingsFilingRequest, RunKind
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import VerifyFindingsJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import (
    RESULT,
    ApplyCounts,
    Finding,
    FindingFate,
    FindingKind,
    add_apply_counts,
    apply_counts,
    apply_run_id,
)
from logstore.reconciliation.services.orphan_inspection import OrphanInspector, is_single_object
from logstore.reconciliation.services.run_checks import (
    find_apply,
    require_all_findings,
    require_appliable_plan_and_epoch,
    require_decisions_in_catalog,
    require_epoch,
)
from logstore.stop_checks import raise_if_stopped

_ROWS_PER_READ: Final = 1_000  # rows of a batch


class ApplyOrphansActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: OrphanInspector,
        objects: SingleObjectDeletion,
        bulk: BulkJobRunner,
    ) -> None:
        self._runs, self._identities, self._inspector = catalog.reconciliation, catalog.identities, inspector
        self._objects, self._bulk = objects, bulk

    @define_activity(name="reconciliation.begin_apply")
    @send_heartbeats()
    def begin_apply(self, request: BeginApplyInput) -> ApplyScope:
        """Check that the plan may be applied, and open the run of the apply.

        Idempotency: keyed by the plan's `run_id`. For a finished apply, return the counts.
        Raises: InvalidInput, UnknownObject, PreconditionFailed, StaleCatalog, CatalogMismatch (terminal);
            StoreUnavailable, CatalogBusy (retry).
        """
        plan, epoch = require_appliable_plan_and_epoch(self._runs, self._identities, request.run_id)
        earlier = find_apply(self._runs, request.run_id)
        if earlier is None or earlier.finished_us is None:  # a finished apply removes nothing more
            require_decisions_in_catalog(earlier)
            plausibility_guards.check_orphan_share(plan.findings, plan.ledgers, request.max_orphan_share)
        self._inspector.require_own_buckets()
        pages = require_all_findings(self._open_published_findings(request.run_id), plan, request.run_id).pages
        summary = {
            "actor": request.actor,
            "reason": request.reason,
            "plan": request.run_id,
            "pages": pages,
        }
        claim = own_workflow_claim(RUN_CLAIM_S)
        run = self._runs.open_run(apply_run_id(request.run_id), RunKind.APPLY, claim=claim, summary=summary)
        return ApplyScope(
            pages=pages,
            findings=sum(plan.findings.get(kind.value, 0) for kind in FindingKind if kind.is_removable),
            before_us=plan.before_us,
            epoch=epoch,
            done=apply_counts(run.summary) if run.finished_us is not None else None,
        )

    def _open_published_findings(self, run_id: str) -> FindingFiles:
        published = self._bulk.find_published_summary(run_id, VerifyFindingsJob.name)
        if published is None:
            where = "every worker must see the folder of bulk output"
            raise PreconditionFailed(f"plan {run_id}: expected its findings, found none here; {where}, or plan again")
        return FindingFiles(Path(published.folder))

    @define_activity(name="reconciliation.file_page")
    @send_heartbeats()
    def recheck_and_file_page(self, request: ApplyPageInput) -> FiledPage:
        """Check a page's findings again, in storage, then in the catalog. File intents for findings that remain true.

        Idempotency: keyed by `batch_id`. One transaction files the intents and stores a decision about each finding. A
            retry returns the first result, even if storage has changed.
        Raises: PreconditionFailed, StaleCatalog, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_epoch(self._runs, request.epoch, request.run_id)
        require_decisions_in_catalog(find_apply(self._runs, request.run_id))
        self._inspector.require_own_buckets()
        findings = self._open_published_findings(request.run_id).read_page(request.page)
        objects = sum(map(is_single_object, findings.values()))
        if not has_rows_to_file(findings):
            return FiledPage(intents=0, detached=0, objects=objects)
        filed = self._runs.find_filed_batch(request.batch_id)
        if filed is None:
            answers = inspect_copies(self._inspector, findings, request.before_us)
            to_file = select_findings_to_file(findings, answers, request.batch_id)
            filing_request = FindingsFilingRequest(
                batch_id=to_file.batch_id,
                orphans=to_file.orphans,
                unreferenced=to_file.unreferenced,
                stalled=to_file.stalled,
                run_id=apply_run_id(request.run_id),
                page=request.page,
                kept={number: answer for number, answer in answers.items() if isinstance(answer, str)},
                claim=batch_workflow_claim(request.batch_workflow_id),
                cause=AuditCause(actor=request.actor, reason=request.reason, workflow_id=request.batch_workflow_id),
            )
            filed = self._runs.file_findings(filing_request)
            deletion_metrics.count_filed_intents(filed.filed_counts)
        return FiledPage(intents=filed.intents, detached=filed.ledgers, objects=objects)

    @define_activity(name="reconciliation.delete_objects")
    def recheck_and_delete_objects(self, request: ApplyPageInput) -> int:
        """Delete the page's single objects and uploads that are still orphans. Return the number of deletions.

        Idempotency: the decision is stored before the first deletion, in the transaction that passes over segments. All
            attempts use the first decision, and an absent object counts as deleted. The decision stays right: no writer
            can register an orphaned segment any more, and an upload whose uuid has no row does not continue.
        Heartbeat: (findings checked, objects deleted), after each finding and while waiting for storage.
        Raises: StaleCatalog, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_epoch(self._runs, request.epoch, request.run_id)  # another epoch may reuse a segment number
        require_decisions_in_catalog(find_apply(self._runs, request.run_id))
        return self._objects.delete_page_objects(
            select_single_objects(self._open_published_findings(request.run_id).read_page(request.page)),
            run_id=apply_run_id(request.run_id),
            page=request.page,
            before_us=request.before_us,
            cause=own_workflow_cause(request.actor, request.reason),
            objects_per_s=request.objects_per_s,
        )

    @define_activity(name="reconciliation.record_page")
    @send_heartbeats()
    def record_page_fates(self, request: ApplyPageInput) -> ApplyCounts:
        """Store the fate of each finding of the page, and count the fates.

        Idempotency: a repeated call replaces the fates of filed findings by the present outcomes of the batch's rows.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run_id = apply_run_id(request.run_id)
        require_decisions_in_catalog(find_apply(self._runs, request.run_id))
        findings = self._open_published_findings(request.run_id).read_page(request.page)
        decisions = self._runs.read_fates(run_id, request.page)
        filed_findings = {
            number: findings[number]
            for number, fate in decisions.items()
            if not is_single_object(findings[number]) and (fate is None or fate.fate is not FindingFate.KEPT)
        }
        rows: list[FiledCopyRow] = []
        while next_rows := self._runs.list_filed_copies(
            request.batch_id, after=rows[-1].row_id if rows else 0, limit=_ROWS_PER_READ
        ):
            raise_if_stopped()
            rows += next_rows
        fates = finding_fates.derive_fates_from_rows(filed_findings, rows, filed_row_count=request.intents)
        self._runs.store_fates(run_id, request.page, fates)
        return self._count_page(request.run_id, request.page, findings)

    def _count_page(self, run_id: str, page: int, findings: Mapping[int, Finding]) -> ApplyCounts:
        """Count the stored fates of a page. Raise `PreconditionFailed` if a removable finding of the page has none."""
        stored = self._runs.read_fates(apply_run_id(run_id), page)
        fates = {number: fate for number, fate in stored.items() if fate is not None}
        if any(finding.kind.is_removable and number not in fates for number, finding in findings.items()):
            raise PreconditionFailed(f"apply of {run_id}: expected page {page} to be applied, found none; plan again")
        return finding_fates.count_fates(findings, fates)

    @define_activity(name="reconciliation.conclude_apply")
    @send_heartbeats()
    def conclude_apply(self, request: PlanStepInput) -> ApplyCounts:
        """Finish the run with the sum of the counts of all pages.

        Idempotency: the result of the first call stays. Counts come from rows, so work that ran twice is counted once.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.get_run(apply_run_id(request.run_id))
        if run.finished_us is None:
            require_decisions_in_catalog(run)
            files = self._open_published_findings(request.run_id)
            total = ApplyCounts()
            for page in range(files.pages):
                raise_if_stopped()
                total = add_apply_counts(total, self._count_page(request.run_id, page, files.read_page(page)))
            self._runs.close_run(run.run_id, {**run.summary, RESULT: asdict(total)})
            run = self._runs.get_run(run.run_id)
        return apply_counts(run.summary)
