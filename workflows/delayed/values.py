"""What travels to and from the workflows on delayed messages, and by which names and ids programs know them."""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from logstore.delayed.buckets import BucketSummary
from workflows.jobs import BuildResult, BuildTopicsInput, Job

HELD: Final = timedelta(seconds=5)
"""Until a list on which another job works is asked for again."""

MAX_HELD_RETRIES: Final = 24
"""So often: longer than a claim outlives the job that had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealBucketsResult:
    """What became of all topics together."""

    topics: int = 0  # looked at
    buckets: int = 0  # new ones
    messages: int = 0  # in them
    dropped: int = 0  # buckets whose messages need no index any more
    held: int = 0  # topics that another job works on
    overtaken: int = 0  # topics whose list changed meanwhile
    failed: int = 0  # topics that are skipped; the next look meets them again
    troubles: list[str] = field(default_factory=list)  # a sample of why
    merging: int = 0  # topics with more buckets than they may have, whose merge was started or runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SealBucketsInput:
    """Every topic that is due, or one, due or not."""

    topic_id: int | None = None  # None: those that are due
    topic: str = ""  # encoded; the topic of that id must bear it
    actor: str = ""
    reason: str = ""
    page: int = 20  # topics of one activity
    after: int = -1  # every topic up to this id was looked at
    carried: SealBucketsResult = field(default_factory=SealBucketsResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        if self.topic_id is None:
            return (
                "Seals delayed messages of every topic for which it is time; `sexton delayed status` shows one topic's."
            )
        return f"Seals the delayed messages of `{self.topic}`, and `sexton delayed status {self.topic}` shows them."


class MergeOutcome(StrEnum):
    """How a merge of a topic's buckets ended."""

    WITHIN = "WITHIN"  # the topic has no more buckets than it may have
    DAMAGED = "DAMAGED"  # it has more, and no two neighbours that can be read: build its index anew
    HELD = "HELD"  # another job works on them, and took longer than this one waited
    GONE = "GONE"  # the topic is deleted, or about to be


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBucketsResult:
    """How far the merges of a topic are, or what they came to."""

    outcome: MergeOutcome | None = None  # None: at work
    merges: int = 0
    messages: int = 0  # written into new buckets, by all merges together
    passed: int = 0  # messages that were due, and are in no bucket any more
    buckets: int = 0  # that the topic had when it was looked at last
    limit: int = 0
    merging: list[BucketSummary] = field(default_factory=list)  # the two that are being merged
    damaged: list[int] = field(default_factory=list)  # buckets that could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBucketsInput:
    """Which topic."""

    topic_id: int
    topic: str = ""  # encoded; the topic of that id must bear it
    max_buckets: int | None = None  # None: as many as the settings let a topic have
    actor: str = ""
    reason: str = ""
    carried: MergeBucketsResult = field(default_factory=MergeBucketsResult)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            f"Merges buckets of delayed messages of `{self.topic}` two by two, until there are no more than there may"
            f" be. `sexton delayed status {self.topic}` shows them."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDelayedIndexInput(BuildTopicsInput):
    """Of which topics the indexes are built; none: of every topic with delayed messages."""

    does = "Builds the buckets of delayed messages of {topics} from their logs, as `sexton delayed build` asks."
    builds = "indexes of delayed messages"
    runs = "indexes"


SEAL_BUCKETS = Job("seal-buckets", SealBucketsInput, SealBucketsResult, keys=("", "{topic_id}"))
MERGE_BUCKETS = Job("merge-buckets", MergeBucketsInput, MergeBucketsResult, keys=("{topic_id}",))
BUILD_DELAYED_INDEX = Job("build-delayed-index", BuildDelayedIndexInput, BuildResult, keys=("{run_id}",))
