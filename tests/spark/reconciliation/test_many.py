"""A hundred thousand candidates: read and written by pages, and none of them in the driver."""

import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.objects.s3_store import BucketAddress
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJobSummary,
    CompareStorageWithCatalogJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE, FindingFiles
from logstore.reconciliation.findings import FindingKind
from spark.job_mains import catalog_job_mains
from spark.job_runner import JobContext, SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.reconciliation.fact_files import STRANGE, write_ungrouped_facts
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import WarmSession
from tests.migrated_catalogs import create_migrated_sqlite

_MANY = 100_000
_BATCH = 12_345


def _strange() -> Iterator[pa.RecordBatch]:
    numbers = iter(range(_MANY))
    while batch := list(islice(numbers, _BATCH)):
        rows = [{"bucket": "p", "key": f"odd/{at:06d}", "size_bytes": at, "modified_us": 1} for at in batch]
        yield pa.RecordBatch.from_pylist(rows, schema=STRANGE)


def test_many_candidates_go_from_file_to_file_by_pages(
    warm: WarmSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What executors answer does not grow with them, and a finding's number is its place in the files."""
    answers: list[Any] = []
    run_in_executors = JobContext.run_in_executors

    def counting(run: JobContext, what: str, tasks: Any, work: Any) -> Any:
        answered = run_in_executors(run, what, tasks, work)
        answers.extend(answered)
        return answered

    monkeypatch.setattr(JobContext, "run_in_executors", counting)
    publication = PublishedOutputs(tmp_path / "bulk")
    listed = publication.create_attempt_folder("run-1", "list-storage")
    assert write_ungrouped_facts(listed, "strange", 0, _strange(), STRANGE) == _MANY
    publication.publish("run-1", "list-storage", listed, BulkJobSummary(counts={"groups": 4}))
    empty = publication.create_attempt_folder("run-1", "read-references")
    publication.publish("run-1", "read-references", empty, BulkJobSummary())
    url, nowhere = (
        create_migrated_sqlite(tmp_path / "catalog.db"),
        BucketAddress("primary", "p", "http://127.0.0.1:9", "r", "k", "s"),
    )
    addresses = CatalogAddresses(database_url=url, primary=nowhere, tiered=(), application="sexton")
    jobs = SparkBulkJobs(warm, publication, lambda: catalog_job_mains(addresses))
    compare = CompareStorageWithCatalogJob(run_id="run-1", before_us=2, rows_before_us=2, next_ledger_id=1)
    candidates = jobs.run_job(compare, lambda _: None)
    findings = jobs.run_job(VerifyFindingsJob(run_id="run-1", before_us=2), lambda _: None)
    assert (candidates.counts["candidates"], findings.counts["foreign"]) == (_MANY, _MANY)
    totals = FindingFiles(Path(findings.folder)).count_findings_and_bytes_by_kind()
    assert totals[FindingKind.FOREIGN] == (_MANY, sum(range(_MANY)))
    for done in (candidates, findings):
        for path in Path(done.folder).glob("*.parquet"):
            metadata = pq.read_metadata(path)
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            assert max(rows, default=0) <= FINDINGS_PER_PAGE
    assert max(len(pickle.dumps(one)) for one in answers) < 500
    one, other = FindingFiles(Path(findings.folder)), FindingFiles(Path(findings.folder))
    numbers = [number for page in range(one.pages) for number in one.read_page(page)]
    assert numbers == list(range(_MANY))
    middle = one.pages // 2
    assert one.read_page(middle) == other.read_page(middle)
    assert [found.key for found in one.read_page(0).values()] == [
        f"odd/{at:06d}" for at in range(len(one.read_page(0)))
    ]
