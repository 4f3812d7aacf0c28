"""Inputs and results of the activities on delayed messages."""

from dataclasses import dataclass, field
from enum import StrEnum

from logstore.delayed.index_buckets import IndexBucketToMerge
from logstore.subjects import HasSubject, HasTopic, HasTopics, HasTopicsAfter, Subject, list_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWorkTopicsInput(HasTopicsAfter):
    after: int  # topic id, exclusive
    topics: int  # topics per page
    limit: int  # maximum number of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWorkTopicPages:
    """Pages of topics whose index needs work, ascending by id."""

    pages: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicsInput(HasTopics):
    topic_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicInput(HasTopic):
    """Topic to seal, even if the index needs no work."""

    topic_id: int
    topic: str = ""  # encoded name that the topic must have


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOverBucketLimit:
    topic_id: int
    topic: str  # encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicsResult:
    topics: int = 0  # checked topics
    buckets: int = 0  # new index buckets
    messages: int = 0  # messages in the new index buckets
    dropped: int = 0  # index buckets whose messages need no index any more
    held: int = 0  # topics that another job works on
    overtaken: int = 0  # topics whose list changed meanwhile; the next run seals them
    failed: int = 0  # skipped topics
    troubles: list[str] = field(default_factory=list)  # a sample of errors
    over_limit: list[TopicOverBucketLimit] = field(default_factory=list)  # topics to merge


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePairInput(HasTopic):
    topic_id: int
    topic: str = ""  # encoded name that the topic must have
    max_buckets: int | None = None  # None: the limit of the settings
    damaged: list[int] = field(default_factory=list)  # unreadable index buckets, not to be chosen


class ChoiceReason(StrEnum):
    PAIR = "PAIR"
    WITHIN = "WITHIN"  # the topic is within its limit
    DAMAGED = "DAMAGED"  # the topic is over its limit, and no two neighbouring index buckets can be read
    HELD = "HELD"  # another job has claimed the list
    GONE = "GONE"  # the topic is deleted or being deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChoice:
    chosen: ChoiceReason
    pair: list[IndexBucketToMerge] = field(default_factory=list)  # two neighbouring index buckets, or none
    buckets: int = 0  # index buckets of the topic
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePairInput(HasSubject):
    topic_id: int
    bucket_ids: list[int]  # two neighbouring index buckets
    topic: str = ""  # encoded; only for display

    def subject(self) -> Subject:
        return Subject(parts=(list_ids("buckets", self.bucket_ids),), topic=self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPair:
    switched: bool  # False: the list has changed, so choose again
    messages: int = 0  # messages in the new index bucket
    passed: int = 0  # due messages that were left out
    damaged: int | None = None  # id of an unreadable index bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseListInput(HasTopic):
    topic_id: int
    topic: str = ""  # encoded; only for display
