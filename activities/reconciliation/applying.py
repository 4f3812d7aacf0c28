"""An apply of a finished plan, page by page: each finding is looked at again, and only then acted upon.

Copies and rows go to phase two by an intent, whose batch a workflow runs; single objects are deleted here. Any step may
run twice, at any distance: what it decided is written down before the first effect that would change the answer, and
counts are those of storage's confirmations. What became of a page is one file, of an apply the sum of these files.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from activities.bulk import RUN_CLAIM_S
from activities.deletion import metrics as deletion_metrics
from activities.deletion.claims import batch_claim, own_cause, own_claim
from activities.heartbeats import beating, defined
from activities.reconciliation import finding_fates
from activities.reconciliation.decisions import keep_looked, looked_at
from activities.reconciliation.objects import ObjectDeletion
from activities.reconciliation.page_look import ask_copies, findings_to_file, has_rows_to_file, single_objects
from activities.reconciliation.values import (
    ApplyBegun,
    BeginApplyInput,
    FiledPage,
    PageInput,
    PlanInput,
)
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import (
    Cause,
    DetachedBatch,
    FiledCopy,
    Identities,
    PageOfFindings,
    Reconciliation,
    RunKind,
)
from logstore.reconciliation import rules
from logstore.reconciliation.files import Ended, FindingFiles
from logstore.reconciliation.findings import (
    RESULT,
    ApplyCounts,
    Fate,
    Finding,
    FindingKind,
    apply_counts,
    apply_run_id,
    together,
)
from logstore.reconciliation.jobs import VerifyFindings
from logstore.reconciliation.services.orphans import StoredOrphans, is_object
from logstore.reconciliation.services.runs import appliable_plan, apply_of, require_counted, require_epoch
from logstore.units import raise_if_stopped

_ASKING: Final = 8
"""Copies that storage is asked about at a time."""
_ROWS_OF_THE_CATALOG: Final = frozenset({FindingKind.UNREFERENCED_LEDGER, FindingKind.STALLED_DELETION})
_ROWS: Final = 1_000
"""Rows of a batch that are read at a time."""
R = TypeVar("R")


class Applying:
    """The activities of an apply, over ports."""

    def __init__(
        self,
        *,
        reconciliation: Reconciliation,
        identities: Identities,
        stored: StoredOrphans,
        objects: ObjectDeletion,
        bulk: BulkJobs,
    ) -> None:
        """Take the ports, and what deletes single objects."""
        self._runs, self._identities, self._stored = reconciliation, identities, stored
        self._objects, self._bulk = objects, bulk

    @defined(name="reconciliation.begin_apply")
    @beating()
    def begin_apply(self, request: BeginApplyInput) -> ApplyBegun:
        """Refuse what must not be applied, and open the run of the apply.

        Idempotency: keyed by the plan's `run_id`; of an apply that is finished, what it came to.
        Raises: InvalidInput, UnknownObject, PreconditionFailed, StaleCatalog, CatalogMismatch (terminal);
            StoreUnavailable, CatalogBusy (retry).
        """
        plan, epoch = appliable_plan(self._runs, self._identities, request.run_id)
        before = apply_of(self._runs, request.run_id)
        if before is None or before.finished_us is None:  # one that is over removes nothing more
            rules.check_orphan_share(plan.findings, plan.ledgers, request.max_orphan_share)
        self._stored.confirm()
        pages = require_counted(self._files(request.run_id), plan, request.run_id).pages
        facts = {
            "actor": request.actor,
            "reason": request.reason,
            "plan": request.run_id,
            "pages": pages,
            "folder": str(self._folder(request.run_id)),
        }
        claim = own_claim(RUN_CLAIM_S)
        run = self._runs.open_run(apply_run_id(request.run_id), RunKind.APPLY, claim=claim, summary=facts)
        return ApplyBegun(
            pages=pages,
            findings=sum(plan.findings.get(kind.value, 0) for kind in FindingKind if kind.applied),
            before_us=plan.before_us,
            epoch=epoch,
            done=apply_counts(run.summary) if run.finished_us is not None else None,
        )

    def _files(self, run_id: str) -> FindingFiles:
        published = self._bulk.published_summary(run_id, VerifyFindings.name)
        if published is None:
            where = "every worker must see the folder of bulk output"
            raise PreconditionFailed(f"plan {run_id}: expected its findings, found none here; {where}, or plan again")
        return FindingFiles(Path(published.folder))

    @defined(name="reconciliation.file_page")
    @beating()
    def file_page(self, request: PageInput) -> FiledPage:
        """Look at a page again, in storage first, and file what is still so for phase two.

        Idempotency: keyed by `batch_id`: what storage said is written down before it is filed, so that the same is
            filed and answered again, whatever has become of it in storage since.
        Raises: PreconditionFailed, StaleCatalog, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_epoch(self._runs, request.epoch, request.run_id)
        self._stored.confirm()
        found = self._files(request.run_id).page(request.page)
        if not has_rows_to_file(found):
            return self._filed_page(found, None)
        folder = self._folder(request.run_id)
        looked = looked_at(folder, request.page)
        if looked is None:
            seen = ask_copies(self._stored, found, request.before_us)
            with effect("reconciliation.keep_looked"):
                looked = keep_looked(folder, request.page, seen)
        to_file = findings_to_file(found, looked, request.batch_id)
        findings = PageOfFindings(
            batch_id=to_file.batch_id,
            orphans=to_file.orphans,
            unreferenced=to_file.unreferenced,
            stalled=to_file.stalled,
            claim=batch_claim(request.batch_workflow_id),
            cause=Cause(actor=request.actor, reason=request.reason, workflow_id=request.batch_workflow_id),
        )
        filing = self._runs.file(findings)
        deletion_metrics.count_filed(filing.detached.filed_counts)
        kept = {at: why for at, why in looked.items() if isinstance(why, str)} | dict(filing.kept)
        with effect("reconciliation.keep_copies"):
            finding_fates.kept_files(folder).put(
                request.page, [Ended(number=at, fate=Fate.KEPT, reason=why) for at, why in sorted(kept.items())]
            )
        return self._filed_page(found, filing.detached)

    def _filed_page(self, found: Mapping[int, Finding], filed: DetachedBatch | None) -> FiledPage:
        return FiledPage(
            intents=filed.intents if filed else 0,
            detached=filed.ledgers if filed else 0,
            objects=sum(map(is_object, found.values())),
        )

    @defined(name="reconciliation.delete_objects")
    def delete_objects(self, request: PageInput) -> int:
        """Delete the page's single objects and abandoned uploads that are still what the plan found; how many.

        Idempotency: what is to be deleted is written down before the first of it is, so that a second attempt deletes
            the same, and an absent object counts as deleted. That decision does not age: no writer registers a number
            that was passed over, and no upload goes on under a uuid that no row has.
        Heartbeat: (findings looked at, objects confirmed), after each; and while storage makes us wait.
        Raises: StaleCatalog, CatalogMismatch (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_epoch(self._runs, request.epoch, request.run_id)  # a restored catalog may give a number out again
        return self._objects.delete(
            single_objects(self._files(request.run_id).page(request.page)),
            folder=self._folder(request.run_id),
            page=request.page,
            before_us=request.before_us,
            cause=own_cause(request.actor, request.reason),
            objects_per_s=request.objects_per_s,
        )

    @defined(name="reconciliation.record_page")
    @beating()
    def record_page(self, request: PageInput) -> ApplyCounts:
        """Write down what became of each finding of the page, and count it.

        Idempotency: a page that is written again replaces itself by what its rows say then.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        folder, found = self._folder(request.run_id), self._files(request.run_id).page(request.page)
        ended = finding_fates.joined(
            found, self._filed(request.batch_id), intents=request.intents, folder=folder, page=request.page
        )
        with effect("reconciliation.put_fates"):
            finding_fates.fate_files(folder).put(request.page, list(ended.values()))
        return finding_fates.counted(found, ended)

    def _filed(self, batch_id: str) -> list[FiledCopy]:
        rows: list[FiledCopy] = []
        while more := self._runs.filed(batch_id, after=rows[-1].row_id if rows else 0, limit=_ROWS):
            raise_if_stopped()
            rows += more
        return rows

    @defined(name="reconciliation.conclude_apply")
    @beating()
    def conclude_apply(self, request: PlanInput) -> ApplyCounts:
        """Finish the run with the sum of its pages.

        Idempotency: the first summary stays; it is counted from files, so that repeated work counts once.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.run(apply_run_id(request.run_id))
        if run.finished_us is None:
            files, kept = self._files(request.run_id), finding_fates.fate_files(self._folder(request.run_id))
            whole = ApplyCounts()
            for page in range(files.pages):
                raise_if_stopped()
                ended = kept.page(page)
                if ended is None:
                    raise PreconditionFailed(
                        f"apply of {request.run_id}: expected page {page} to be applied, found none"
                    )
                whole = together(whole, finding_fates.counted(files.page(page), ended))
            self._runs.close_run(run.run_id, {**run.summary, RESULT: asdict(whole)})
            run = self._runs.run(run.run_id)
        return apply_counts(run.summary)

    def _folder(self, run_id: str) -> Path:
        return self._bulk.folder(run_id)
