"""A log store on real servers, and plans over it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from infra.objects.s3_store import read_store_clock_s
from logstore.reconciliation.bulk_job_inputs_and_results import (
    ROWS_BEFORE,
    BulkJob,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import WarmSession
from tests.postgres import postgres
from tests.spark.reconciliation.damage import Damaged
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses, open_log_store
from workers.settings import Settings

__all__ = ["postgres"]


@pytest.fixture
def store(settings: Settings) -> Iterator[Damaged]:
    """Not damaged yet."""
    with open_log_store(settings) as log:
        yield Damaged(settings=settings, log=log)


class Plan(Protocol):
    """Runs the four jobs of a plan, and answers its findings."""

    def __call__(
        self,
        between: Callable[[str], None] = ...,
        *,
        store: Damaged | None = None,
        addresses: CatalogAddresses | None = None,
        inventories: tuple[str, ...] = (),
        before_us: int | None = None,
        rows_before_us: int | None = None,
    ) -> list[Finding]:
        """Between the jobs a test may do what others do meanwhile; the cut-off is in the future unless told."""


@pytest.fixture
def plan(store: Damaged, warm: WarmSession, tmp_path: Path) -> Plan:
    """Of the test's own store; each call is another run."""
    return planner(store, warm, tmp_path / "bulk")


def planner(mine: Damaged, session: WarmSession, folder: Path) -> Plan:
    """Plans of a store in that session."""
    publication, runs = PublishedOutputs(folder), iter(range(99))

    def run(
        between: Callable[[str], None] = lambda _: None,
        *,
        store: Damaged | None = None,
        addresses: CatalogAddresses | None = None,
        inventories: tuple[str, ...] = (),
        before_us: int | None = None,
        rows_before_us: int | None = None,
    ) -> list[Finding]:
        target, run_id = store or mine, f"run-{next(runs)}"
        jobs = SparkBulkJobs(
            session,
            publication,
            lambda: catalog_job_mains(addresses or executor_catalog_and_bucket_addresses(target.settings)),
        )
        before_us = int((read_store_clock_s(target.bucket) + 5) * 1e6) if before_us is None else before_us
        rows_us = before_us + 10**7 if rows_before_us is None else rows_before_us
        ((next_id,),) = target.sql("SELECT next_ledger_id FROM catalog")
        steps: list[BulkJob] = [
            ListStorageJob(run_id=run_id, inventories=inventories),
            ReadLedgersAndIntentsJob(run_id=run_id),
            CompareStorageWithCatalogJob(
                run_id=run_id, before_us=before_us, rows_before_us=rows_us, next_ledger_id=next_id
            ),
            VerifyFindingsJob(run_id=run_id, before_us=before_us),
        ]
        for step in steps:
            done = jobs.run_job(step, lambda _: None)
            if step.name == CompareStorageWithCatalogJob.name and not inventories:
                assert int(done.facts[ROWS_BEFORE]) == rows_us
            between(step.name)
        found = [finding for _, finding in FindingFiles(Path(done.folder)).iterate_findings()]
        assert len(found) == sum(done.counts.values())
        return found

    return run
