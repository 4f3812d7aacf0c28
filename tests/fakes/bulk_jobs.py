"""Bulk jobs without a cluster: what a plan finds is given, and published as the real ones publish it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from logstore.delayed.index_build_job import BuildDelayedIndexJob, BuiltIndexFiles, BuiltTopicIndex
from logstore.positions import TopicId
from logstore.pulsar.plan_jobs import BEGUN_MS, ENDED_MS, IDENTITY, CompareScansJob, ScanClusterJob, VerifyClusterJob
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJob,
    BulkJobProgress,
    BulkJobSummary,
    CompareStorageWithCatalogJob,
    CutScrubIntoPagesJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    ScrubPageJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE, findings_to_table
from logstore.reconciliation.findings import Finding
from logstore.transactions.buffer_serialization import BufferFiles, BuildTransactionBuffersJob
from logstore.transactions.transaction_buffer import TransactionBuffer
from spark.published_output import PublishedOutputs
from tests.fakes import pulsar_cluster

COMPARISON_COUNTS = {
    "objects": 10,
    "ledgers": 4,
    "stored": 3,
    "named": 4,
    "matched": 3,
    "tiered_stored": 0,
    "tiered_named": 0,
    "tiered_matched": 0,
    "young": 0,
    "expected": 4,
}
_COUNT_NAMES_BY_JOB = {
    ListStorageJob.name: ("objects",),
    ReadLedgersAndIntentsJob.name: ("ledgers",),
    CompareStorageWithCatalogJob.name: tuple(COMPARISON_COUNTS)[2:],
}


class FakeBulkJobs:
    """Publishes what it is given, in a folder that outlives it; any number of threads may use it."""

    def __init__(self, root: Path) -> None:
        """Publish under this folder."""
        self._root, self._publication = root, PublishedOutputs(root)
        self.findings: list[Finding] = []  # what is found
        self.page = FINDINGS_PER_PAGE  # findings of a page
        self.compared = dict(COMPARISON_COUNTS)  # what jobs count
        self.buffers: dict[TopicId, TransactionBuffer] = {}  # what is rebuilt
        self.indexes: Callable[[BuiltIndexFiles], list[BuiltTopicIndex]] = lambda _files: []  # writes snapshots
        self.facts: dict[str, str] = {}  # of each of these jobs
        self.pages = 2  # of a scrub
        self.scanned = {"ledgers": 18, "references": 11, "problems": 0}  # what each scan of a cluster counts
        self.cluster_findings: list[Finding] = []  # what a plan of a cluster finds
        self.scan_facts: dict[int, dict[str, str]] = {}  # of a scan of a cluster, by its number
        self.damaged: dict[int, list[Finding]] = {}  # what a scrub finds, by page
        self.ran: list[BulkJob] = []  # one that was published before does not run again
        self.masters: list[str] = []
        self.stopped: list[str] = []  # runs of the attempts that were ended by who hears of progress
        self.meanwhile: Callable[[BulkJob, Callable[[], None]], None] = lambda _job, _beat: None
        self._lock = threading.Lock()

    def run_job(
        self, job: BulkJob, on_progress: Callable[[BulkJobProgress], None], *, master: str = ""
    ) -> BulkJobSummary:
        """See the port."""
        with self._lock:
            published = self.find_published_summary(job.run_id, job.name)
            if published:
                return published
        self.ran.append(job)
        self.masters.append(master)
        try:
            self.meanwhile(job, lambda: on_progress(BulkJobProgress(stage=job.name, done=1, tasks=2)))
        except BaseException:
            self.stopped.append(job.run_id)
            raise
        folder, summary = self._write_attempt(
            job
        )  # not under the lock: another attempt may overtake this one as it reads
        with self._lock:
            published = self.find_published_summary(job.run_id, job.name)
            return published or self._publication.publish(job.run_id, job.name, folder, summary)

    def _write_attempt(self, job: BulkJob) -> tuple[Path, BulkJobSummary]:
        folder, summary = self._publication.create_attempt_folder(job.run_id, job.name), BulkJobSummary()
        count_names = _COUNT_NAMES_BY_JOB.get(job.name)
        if count_names:
            summary = BulkJobSummary(counts={name: self.compared[name] for name in count_names}, facts=dict(self.facts))
        if isinstance(job, BuildTransactionBuffersJob):
            summary = self._write_buffers(folder, job)
        if isinstance(job, BuildDelayedIndexJob):
            summary = self._write_delayed_indexes(folder, job)
        if isinstance(job, CutScrubIntoPagesJob):
            counts = {"pages": self.pages, "ledgers": self.pages, "objects": 10 * self.pages, "size_bytes": 1_000}
            summary = BulkJobSummary(counts=counts)
        if isinstance(job, ScrubPageJob):
            damaged_findings = self.damaged.get(job.page, [])
            if damaged_findings:
                pq.write_table(findings_to_table(damaged_findings), folder / "findings-0.parquet")
            counts = {"objects": 10, "size_bytes": 500, "findings": len(damaged_findings), "elsewhere": 0}
            summary = BulkJobSummary(counts=counts, facts=dict(self.facts))
        if isinstance(job, ScanClusterJob):
            summary = self._summarize_scan(job.number)
        if isinstance(job, CompareScansJob):
            summary = BulkJobSummary(counts={"young": 2, "transient": 1})
        if isinstance(job, VerifyFindingsJob | VerifyClusterJob):
            findings = self.findings if isinstance(job, VerifyFindingsJob) else self.cluster_findings
            pq.write_table(findings_to_table(findings), folder / "part-0.parquet", row_group_size=self.page)
        return folder, summary

    def _summarize_scan(self, number: int) -> BulkJobSummary:
        begun_ms = 1_763_800_000_000 + 700_000 * number
        return BulkJobSummary(
            counts={**self.scanned, BEGUN_MS: begun_ms, ENDED_MS: begun_ms + 1_000},
            facts={IDENTITY: pulsar_cluster.IDENTITY, **self.scan_facts.get(number, {})},
        )

    def _write_buffers(self, folder: Path, job: BuildTransactionBuffersJob) -> BulkJobSummary:
        """A part for each topic."""
        buffer_by_topic = {
            topic_id: buffer for topic_id, buffer in self.buffers.items() if not job.topics or topic_id in job.topics
        }
        for part, item in enumerate(buffer_by_topic.items()):
            BufferFiles(folder).write_part(part, iter([item]))
        counts = dict.fromkeys(("empty", "gone"), 0) | {"unreadable": len(self.facts), "topics": len(buffer_by_topic)}
        return BulkJobSummary(
            counts={**counts, "buffers": len(buffer_by_topic), "parts": len(buffer_by_topic)}, facts=dict(self.facts)
        )

    def _write_delayed_indexes(self, folder: Path, job: BuildDelayedIndexJob) -> BulkJobSummary:
        """A part for each topic."""
        topic_indexes = [
            topic_index
            for topic_index in self.indexes(BuiltIndexFiles(folder))
            if not job.topics or topic_index.topic_id in job.topics
        ]
        for part, topic_index in enumerate(topic_indexes):
            BuiltIndexFiles(folder).write_part(part, [topic_index])
        counts = {
            "topics": len(topic_indexes),
            "parts": len(topic_indexes),
            "empty": 0,
            "gone": 0,
            "unreadable": len(self.facts),
        }
        bucket_count = sum(len(topic_index.files) for topic_index in topic_indexes)
        return BulkJobSummary(
            counts={**counts, "buckets": bucket_count, "messages": 2 * bucket_count}, facts=dict(self.facts)
        )

    def find_published_summary(self, run_id: str, name: str) -> BulkJobSummary | None:
        return self._publication.read_summary(run_id, name)

    def list_run_ids(self) -> list[str]:
        return self._publication.list_runs()

    def create_run_folder(self, run_id: str) -> Path:
        folder = self._root / run_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove_run(self, run_id: str) -> None:
        self._publication.remove_run_outputs(run_id)
