"""Inputs, progress and results of the reconciliation workflows, and their names and ids."""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Final

from logstore import errors
from logstore.deletion.intents import RequestRefusal
from logstore.field_bounds import (
    Actor,
    AgeS,
    FromOutside,
    Reason,
    RunId,
    RunIdOrNothing,
    Share,
    SparkMasterOrNothing,
    bound_where,
    id_list,
)
from logstore.reconciliation.bulk_job_inputs_and_results import SCRUB_BYTES_PER_S, SCRUB_RATE
from logstore.reconciliation.findings import ApplyCounts, PlanOrScrubResult
from logstore.subjects import HasRun, HasTopics
from workflows.deletion.job_definitions import DeletionPolicy, ObjectsPerS
from workflows.job_definition import JobDefinition, JobSchedule
from workflows.task_queues import BulkQueue, bulk_queue

MAX_SCRUB_TOPICS: Final = 1_000
"""Maximum number of given topics in one scrub. SQL statements contain the ids of these topics."""

_MAX_INVENTORIES: Final = 16
_MAX_PATH_CHARACTERS: Final = 1_000


def _is_file_path(path: str) -> bool:
    return 0 < len(path) <= _MAX_PATH_CHARACTERS and path.isprintable() and "://" not in path


InventoryPaths = Annotated[
    list[str],
    FromOutside(
        bound_where(
            f"at most {_MAX_INVENTORIES} paths of manifests, files that the workers can read; no URL is one",
            lambda paths: len(paths) <= _MAX_INVENTORIES and all(map(_is_file_path, paths)),
        )
    ),
]
ScrubbedTopicIds = Annotated[list[int], FromOutside(id_list(MAX_SCRUB_TOPICS).or_nothing())]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOrphansInput(HasRun):
    """Input of a plan."""

    run_id: RunIdOrNothing = ""  # empty: the job makes an id, as in a scheduled plan
    actor: Actor = "schedule"
    reason: Reason = ""
    older_than_s: AgeS = 86_400.0  # younger objects and rows are left out
    unsafe_age: bool = False  # allow an age below one hour
    inventories: InventoryPaths = field(default_factory=list)  # paths of manifests of S3 inventories, which replace
    # listings
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: BulkQueue = ""  # task queue of the bulk jobs; empty: the job's own

    def details(self) -> str:
        return (
            "Compares what storage holds with what the catalog says, and changes neither; "
            f"`sexton orphans report {self.run_id or 'RUN_ID'}` shows what it found."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """Progress of a plan."""

    run_id: RunId
    step: str  # beginning, the name of a bulk job, checking, concluding, ended
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # by name of a completed bulk job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOrphansResult:
    """Result of a plan, or the refusal of a guard."""

    run_id: str
    found: PlanOrScrubResult | None = None
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansProgress:
    """Progress of an apply. Only findings of removable kinds are counted."""

    pages_done: int = 0
    pages: int = 0
    intents: int = 0  # findings of the plan
    outcomes: dict[str, int] = field(default_factory=dict)  # findings by result: applied, skipped, failed
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0
    paused: bool = False  # no further page begins
    rate: ObjectsPerS = 0  # objects a second; 0: unlimited
    done: int = 0  # findings with a fate
    left: int = 0  # findings without a fate
    counts: ApplyCounts = field(default_factory=ApplyCounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansInput(HasRun):
    """Input of `apply-orphans` for one plan."""

    run_id: RunId  # plan's run id
    actor: Actor
    reason: Reason = ""
    max_orphan_share: Share = 0.05  # allowed share of orphans among all ledgers, 0 to 1
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    carried: ApplyOrphansProgress = field(default_factory=ApplyOrphansProgress)

    def details(self) -> str:
        return (
            f"Removes what the plan `{self.run_id}` found, after another look at each finding, and "
            f"`sexton orphans report {self.run_id}` shows what became of each."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrphansResult:
    """Counts of an apply, or the refusal of a guard."""

    run_id: str  # plan's run id
    done: ApplyCounts = field(default_factory=ApplyCounts)
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersProgress:
    """Progress of a scrub."""

    run_id: RunIdOrNothing = ""  # empty: the scrub has not begun
    pages_done: int = 0
    pages: int = 0
    objects: int = 0  # segments and tiered copies that were read
    size_bytes: int = 0  # bytes that were read; damaged objects are read twice
    all_objects: int = 0  # segments and tiered copies to read, counted at the beginning
    all_bytes: int = 0
    findings: int = 0
    paused: bool = False  # no further page begins


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersInput(HasTopics):
    """Input of a scrub. If a scrub of the same topics is unfinished, this job continues that scrub."""

    actor: Actor = "schedule"
    reason: Reason = ""
    topic_ids: ScrubbedTopicIds = field(default_factory=list)  # empty: every topic
    bytes_per_s: Annotated[int, FromOutside(SCRUB_BYTES_PER_S)] = SCRUB_RATE  # for the whole job
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: BulkQueue = ""  # task queue of the bulk jobs; empty: the job's own
    carried: ScrubLedgersProgress = field(default_factory=ScrubLedgersProgress)

    def details(self) -> str:
        topics = f"{len(self.topic_ids):,} topics" if self.topic_ids else "every topic"
        return (
            f"Reads the stored segments and tiered copies of {topics} and compares their digests; changes nothing. "
            "`sexton orphans list` names its run, `sexton orphans report RUN_ID` shows what it found."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubLedgersResult:
    """Result of a scrub, or the refusal of a guard."""

    run_id: str
    found: PlanOrScrubResult | None = None
    progress: ScrubLedgersProgress = field(default_factory=ScrubLedgersProgress)
    refused: RequestRefusal | None = None


def _name_topics(request: ScrubLedgersInput) -> str:
    """Return the key that names the topics in the workflow id of a scrub. An empty key means every topic."""
    ids = ",".join(map(str, sorted(request.topic_ids)))
    return ids if not ids or ids.isdigit() else hashlib.sha256(ids.encode()).hexdigest()[:16]


def _summarize_scrub(request: ScrubLedgersInput) -> str:
    scope = f"{len(request.topic_ids):,} topics" if request.topic_ids else "every topic"
    return f"scrub ledgers of {scope}"


GUARDS: Final = frozenset(
    kind.__name__
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PreconditionFailed | errors.InvalidInput)
)

RECONCILE_ORPHANS: Final = JobDefinition(
    "reconcile-orphans",
    ReconcileOrphansInput,
    ReconcileOrphansResult,
    summary=lambda _: "compare storage with the catalog",
    keys=("{run_id}",),
    queue=bulk_queue,
    schedule=JobSchedule(id="sexton-plan", interval="plan_interval"),
    advice_after_stop="it has changed nothing; plan again",
    activities=(
        "reconciliation.begin_plan",
        "reconciliation.run_bulk",
        "reconciliation.check_sides",
        "reconciliation.conclude_plan",
    ),
    guards=GUARDS,
    failures=("CatalogMismatch", "CorruptData", "PreconditionFailed", "ProgramMissing"),
)
APPLY_ORPHANS: Final = JobDefinition(
    "apply-orphans",
    ApplyOrphansInput,
    ApplyOrphansResult,
    summary=lambda request: f"apply {request.run_id}",
    keys=("{run_id}",),
    starts_jobs=True,
    advice_after_stop="what it had filed goes on by itself; apply the same plan again for the rest",
    explains_waits=True,
    activities=(
        "reconciliation.begin_apply",
        "reconciliation.file_page",
        "reconciliation.delete_objects",
        "reconciliation.record_page",
        "reconciliation.conclude_apply",
    ),
    guards=GUARDS,
    failures=("CatalogMismatch", "PreconditionFailed", "StaleCatalog", "UnknownObject"),
)
SCRUB_LEDGERS: Final = JobDefinition(
    "scrub-ledgers",
    ScrubLedgersInput,
    ScrubLedgersResult,
    summary=_summarize_scrub,
    keys=("", "{topic_ids}"),
    choose_key=_name_topics,
    queue=bulk_queue,
    schedule=JobSchedule(id="sexton-scrub", interval="scrub_interval", setting_by_field={"bytes_per_s": "scrub_rate"}),
    advice_after_stop="it has changed nothing; scrub the same topics again, and it goes on where it was",
    explains_waits=True,
    activities=(
        "reconciliation.begin_scrub",
        "reconciliation.cut_scrub",
        "reconciliation.scrub_page",
        "reconciliation.conclude_scrub",
    ),
    guards=GUARDS,
    failures=("CatalogMismatch", "CorruptData", "PreconditionFailed", "ProgramMissing"),
)
