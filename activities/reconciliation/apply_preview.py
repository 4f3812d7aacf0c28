"""Preview of an apply: the checks and decisions of an apply, page by page, without any effect."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from activities.reconciliation.finding_fates import count_fates, kept_fate
from activities.reconciliation.recheck_page import (
    has_rows_to_file,
    inspect_copies,
    inspect_single_objects,
    select_findings_to_file,
    select_single_objects,
)
from logstore.catalog.sql_catalog import Catalog
from logstore.ports.catalog.reconciliation import OrphanCopy
from logstore.positions import LedgerId
from logstore.reconciliation.findings import (
    ApplyCounts,
    FateOfFinding,
    Finding,
    FindingFate,
    add_apply_counts,
    apply_batch_id,
)
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.reconciliation.services.run_checks import (
    find_apply,
    open_finding_files,
    require_all_findings,
    require_appliable_plan_and_epoch,
    require_decisions_in_catalog,
)


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
