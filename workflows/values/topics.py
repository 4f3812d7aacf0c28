"""What travels to and from `delete-topic`; see `workflows.values.deletion` for why here."""

from dataclasses import dataclass, field

from workflows.values.deletion import DeletionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicResult:
    """The certificate: what became of the topic's copies since its deletion began, counted from their rows."""

    step: str = "beginning"  # detaching, deleting, removing, ended
    detached: int = 0  # ledgers
    outcomes: dict[str, int] = field(default_factory=dict)  # copies; RETRYING: they go on alone
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInput:
    """Which topic, and why."""

    topic_id: int
    topic: str  # encoded; the topic of that id must bear it
    actor: str
    reason: str
    catalog_epoch: int | None = None  # required to be the catalog's, where the request names one
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: DeleteTopicResult = field(default_factory=DeleteTopicResult)
