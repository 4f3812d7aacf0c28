"""Activities that build snapshots of the transaction buffers of many topics. A snapshot never replaces a newer one."""

from activities.heartbeats import define_activity, send_heartbeats
from activities.topic_build_steps import (
    BeginBuildInput,
    ConcludeBuildInput,
    RunBuildJobInput,
    SwitchCounts,
    SwitchTopicsPageInput,
    TopicBuildSteps,
    TopicBuildSummary,
)
from logstore.catalog.sql_catalog import Catalog
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import RunKind
from logstore.transactions.buffer_serialization import BufferFiles, BuildTransactionBuffersJob
from logstore.transactions.services.buffer_snapshots import BufferSnapshots


class TransactionSnapshotBuildActivities(TopicBuildSteps):
    def __init__(self, *, catalog: Catalog, bulk: BulkJobRunner, snapshots: BufferSnapshots) -> None:
        super().__init__(kind=RunKind.SNAPSHOTS, job=BuildTransactionBuffersJob.name, catalog=catalog, bulk=bulk)
        self._snapshots = snapshots

    @define_activity(name="transactions.begin_build")
    @send_heartbeats()
    def begin_build(self, request: BeginBuildInput) -> TopicBuildSummary:
        """Open the run, and store the requested topics for the later steps of the build.

        Idempotency: keyed by `run_id`. The topics of the first call stay. For a finished run, return its summary.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._begin_build(request)

    @define_activity(name="transactions.build_buffers")
    def build_buffers(self, request: RunBuildJobInput) -> TopicBuildSummary:
        """Run the bulk job until its output is published.

        Idempotency: keyed by `run_id`. If the output is published already, only the summary is returned.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        return self._run_build_job(
            request, lambda topics: BuildTransactionBuffersJob(run_id=request.run_id, topics=topics)
        )

    @define_activity(name="transactions.switch_snapshots")
    def write_and_switch_snapshots(self, request: SwitchTopicsPageInput) -> SwitchCounts:
        """Write the transaction buffers of one page of topics as snapshots.

        Idempotency: keyed by (run_id, page). A repeated call replaces a snapshot with an equal one.
        Heartbeat: topics done, every two seconds.
        Raises: UnknownObject, PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy,
            OutcomeUnknown (retry).
        """
        files = BufferFiles(self._published_folder(request.run_id))
        return self._switch_topics(
            files.read_part(request.page), lambda topic_buffer: self._snapshots.replace_snapshot(*topic_buffer)
        )

    @define_activity(name="transactions.conclude_build")
    @send_heartbeats()
    def conclude_build(self, request: ConcludeBuildInput) -> TopicBuildSummary:
        """Store the counts, finish the run, and delete the output of the bulk job.

        Idempotency: the counts of the first call stay. For a finished run, missing output is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._conclude_build(request)
