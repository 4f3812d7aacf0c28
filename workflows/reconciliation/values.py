"""What travels to and from the reconciliation workflows, and by which names and ids programs know them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from logstore.deletion.intents import GuardRefusal
from logstore.reconciliation.findings import ApplyCounts, PlanResult
from logstore.reconciliation.jobs import SCRUB_RATE
from workflows.deletion.values import DeletionPolicy
from workflows.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOrphansInput:
    """A plan."""

    run_id: str = ""  # empty: the job takes one, as a scheduled one does
    actor: str = "schedule"
    reason: str = ""
    older_than_s: float = 86_400.0  # 0 or more; objects and rows that are younger are left out
    unsafe_age: bool = False  # an age below the floor of one hour is meant
    inventories: list[str] = field(default_factory=list)  # manifests that stand in for listings
    master: str = ""  # the Spark cluster; empty: that of the workers' settings
    queue: str = ""  # of the bulk jobs; empty: the job's own

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            "Compares what storage holds with what the catalog says, and changes neither; "
            f"`sexton orphans report {self.run_id or 'RUN_ID'}` shows what it found."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOrphansProgress:
    """Where a plan is."""

    run_id: str
    step: str  # beginning, the name of a bulk job, checking, concluding, ended
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # of each bulk job that ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOrphansResult:
    """What a plan found, or why it was refused."""

    run_id: str
    found: PlanResult | None = None
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansProgress:
    """How far an apply is; findings of kinds that are only reported are not counted."""

    pages_done: int = 0
    pages: int = 0
    intents: int = 0  # findings
    outcomes: dict[str, int] = field(default_factory=dict)  # applied, skipped, failed: findings
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0
    paused: bool = False  # no page is begun
    rate: int = 0  # objects a second; 0: unlimited
    done: int = 0  # findings
    left: int = 0
    counts: ApplyCounts = field(default_factory=ApplyCounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansInput:
    """The apply of one plan."""

    run_id: str  # of the plan
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05  # 0 to 1: of all ledgers, how many may be orphans
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: ApplyOrphansProgress = field(default_factory=ApplyOrphansProgress)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            f"Removes what the plan `{self.run_id}` found, after another look at each finding, and "
            f"`sexton orphans report {self.run_id}` shows what became of each."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansResult:
    """What an apply came to, or why it was refused."""

    run_id: str  # of the plan
    done: ApplyCounts = field(default_factory=ApplyCounts)
    refused: GuardRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersProgress:
    """How far a scrub is."""

    run_id: str = ""  # empty: it has not begun
    pages_done: int = 0
    pages: int = 0
    objects: int = 0  # segments and tiered copies that were read
    size_bytes: int = 0  # that were read; what was damaged was read twice
    all_objects: int = 0  # to be read, as the catalog counted them at the beginning
    all_bytes: int = 0
    findings: int = 0
    paused: bool = False  # no page is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersInput:
    """A scrub; an unfinished one of the same topics goes on."""

    actor: str = "schedule"
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: every topic
    bytes_per_s: int = SCRUB_RATE  # of the whole job
    master: str = ""  # the Spark cluster; empty: that of the workers' settings
    queue: str = ""  # of the bulk jobs; empty: the job's own
    carried: ScrubLedgersProgress = field(default_factory=ScrubLedgersProgress)

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        topics = f"{len(self.topic_ids):,} topics" if self.topic_ids else "every topic"
        return (
            f"Reads the stored segments and tiered copies of {topics} and compares their digests; changes nothing. "
            "`sexton orphans list` names its run, `sexton orphans report RUN_ID` shows what it found."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersResult:
    """What a scrub found, or why it was refused."""

    run_id: str
    found: PlanResult | None = None
    progress: ScrubLedgersProgress = field(default_factory=ScrubLedgersProgress)
    refused: GuardRefusal | None = None


def scrub_scope(topic_ids: Sequence[int]) -> tuple[str, ...]:
    """Return the key of a scrub of these topics in its workflow's id; none for every topic."""
    ids = ",".join(map(str, sorted(topic_ids)))
    return (ids if ids.isdigit() else hashlib.sha256(ids.encode()).hexdigest()[:16],) if ids else ()


RECONCILE_ORPHANS = Job("reconcile-orphans", ReconcileOrphansInput, ReconcileOrphansResult, keys=("{run_id}",))
APPLY_ORPHANS = Job("apply-orphans", ApplyOrphansInput, ApplyOrphansResult, keys=("{run_id}",))
SCRUB_LEDGERS = Job("scrub-ledgers", ScrubLedgersInput, ScrubLedgersResult, keys=("", "{topic_ids}"))
