"""What travels to and from `trim-topic` and `trim-topics`; see `workflows.values.deletion` for why here."""

from dataclasses import dataclass, field

from workflows.values.deletion import DeletionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicResult:
    """What the passes did together."""

    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicInput:
    """Which topic, and why."""

    topic_id: int
    topic: str  # encoded; for filters and people
    actor: str
    reason: str
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: TrimTopicResult = field(default_factory=TrimTopicResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsResult:
    """What became of all topics together."""

    topics: int = 0  # looked at
    failed: int = 0  # of them, skipped; the next trim meets them again
    troubles: list[str] = field(default_factory=list)  # a sample of why
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: bool = False  # phase two takes longer than the trim waits, or ended early: it, or its rows, go on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTopicsInput:
    """Who asks, and how phase two works."""

    actor: str = "schedule"
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: int = 300  # for phase two: a batch that is paused must not keep all topics from being trimmed
    page: int = 50  # topics: were each of them contended for a minute, a page would still end within its hour
    batch_id: str = ""  # of this trim, once it has one
    after: int = 0  # every topic up to this id was visited
    carried: TrimTopicsResult = field(default_factory=TrimTopicsResult)
