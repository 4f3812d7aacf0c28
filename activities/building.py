"""Building something of many topics by a bulk job, one step an activity; the room of the job names and describes them.

Any step may run twice, and two attempts may overlap: what the job publishes is published once, and each topic is
switched to it by a compare-and-set of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from activities.bulk import RUN_CLAIM_S, OwnedBulkOutput, run_bulk_job
from activities.deletion.claims import own_claim
from activities.heartbeats import renewing_many
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Identities, Reconciliation, RunKind
from logstore.reconciliation.jobs import LEFT_OUT, BulkJob, BulkSummary
from logstore.units import raise_if_stopped

_TOPICS: Final = "topic_ids"
_COUNTS: Final = "counts"
_LEFT_OUT: Final = "left_out"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginBuildInput:
    """A build that is asked for."""

    run_id: str
    actor: str = ""
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: of every topic that has something to build


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInput:
    """A build that has begun; what it began with stands in its run's row."""

    run_id: str
    master: str = ""  # the Spark cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchInput:
    """One page of what a build has published."""

    run_id: str
    page: int  # of the files


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCounts:
    """What became of the topics of one page."""

    switched: int = 0  # have what was built
    superseded: int = 0  # something newer came meanwhile, and stays
    gone: int = 0  # there is no such topic any more


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeBuildInput:
    """A build whose pages are all switched."""

    run_id: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSummary:
    """What a build came to, or as far as it is."""

    counts: dict[str, int] = field(default_factory=dict)  # topics by what became of them; `parts`, of the files
    left_out: list[str] = field(default_factory=list)  # of the first 20 topics that could not be read, why
    done: bool = False


class TopicBuilding:
    """What the steps of every such build do, over ports."""

    def __init__(
        self, *, kind: RunKind, job: str, runs: Reconciliation, identities: Identities, bulk: BulkJobs
    ) -> None:
        """Take the kind of the runs, the name of the bulk job, the catalog's runs and its id, and bulk jobs."""
        self._kind, self._job, self._runs, self._bulk = kind, job, runs, bulk
        self._output = OwnedBulkOutput(bulk=bulk, identities=identities)

    def _begin(self, request: BeginBuildInput) -> BuildSummary:
        """Open the run, with the topics that every later step agrees on; what it came to, if it has ended before."""
        self._output.require(request.run_id)
        begun = {"actor": request.actor, "reason": request.reason, _TOPICS: list(request.topic_ids)}
        run = self._runs.open_run(request.run_id, self._kind, claim=own_claim(RUN_CLAIM_S), summary=begun)
        if run.finished_us is None:
            self._output.mark(request.run_id)
            return BuildSummary()
        return BuildSummary(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    def _build(self, request: BuildInput, job: Callable[[tuple[int, ...]], BulkJob]) -> BuildSummary:
        """Run the job of the run's topics until its output is published."""

        def made() -> BulkJob:
            return job(tuple(self._runs.run(request.run_id).summary[_TOPICS]))

        return _built(run_bulk_job(self._bulk, self._job, made, master=request.master, renew=self._renew))

    def _folder(self, run_id: str) -> Path:
        """Of what the job has published for a run of this catalog.

        Raises:
            UnknownObject: The catalog was rebuilt meanwhile, and what was built speaks of an earlier epoch.
        """
        self._runs.run(run_id)
        return Path(self._output.published_summary(run_id, self._job).folder)

    def _switch(self, topics: Iterable[T], switch: Callable[[T], bool]) -> SwitchCounts:
        """Switch topics one by one; `switch` says whether one has what was built."""
        done = Counter[str]()
        with renewing_many(self._renew, lambda: (done.total(),)):
            for topic in topics:
                raise_if_stopped()
                try:
                    done["switched" if switch(topic) else "superseded"] += 1
                except (UnknownObject, PreconditionFailed):
                    done["gone"] += 1
        return SwitchCounts(**done)

    def _conclude(self, request: ConcludeBuildInput) -> BuildSummary:
        """Finish the run with what it came to, the first time, and delete its output."""
        run = self._runs.run(request.run_id)
        if run.finished_us is None:
            left_out = _built(self._output.published_summary(request.run_id, self._job)).left_out
            self._runs.close_run(request.run_id, {**run.summary, _COUNTS: request.counts, _LEFT_OUT: left_out})
            run = self._runs.run(request.run_id)
        self._output.forget(request.run_id)
        return BuildSummary(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    def _renew(self) -> None:
        """Hold further what the build has claimed of its topics; nothing, unless a room says otherwise."""


def _built(summary: BulkSummary) -> BuildSummary:
    told = sorted((name, why) for name, why in summary.facts.items() if name.startswith(LEFT_OUT))
    return BuildSummary(
        counts=dict(summary.counts), left_out=[f"{name.removeprefix(LEFT_OUT)}: {why}" for name, why in told]
    )
