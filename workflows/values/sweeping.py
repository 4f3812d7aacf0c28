"""What travels to and from `sweep-deletions`; see `workflows.values.deletion` for why here."""

from dataclasses import dataclass, field

from workflows.values.deletion import DeletionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsResult:
    """What the sweep found and did; all zero in a run that had nothing to do."""

    batches: int = 0
    intents: int = 0  # stalled ones taken up, and new ones of newborn ledgers
    newborn: int = 0  # ledgers that nobody had attached
    outcomes: dict[str, int] = field(default_factory=dict)  # copies, of the batches that ended meanwhile
    deleted: int = 0  # copies of which nothing is left
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0
    uncertified: int = 0  # batches that take longer than the sweep waits, or ended early: they, or their rows, go on
    forgotten: int = 0  # finished rows
    forgotten_runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDeletionsInput:
    """Who asks, and how phase two of what is found works."""

    actor: str = "schedule"
    reason: str = ""
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    patience_s: float = 300.0  # for one batch: one that is paused must not keep what stalls after it
    carried: SweepDeletionsResult = field(default_factory=SweepDeletionsResult)
