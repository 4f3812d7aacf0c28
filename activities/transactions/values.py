"""Inputs and results of the activities of transactions. Participants stay in SQL. Results name a few of them."""

from dataclasses import dataclass, field

from logstore.transactions.transactions import Owed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput:
    """Coordinator to drain."""

    tc_id: int
    linger_s: float = 1.0  # time without work after which it returns
    most_s: float = 30.0  # time after which it returns, even if there is more work


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """Work of one drain."""

    finished: int = 0  # transactions that became final
    expired: int = 0  # transactions aborted past their deadline
    handed_over: list[str] = field(default_factory=list)  # transactions that need their own broadcast; one page
    more: bool = False  # work is left
    next_deadline_s: float | None = None  # seconds until the next open transaction times out


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastInput:
    """Transaction whose decision is to be sent."""

    txn: str  # tc:sequence
    wait_s: float = 0.0  # pause of the workflow before the next call; its claim lasts as long


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastState:
    """Progress of the broadcast of one transaction."""

    state: str
    settled: int
    owed: list[Owed] = field(default_factory=list)  # the first 20
    owed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyCoordinatorsInput:
    """Bound of one page of coordinators."""

    limit: int = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTransactionsInput:
    """Bound of one page of finished transactions."""

    limit: int = 1_000
