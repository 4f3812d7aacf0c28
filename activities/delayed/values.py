"""What travels to and from the activities on delayed messages."""

from dataclasses import dataclass, field
from enum import StrEnum

from logstore.delayed.buckets import BucketSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTopicsInput:
    """Which pages of topics come next."""

    after: int  # topic id, exclusive
    topics: int  # in a page
    limit: int  # pages


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTopicPages:
    """Topics that are due, ascending by id; no page where there are none."""

    pages: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicsInput:
    """Topics that are due."""

    topic_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicInput:
    """One topic, whether or not it is due."""

    topic_id: int
    topic: str = ""  # encoded; the topic of that id must bear it


@dataclass(frozen=True, slots=True, kw_only=True)
class OverLimit:
    """A topic with more buckets than it may have."""

    topic_id: int
    topic: str  # encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedTopics:
    """What became of the topics."""

    topics: int = 0  # looked at
    buckets: int = 0  # new ones
    messages: int = 0  # in them
    dropped: int = 0  # buckets whose messages need no index any more
    held: int = 0  # topics that another job works on
    overtaken: int = 0  # topics whose list changed meanwhile: they are met again
    failed: int = 0  # topics that are skipped
    troubles: list[str] = field(default_factory=list)  # a sample of why
    over_limit: list[OverLimit] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePairInput:
    """Of which topic two buckets are to be merged."""

    topic_id: int
    topic: str = ""  # encoded; the topic of that id must bear it
    max_buckets: int | None = None  # None: as many as the settings let a topic have
    damaged: list[int] = field(default_factory=list)  # buckets that could not be read


class ChoiceReason(StrEnum):
    """Why there is a pair, or none."""

    PAIR = "PAIR"
    WITHIN = "WITHIN"  # the topic has no more buckets than it may have
    DAMAGED = "DAMAGED"  # it has more, and no two neighbours that can be read
    HELD = "HELD"  # another job works on them
    GONE = "GONE"  # the topic is deleted, or about to be


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChoice:
    """What is to be merged next."""

    chosen: ChoiceReason
    pair: list[BucketSummary] = field(default_factory=list)  # two neighbours, or nothing
    buckets: int = 0  # that the topic has
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePairInput:
    """Two neighbours, in the order of the log."""

    topic_id: int
    bucket_ids: list[int]  # two
    topic: str = ""  # encoded, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPair:
    """What a merge came to."""

    switched: bool  # otherwise the list has changed: choose again
    messages: int = 0  # in the new bucket
    passed: int = 0  # messages that were due and are in no bucket any more
    damaged: int | None = None  # the bucket that cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseListInput:
    """Which topic's buckets no workflow works on any more."""

    topic_id: int
    topic: str = ""  # encoded, for people
