"""Inputs and results of the workflows of transactions, and the names and ids of these workflows."""

from dataclasses import dataclass, field
from typing import Annotated

from logstore.field_bounds import Actor, FromOutside, PauseS, Reason, between
from logstore.subjects import HasCoordinator, HasSubject, HasTransaction
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS, OwedParticipant, TransactionIdText
from workflows.job_definition import JobDefinition
from workflows.task_queues import TransactionsQueue
from workflows.topic_build_types import BuildResult, BuildTopicsInput


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
class BroadcastProgress:
    """Progress of the broadcast of one transaction."""

    state: str = ""
    settled: int = 0  # participants
    owed: list[OwedParticipant] = field(default_factory=list)  # the first 20 participants that are owed
    owed_count: int = 0
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


TRANSACTION_COORDINATOR = JobDefinition(
    "transaction-coordinator", CoordinatorInput, CoordinatorProgress, keys=("{tc_id}",)
)
BROADCAST_TRANSACTION = JobDefinition(
    "broadcast-transaction", BroadcastTransactionInput, BroadcastProgress, keys=("{tc}-{sequence}",)
)
SWEEP_TRANSACTIONS = JobDefinition("sweep-transactions", SweepTransactionsInput, SweepTransactionsResult)
BUILD_TRANSACTION_SNAPSHOTS = JobDefinition(
    "build-transaction-snapshots", BuildTransactionSnapshotsInput, BuildResult, keys=("{run_id}",)
)
