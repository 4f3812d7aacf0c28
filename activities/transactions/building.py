"""Snapshots of many topics' buffers, one step an activity: a bulk job rebuilds them, and then they are switched to.

Any step may run twice, and two attempts may overlap: what the job publishes is published once, and a snapshot that is
switched to again knows of the same entries. A newer one always stays.
"""

from pathlib import Path
from typing import Final

from activities.bulk import RUN_CLAIM_S, OwnOutput, run_to_end
from activities.deletion.claims import own_claim
from activities.heartbeats import beating, defined
from activities.transactions.values import (
    BeginBuildInput,
    BuildInput,
    Built,
    ConcludeBuildInput,
    Switched,
    SwitchInput,
)
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Identities, Reconciliation, RunKind
from logstore.reconciliation.jobs import LEFT_OUT, BulkSummary
from logstore.transactions.jobs import BufferFiles, BuildBuffers
from logstore.transactions.services.snapshots import BufferSnapshots
from logstore.units import between_units

_TOPICS: Final = "topic_ids"
_COUNTS: Final = "counts"
_LEFT_OUT: Final = "left_out"


class BufferBuilding:
    """The activities, over ports."""

    def __init__(
        self, *, runs: Reconciliation, identities: Identities, bulk: BulkJobs, snapshots: BufferSnapshots
    ) -> None:
        """Take the catalog's runs and its id, bulk jobs, and who writes snapshots."""
        self._runs, self._bulk, self._snapshots = runs, bulk, snapshots
        self._output = OwnOutput(bulk=bulk, identities=identities)

    @defined(name="transactions.begin_build")
    @beating()
    def begin_build(self, request: BeginBuildInput) -> Built:
        """Open the run, with the topics that every later step agrees on.

        Idempotency: keyed by `run_id`; a second call answers with what the first one wrote into the run's row.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._output.require(request.run_id)
        begun = {"actor": request.actor, "reason": request.reason, _TOPICS: list(request.topic_ids)}
        run = self._runs.open_run(request.run_id, RunKind.SNAPSHOTS, claim=own_claim(RUN_CLAIM_S), summary=begun)
        if run.finished_us is None:
            self._output.mark(request.run_id)
            return Built()
        return Built(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    @defined(name="transactions.build_buffers")
    def build_buffers(self, request: BuildInput) -> Built:
        """Run the bulk job until its output is published.

        Idempotency: keyed by run_id; what was published is answered.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the job with all that it
            submits later.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """

        def job() -> BuildBuffers:
            topics = self._runs.run(request.run_id).summary[_TOPICS]
            return BuildBuffers(run_id=request.run_id, topics=tuple(topics))

        return _built(run_to_end(self._bulk, BuildBuffers.name, job, master=request.master))

    @defined(name="transactions.switch_snapshots")
    def switch_snapshots(self, request: SwitchInput) -> Switched:
        """Write the buffers of one page as snapshots of their topics, each by one switch.

        Idempotency: keyed by (run_id, page); repeated, a snapshot takes the place of its equal.
        Heartbeat: topics done, every two seconds.
        Raises: PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        files = BufferFiles(Path(self._output.published(request.run_id, BuildBuffers.name).folder))
        switched = superseded = gone = 0
        with beating(lambda: (switched + superseded + gone,)):
            for topic_id, buffer in files.read(request.page):
                between_units()
                try:
                    done = self._snapshots.replace(topic_id, buffer)
                except (UnknownObject, PreconditionFailed):
                    gone += 1
                    continue
                switched, superseded = switched + done, superseded + (not done)
        return Switched(switched=switched, superseded=superseded, gone=gone)

    @defined(name="transactions.conclude_build")
    @beating()
    def conclude_build(self, request: ConcludeBuildInput) -> Built:
        """Finish the run with what it came to, and let its output go.

        Idempotency: the first summary stays; output that is gone is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.run(request.run_id)
        if run.finished_us is None:
            left_out = _built(self._output.published(request.run_id, BuildBuffers.name)).left_out
            self._runs.close_run(request.run_id, {**run.summary, _COUNTS: request.counts, _LEFT_OUT: left_out})
            run = self._runs.run(request.run_id)
        self._output.forget(request.run_id)
        return Built(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)


def _built(summary: BulkSummary) -> Built:
    told = sorted((name, why) for name, why in summary.facts.items() if name.startswith(LEFT_OUT))
    return Built(counts=dict(summary.counts), left_out=[f"{name.removeprefix(LEFT_OUT)}: {why}" for name, why in told])
