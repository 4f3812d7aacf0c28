"""What travels to and from the activities of transactions. Participants stay in SQL; samples travel."""

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
class BeginBuildInput:
    """Snapshots that are to be built."""

    run_id: str
    actor: str
    reason: str = ""
    topic_ids: list[int] = field(default_factory=list)  # none: of every topic


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInput:
    """A build that has begun; what it began with stands in its run's row."""

    run_id: str
    master: str = ""  # the Spark cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchInput:
    """One page of what a build has published: the buffers that one task wrote."""

    run_id: str
    page: int  # of the files


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """What became of the buffers of one page."""

    switched: int = 0  # are their topics' snapshots now
    superseded: int = 0  # a newer snapshot stands
    gone: int = 0  # the topic was deleted meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludeBuildInput:
    """A build whose parts are all switched."""

    run_id: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build came to, or as far as it is."""

    counts: dict[str, int] = field(default_factory=dict)  # topics by what became of them; `parts`, of the files
    left_out: list[str] = field(default_factory=list)  # of the first 20 topics that could not be read, why
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetInput:
    """Finished transactions that may be forgotten, a page at a time."""

    limit: int = 1_000
