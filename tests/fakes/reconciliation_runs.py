"""The catalog's side of a reconciliation without a catalog: runs, and what was filed, as a test says it went on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from logstore.deletion.intents import Outcome
from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.reconciliation import (
    CatalogTimeAndIds,
    FiledCopyRow,
    FindingsFilingRequest,
    FindingsToFile,
    ReconciliationRun,
    RunKind,
    SingleObjectAnswers,
)
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FateOfFinding, FindingFate


@dataclass
class _ClaimedRun:
    run: ReconciliationRun
    holder: str


class FakeReconciliationRuns:
    """The port `ReconciliationRuns`, of which every row that is filed ends at once as `outcome`."""

    def __init__(self) -> None:
        self.now_us = 1_750_000_000_000_000
        self.state = CatalogTimeAndIds(now_us=self.now_us, epoch=1, next_ledger_id=100)
        self.counted = 4
        self.outcome: Outcome | None = Outcome.DELETED
        self.keeps: dict[int, str] = {}  # by finding's number, from `file` and `pass_over`
        self.filings: dict[str, DetachedBatch] = {}
        self.fates: dict[tuple[str, int], dict[int, FateOfFinding | None]] = {}  # by run of the apply and page
        self.rows: dict[str, list[FiledCopyRow]] = {}
        self.passed_over: list[Mapping[int, tuple[LedgerId, int]]] = []
        self.causes: list[AuditCause] = []
        self._runs: dict[str, _ClaimedRun] = {}

    def read_catalog_time_and_ids(self) -> CatalogTimeAndIds:
        """See the port."""
        return self.state

    def count_ledgers(self, *, below: int) -> int:
        """See the port."""
        assert below == self.state.next_ledger_id
        return self.counted

    def open_run(self, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]) -> ReconciliationRun:
        """See the port."""
        claimed_run = self._runs.get(run_id)
        if claimed_run is None:
            run = ReconciliationRun(
                run_id=run_id, kind=kind, created_us=self.now_us, finished_us=None, summary=dict(summary)
            )
            claimed_run = self._runs[run_id] = _ClaimedRun(run, claim.workflow_id)
        if claimed_run.run.kind is not kind:
            raise PreconditionFailed(f"run {run_id}: expected {kind.value}, found {claimed_run.run.kind.value}")
        if claimed_run.holder != claim.workflow_id:
            raise ClaimHeld(f"run {run_id}: {claimed_run.holder} is at work on it")
        return claimed_run.run

    def close_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """See the port."""
        claimed_run = self._runs[run_id]
        if claimed_run.run.finished_us is None:
            claimed_run.run = replace(claimed_run.run, finished_us=self.now_us, summary=dict(summary))

    def store_summary(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """See the port."""
        claimed_run = self._runs[run_id]
        if claimed_run.run.finished_us is None:
            claimed_run.run = replace(claimed_run.run, summary=dict(summary))

    def get_run(self, run_id: str) -> ReconciliationRun:
        """See the port."""
        if run_id not in self._runs:
            raise UnknownObject(
                "run id", expected="that of a plan or an apply, as `orphans list` shows it", found=run_id
            )
        return self._runs[run_id].run

    def list_runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """See the port."""
        return [claimed_run.run for claimed_run in reversed(self._runs.values()) if claimed_run.run.kind is kind][
            :limit
        ]

    def remove_old_runs(self, *, older_than_s: float, limit: int) -> list[str]:
        """See the port."""
        before = self.now_us - round(older_than_s * 1e6)
        old_run_ids = [name for name, claimed_run in self._runs.items() if claimed_run.run.created_us < before][:limit]
        for name in old_run_ids:
            del self._runs[name]
        return old_run_ids

    def remove(self, run_id: str) -> None:
        """Let a run have left the catalog."""
        del self._runs[run_id]

    def age(self, run_id: str, *, seconds: float) -> None:
        """Let a run have been begun so long ago."""
        claimed_run = self._runs[run_id]
        claimed_run.run = replace(claimed_run.run, created_us=self.now_us - round(seconds * 1e6))

    def file_findings(self, page: FindingsFilingRequest) -> DetachedBatch:
        """See the port."""
        if page.batch_id not in self.filings:
            self.causes.append(page.cause)
            numbers = [*(orphan.number for orphan in page.orphans), *page.unreferenced, *page.stalled]
            kept_reasons = {at: reason for at, reason in self.keeps.items() if at in numbers}
            rows = [
                self._filed_row(1, orphan.statement.ledger_id, orphan.copy, orphan.context)
                for orphan in page.orphans
                if orphan.number not in kept_reasons
            ]
            rows += [
                self._filed_row(1, ledger, CopyKind.LEDGER, {})
                for at, ledger in page.unreferenced.items()
                if at not in kept_reasons
            ]
            rows = [replace(row, row_id=at) for at, row in enumerate(rows, start=1_000)]
            rows += [
                self._filed_row(row, LedgerId(row), CopyKind.LEDGER, {})
                for at, row in page.stalled.items()
                if at not in kept_reasons
            ]
            detached = DetachedBatch(batch_id=page.batch_id, ledgers=len(page.unreferenced), intents=len(rows))
            self.filings[page.batch_id] = detached
            self._decide(page.run_id, page.page, {*numbers, *page.kept}, {**page.kept, **kept_reasons})
            self.rows[page.batch_id] = sorted(rows, key=lambda row: row.row_id)
        return self.filings[page.batch_id]

    def _filed_row(self, row_id: int, ledger_id: LedgerId, copy: CopyKind, context: Mapping[str, str]) -> FiledCopyRow:
        failed = self.outcome is None or not self.outcome.is_success
        return FiledCopyRow(
            row_id=row_id,
            ledger_id=ledger_id,
            copy=copy,
            uuid=context.get("uuid", ""),
            outcome=self.outcome,
            error="storage kept a key" if failed else None,
            objects=0 if failed else 3,
            size_bytes=0 if failed else 300,
        )

    def _decide(self, run_id: str, page: int, numbers: set[int], reasons: Mapping[int, str]) -> None:
        fates = self.fates.setdefault((run_id, page), {})
        for number in sorted(numbers - fates.keys()):
            reason = reasons.get(number)
            fates[number] = FateOfFinding(number=number, fate=FindingFate.KEPT, reason=reason) if reason else None

    def find_filed_batch(self, batch_id: str) -> DetachedBatch | None:
        """See `ReconciliationRuns`."""
        return self.filings.get(batch_id)

    def decide_single_objects(
        self, run_id: str, page: int, answers: SingleObjectAnswers, *, cause: AuditCause
    ) -> Mapping[int, FateOfFinding | None]:
        """See `ReconciliationRuns`."""
        with effect("catalog.decide_objects"):
            numbers = {*answers.segments, *answers.uploads, *answers.kept}
            if not numbers <= self.read_fates(run_id, page).keys():
                if answers.segments:
                    self.causes.append(cause)
                    self.passed_over.append(dict(answers.segments))
                catalog_reasons = {number: self.keeps[number] for number in self.keeps if number in answers.segments}
                self._decide(run_id, page, numbers, {**answers.kept, **catalog_reasons})
            fates = self.read_fates(run_id, page)
            return {number: fates[number] for number in numbers}

    def store_fates(self, run_id: str, page: int, fates: Collection[FateOfFinding]) -> None:
        """See `ReconciliationRuns`."""
        with effect("catalog.store_fates"):
            stored = self.fates.get((run_id, page), {})
            for fate in fates:
                earlier = stored.get(fate.number)
                if fate.number in stored and (earlier is None or earlier.fate is not FindingFate.KEPT):
                    stored[fate.number] = fate

    def read_fates(self, run_id: str, page: int) -> Mapping[int, FateOfFinding | None]:
        """See `ReconciliationRuns`."""
        return dict(sorted(self.fates.get((run_id, page), {}).items()))

    def preview_filing(self, findings: FindingsToFile) -> Mapping[int, str]:
        """See the port."""
        numbers = [*(orphan.number for orphan in findings.orphans), *findings.unreferenced, *findings.stalled]
        return {number: reason for number, reason in self.keeps.items() if number in numbers}

    def preview_pass_over_segments(
        self, segment_by_finding: Mapping[int, tuple[LedgerId, int]], *, passed_over: Mapping[LedgerId, int]
    ) -> Mapping[int, str]:
        """See the port."""
        return {number: reason for number, reason in self.keeps.items() if number in segment_by_finding}

    def list_filed_copies(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopyRow]:
        """See the port."""
        return [row for row in self.rows.get(batch_id, []) if row.row_id > after][:limit]
