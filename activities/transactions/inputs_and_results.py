"""Inputs and results of the activities of transactions. Results name only a few participants; SQL has all of them."""

from dataclasses import dataclass, field

from logstore.subjects import HasCoordinator, HasRowLimit, HasTransaction
from logstore.transactions.transaction_ids_and_states import OwedParticipant


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput(HasCoordinator):
    tc_id: int
    linger_s: float = 1.0  # time without work after which the drain returns
    most_s: float = 30.0  # time after which the drain returns, even if there is more work


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    finished: int = 0  # transactions that became final
    expired: int = 0  # transactions aborted after their deadline
    handed_over: list[str] = field(default_factory=list)  # ids of transactions; one page
    more: bool = False  # there may be more work
    next_deadline_s: float | None = None  # seconds until the next open transaction times out


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastInput(HasTransaction):
    txn: str  # tc:sequence
    wait_s: float = 0.0  # pause of the workflow after this call, added to the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastState:
    state: str
    settled: int
    owed: list[OwedParticipant] = field(default_factory=list)  # the first 20 participants that are owed
    owed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyCoordinatorsInput(HasRowLimit):
    limit: int = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOldTransactionsInput(HasRowLimit):
    limit: int = 1_000
