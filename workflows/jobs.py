"""A job as a program knows it that starts it or looks at it; `values.py` of its room has it with its input and result.

None of these imports an activity or a workflow, so that a program which only starts jobs loads none. What travels to
and from jobs that build something for many topics is alike, and stands here.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from logstore.deletion.intents import GuardRefusal


class JobRequest(Protocol):
    """The input of a job."""

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""


Q = TypeVar("Q", bound=JobRequest)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job(Generic[Q, R]):
    """A workflow, by its type's name."""

    name: str
    request: type[Q]
    result: type[R]
    keys: tuple[str, ...] = ("",)  # the forms of what `id` takes, with what varies in braces; "": none

    def id(self, *key: object) -> str:
        """`{name}/{key}`: one at a time of each key. Ids of topics and ledgers are never used again.

        A job without a key is one at a time of all: a schedule appends its time, and skips a run while one is at work.
        """
        return "/".join([self.name, *map(str, key)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTopicsInput:
    """Of which topics something is built; each job has a class of its own, which says what."""

    does: ClassVar[str]  # what the job does to {topics}, and the command that asks for it
    builds: ClassVar[str]  # what there is then, in few words
    runs: ClassVar[str]  # how the ids of its runs begin

    run_id: str = ""  # empty: the job takes one
    actor: str = ""
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: of every topic that has something to build
    master: str = ""  # the Spark cluster; empty: that of the workers' settings
    queue: str = ""  # of the bulk job; empty: the job's own

    def details(self) -> str:
        """What the job does, and the command that asks for it; its *static details*."""
        return self.does.format(topics=f"{len(self.topic_ids):,} topics" if self.topic_ids else "every topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """Where a build is."""

    run_id: str
    step: str  # beginning, building, switching, concluding, ended
    counts: dict[str, int] = field(default_factory=dict)  # topics by what became of them, and what was built


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What a build came to, or why it was refused."""

    run_id: str
    counts: dict[str, int] = field(default_factory=dict)  # topics, switched, superseded, empty, gone, unreadable, and
    # of indexes the buckets and messages that were built
    left_out: list[str] = field(default_factory=list)  # of the first 20 topics that could not be read, why
    refused: GuardRefusal | None = None
