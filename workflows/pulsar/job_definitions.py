"""Input and result of the workflows for a Pulsar cluster, and their names and ids."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from logstore.deletion.intents import RequestRefusal
from logstore.field_bounds import (
    Actor,
    AgeS,
    CatalogNumber,
    FromOutside,
    IdsOrNothing,
    Reason,
    RunId,
    RunIdOrNothing,
    Share,
    SparkMasterOrNothing,
    between,
    bound_where,
)
from logstore.pulsar.cluster_transactions import TransactionAbort
from logstore.pulsar.plan_jobs import MAX_BETWEEN_SCANS_S, MIN_BETWEEN_SCANS_S
from logstore.reconciliation.findings import ApplyCounts, FindingPosition, PlanOrScrubResult
from logstore.subjects import HasLedgers, HasRowLimit, HasRun, HasTransactions
from logstore.transactions.transaction_ids_and_states import TRANSACTION_ID
from workflows.job_definition import JobDefinition, JobSchedule
from workflows.reconciliation.job_definitions import GUARDS, ApplyOrphansProgress
from workflows.task_queues import BulkQueue, bulk_queue

MAX_ABORTED_TRANSACTIONS: Final = 100
"""Maximum number of transactions in one abort. The run's row has all of their participants."""

BetweenScansS = Annotated[float, FromOutside(between(0, MAX_BETWEEN_SCANS_S))]
TransactionIdTexts = Annotated[
    list[str],
    FromOutside(
        bound_where(
            f"1 to {MAX_ABORTED_TRANSACTIONS} transactions such as 3:17, each once",
            lambda ids: (
                0 < len(ids) == len(set(ids)) <= MAX_ABORTED_TRANSACTIONS
                and not any(map(TRANSACTION_ID.find_problem, ids))
            ),
        )
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPulsarInput(HasRun):
    """Input of a plan for a Pulsar cluster."""

    run_id: RunIdOrNothing = ""  # empty: the job makes an id, as in a scheduled plan
    actor: Actor = "schedule"
    reason: Reason = ""
    older_than_s: AgeS | None = None  # younger ledgers and offloads are left out; null: a floor for each kind
    between_s: BetweenScansS = MIN_BETWEEN_SCANS_S  # least time from the end of the first scan to the begin of the
    # second
    unsafe_age: bool = False  # allow ages below the floors, and less than 600 s between the scans
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: BulkQueue = ""  # task queue of the bulk jobs; empty: the job's own

    def details(self) -> str:
        return (
            "Reads the metadata of the Pulsar cluster twice and compares both scans, and changes nothing; "
            f"`sexton orphans report {self.run_id or 'RUN_ID'}` shows what it found."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPulsarResult:
    """Result of a plan, or the refusal of a guard."""

    run_id: str
    found: PlanOrScrubResult | None = None
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPulsarInput(HasRowLimit, HasRun):
    """Input of `apply-pulsar` for one plan of a Pulsar cluster."""

    run_id: RunId  # plan's run id
    actor: Actor
    reason: Reason = ""
    max_orphan_share: Share = 0.05  # allowed share of orphans among all ledgers, 0 to 1
    limit: CatalogNumber = 0  # remove only so many of the oldest orphans that are left; 0: all
    include_unconfirmed: bool = False  # also remove orphans of which nothing that was read rules a reference out
    include_irreversible: bool = False  # also remove objects, uploads and managed ledgers, which no undo puts back
    carried: ApplyOrphansProgress = field(default_factory=ApplyOrphansProgress)
    carried_last: FindingPosition | None = None  # youngest orphan to remove, if there is a limit

    def details(self) -> str:
        removes = "Also removes objects, uploads and managed ledgers, for good. " if self.include_irreversible else ""
        return (
            f"Deletes the metadata of ledgers that the plan `{self.run_id}` found, after another look at each one; "
            f"`sexton orphans undo {self.run_id}` puts them back as long as bookies have the data. {removes}"
        ).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPulsarResult:
    """Counts of an apply, and why it was stopped, or the refusal of a guard."""

    run_id: str  # plan's run id
    done: ApplyCounts = field(default_factory=ApplyCounts)
    stopped: str = ""  # what the plan did not expect; a sentence
    certificate: str = ""  # its key in the records bucket; "": nothing was removed
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPulsarProgress:
    """Progress of an undo."""

    counts: dict[str, int] = field(default_factory=dict)  # ledgers by `Restoration` and by `StoredData`
    last: int = -1  # highest ledger id of the journal that was looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPulsarInput(HasLedgers, HasRun):
    """Input of `undo-pulsar` for the applies of one plan."""

    run_id: RunId  # plan's run id
    actor: Actor
    reason: Reason = ""
    ledger_ids: IdsOrNothing = field(default_factory=list)  # only these; empty: all that the applies have deleted
    carried: UndoPulsarProgress = field(default_factory=UndoPulsarProgress)

    def details(self) -> str:
        return f"Puts back the metadata of ledgers that applies of the plan `{self.run_id}` have deleted."


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPulsarResult:
    """Counts of an undo, or the refusal of a guard."""

    run_id: str  # plan's run id
    counts: dict[str, int] = field(default_factory=dict)  # ledgers by `Restoration` and by `StoredData`
    refused: RequestRefusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionsInput(HasTransactions, HasRun):
    """Input of `abort-transactions`."""

    run_id: RunId
    transactions: TransactionIdTexts  # ids as `sexton pulsar transactions` shows them
    actor: Actor
    reason: Reason = ""
    unsafe_age: bool = False  # allow transactions younger than 10 minutes

    def details(self) -> str:
        return (
            f"Aborts {len(self.transactions):,} transactions of the Pulsar cluster, for example "
            f"`{next(iter(self.transactions), '')}`, and checks that consumers may read on."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionsResult:
    """Result for each transaction, or the refusal of a guard."""

    run_id: str
    transactions: list[TransactionAbort] = field(default_factory=list)
    refused: RequestRefusal | None = None


PLAN_PULSAR: Final = JobDefinition(
    "plan-pulsar",
    PlanPulsarInput,
    PlanPulsarResult,
    summary=lambda _: "compare two scans of the Pulsar cluster",
    keys=("{run_id}",),
    queue=bulk_queue,
    schedule=JobSchedule(id="sexton-pulsar", interval="pulsar_plan_interval", required_setting="pulsar_zookeeper"),
    advice_after_stop="it has changed nothing; plan again",
    explains_waits=True,
    activities=("pulsar.begin_plan", "pulsar.run_bulk", "pulsar.conclude_plan"),
    guards=GUARDS,
    failures=("CorruptData", "PreconditionFailed", "ProgramMissing"),
)
APPLY_PULSAR: Final = JobDefinition(
    "apply-pulsar",
    ApplyPulsarInput,
    ApplyPulsarResult,
    summary=lambda request: f"apply {request.run_id}",
    keys=("{run_id}",),
    advice_after_stop="what it had deleted stays deleted; apply the same plan again for the rest, or undo it",
    explains_waits=True,
    activities=("pulsar.begin_apply", "pulsar.apply_page", "pulsar.conclude_apply"),
    guards=GUARDS,
    failures=("PreconditionFailed", "UnknownObject"),
)
UNDO_PULSAR: Final = JobDefinition(
    "undo-pulsar",
    UndoPulsarInput,
    UndoPulsarResult,
    summary=lambda request: f"undo {request.run_id}",
    keys=("{run_id}",),
    advice_after_stop="what it had put back stays; undo again for the rest",
    activities=("pulsar.begin_undo", "pulsar.undo_page"),
    guards=GUARDS,
    failures=("PreconditionFailed", "UnknownObject"),
)
ABORT_TRANSACTIONS: Final = JobDefinition(
    "abort-transactions",
    AbortTransactionsInput,
    AbortTransactionsResult,
    summary=lambda request: f"abort {len(request.transactions):,} transactions of the Pulsar cluster",
    keys=("{run_id}",),
    advice_after_stop="transactions whose abort is decided end by themselves; abort the rest again",
    activities=("pulsar.begin_abort", "pulsar.abort_transaction", "pulsar.check_aborts", "pulsar.conclude_abort"),
    guards=GUARDS,
    failures=("PreconditionFailed", "UnknownObject"),
)
