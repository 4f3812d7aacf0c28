"""Definition of jobs for programs that start or query them, and the values of jobs that build for many topics.

Each capability defines its jobs, with inputs and results, in `values.py`. These modules import no activity and no
workflow, so that a program that only starts jobs loads neither.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from logstore.deletion.intents import GuardRefusal


class JobRequest(Protocol):
    """Input of a job."""

    def details(self) -> str:
        """Describe the job and the command that shows its progress, for the workflow's *static details*."""


Q = TypeVar("Q", bound=JobRequest)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job(Generic[Q, R]):
    """Workflow with the name of its type."""

    name: str
    request: type[Q]
    result: type[R]
    keys: tuple[str, ...] = ("",)  # forms of the key in an id, with placeholders in braces; "": no key

    def id(self, *key: object) -> str:
        """Return the workflow id, `{name}/{key}`. At most one workflow per id runs at a time.

        A schedule appends its time to the id of a job without a key. It skips a run while an earlier run is running.
        """
        return "/".join([self.name, *map(str, key)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTopicsInput:
    """Input of a build. Each job has a subclass."""

    does: ClassVar[str]  # description of the job with the placeholder {topics}, and the command that starts it
    builds: ClassVar[str]  # what the job builds, in few words
    runs: ClassVar[str]  # prefix of the ids of its runs

    run_id: str = ""  # empty: the job takes one
    actor: str = ""
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # empty: every topic with something to build
    master: str = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: str = ""  # task queue of the bulk job; empty: the job's own

    def details(self) -> str:
        return self.does.format(topics=f"{len(self.topic_ids):,} topics" if self.topic_ids else "every topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """Progress of a build."""

    run_id: str
    step: str  # beginning, building, switching, concluding, ended
    counts: dict[str, int] = field(default_factory=dict)  # topics by result, and counts of the output


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """Counts of a build, or its refusal."""

    run_id: str
    counts: dict[str, int] = field(default_factory=dict)  # topics, switched, superseded, empty, gone, unreadable, and
    # of indexes the buckets and messages that were built
    left_out: list[str] = field(default_factory=list)  # the first 20 topics that could not be read, with the reason
    refused: GuardRefusal | None = None
