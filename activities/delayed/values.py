"""What travels to and from the activities on delayed messages."""

from dataclasses import dataclass, field
from enum import StrEnum

from logstore.delayed.buckets import BucketFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DueInput:
    """Which pages of topics come next."""

    after: int  # topic id, exclusive
    topics: int  # in a page
    limit: int  # pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
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
class ChooseInput:
    """Of which topic two buckets are to be merged."""

    topic_id: int
    topic: str = ""  # encoded; the topic of that id must bear it
    max_buckets: int | None = None  # None: as many as the settings let a topic have
    damaged: list[int] = field(default_factory=list)  # buckets that could not be read


class Chosen(StrEnum):
    """Why there is a pair, or none."""

    PAIR = "PAIR"
    WITHIN = "WITHIN"  # the topic has no more buckets than it may have
    DAMAGED = "DAMAGED"  # it has more, and no two neighbours that can be read
    HELD = "HELD"  # another job works on them
    GONE = "GONE"  # the topic is deleted, or about to be


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be merged next."""

    chosen: Chosen
    pair: list[BucketFacts] = field(default_factory=list)  # two neighbours, or nothing
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

    switched: bool  # else the list has changed: choose again
    messages: int = 0  # in the new bucket
    passed: int = 0  # messages that were due and are in no bucket any more
    damaged: int | None = None  # the bucket that cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGoInput:
    """Which topic's buckets nobody works on any more."""

    topic_id: int
    topic: str = ""  # encoded, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginIndexesInput:
    """A build of indexes that is asked for."""

    run_id: str
    actor: str = ""
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: of every topic with delayed messages


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildIndexesInput:
    """A build that has begun; what it began with stands in its run's row."""

    run_id: str
    master: str = ""  # the Spark cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchIndexesInput:
    """One page of what a build has published."""

    run_id: str
    page: int  # of the lists of topics


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedIndexes:
    """What became of the topics of one page."""

    switched: int = 0  # have the new buckets now
    superseded: int = 0  # their lists have changed meanwhile: by a seal, a merge, or a deletion
    gone: int = 0  # there is no such topic any more


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeIndexesInput:
    """A build whose parts are all switched."""

    run_id: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndexes:
    """What a build came to, or as far as it is."""

    counts: dict[str, int] = field(default_factory=dict)  # topics by what became of them, `buckets` and `messages`
    left_out: list[str] = field(default_factory=list)  # of the first 20 topics that could not be read, why
    done: bool = False
