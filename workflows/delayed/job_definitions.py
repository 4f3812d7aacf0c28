"""Inputs and results of the workflows on delayed messages, and the names and ids of these workflows."""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from logstore.delayed.index_buckets import IndexBucketToMerge, SealCounts
from logstore.field_bounds import (
    POSITIVE,
    Actor,
    CatalogNumber,
    EncodedTopicName,
    EncodedTopicNameOrNothing,
    FromOutside,
    LastVisitedId,
    PageSize,
    Reason,
)
from logstore.subjects import HasOutcome, HasTopic
from workflows.job_definition import JobDefinition, JobSchedule
from workflows.task_queues import bulk_queue
from workflows.topic_build_types import BUILD_GUARDS, BuildResult, BuildTopicsInput

HELD_RETRY_PAUSE: Final = timedelta(seconds=5)
"""Pause between attempts while another job has claimed the topic's list of index buckets."""

MAX_HELD_RETRIES: Final = 24
"""Maximum number of attempts while the list is claimed. All pauses together last longer than a dead job's claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealBucketsResult(SealCounts):
    """Numbers of topics, index buckets and messages."""

    merging: int = 0  # topics over their limit of index buckets; their `merge-buckets` was started or runs already


@dataclass(frozen=True, slots=True, kw_only=True)
class SealBucketsInput(HasTopic):
    """Input of `seal-buckets`. Without `topic_id`, the job seals every topic that needs a seal."""

    topic_id: CatalogNumber | None = None  # topic to seal in any case; None: every topic that needs a seal
    topic: EncodedTopicNameOrNothing = ""  # encoded name that the topic must have
    actor: Actor = ""
    reason: Reason = ""
    page: PageSize = 20  # topics per activity
    after: LastVisitedId = -1  # topics up to this id were checked by earlier runs
    carried: SealBucketsResult = field(default_factory=SealBucketsResult)

    def details(self) -> str:
        if self.topic_id is None:
            return (
                "Seals delayed messages of every topic for which it is time; `sexton delayed status` shows one topic's."
            )
        return f"Seals the delayed messages of `{self.topic}`, and `sexton delayed status {self.topic}` shows them."


class MergeOutcome(StrEnum):
    """Outcome of the merges of a topic."""

    WITHIN = "WITHIN"  # the topic is within its limit of index buckets
    DAMAGED = "DAMAGED"  # over the limit, but no two neighbouring index buckets can be read: build the index again
    HELD = "HELD"  # another job claimed the list of index buckets for longer than this job waited
    GONE = "GONE"  # the topic is deleted or being deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBucketsResult(HasOutcome):
    """Progress or result of the merges of a topic."""

    outcome: MergeOutcome | None = None  # None: running
    merges: int = 0
    messages: int = 0  # written into new index buckets by all merges
    passed: int = 0  # due messages that the merges left out
    buckets: int = 0  # index buckets of the topic at the last check
    limit: int = 0  # maximum number of index buckets
    merging: list[IndexBucketToMerge] = field(default_factory=list)  # pair that is being merged
    damaged: list[int] = field(default_factory=list)  # ids of unreadable index buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBucketsInput(HasTopic):
    """Input of `merge-buckets`. `carried` is the progress of an earlier run."""

    topic_id: CatalogNumber
    topic: EncodedTopicName = ""  # encoded name that the topic must have
    max_buckets: Annotated[int, FromOutside(POSITIVE)] | None = None  # None: the limit of the settings
    actor: Actor = ""
    reason: Reason = ""
    carried: MergeBucketsResult = field(default_factory=MergeBucketsResult)

    def details(self) -> str:
        return (
            f"Merges buckets of delayed messages of `{self.topic}` two by two, until there are no more than there may"
            f" be. `sexton delayed status {self.topic}` shows them."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDelayedIndexInput(BuildTopicsInput):
    """Input of `build-delayed-index`. Without `topic_ids`, every topic with delayed messages gets a new index."""

    does = "Builds the buckets of delayed messages of {topics} from their logs, as requested by `sexton delayed build`."
    builds = "indexes of delayed messages"
    runs = "indexes"


SEAL_BUCKETS: Final = JobDefinition(
    "seal-buckets",
    SealBucketsInput,
    SealBucketsResult,
    summary=lambda request: f"seal delayed messages of {request.topic or 'all topics'}",
    keys=("", "{topic_id}"),
    choose_key=lambda request: "" if request.topic_id is None else str(request.topic_id),
    schedule=JobSchedule(id="sexton-delayed", interval="delayed_interval"),
    starts_jobs=True,
    advice_after_stop="buckets that it has sealed stay; seal again for the rest",
    activities=("delayed.due_topics", "delayed.seal_topics", "delayed.seal_topic"),
    failures=("CorruptData", "MissingData", "PreconditionFailed", "UnknownObject"),
)
MERGE_BUCKETS: Final = JobDefinition(
    "merge-buckets",
    MergeBucketsInput,
    MergeBucketsResult,
    summary=lambda request: f"merge buckets of {request.topic}",
    keys=("{topic_id}",),
    advice_after_stop="buckets that it has merged stay merged; merge again for the rest",
    activities=("delayed.choose_pair", "delayed.merge_pair", "delayed.let_go"),
)
BUILD_DELAYED_INDEX: Final = JobDefinition(
    "build-delayed-index",
    BuildDelayedIndexInput,
    BuildResult,
    summary=BuildTopicsInput.summarize,
    keys=("{run_id}",),
    queue=bulk_queue,
    advice_after_stop="buckets that it has switched to stay; ask for the rest again",
    activities=(
        "delayed.begin_build",
        "delayed.build_indexes",
        "delayed.switch_indexes",
        "delayed.conclude_build",
    ),
    guards=BUILD_GUARDS,
    failures=("CorruptData", "UnknownObject"),
)
