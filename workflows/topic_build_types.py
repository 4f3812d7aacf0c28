"""Input, progress and result of jobs that build something for many topics. This module imports no workflow."""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from logstore.deletion.intents import RequestRefusal
from logstore.field_bounds import (
    Actor,
    IdsOrNothing,
    Reason,
    RunId,
    RunIdOrNothing,
    SparkMasterOrNothing,
)
from logstore.subjects import HasRun, HasTopics
from workflows.task_queues import BulkQueue

BUILD_GUARDS: Final = ("PreconditionFailed", "InvalidInput")
"""Error types that end a topic build as refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTopicsInput(HasTopics, HasRun):
    """Input of a topic build. Each job has a subclass."""

    does: ClassVar[str]  # description of the job with the placeholder {topics}, and the command that starts it
    builds: ClassVar[str]  # what the job builds, in few words
    runs: ClassVar[str]  # prefix of the run ids that the job makes

    run_id: RunIdOrNothing = ""  # empty: the job takes one
    actor: Actor = ""
    reason: Reason = ""
    topic_ids: IdsOrNothing = field(default_factory=list)  # empty: every topic with something to build
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: BulkQueue = ""  # task queue of the bulk job; empty: the job's own

    def details(self) -> str:
        return self.does.format(topics=f"{len(self.topic_ids):,} topics" if self.topic_ids else "every topic")

    def summarize(self) -> str:
        return f"{self.builds} of {len(self.topic_ids) or 'all'} topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """Progress of a topic build."""

    run_id: RunId
    step: str  # beginning, building, switching, concluding, ended
    counts: dict[str, int] = field(default_factory=dict)  # topics by result, and counts of the output


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """Counts of a topic build, or its refusal."""

    run_id: str
    counts: dict[str, int] = field(default_factory=dict)  # number by name: topics, switched, superseded, empty,
    # gone, unreadable; of `build-delayed-index` also index buckets and messages
    left_out: list[str] = field(default_factory=list)  # the first 20 topics that could not be read, with the reason
    refused: RequestRefusal | None = None
