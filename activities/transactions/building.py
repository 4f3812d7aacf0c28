"""Building snapshots of the transaction buffers of many topics: see `TopicBuilding`. A newer snapshot always stays."""

from activities.building import (
    BeginBuildInput,
    BuildInput,
    BuildSummary,
    ConcludeBuildInput,
    SwitchCounts,
    SwitchInput,
    TopicBuilding,
)
from activities.heartbeats import beating, defined
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Identities, Reconciliation, RunKind
from logstore.transactions.services.snapshots import BufferSnapshots
from logstore.transactions.snapshots import BufferFiles, BuildBuffers


class BufferBuilding(TopicBuilding):
    """The activities, over ports."""

    def __init__(
        self, *, runs: Reconciliation, identities: Identities, bulk: BulkJobs, snapshots: BufferSnapshots
    ) -> None:
        """Take the catalog's runs and its id, bulk jobs, and the service that writes snapshots."""
        super().__init__(kind=RunKind.SNAPSHOTS, job=BuildBuffers.name, runs=runs, identities=identities, bulk=bulk)
        self._snapshots = snapshots

    @defined(name="transactions.begin_build")
    @beating()
    def begin_build(self, request: BeginBuildInput) -> BuildSummary:
        """Open the run, with the topics that every later step agrees on.

        Idempotency: keyed by `run_id`; a second call answers with what the first one wrote into the run's row.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._begin(request)

    @defined(name="transactions.build_buffers")
    def build_buffers(self, request: BuildInput) -> BuildSummary:
        """Run the bulk job until its output is published.

        Idempotency: keyed by run_id; what was published is answered.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the job with all that it
            submits later.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        return self._build(request, lambda topics: BuildBuffers(run_id=request.run_id, topics=topics))

    @defined(name="transactions.switch_snapshots")
    def switch_snapshots(self, request: SwitchInput) -> SwitchCounts:
        """Write the buffers of one page as snapshots of their topics, each by one switch.

        Idempotency: keyed by (run_id, page); repeated, a snapshot takes the place of its equal.
        Heartbeat: topics done, every two seconds.
        Raises: UnknownObject, PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy,
            OutcomeUnknown (retry).
        """
        files = BufferFiles(self._folder(request.run_id))
        return self._switch(files.read_part(request.page), lambda one: self._snapshots.replace(*one))

    @defined(name="transactions.conclude_build")
    @beating()
    def conclude_build(self, request: ConcludeBuildInput) -> BuildSummary:
        """Finish the run with what it came to, and delete its output.

        Idempotency: the first summary stays; output that is gone is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        return self._conclude(request)
