"""Input and result of the workflows for a Pulsar cluster, and their names and ids."""

from dataclasses import dataclass, field

from logstore.deletion.intents import RequestRefusal
from logstore.pulsar.cluster_transactions import TransactionAbort
from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S
from logstore.reconciliation.findings import ApplyCounts, FindingPosition, PlanOrScrubResult
from workflows.job_definition import JobDefinition
from workflows.reconciliation.job_definitions import ApplyOrphansProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPulsarInput:
    """Input of a plan for a Pulsar cluster."""

    run_id: str = ""  # empty: the job makes an id, as in a scheduled plan
    actor: str = "schedule"
    reason: str = ""
    older_than_s: float | None = None  # younger ledgers and offloads are left out; null: a floor for each kind
    between_s: float = MIN_BETWEEN_SCANS_S  # least time from the end of the first scan to the begin of the second
    unsafe_age: bool = False  # allow ages below the floors, and less than 600 s between the scans
    master: str = ""  # Spark cluster; empty: the cluster of the workers' settings
    queue: str = ""  # task queue of the bulk jobs; empty: the job's own

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
class ApplyPulsarInput:
    """Input of `apply-pulsar` for one plan of a Pulsar cluster."""

    run_id: str  # plan's run id
    actor: str
    reason: str = ""
    max_orphan_share: float = 0.05  # allowed share of orphans among all ledgers, 0 to 1
    limit: int = 0  # remove only so many of the oldest orphans that are left; 0: all
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
class UndoPulsarInput:
    """Input of `undo-pulsar` for the applies of one plan."""

    run_id: str  # plan's run id
    actor: str
    reason: str = ""
    ledger_ids: list[int] = field(default_factory=list)  # only these; empty: all that the applies have deleted
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
class AbortTransactionsInput:
    """Input of `abort-transactions`."""

    run_id: str
    transactions: list[str]  # ids as `sexton pulsar transactions` shows them
    actor: str
    reason: str = ""
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


PLAN_PULSAR = JobDefinition("plan-pulsar", PlanPulsarInput, PlanPulsarResult, keys=("{run_id}",))
APPLY_PULSAR = JobDefinition("apply-pulsar", ApplyPulsarInput, ApplyPulsarResult, keys=("{run_id}",))
UNDO_PULSAR = JobDefinition("undo-pulsar", UndoPulsarInput, UndoPulsarResult, keys=("{run_id}",))
ABORT_TRANSACTIONS = JobDefinition(
    "abort-transactions", AbortTransactionsInput, AbortTransactionsResult, keys=("{run_id}",)
)
