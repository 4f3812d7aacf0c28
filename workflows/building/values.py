"""What travels to and from the workflows that build something of many topics."""

from dataclasses import dataclass, field
from typing import ClassVar

from logstore.deletion.intents import Refusal


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
    refused: Refusal | None = None
