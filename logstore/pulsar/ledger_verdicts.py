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

from logstore.errors import InvalidInput
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner

MIN_AGE_S: Final = 3_600.0
"""Age of a closed ledger. Its reference is written within seconds, or a few retries of 60 s."""

MIN_COMPACTED_AGE_S: Final = 7_200.0
"""Age of a compacted ledger, which has no reference while a compaction fills it."""

MIN_OPEN_AGE_S: Final = 86_400.0
"""Age of a ledger that is not closed. A broker may still write it."""


class OwnerLookup(StrEnum):
    """What the znode of a stated owner says about a ledger."""

    ABSENT = "absent"
    NOT_LISTING = "not_listing"
    LISTING = "listing"
    UNREADABLE = "unreadable"


class LedgerVerdict(StrEnum):
    """Verdict on a ledger without references."""

    ORPHAN = "orphan"
    YOUNG = "young"
    CHANGED = "changed"  # between the two scans, or present in one of them only
    REPLICATED = "replicated"  # a replication worker holds its lock
    UNATTRIBUTED = "unattributed"  # its owner is not known
    DOUBTFUL = "doubtful"  # its owner cannot be read, or lists it now


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
    def for_all_states(cls, age_s: float, *, unsafe: bool) -> "AgeFloors":
        """Return one floor for all ledgers. A floor below the default of a state needs `unsafe`."""
        if age_s < MIN_OPEN_AGE_S and not unsafe:
            expected = f"at least {MIN_OPEN_AGE_S:.0f} s, or --unsafe-age"
            raise InvalidInput("older_than", expected=expected, found=age_s)
        return cls(closed_s=age_s, compacted_s=age_s, open_s=age_s)

    def floor_s(self, ledger: ScannedLedger) -> float:
        if ledger.state is not BookKeeperLedgerState.CLOSED:
            return self.open_s
        is_compacted = ledger.owner is not None and ledger.owner.component is PulsarComponent.COMPACTED_LEDGER
        return self.compacted_s if is_compacted else self.closed_s


@dataclass(frozen=True, slots=True)
class LedgerJudgement:
    verdict: LedgerVerdict
    reason: str  # a sentence


_LOOKUP_REASONS: Final[Mapping[OwnerLookup, str]] = {
    OwnerLookup.ABSENT: "its owner does not exist",
    OwnerLookup.NOT_LISTING: "its owner exists and does not refer to it",
    OwnerLookup.LISTING: "its owner refers to it now",
    OwnerLookup.UNREADABLE: "its owner cannot be read",
}


def describe_lookup(lookup: OwnerLookup) -> str:
    """Return a clause about the owner of a ledger, such as "its owner does not exist"."""
    return _LOOKUP_REASONS[lookup]


def is_confirmed_without_broker(owner: StatedOwner, lookup: OwnerLookup) -> bool:
    """Return whether no broker can know a reference that its metadata does not show.

    A broker has a new compacted ledger in memory for up to a minute, and an index bucket whose reference it failed to
    store until the topic is unloaded.
    """
    if owner.component is PulsarComponent.COMPACTED_LEDGER:
        return False
    return lookup is OwnerLookup.ABSENT or owner.component is not PulsarComponent.DELAYED_INDEX_BUCKET


def judge_unreferenced_ledger(
    first: ScannedLedger | None,
    second: ScannedLedger | None,
    lookup: OwnerLookup,
    *,
    now_ms: int,
    floors: AgeFloors,
) -> LedgerJudgement:
    """Judge a ledger that nothing referred to in either scan. `None` means that a scan did not show the ledger.

    `lookup` is the owner's znode after the second scan, and `now_ms` the time by the clock of ZooKeeper's server.
    """
    if first is None or second is None:
        return LedgerJudgement(LedgerVerdict.CHANGED, "it was there in one of two scans")
    if (first.version, first.czxid) != (second.version, second.czxid):
        return LedgerJudgement(LedgerVerdict.CHANGED, "its metadata changed between two scans")
    doubt = _find_doubt(second, now_ms, floors)
    if doubt:
        return doubt
    if lookup in {OwnerLookup.LISTING, OwnerLookup.UNREADABLE}:
        return LedgerJudgement(LedgerVerdict.DOUBTFUL, _LOOKUP_REASONS[lookup])
    return LedgerJudgement(LedgerVerdict.ORPHAN, f"nothing refers to it, and {_LOOKUP_REASONS[lookup]}")


def _find_doubt(ledger: ScannedLedger, now_ms: int, floors: AgeFloors) -> LedgerJudgement | None:
    if ledger.replication_lock:
        return LedgerJudgement(LedgerVerdict.REPLICATED, "a bookie is replicating it")
    if ledger.owner is None:
        return LedgerJudgement(LedgerVerdict.UNATTRIBUTED, "its metadata does not say whose it is")
    age_s, floor_s = (now_ms - ledger.modified_ms) / 1_000, floors.floor_s(ledger)
    if age_s < floor_s:
        reason = f"it changed {age_s:,.0f} s ago; a ledger of its state and component must rest {floor_s:,.0f} s"
        return LedgerJudgement(LedgerVerdict.YOUNG, reason)
    return None
