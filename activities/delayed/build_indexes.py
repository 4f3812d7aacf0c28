"""Activities that build the indexes of delayed messages of many topics."""

from activities.deletion.claims_and_causes import own_workflow_claim
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
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.index_build_job import BuildDelayedIndexJob, BuiltIndexFiles, BuiltTopicIndex
from logstore.delayed.services.bucket_snapshots import BuiltIndexPublisher
from logstore.failpoints import effect
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import RunKind


class DelayedIndexBuildActivities(TopicBuildSteps):
    def __init__(
        self, *, catalog: Catalog, bulk: BulkJobRunner, publisher: BuiltIndexPublisher, limits: SealAndMergeLimits
    ) -> None:
        super().__init__(kind=RunKind.INDEXES, job=BuildDelayedIndexJob.name, catalog=catalog, bulk=bulk)
        self._index, self._publisher, self._limits = catalog.delayed, publisher, limits

    @define_activity(name="delayed.begin_build")
    @send_heartbeats()
    def begin_build(self, request: BeginBuildInput) -> TopicBuildSummary:
        """Open the run, and store the requested topics for the later steps of the build.

        Idempotency: keyed by `run_id`. The topics of the first call stay. For a finished run, return its summary.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._begin_build(request)

    @define_activity(name="delayed.build_indexes")
    def build_indexes(self, request: RunBuildJobInput) -> TopicBuildSummary:
        """Run the bulk job until its output is published. The job claims each topic's list of index buckets.

        Idempotency: keyed by `run_id`. If the output is published already, only the summary is returned.
        Heartbeat: (stage, tasks done, tasks), every two seconds. Claims are renewed every 15 s. A cancellation cancels
            the bulk job.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        claim = own_workflow_claim()
        return self._run_build_job(
            request,
            lambda topics: BuildDelayedIndexJob(
                run_id=request.run_id,
                topics=topics,
                messages=self._limits.messages,
                buckets=self._limits.buckets,
                workflow_id=claim.workflow_id,
                workflow_run=claim.run_id,
                claim_s=claim.ttl_s,
            ),
        )

    @define_activity(name="delayed.switch_indexes")
    def store_and_switch_indexes(self, request: SwitchTopicsPageInput) -> SwitchCounts:
        """Store the built index buckets of a page of topics. Switch each topic's list, and release the list's claim.

        Idempotency: keyed by (run_id, page). A topic that an earlier attempt has switched counts as switched.
        Heartbeat: topics done, every two seconds. The remaining claims are renewed every 15 s.
        Raises: UnknownObject, PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown
            (retry).
        """
        files, workflow_id = BuiltIndexFiles(self._published_folder(request.run_id)), own_workflow_claim().workflow_id

        def switch(built: BuiltTopicIndex) -> bool:
            with effect("delayed.publish_index"):
                is_switched = self._publisher.publish_built_index(built, files)
            self._index.release_claim(built.topic_id, workflow_id)
            return is_switched

        return self._switch_topics(files.read_part(request.page), switch)

    @define_activity(name="delayed.conclude_build")
    @send_heartbeats()
    def conclude_build(self, request: ConcludeBuildInput) -> TopicBuildSummary:
        """Store the counts, finish the run, and delete the output of the bulk job.

        Idempotency: the counts of the first call stay. For a finished run, missing output is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._conclude_build(request)

    def _renew_topic_claims(self) -> None:
        self._index.renew_claims(own_workflow_claim())
