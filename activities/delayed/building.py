"""Building the indexes of delayed messages of many topics, one step an activity: a bulk job, and then switches.

Any step may run twice, and two attempts may overlap: what the job publishes is published once, and each topic's buckets
are switched to by the version of its list.
"""

from pathlib import Path
from typing import Final

from activities.bulk import RUN_CLAIM_S, OwnOutput, run_to_end
from activities.delayed.values import (
    BeginIndexesInput,
    BuildIndexesInput,
    BuiltIndexes,
    ConcludeIndexesInput,
    SwitchedIndexes,
    SwitchIndexesInput,
)
from activities.deletion.claims import own_claim
from activities.heartbeats import beating, defined
from logstore.delayed.buckets import BucketLimits
from logstore.delayed.jobs import BuildIndexes, IndexFiles
from logstore.delayed.services.building import IndexPublisher
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import DelayedIndex, Identities, Reconciliation, RunKind
from logstore.reconciliation.jobs import LEFT_OUT, BulkSummary
from logstore.units import between_units

_TOPICS: Final = "topic_ids"
_COUNTS: Final = "counts"
_LEFT_OUT: Final = "left_out"


class IndexBuilding:
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
        self._runs, self._bulk, self._limits = runs, bulk, limits
        self._index, self._publisher = index, publisher
        self._output = OwnOutput(bulk=bulk, identities=identities)

    @defined(name="delayed.begin_build")
    @beating()
    def begin_build(self, request: BeginIndexesInput) -> BuiltIndexes:
        """Open the run, with the topics that every later step agrees on.

        Idempotency: keyed by `run_id`; a second call answers with what the first one wrote into the run's row.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        self._output.require(request.run_id)
        begun = {"actor": request.actor, "reason": request.reason, _TOPICS: list(request.topic_ids)}
        run = self._runs.open_run(request.run_id, RunKind.INDEXES, claim=own_claim(RUN_CLAIM_S), summary=begun)
        if run.finished_us is None:
            self._output.mark(request.run_id)
            return BuiltIndexes()
        return BuiltIndexes(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    @defined(name="delayed.build_indexes")
    def build_indexes(self, request: BuildIndexesInput) -> BuiltIndexes:
        """Run the bulk job until its output is published. It claims the topics' lists for this workflow, for a while.

        Idempotency: keyed by run_id; what was published is answered.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the job with all that it
            submits later.
        Raises: PreconditionFailed (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        claim = own_claim()

        def job() -> BuildIndexes:
            return BuildIndexes(
                run_id=request.run_id,
                topics=tuple(self._runs.run(request.run_id).summary[_TOPICS]),
                messages=self._limits.messages,
                buckets=self._limits.buckets,
                workflow_id=claim.workflow_id,
                workflow_run=claim.run_id,
            )

        return _built(run_to_end(self._bulk, BuildIndexes.name, job, master=request.master))

    @defined(name="delayed.switch_indexes")
    def switch_indexes(self, request: SwitchIndexesInput) -> SwitchedIndexes:
        """Store the buckets of one page of topics, and switch each topic to its own; its claim is let go.

        Idempotency: keyed by (run_id, page); a topic that was switched to counts as switched again.
        Heartbeat: topics done, every two seconds.
        Raises: PreconditionFailed, CorruptData (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        files = IndexFiles(Path(self._output.published(request.run_id, BuildIndexes.name).folder))
        switched = superseded = gone = 0
        workflow_id = own_claim().workflow_id
        with beating(lambda: (switched + superseded + gone,)):
            for built in files.read(request.page):
                between_units()
                try:
                    with effect("delayed.publish_index"):
                        done = self._publisher.publish(built, files)
                    self._index.release(built.topic_id, workflow_id)
                except (UnknownObject, PreconditionFailed):
                    gone += 1
                    continue
                switched, superseded = switched + done, superseded + (not done)
        return SwitchedIndexes(switched=switched, superseded=superseded, gone=gone)

    @defined(name="delayed.conclude_build")
    @beating()
    def conclude_build(self, request: ConcludeIndexesInput) -> BuiltIndexes:
        """Finish the run with what it came to, and let its output go.

        Idempotency: the first summary stays; output that is gone is no error.
        Raises: PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.run(request.run_id)
        if run.finished_us is None:
            left_out = _built(self._output.published(request.run_id, BuildIndexes.name)).left_out
            self._runs.close_run(request.run_id, {**run.summary, _COUNTS: request.counts, _LEFT_OUT: left_out})
            run = self._runs.run(request.run_id)
        self._output.forget(request.run_id)
        return BuiltIndexes(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)


def _built(summary: BulkSummary) -> BuiltIndexes:
    told = sorted((name, why) for name, why in summary.facts.items() if name.startswith(LEFT_OUT))
    return BuiltIndexes(
        counts=dict(summary.counts), left_out=[f"{name.removeprefix(LEFT_OUT)}: {why}" for name, why in told]
    )
