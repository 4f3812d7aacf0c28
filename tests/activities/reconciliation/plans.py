"""A plan and its apply over fakes: buckets, bulk jobs that find what they are given, and a catalog that files it."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from activities.reconciliation.apply_orphans import ApplyOrphansActivities, ApplyPreview
from activities.reconciliation.inputs_and_results import (
    ApplyPageInput,
    BeginApplyInput,
    BeginPlanInput,
    BulkJobInput,
    EarlierPlanResult,
    FiledPage,
    PlanStepInput,
)
from activities.reconciliation.plan_orphans import PlanOrphansActivities
from activities.reconciliation.scrub_ledgers import ScrubLedgersActivities
from logstore.catalog import Catalog
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement
from logstore.offload.tiered_copy import data_key, index_key
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import (
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE
from logstore.reconciliation.findings import STORE_KINDS, ApplyCounts, Finding, FindingKind, PlanOrScrubResult
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from tests.activities.activity_world import run
from tests.fakes.bulk_jobs import FakeBulkJobs
from tests.fakes.object_store import FakeObjectStore
from tests.fakes.reconciliation_runs import FakeReconciliationRuns

RUN = "plan-1"
BATCH = "orphans-plan-1-0"
JOBS = (ListStorageJob.name, ReadLedgersAndIntentsJob.name, CompareStorageWithCatalogJob.name, VerifyFindingsJob.name)
DAY_S = 86_400
OWNER = LedgerOwner(
    application="sexton",
    component=Component.MANAGED_LEDGER,
    topic_id=TopicId(1),
    topic="persistent://shop/main/orders",
    keys={},
)
UUID = "0a1b"


class Catalogued:
    """Stands for the part of a catalog that says who it is."""

    id = "00000000-0000-4000-8000-000000000001"

    def catalog_id(self) -> str:
        """See `CatalogIdentity`."""
        return self.id


class Plans:
    """One store, and the activities of plans and applies over it."""

    def __init__(self, folder: Path) -> None:
        self.warm, self.cold, self.runs = FakeObjectStore(), FakeObjectStore(), FakeReconciliationRuns()
        self.bulk = FakeBulkJobs(folder / "bulk")
        self.findings = self.bulk.findings
        self.identities = Catalogued()
        self.catalog = cast("Catalog", SimpleNamespace(reconciliation=self.runs, identities=self.identities))
        self.rewire()

    def rewire(self) -> None:
        """Make the activities over the buckets as they are now."""
        self.stored = OrphanInspector(
            objects=self.warm,
            buckets=lambda _: self.cold,
            application="sexton",
            driver_metadata={"driver": "aws-s3", "bucket": "cold"},
        )
        self.planning = PlanOrphansActivities(
            catalog=self.catalog,
            inspector=self.stored,
            bulk=self.bulk,
            store_now_us=lambda: self.warm.now_us,
            finished_retention_s=30 * DAY_S,
        )
        self.scrubbing = ScrubLedgersActivities(
            catalog=self.catalog,
            inspector=self.stored,
            bulk=self.bulk,
        )
        self.preview = ApplyPreview(catalog=self.catalog, inspector=self.stored)
        self.applying = ApplyOrphansActivities(
            catalog=self.catalog,
            inspector=self.stored,
            objects=self.warm,
            bulk=self.bulk,
        )

    # -- what there is to find

    def orphan_ledger(self, ledger_id: int, *, segments: int = 2) -> None:
        """Objects of a ledger, and the finding of it."""
        own, metadata = LedgerId(ledger_id), self.statement(ledger_id).to_metadata()
        keys = [meta_key(own, OWNER), *(segment_key(own, number) for number in range(segments))]
        for key in keys:
            self.warm.put_if_absent(key, b"x" * 100, metadata=metadata)
        self._found(FindingKind.ORPHAN_LEDGER, ledger_id, key=ledger_prefix(own), objects=len(keys))

    def orphan_offload(self, ledger_id: int) -> None:
        """A tiered pair, and the finding of it."""
        own, metadata = LedgerId(ledger_id), self.statement(ledger_id).to_metadata()
        for key in (data_key(UUID, own), index_key(UUID, own)):
            self.cold.put_if_absent(key, b"x" * 100, metadata=metadata)
        self._found(FindingKind.ORPHAN_OFFLOAD, ledger_id, key=data_key(UUID, own), uuid=UUID, objects=2)

    def abandoned_upload(self, ledger_id: int) -> str:
        """Parts of an upload, and the finding of them; its key."""
        key = data_key(UUID, LedgerId(ledger_id))
        self.cold.unfinished.add(key)
        self.cold.begun_us[key] = self.cold.now_us
        self._found(FindingKind.ORPHAN_OFFLOAD, ledger_id, key=key, uuid=UUID, objects=0)
        return key

    def orphan_segment(self, ledger_id: int, number: int) -> str:
        """An object that nobody registered under a ledger that lives, and the finding of it; its key."""
        own, metadata = LedgerId(ledger_id), self.statement(ledger_id).to_metadata()
        self.warm.put_if_absent(meta_key(own, OWNER), b"{}", metadata=metadata)
        key = segment_key(own, number)
        self.warm.put_if_absent(key, b"x" * 100, metadata=metadata)
        self._found(FindingKind.ORPHAN_SEGMENT, ledger_id, key=key, objects=1)
        return key

    def row(self, kind: FindingKind, ledger_id: int, **more: Any) -> None:
        """A finding of a row of the catalog."""
        self.findings.append(Finding(kind=kind, ledger_id=LedgerId(ledger_id), **more))

    def _found(self, kind: FindingKind, ledger_id: int, **more: Any) -> None:
        tiered = kind is FindingKind.ORPHAN_OFFLOAD
        copy, bucket = (CopyKind.OFFLOADED_LEDGER, "cold") if tiered else (CopyKind.LEDGER, "warm")
        size = 100 * more["objects"]
        one = Finding(
            kind=kind,
            ledger_id=LedgerId(ledger_id),
            copy=copy,
            bucket=bucket,
            topic=OWNER.topic,
            size_bytes=size,
            **more,
        )
        self.findings.append(one)

    @staticmethod
    def statement(ledger_id: int) -> LedgerStatement:
        """Whose a ledger is."""
        return LedgerStatement(owner=OWNER, ledger_id=LedgerId(ledger_id), created_us=5, epoch=1)

    # -- a plan

    def begin(self, run_id: str = RUN, **more: Any) -> EarlierPlanResult:
        """Begin a plan."""
        return run(
            self.planning.begin_plan_and_remove_old_runs,
            BeginPlanInput(run_id=run_id, actor="tests", **more),
            workflow_id=run_id,
        )

    def do(self, job: str, run_id: str = RUN, **more: Any) -> dict[str, int]:
        """One bulk job; its counts."""
        return run(
            self.planning.run_plan_bulk_job, BulkJobInput(run_id=run_id, job=job, **more), workflow_id=run_id
        ).counts

    def check(self, run_id: str = RUN) -> None:
        """Judge the comparison."""
        run(self.planning.require_plausible_comparison, PlanStepInput(run_id=run_id))

    def conclude(self, run_id: str = RUN) -> PlanOrScrubResult:
        """Finish the plan."""
        return run(self.planning.conclude_plan, PlanStepInput(run_id=run_id))

    def plan(self, *, page: int = FINDINGS_PER_PAGE) -> PlanOrScrubResult:
        """All of it, of what there is a day later."""
        self.bulk.page = page
        self.warm.advance(seconds=DAY_S + 1)
        self.begin()
        for job in JOBS:
            self.do(job)
        self.check()
        return self.conclude()

    # -- its apply

    def begin_apply(self, **more: Any) -> Any:
        """Begin the apply."""
        asked = BeginApplyInput(run_id=RUN, actor="tests", **more)
        return run(self.applying.begin_apply, asked, workflow_id=f"apply-orphans/{RUN}")

    def page(self, number: int = 0, **more: Any) -> ApplyPageInput:
        """A page, as its workflow names it."""
        batch = f"orphans-{RUN}-{number}"
        return ApplyPageInput(
            run_id=RUN,
            page=number,
            before_us=self.runs.get_run(RUN).summary["before_us"],
            epoch=1,
            batch_id=batch,
            batch_workflow_id=f"delete-ledgers/{batch}",
            actor="tests",
            reason="a test",
            **more,
        )

    def file(self, number: int = 0) -> FiledPage:
        """File one page."""
        return run(self.applying.recheck_and_file_page, self.page(number))

    def delete(self, number: int = 0, **more: Any) -> int:
        """Delete the single objects of one page."""
        return run(self.applying.recheck_and_delete_objects, self.page(number, **more))

    def record(self, number: int = 0, *, intents: int = 0) -> ApplyCounts:
        """Write down what became of one page."""
        return run(self.applying.record_page_fates, self.page(number, intents=intents))

    def conclude_apply(self) -> ApplyCounts:
        """Finish the apply."""
        return run(self.applying.conclude_apply, PlanStepInput(run_id=RUN))

    def apply(self, *, pages: int = 1) -> ApplyCounts:
        """All of it."""
        self.begin_apply(max_orphan_share=1.0)
        for number in range(pages):
            self.file(number)
            self.delete(number)
            self.record(number)
        return self.conclude_apply()


def kinds(found: Sequence[str]) -> dict[str, int]:
    """Zeros for every kind but these."""
    return {kind.value: found.count(kind.value) for kind in STORE_KINDS}
