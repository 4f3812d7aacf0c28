"""Steps of jobs that build indexes or snapshots of many topics. Steps may run twice, and attempts may overlap."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from activities.bulk_jobs import RUN_CLAIM_S, OwnedBulkOutput, run_bulk_job
from activities.deletion.claims_and_causes import own_workflow_claim
from activities.heartbeats import send_heartbeats_during_renewals
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import LEFT_OUT, BulkJob, BulkJobSummary
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasPageOfRun, HasRun, HasTopics

_TOPICS: Final = "topic_ids"
_COUNTS: Final = "counts"
_LEFT_OUT: Final = "left_out"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginBuildInput(HasTopics, HasRun):
    run_id: str
    actor: str = ""
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # empty: every topic with something to build


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBuildJobInput(HasRun):
    run_id: str
    master: str = ""  # Spark cluster; empty: the cluster of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTopicsPageInput(HasPageOfRun):
    run_id: str
    page: int  # number of a part of the output


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCounts:
    switched: int = 0  # topics that use the new index or snapshot
    superseded: int = 0  # topics that keep a newer snapshot or list
    gone: int = 0  # topics that no longer exist


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeBuildInput(HasRun):
    run_id: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBuildSummary:
    counts: dict[str, int] = field(default_factory=dict)  # topics by result, and `parts` of the output
    left_out: list[str] = field(default_factory=list)  # the first 20 topics that could not be read, with the reason
    done: bool = False


class TopicBuildSteps:
    def __init__(self, *, kind: RunKind, job: str, catalog: Catalog, bulk: BulkJobRunner) -> None:
        self._kind, self._job, self._runs, self._bulk = kind, job, catalog.reconciliation, bulk
        self._output = OwnedBulkOutput(bulk=bulk, identities=catalog.identities)

    def _begin_build(self, request: BeginBuildInput) -> TopicBuildSummary:
        self._output.require_not_of_other_catalog(request.run_id)
        summary = {"actor": request.actor, "reason": request.reason, _TOPICS: list(request.topic_ids)}
        run = self._runs.open_run(request.run_id, self._kind, claim=own_workflow_claim(RUN_CLAIM_S), summary=summary)
        if run.finished_us is None:
            self._output.mark_as_own(request.run_id)
            return TopicBuildSummary()
        return TopicBuildSummary(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    def _run_build_job(
        self, request: RunBuildJobInput, create_job: Callable[[tuple[int, ...]], BulkJob]
    ) -> TopicBuildSummary:

        def make() -> BulkJob:
            return create_job(tuple(self._runs.get_run(request.run_id).summary[_TOPICS]))

        return _to_topic_build_summary(
            run_bulk_job(self._bulk, self._job, make, master=request.master, renew_claims=self._renew_topic_claims)
        )

    def _published_folder(self, run_id: str) -> Path:
        self._runs.get_run(run_id)
        return Path(self._output.require_published_summary(run_id, self._job).folder)

    def _switch_topics(self, topics: Iterable[T], switch: Callable[[T], bool]) -> SwitchCounts:
        counts = Counter[str]()
        with send_heartbeats_during_renewals(self._renew_topic_claims, lambda: (counts.total(),)):
            for topic in topics:
                raise_if_stopped()
                try:
                    counts["switched" if switch(topic) else "superseded"] += 1
                except (UnknownObject, PreconditionFailed):
                    counts["gone"] += 1
        return SwitchCounts(**counts)

    def _conclude_build(self, request: ConcludeBuildInput) -> TopicBuildSummary:
        run = self._runs.get_run(request.run_id)
        if run.finished_us is None:
            left_out = _to_topic_build_summary(
                self._output.require_published_summary(request.run_id, self._job)
            ).left_out
            self._runs.close_run(request.run_id, {**run.summary, _COUNTS: request.counts, _LEFT_OUT: left_out})
            run = self._runs.get_run(request.run_id)
        self._output.remove_run_output(request.run_id)
        return TopicBuildSummary(counts=dict(run.summary[_COUNTS]), left_out=list(run.summary[_LEFT_OUT]), done=True)

    def _renew_topic_claims(self) -> None:
        """Renew the build's claims of topics. A subclass whose bulk job claims topics overrides this method."""


def _to_topic_build_summary(summary: BulkJobSummary) -> TopicBuildSummary:
    left_out = sorted((name, reason) for name, reason in summary.facts.items() if name.startswith(LEFT_OUT))
    return TopicBuildSummary(
        counts=dict(summary.counts),
        left_out=[f"{name.removeprefix(LEFT_OUT)}: {reason}" for name, reason in left_out],
    )
