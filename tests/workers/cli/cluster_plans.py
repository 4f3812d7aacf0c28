"""A finished plan of a cluster in a catalog."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from activities.reconciliation.finding_fates import page_fate_files
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import RunKind
from logstore.pulsar.plan_jobs import NO_OFFLOAD_BUCKET
from logstore.reconciliation.finding_files import FindingFiles, findings_to_table
from logstore.reconciliation.findings import (
    CLUSTER_KINDS,
    LEFT,
    LEFT_HELD_BACK,
    RESULT,
    STOPPED,
    ApplyCounts,
    FateOfFinding,
    Finding,
    PlanOrScrubResult,
    apply_run_id,
)
from tests.fakes.reconciliation_runs import FakeReconciliationRuns
from tests.workers.cli.fakes import FakeJobHandle
from workflows.pulsar.job_definitions import PlanPulsarResult

RUN_ID = "pulsar-8c1d5f0e9a3b"
CATALOG_ID = "7f3c"
INCOMPLETE_REASON = "/schemas/t/ns/a: a field is unknown"
SCANNED_US = 1_763_800_000_000_000


class PlannedCluster:
    """Catalog with a finished plan of a cluster. `started` has the arguments of each plan that was started."""

    def __init__(self, folder: Path, findings: Sequence[Finding], *, ledgers: int = 18) -> None:
        self.started: list[dict[str, Any]] = []
        self._folder, output = folder / RUN_ID, folder / RUN_ID / "output"
        output.mkdir(parents=True)
        pq.write_table(findings_to_table(findings), output / "part-0.parquet")
        totals = FindingFiles(output).count_findings_and_bytes_by_kind(CLUSTER_KINDS)
        self.result = PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=ledgers,
            references=11,
            young=2,
            before_us=SCANNED_US,
            report=str(output),
            left_out=[NO_OFFLOAD_BUCKET],
        )
        self.catalog = SimpleNamespace(identities=SimpleNamespace(catalog_id=lambda: CATALOG_ID))
        self.store()

    def make_incomplete(self) -> None:
        self.result = replace(self.result, incomplete=[INCOMPLETE_REASON])
        self.store()

    def store(self, catalog_id: str = CATALOG_ID) -> None:
        """Store the plan as one of this catalog, without an apply."""
        begun = {"actor": "ann", "reason": "", "cluster": "east", "identity": "5f0a/1/2", "catalog_id": catalog_id}
        self.catalog.reconciliation = FakeReconciliationRuns()
        self._open_run(RUN_ID, RunKind.CLUSTER_PLAN, begun)
        self.catalog.reconciliation.close_run(RUN_ID, {**begun, "result": asdict(self.result)})

    def store_apply(self, fates: Sequence[FateOfFinding]) -> None:
        """Store an apply that is not finished."""
        summary = {"folder": str(self._folder), "actor": "ann", "reason": "", "identity": "5f0a/1/2"}
        self._open_run(apply_run_id(RUN_ID), RunKind.APPLY, summary)
        page_fate_files(self._folder).write_page(0, fates)

    def end_apply(self, *, stopped: str) -> None:
        run = self.catalog.reconciliation.get_run(apply_run_id(RUN_ID))
        self.catalog.reconciliation.close_run(run.run_id, {**run.summary, STOPPED: stopped})

    def store_outcome(self, counts: ApplyCounts, *, left: int, unconfirmed: int, stopped: str = "") -> None:
        """Store the outcome of an apply that is not finished."""
        run = self.catalog.reconciliation.get_run(apply_run_id(RUN_ID))
        outcome = {RESULT: asdict(counts), LEFT: left, LEFT_HELD_BACK: unconfirmed, STOPPED: stopped}
        self.catalog.reconciliation.store_summary(run.run_id, {**run.summary, **outcome})

    async def plan_pulsar(self, **asked: Any) -> Any:
        self.started.append(asked)
        result = PlanPulsarResult(run_id=RUN_ID, found=self.result)
        return FakeJobHandle(result, id=f"plan-pulsar/{RUN_ID}")  # type: ignore[arg-type]

    def _open_run(self, run_id: str, kind: RunKind, summary: dict[str, str]) -> None:
        claim = Claim(workflow_id="tests", run_id="", ttl_s=60)
        self.catalog.reconciliation.open_run(run_id, kind, claim=claim, summary=summary)
