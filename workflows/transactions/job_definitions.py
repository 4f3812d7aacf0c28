"""Inputs and results of the workflows of transactions, and the names and ids of these workflows."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from logstore.field_bounds import Actor, FromOutside, PauseS, Reason, between
from logstore.subjects import HasCoordinator, HasSubject, HasTransaction
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS, BroadcastState, TransactionIdText
from workflows.job_definition import JobDefinition, JobSchedule
from workflows.task_queues import TransactionsQueue, bulk_queue, transactions_queue
from workflows.topic_build_types import BUILD_GUARDS, BuildResult, BuildTopicsInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorInput(HasCoordinator):
    """Input of `transaction-coordinator`. `carried` is the progress of an earlier run."""

    tc_id: Annotated[int, FromOutside(between(0, MAX_COORDINATORS - 1))]
    linger_s: Annotated[float, FromOutside(between(0, 60))] = 1.0
    queue: TransactionsQueue = ""  # task queue of the activities; empty: the workflow's own task queue
    carried: "CoordinatorProgress | None" = None

    def details(self) -> str:
        return (
            f"Tells the participants of decided transactions of coordinator {self.tc_id}, and aborts expired"
            " transactions. `sexton txn list` shows them."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorProgress:
    """Transactions of a coordinator by result, since the coordinator was started."""

    finished: int = 0  # transactions whose participants were all told
    expired: int = 0  # transactions that timed out
    handed_over: int = 0  # transactions with a failed participant; each got a `broadcast-transaction`
    drains: int = 0  # completed drain activities
    owed: list[str] = field(default_factory=list)  # ids of the last 20 transactions that were handed over


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastTransactionInput(HasTransaction):
    """Input of `broadcast-transaction`. `carried` is the progress of an earlier run."""

    txn: TransactionIdText  # tc:sequence
    pause_s: PauseS = 1.0  # pause before the second attempt; doubles with each attempt
    most_pause_s: PauseS = 60.0  # longest pause
    queue: TransactionsQueue = ""  # task queue of the activity; empty: the workflow's own task queue
    carried: "BroadcastProgress | None" = None

    def details(self) -> str:
        return (
            f"Tells every participant of transaction {self.txn} how it ended. `sexton txn show {self.txn}` shows which"
            " are still owed, and `sexton txn resolve` counts one as done."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProgress(BroadcastState):
    """Progress of the broadcast of one transaction."""

    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTransactionsInput(HasSubject):
    """Input of `sweep-transactions`."""

    actor: Actor = ""
    reason: Reason = ""
    queue: TransactionsQueue = ""  # task queue of the coordinators that the sweep starts

    def details(self) -> str:
        return (
            "Starts the workflow of each coordinator that has work and no running workflow."
            " `sexton txn list` shows unfinished transactions."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTransactionsResult:
    """Numbers of coordinators that were started or woken, and of removed transactions."""

    woken: int = 0  # coordinators
    forgotten: int = 0  # removed transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTransactionSnapshotsInput(BuildTopicsInput):
    """Input of `build-transaction-snapshots`."""

    does = "Rebuilds the transaction buffers of {topics} from their logs, as requested by `sexton txn snapshot`."
    builds = "transaction snapshots"
    runs = "snapshots"


TRANSACTION_COORDINATOR: Final = JobDefinition(
    "transaction-coordinator",
    CoordinatorInput,
    CoordinatorProgress,
    summary=lambda request: f"transactions of coordinator {request.tc_id}",
    keys=("{tc_id}",),
    queue=transactions_queue,
    starts_jobs=True,
    advice_after_stop="decisions stay decided, and the next sweep starts the coordinator again",
    activities=("transactions.drain",),
)
BROADCAST_TRANSACTION: Final = JobDefinition(
    "broadcast-transaction",
    BroadcastTransactionInput,
    BroadcastProgress,
    summary=lambda request: f"tell the participants of {request.txn}",
    keys=("{tc}-{sequence}",),
    choose_key=lambda request: request.txn.replace(":", "-"),
    queue=transactions_queue,
    advice_after_stop="the decision stays, and a coordinator hands it over again",
    activities=("transactions.tell",),
    failures=("ClaimHeld", "TransactionNotDecided", "UnknownObject"),
)
SWEEP_TRANSACTIONS: Final = JobDefinition(
    "sweep-transactions",
    SweepTransactionsInput,
    SweepTransactionsResult,
    summary=lambda _: "wake coordinators with work that nobody does",
    queue=transactions_queue,
    schedule=JobSchedule(id="sexton-transactions", interval="sweep_interval"),
    starts_jobs=True,
    advice_after_stop="the next sweep does the rest",
    activities=("transactions.busy_coordinators", "transactions.forget"),
)
BUILD_TRANSACTION_SNAPSHOTS: Final = JobDefinition(
    "build-transaction-snapshots",
    BuildTransactionSnapshotsInput,
    BuildResult,
    summary=BuildTopicsInput.summarize,
    keys=("{run_id}",),
    queue=bulk_queue,
    advice_after_stop="snapshots that it has switched to stay; ask for the rest again",
    activities=(
        "transactions.begin_build",
        "transactions.build_buffers",
        "transactions.switch_snapshots",
        "transactions.conclude_build",
    ),
    guards=BUILD_GUARDS,
    failures=("CorruptData", "UnknownObject"),
)
