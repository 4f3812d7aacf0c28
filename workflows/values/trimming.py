"""What travels to and from `trim-topic`; see `workflows.values.deletion` for why here."""

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
