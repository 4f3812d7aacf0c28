"""Building the indexes of delayed messages of many topics: see `TopicBuilding`."""

from activities.building import (
    BeginBuildInput,
    BuildInput,
    BuildSummary,
    ConcludeBuildInput,
    SwitchCounts,
    SwitchInput,
    TopicBuilding,
)
from activities.deletion.claims import own_claim
from activities.heartbeats import beating, defined
from logstore.delayed.buckets import BucketLimits
from logstore.delayed.jobs import BuildIndexes, BuiltIndex, IndexFiles
from logstore.delayed.services.building import IndexPublisher
from logstore.failpoints import effect
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import DelayedIndex, Identities, Reconciliation, RunKind


class IndexBuilding(TopicBuilding):
    """The activities, over ports."""

    def __init__(
        self,
        *,
        runs: Reconciliation,
        identities: Identities,
        bulk: BulkJobs,
        index: DelayedIndex,
        publisher: IndexPublisher,
        limits: BucketLimits,
    ) -> None:
        """Take the catalog's runs and its id, bulk jobs, the lists of buckets, and how many a topic may have."""
        super().__init__(kind=RunKind.INDEXES, job=BuildIndexes.name, runs=runs, identities=identities, bulk=bulk)
        self._index, self._publisher, self._limits = index, publisher, limits

    @defined(name="delayed.begin_build")
    @beating()
    def begin_build(self, request: BeginBuildInput) -> BuildSummary:
        """Open the run, with the topics that every later step agrees on.

        Idempotency: keyed by `run_id`; a second call answers with what the first one wrote into the run's row.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._begin(request)

    @defined(name="delayed.build_indexes")
    def build_indexes(self, request: BuildInput) -> BuildSummary:
        """Run the bulk job until its output is published. It claims the topics' lists for this workflow.

        Idempotency: keyed by run_id; what was published is answered.
        Heartbeat: (stage, tasks done, tasks), every two seconds; the claims are renewed with it. A cancellation cancels
            the job with all that it submits later.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        claim = own_claim()
        return self._build(
            request,
            lambda topics: BuildIndexes(
                run_id=request.run_id,
                topics=topics,
                messages=self._limits.messages,
                buckets=self._limits.buckets,
                workflow_id=claim.workflow_id,
                workflow_run=claim.run_id,
                claim_s=claim.ttl_s,
            ),
        )

    @defined(name="delayed.switch_indexes")
    def switch_indexes(self, request: SwitchInput) -> SwitchCounts:
        """Store the buckets of one page of topics, and switch each topic to its own; its claim is let go.

        Idempotency: keyed by (run_id, page); a topic that was switched to counts as switched again.
        Heartbeat: topics done, every two seconds; claims of topics that are not switched yet are renewed with it.
        Raises: UnknownObject, PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy,
            OutcomeUnknown (retry).
        """
        files, workflow_id = IndexFiles(self._folder(request.run_id)), own_claim().workflow_id

        def switch(built: BuiltIndex) -> bool:
            with effect("delayed.publish_index"):
                done = self._publisher.publish(built, files)
            self._index.release(built.topic_id, workflow_id)
            return done

        return self._switch(files.read_part(request.page), switch)

    @defined(name="delayed.conclude_build")
    @beating()
    def conclude_build(self, request: ConcludeBuildInput) -> BuildSummary:
        """Finish the run with what it came to, and delete its output.

        Idempotency: the first summary stays; output that is gone is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._conclude(request)

    def _renew(self) -> None:
        self._index.renew(own_claim())
