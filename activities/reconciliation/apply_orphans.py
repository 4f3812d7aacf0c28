"""Apply of a finished plan, page by page, and its preview. Each finding is checked again before anything is removed.

Orphaned copies, unreferenced ledgers and stalled deletions are filed for phase two. Single objects are deleted without
intents. A step may run twice, even after a long time. Each decision is therefore stored before its first effect.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from activities.bulk_jobs import RUN_CLAIM_S
from activities.deletion import metrics as deletion_metrics
from activities.deletion.claims_and_causes import batch_workflow_claim, own_workflow_cause, own_workflow_claim
from activities.deletion.deletion_pace import DeletionPace
from activities.heartbeats import ClaimRenewingHeartbeats, define_activity, send_heartbeats
from activities.reconciliation.finding_fates import count_fates, derive_fates_from_rows, kept_fate
from activities.reconciliation.inputs_and_results import (
    ApplyPageInput,
    ApplyScope,
    BeginApplyInput,
    FiledPage,
    PlanStepInput,
)
from logstore.catalog.sql_catalog import Catalog
from logstore.deletion import intents
from logstore.deletion.intents import StoredCopy
from logstore.deletion.services.absence_proofs import sample_and_find_unconfirmed_keys
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.failpoints import effect
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.reconciliation import (
    FiledCopyRow,
    FindingsFilingRequest,
    FindingsToFile,
    OrphanCopy,
    RunKind,
    SingleObjectAnswers,
)
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import VerifyFindingsJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import (
    RESULT,
    ApplyCounts,
    FateOfFinding,
    Finding,
    FindingFate,
    FindingKind,
    add_apply_counts,
    apply_batch_id,
    apply_counts,
    apply_run_id,
)
from logstore.reconciliation.services.orphan_inspection import (
    ABSENT,
    ENDED_UPLOAD,
    OrphanInspector,
    is_copy,
    is_single_object,
)
from logstore.reconciliation.services.run_checks import (
    find_apply,
    open_finding_files,
    require_all_findings,
    require_appliable_plan_and_epoch,
    require_decisions_in_catalog,
    require_epoch,
)
from logstore.stop_checks import raise_if_stopped

_PARALLEL_COPIES: Final = 8
_ROW_KINDS: Final = frozenset({FindingKind.UNREFERENCED_LEDGER, FindingKind.STALLED_DELETION})
R = TypeVar("R")


def has_rows_to_file(page: Mapping[int, Finding]) -> bool:
    return any(is_copy(finding) or finding.kind in _ROW_KINDS for finding in page.values())


def select_single_objects(page: Mapping[int, Finding]) -> dict[int, Finding]:
    return {number: finding for number, finding in page.items() if is_single_object(finding)}


def inspect_copies(
    inspector: OrphanInspector, page: Mapping[int, Finding], before_us: int
) -> dict[int, OrphanCopy | str]:
    copies = {number: finding for number, finding in page.items() if is_copy(finding)}

    def ask(number: int, finding: Finding) -> OrphanCopy | str:
        raise_if_stopped()
        return inspector.inspect_copy(number, finding, before_us=before_us)

    answers = _run_parallel([partial(ask, number, finding) for number, finding in copies.items()])
    if ABSENT.intersection(answer for answer in answers if isinstance(answer, str)):
        inspector.require_own_buckets(may_mark=False)  # absence counts only if the buckets are still the catalog's
    return dict(zip(copies, answers, strict=True))


def inspect_single_objects(
    inspector: OrphanInspector,
    objects: Mapping[int, Finding],
    before_us: int,
    proceed: Callable[[], None] = raise_if_stopped,
) -> SingleObjectAnswers:
    """Inspect segments and uploads in storage, one by one. `proceed` is called before each segment and upload."""
    segments, uploads, reason_by_number = dict[int, tuple[LedgerId, int]](), set[int](), dict[int, str]()
    for number, finding in objects.items():
        proceed()
        if finding.kind is FindingKind.ORPHAN_SEGMENT:
            segment = inspector.inspect_segment(finding, before_us=before_us)
            if isinstance(segment, str):
                reason_by_number[number] = segment
            else:
                segments[number] = segment
        elif isinstance(reason := inspector.inspect_upload(finding, before_us=before_us), str):
            reason_by_number[number] = reason
        else:
            uploads.add(number)
    if ABSENT.intersection(reason_by_number.values()):
        inspector.require_own_buckets(may_mark=False)  # absence counts only if the buckets are still the catalog's
    return SingleObjectAnswers(segments=segments, uploads=frozenset(uploads), kept=reason_by_number)


def select_findings_to_file(
    page: Mapping[int, Finding], copies: Mapping[int, OrphanCopy | str], batch_id: str
) -> FindingsToFile:
    rows = page.items()
    return FindingsToFile(
        batch_id=batch_id,
        orphans=[copy for copy in copies.values() if isinstance(copy, OrphanCopy)],
        unreferenced={
            number: finding.ledger_id
            for number, finding in rows
            if finding.kind is FindingKind.UNREFERENCED_LEDGER and finding.ledger_id is not None
        },
        stalled={
            number: finding.row_id
            for number, finding in rows
            if finding.kind is FindingKind.STALLED_DELETION and finding.row_id is not None
        },
    )


def _run_parallel(calls: Sequence[Callable[[], R]]) -> list[R]:
    """Run `calls` in parallel. Return the results in the order of `calls`. No call begins after the first error."""
    with ThreadPoolExecutor(_PARALLEL_COPIES, thread_name_prefix="look") as threads:
        futures = [threads.submit(copy_context().run, call) for call in calls]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _failed_fate(number: int, error: str) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.FAILED, reason=error)


def _deleted_fate(number: int, finding: Finding, *, objects: int) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.DELETED, objects=objects, size_bytes=finding.size_bytes)


_ROWS_PER_READ: Final = 1_000  # rows of a batch


class ApplyOrphansActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: OrphanInspector,
        objects: ObjectStore,
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
            can register an orphaned segment any more, and an upload whose uuid has no row does not continue. Objects
            whose deletion is stored are not deleted again.
        Heartbeat: (findings checked, objects deleted), after each finding and while waiting for storage.
        Raises: StaleCatalog, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_epoch(self._runs, request.epoch, request.run_id)  # another epoch may reuse a segment number
        require_decisions_in_catalog(find_apply(self._runs, request.run_id))
        findings = select_single_objects(self._open_published_findings(request.run_id).read_page(request.page))
        run_id, cause = apply_run_id(request.run_id), own_workflow_cause(request.actor, request.reason)
        with ClaimRenewingHeartbeats(lambda: None) as heartbeats:
            self._inspector.require_own_buckets()
            fates = self._runs.read_fates(run_id, request.page)
            if not findings.keys() <= fates.keys():
                answers = inspect_single_objects(
                    self._inspector, findings, request.before_us, heartbeats.count_examined
                )
                fates = self._runs.decide_single_objects(run_id, request.page, answers, cause=cause)
            earlier = {number: fate for number in findings if (fate := fates[number]) is not None}
            to_delete = {
                number: finding
                for number, finding in findings.items()
                if number not in earlier or earlier[number].fate is FindingFate.FAILED
            }
            applied = self._delete_segments(to_delete, request.objects_per_s, heartbeats)
            applied |= self._abort_uploads(to_delete, request.before_us, heartbeats)
            self._runs.store_fates(run_id, request.page, applied.values())
        return sum(result.fate is FindingFate.DELETED for result in (earlier | applied).values())

    def _delete_segments(
        self, to_delete: Mapping[int, Finding], objects_per_s: float, heartbeats: ClaimRenewingHeartbeats
    ) -> dict[int, FateOfFinding]:
        segments = {
            number: finding for number, finding in to_delete.items() if finding.kind is FindingKind.ORPHAN_SEGMENT
        }
        pace = DeletionPace(objects_per_s)
        applied: dict[int, FateOfFinding] = {}
        copies = {
            number: StoredCopy(verdict=intents.CopyVerdict.OWN, data_keys=(finding.key,))
            for number, finding in segments.items()
        }
        for part in pace.split_copies(copies) if copies else ():
            pace.wait_for_rate(part, heartbeats)
            with effect("reconciliation.delete_objects"):
                report = self._objects.delete([segments[number].key for number in part])
            heartbeats.count_deleted(len(report.deleted))
            for key in report.unanswered:
                raise StoreUnavailable(report.failed[key])
            unconfirmed_by_row = sample_and_find_unconfirmed_keys(
                self._objects, report, {number: (segments[number].key,) for number in part}
            )
            for number in part:
                finding, unconfirmed = segments[number], unconfirmed_by_row[number]
                error = report.failed.get(finding.key) or (unconfirmed.first if unconfirmed else None)
                applied[number] = (
                    _failed_fate(number, error) if error is not None else _deleted_fate(number, finding, objects=1)
                )
        return applied

    def _abort_uploads(
        self, to_delete: Mapping[int, Finding], before_us: int, heartbeats: ClaimRenewingHeartbeats
    ) -> dict[int, FateOfFinding]:
        applied: dict[int, FateOfFinding] = {}
        for number, finding in to_delete.items():
            if finding.kind is FindingKind.ORPHAN_SEGMENT:
                continue
            heartbeats.count_examined()
            answer = self._inspector.inspect_upload(finding, before_us=before_us)
            if not isinstance(answer, str):
                with effect("reconciliation.abort_uploads"):
                    answer.abort_uploads(finding.key)
                answer = self._inspector.inspect_upload(finding, before_us=before_us)
            if answer == ENDED_UPLOAD:
                applied[number] = _deleted_fate(number, finding, objects=0)
            elif isinstance(answer, str):
                applied[number] = kept_fate(number, answer)
            else:
                applied[number] = _failed_fate(number, "parts of the upload are left")
        return applied

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
        fates = derive_fates_from_rows(filed_findings, rows, filed_row_count=request.intents)
        self._runs.store_fates(run_id, request.page, fates)
        return self._count_page(request.run_id, request.page, findings)

    def _count_page(self, run_id: str, page: int, findings: Mapping[int, Finding]) -> ApplyCounts:
        """Count the stored fates of a page. Raise `PreconditionFailed` if a removable finding of the page has none."""
        stored = self._runs.read_fates(apply_run_id(run_id), page)
        fates = {number: fate for number, fate in stored.items() if fate is not None}
        if any(finding.kind.is_removable and number not in fates for number, finding in findings.items()):
            raise PreconditionFailed(f"apply of {run_id}: expected page {page} to be applied, found none; plan again")
        return count_fates(findings, fates)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPreviewResult:
    counts: ApplyCounts = field(default_factory=ApplyCounts)
    size_bytes: Mapping[str, int] = field(default_factory=dict)  # by kind, of findings that would be applied


class ApplyPreview:
    """Preview of an apply, without locks and writes. A bucket without a marker is refused, not marked."""

    def __init__(self, *, catalog: Catalog, inspector: OrphanInspector) -> None:
        self._runs, self._identities, self._inspector = catalog.reconciliation, catalog.identities, inspector

    def preview_apply(
        self, run_id: str, on_progress: Callable[[int, int], None] = lambda _done, _pages: None
    ) -> ApplyPreviewResult:
        """Check every page as an apply does. If an apply of the plan is unfinished, use its stored decisions.

        Before each page, `on_progress` gets the number of checked pages and the number of all pages.

        Raises:
            UnknownObject, PreconditionFailed, StaleCatalog, CatalogMismatch: The apply would refuse the plan.
            StoreUnavailable: Storage did not answer.
        """
        plan, _ = require_appliable_plan_and_epoch(self._runs, self._identities, run_id)
        files = require_all_findings(open_finding_files(plan, run_id), plan, run_id)
        apply_run = find_apply(self._runs, run_id)
        require_decisions_in_catalog(apply_run)
        self._inspector.require_own_buckets(may_mark=False)
        counts, sizes, passed_over = ApplyCounts(), Counter[str](), dict[LedgerId, int]()
        for page in range(files.pages):
            on_progress(page, files.pages)
            findings = {
                number: finding for number, finding in files.read_page(page).items() if finding.kind.is_removable
            }
            decisions = self._runs.read_fates(apply_run.run_id, page) if apply_run else {}
            undecided = {number: finding for number, finding in findings.items() if number not in decisions}
            copies = inspect_copies(self._inspector, undecided, plan.before_us)
            reason_by_kept_number = {
                **{n: fate.reason for n, fate in decisions.items() if fate and fate.fate is FindingFate.KEPT},
                **self._find_rows_to_keep(undecided, copies, apply_batch_id(run_id, page)),
                **self._find_objects_to_keep(undecided, plan.before_us, passed_over),
            }
            fates = {
                number: kept_fate(number, reason_by_kept_number[number])
                if number in reason_by_kept_number
                else FateOfFinding(number=number, fate=FindingFate.STARTED)
                for number in findings
            }
            counts = add_apply_counts(counts, count_fates(findings, fates))
            for number, finding in findings.items():
                if number not in reason_by_kept_number:
                    copy = copies.get(number)
                    size_bytes = copy.size_bytes if isinstance(copy, OrphanCopy) else finding.size_bytes
                    sizes[finding.kind.value] += size_bytes
        return ApplyPreviewResult(counts=counts, size_bytes=dict(sizes))

    def _find_rows_to_keep(
        self, findings: Mapping[int, Finding], copies: Mapping[int, OrphanCopy | str], batch_id: str
    ) -> dict[int, str]:
        if not has_rows_to_file(findings):
            return {}
        by_storage = {number: copy for number, copy in copies.items() if isinstance(copy, str)}
        return {**by_storage, **self._runs.preview_filing(select_findings_to_file(findings, copies, batch_id))}

    def _find_objects_to_keep(
        self, findings: Mapping[int, Finding], before_us: int, passed_over: dict[LedgerId, int]
    ) -> Mapping[int, str]:
        answers = inspect_single_objects(self._inspector, select_single_objects(findings), before_us)
        if not answers.segments:
            return answers.kept
        by_catalog = self._runs.preview_pass_over_segments(answers.segments, passed_over=passed_over)
        for number, (ledger_id, segment) in answers.segments.items():
            if number not in by_catalog:
                passed_over[ledger_id] = max(segment, passed_over.get(ledger_id, -1))
        return {**answers.kept, **by_catalog}
