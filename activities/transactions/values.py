"""Inputs and results of the activities of transactions. Participants stay in SQL; results name a few of them."""

from dataclasses import dataclass, field

from logstore.transactions.transactions import Owed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput:
    """A coordinator that was woken."""

    tc_id: int
    linger_s: float = 1.0  # looks for more, for so long after the last work
    most_s: float = 30.0  # then it answers, even if there is more


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What a coordinator's activity did."""

    finished: int = 0  # transactions that are final now
    expired: int = 0  # aborted because their deadline had passed
    handed_over: list[str] = field(default_factory=list)  # which need a broadcast of their own; a page of them
    more: bool = False  # there is work left
    next_deadline_s: float | None = None  # seconds until the next open transaction times out


@dataclass(frozen=True, slots=True, kw_only=True)
class TellInput:
    """One transaction whose participants are to be told."""

    txn: str  # tc:sequence
    wait_s: float = 0.0  # how long the workflow will wait before it asks again: its claim holds so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How far the broadcast of one transaction is."""

    state: str
    settled: int
    owed: list[Owed] = field(default_factory=list)  # the first 20
    owed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyInput:
    """Coordinators that are to be woken."""

    limit: int = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetInput:
    """Finished transactions that may be forgotten, a page at a time."""

    limit: int = 1_000
