"""Main functions of all bulk jobs, by job name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from infra.objects.s3_store import BucketAddress
from infra.pulsar.cluster_access import PulsarCluster
from logstore.delayed.index_build_job import BuildDelayedIndexJob
from logstore.pulsar.plan_jobs import (
    CompareOffloadsJob,
    CompareScansJob,
    ListOffloadsJob,
    ScanClusterJob,
    VerifyClusterJob,
)
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJobSummary,
    CompareStorageWithCatalogJob,
    CutScrubIntoPagesJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    ScrubPageJob,
    VerifyFindingsJob,
)
from logstore.records.rebuild_job import WriteCatalogRowsJob
from logstore.transactions.buffer_serialization import BuildTransactionBuffersJob
from spark.delayed.build_indexes import build_indexes
from spark.job_runner import JobContext, JobMain
from spark.pulsar.compare_offloads import compare_offloads
from spark.pulsar.compare_scans import compare_scans
from spark.pulsar.list_offloads import list_offloads
from spark.pulsar.scan_cluster import scan_cluster
from spark.pulsar.verify_cluster_findings import verify_cluster_findings
from spark.reconciliation.compare_sides import compare_sides
from spark.reconciliation.list_storage import list_storage
from spark.reconciliation.read_catalog_rows import read_ledgers_and_intents
from spark.reconciliation.scrub_ledgers import cut_scrub, scrub_page
from spark.reconciliation.verify_findings import verify_findings
from spark.records.write_catalog_rows import write_catalog_rows
from spark.sources.store_addresses import CatalogAddresses
from spark.transactions.rebuild_transaction_buffers import rebuild_transaction_buffers


def catalog_job_mains(addresses: CatalogAddresses) -> Mapping[str, JobMain]:
    mains: dict[str, Callable[[CatalogAddresses, JobContext, Any], BulkJobSummary]] = {
        ListStorageJob.name: list_storage,
        ReadLedgersAndIntentsJob.name: read_ledgers_and_intents,
        CompareStorageWithCatalogJob.name: compare_sides,
        VerifyFindingsJob.name: verify_findings,
        CutScrubIntoPagesJob.name: cut_scrub,
        ScrubPageJob.main: scrub_page,
        BuildTransactionBuffersJob.name: rebuild_transaction_buffers,
        BuildDelayedIndexJob.name: build_indexes,
    }
    return {name: partial(main, addresses) for name, main in mains.items()}


def record_log_job_mains(records: BucketAddress) -> Mapping[str, JobMain]:
    return {WriteCatalogRowsJob.name: partial(write_catalog_rows, records)}


def cluster_job_mains(cluster: PulsarCluster) -> Mapping[str, JobMain]:
    return lazy_cluster_job_mains(lambda: cluster)


def lazy_cluster_job_mains(find_cluster: Callable[[], PulsarCluster]) -> Mapping[str, JobMain]:
    """Return mains that find their cluster when they run, so that other jobs need no cluster."""
    mains: dict[str, Callable[[PulsarCluster, JobContext, Any], BulkJobSummary]] = {
        ListOffloadsJob.name: list_offloads,
        ScanClusterJob.main: scan_cluster,
        CompareScansJob.name: compare_scans,
        CompareOffloadsJob.name: compare_offloads,
        VerifyClusterJob.name: verify_cluster_findings,
    }

    def run(
        main: Callable[[PulsarCluster, JobContext, Any], BulkJobSummary],
        context: JobContext,
        job: Any,  # noqa: ANN401
    ) -> BulkJobSummary:
        return main(find_cluster(), context, job)

    return {name: partial(run, main) for name, main in mains.items()}
