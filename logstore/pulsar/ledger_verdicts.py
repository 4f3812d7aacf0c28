"""Verdicts on ledgers that nothing in a cluster refers to.

A ledger without references is an orphan only if everything about it is known: its owner, its age, its state, and that
it has not changed between two complete scans. In doubt a ledger is reported, and never removed.

Source: apache/pulsar#12445, #20320 and #15332 (ledgers that nothing refers to), and the order in which Pulsar creates a
ledger and its reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner

MIN_AGE_S: Final = 3_600.0
"""Age of a closed ledger. Its reference is written within seconds, or a few retries of 60 s."""

MIN_COMPACTED_AGE_S: Final = 7_200.0
"""Age of a compacted ledger, which has no reference while a compaction fills it."""

MIN_OPEN_AGE_S: Final = 86_400.0
"""Age of a ledger that is not closed. A broker may still write it."""


class LedgerVerdict(StrEnum):
    """Verdict on one ledger of a cluster."""

    REFERENCED = "referenced"  # a value of the cluster names the ledger, or its owner lists it now
    DOUBTFUL = "doubtful"  # values that may refer to the ledger cannot be read
    CHANGED = "changed"  # between two scans
    YOUNG = "young"
    REPLICATED = "replicated"  # a replication worker holds its lock
    UNREFERENCED = "unreferenced"  # in two scans. Its owner is not looked up yet
    OWNER_ABSENT = "owner_absent"
    OWNER_NOT_LISTING = "owner_not_listing"
    OWNER_GAVE_UP = "owner_gave_up"  # the owner reads only the objects of the ledger's offload
    OWNER_UNSTATED = "owner_unstated"
    OWNER_UNREADABLE = "owner_unreadable"
    OWNER_FOREIGN = "owner_foreign"  # it may belong to another cluster on the same BookKeeper

    @property
    def is_orphan(self) -> bool:
        return self in {LedgerVerdict.OWNER_ABSENT, LedgerVerdict.OWNER_NOT_LISTING, LedgerVerdict.OWNER_GAVE_UP}

    @property
    def is_unattributed(self) -> bool:
        """Whether nothing refers to the ledger, and its owner is not known for sure."""
        return self in {LedgerVerdict.OWNER_UNSTATED, LedgerVerdict.OWNER_UNREADABLE, LedgerVerdict.OWNER_FOREIGN}


class OwnerLookup(StrEnum):
    """Result of a look-up of a ledger's stated owner in the metadata."""

    ABSENT = "absent"
    NOT_LISTING = "not_listing"
    LISTING = "listing"
    GIVEN_UP = "given_up"  # lists the ledger, and reads only the objects of its offload
    UNREADABLE = "unreadable"
    UNKNOWN_TENANT = "unknown_tenant"  # does not list the ledger, and the cluster has no such tenant
    SHARED_BOOKKEEPER = "shared_bookkeeper"  # does not list the ledger, which may be another cluster's


class BrokerLookup(StrEnum):
    """Answer of the broker that has loaded a topic, about one ledger."""

    LISTING = "listing"
    NOT_LISTING = "not_listing"
    UNKNOWN = "unknown"  # not asked, no answer, not loaded, or about to change


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedLedger:
    """Facts about a ledger from one scan. Times are by the clock of ZooKeeper's server."""

    ledger_id: int
    version: int  # data version of the znode
    czxid: int  # transaction that created the znode: differs if the ledger was deleted and created again
    modified_ms: int  # of the znode: creation, close, or a change of bookies
    state: BookKeeperLedgerState
    owner: StatedOwner | None
    replication_lock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeFloors:
    """Ages below which a ledger without references is not an orphan, in seconds. Age counts from the last change."""

    closed_s: float = MIN_AGE_S
    compacted_s: float = MIN_COMPACTED_AGE_S
    open_s: float = MIN_OPEN_AGE_S

    @classmethod
    def for_all_states(cls, age_s: float) -> "AgeFloors":
        """Return one floor for all ledgers."""
        return cls(closed_s=age_s, compacted_s=age_s, open_s=age_s)

    def floor_s(self, ledger: ScannedLedger) -> float:
        if ledger.state is not BookKeeperLedgerState.CLOSED:
            return self.open_s
        is_compacted = ledger.owner is not None and ledger.owner.component is PulsarComponent.COMPACTED_LEDGER
        return self.compacted_s if is_compacted else self.closed_s


@dataclass(frozen=True, slots=True)
class LedgerJudgement:
    verdict: LedgerVerdict
    reason: str  # a clause
    is_confirmed: bool = False  # no broker can know a reference that its metadata does not show

    @property
    def sentence(self) -> str:
        """Why the ledger has the verdict, for a ledger to which nothing refers, or which its owner has given up."""
        is_listed = self.verdict is LedgerVerdict.OWNER_GAVE_UP
        return self.reason if is_listed else f"nothing refers to it, and {self.reason}"


def judge_two_scans(first: ScannedLedger, second: ScannedLedger, *, now_ms: int, floors: AgeFloors) -> LedgerJudgement:
    """Judge a ledger that both scans show, and to which neither of them has a reference.

    `now_ms` is the time of the second scan by the clock of ZooKeeper's server, or an earlier time.
    """
    if (first.version, first.czxid) != (second.version, second.czxid):
        return LedgerJudgement(LedgerVerdict.CHANGED, "its metadata changed between two scans")
    if second.replication_lock:
        return LedgerJudgement(LedgerVerdict.REPLICATED, "a bookie is replicating it")
    age_s, floor_s = max(now_ms - second.modified_ms, 0) / 1_000, floors.floor_s(second)
    if age_s < floor_s:
        reason = f"it changed {age_s:,.0f} s ago; a ledger of its state and component must rest {floor_s:,.0f} s"
        return LedgerJudgement(LedgerVerdict.YOUNG, reason)
    if second.owner is None:
        return LedgerJudgement(LedgerVerdict.OWNER_UNSTATED, "its metadata does not name an owner in Pulsar")
    return LedgerJudgement(LedgerVerdict.UNREFERENCED, "its owner has to be looked up")


_VERDICT_AND_REASON_BY_LOOKUP: Final[Mapping[OwnerLookup, tuple[LedgerVerdict, str]]] = {
    OwnerLookup.ABSENT: (LedgerVerdict.OWNER_ABSENT, "its owner {owner} does not exist"),
    OwnerLookup.NOT_LISTING: (LedgerVerdict.OWNER_NOT_LISTING, "its owner {owner} exists and does not refer to it"),
    OwnerLookup.GIVEN_UP: (LedgerVerdict.OWNER_GAVE_UP, "its owner {owner} lists it as given up after its offload"),
    OwnerLookup.LISTING: (LedgerVerdict.REFERENCED, "its owner {owner} refers to it now"),
    OwnerLookup.UNREADABLE: (LedgerVerdict.OWNER_UNREADABLE, "its owner {owner} cannot be read"),
    OwnerLookup.UNKNOWN_TENANT: (
        LedgerVerdict.OWNER_FOREIGN,
        "this cluster has no tenant of its owner {owner}; it may belong to another cluster",
    ),
    OwnerLookup.SHARED_BOOKKEEPER: (
        LedgerVerdict.OWNER_FOREIGN,
        "other clusters use the same BookKeeper; it may belong to one of them",
    ),
}


def judge_owner_lookup(
    owner: StatedOwner,
    lookup: OwnerLookup,
    broker: BrokerLookup = BrokerLookup.UNKNOWN,
    *,
    state: BookKeeperLedgerState = BookKeeperLedgerState.OPEN,
) -> LedgerJudgement:
    """Judge a ledger whose verdict was `UNREFERENCED` by what its owner says now, and the owner's broker, if asked.

    A broker knows only its own compactions. Another process may still write a compacted ledger that is not closed.
    """
    if broker is BrokerLookup.LISTING:
        return LedgerJudgement(LedgerVerdict.REFERENCED, "a broker refers to it")
    verdict, reason = _VERDICT_AND_REASON_BY_LOOKUP[lookup]
    is_denied = broker is BrokerLookup.NOT_LISTING and state is BookKeeperLedgerState.CLOSED
    is_confirmed = is_denied or _is_confirmed_without_broker(owner, lookup)
    return LedgerJudgement(verdict, reason.format(owner=f"/{owner.path}"), verdict.is_orphan and is_confirmed)


def _is_confirmed_without_broker(owner: StatedOwner, lookup: OwnerLookup) -> bool:
    """Return whether no broker can know a reference that its metadata does not show.

    A broker has a new compacted ledger in memory for up to a minute, and an index bucket whose reference it failed to
    store until the topic is unloaded. A ledger that was given up may be the last copy if its objects are damaged.
    """
    if owner.component is PulsarComponent.COMPACTED_LEDGER or lookup is OwnerLookup.GIVEN_UP:
        return False
    return lookup is OwnerLookup.ABSENT or owner.component is not PulsarComponent.DELAYED_INDEX_BUCKET
