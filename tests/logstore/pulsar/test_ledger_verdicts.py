"""Only a ledger about which everything is known is an orphan."""

from dataclasses import replace
from typing import Any

import pytest

from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import (
    AgeFloors,
    BrokerLookup,
    LedgerVerdict,
    OwnerLookup,
    ScannedLedger,
    judge_owner_lookup,
    judge_two_scans,
)

_DAY_MS = 86_400_000
_NOW_MS = 100 * _DAY_MS
_OLD = ScannedLedger(
    ledger_id=7,
    version=3,
    czxid=900,
    modified_ms=_NOW_MS - 2 * _DAY_MS,
    state=BookKeeperLedgerState.CLOSED,
    owner=StatedOwner(PulsarComponent.MANAGED_LEDGER, "managed-ledgers/t/ns/persistent/a"),
)
_COMPACTED = StatedOwner(PulsarComponent.COMPACTED_LEDGER, "managed-ledgers/t/ns/persistent/a/__compaction")


_OWNER = StatedOwner(PulsarComponent.MANAGED_LEDGER, "managed-ledgers/t/ns/persistent/a")


def judge(first: ScannedLedger = _OLD, second: ScannedLedger = _OLD, floors: AgeFloors | None = None) -> LedgerVerdict:
    return judge_two_scans(first, second, now_ms=_NOW_MS, floors=floors or AgeFloors()).verdict


def test_the_owner_of_an_old_unchanged_ledger_is_looked_up() -> None:
    assert judge() is LedgerVerdict.UNREFERENCED


@pytest.mark.parametrize(
    ("lookup", "verdict", "is_orphan", "is_unattributed"),
    [
        (OwnerLookup.ABSENT, LedgerVerdict.OWNER_ABSENT, True, False),
        (OwnerLookup.NOT_LISTING, LedgerVerdict.OWNER_NOT_LISTING, True, False),
        (OwnerLookup.LISTING, LedgerVerdict.REFERENCED, False, False),
        (OwnerLookup.UNREADABLE, LedgerVerdict.OWNER_UNREADABLE, False, True),
        (OwnerLookup.UNKNOWN_TENANT, LedgerVerdict.OWNER_FOREIGN, False, True),
        (OwnerLookup.SHARED_BOOKKEEPER, LedgerVerdict.OWNER_FOREIGN, False, True),
    ],
)
def test_only_an_owner_that_is_known_and_does_not_list_it_makes_an_orphan(
    lookup: OwnerLookup, verdict: LedgerVerdict, is_orphan: bool, is_unattributed: bool
) -> None:
    judgement = judge_owner_lookup(_OWNER, lookup)
    assert (judgement.verdict, judgement.is_confirmed) == (verdict, is_orphan)
    assert (judgement.verdict.is_orphan, judgement.verdict.is_unattributed) == (is_orphan, is_unattributed)


@pytest.mark.parametrize("change", [{"version": 4}, {"czxid": 901}])
def test_a_ledger_that_changed_between_the_scans_is_kept(change: dict[str, Any]) -> None:
    assert judge(second=replace(_OLD, **change)) is LedgerVerdict.CHANGED


def test_a_ledger_under_replication_is_kept() -> None:
    assert judge(second=replace(_OLD, replication_lock=True)) is LedgerVerdict.REPLICATED


def test_a_ledger_without_a_known_owner_is_kept() -> None:
    anonymous = replace(_OLD, owner=None)
    assert judge(anonymous, anonymous) is LedgerVerdict.OWNER_UNSTATED
    assert LedgerVerdict.OWNER_UNSTATED.is_unattributed


@pytest.mark.parametrize(
    ("state", "owner", "floor_s"),
    [
        (BookKeeperLedgerState.CLOSED, _OLD.owner, 3_600),
        (BookKeeperLedgerState.CLOSED, None, 3_600),
        (BookKeeperLedgerState.CLOSED, _COMPACTED, 7_200),
        (BookKeeperLedgerState.OPEN, _OLD.owner, 86_400),
        (BookKeeperLedgerState.IN_RECOVERY, _OLD.owner, 86_400),
        (BookKeeperLedgerState.OPEN, _COMPACTED, 86_400),
    ],
)
def test_each_state_and_component_has_a_floor_of_age(
    state: BookKeeperLedgerState, owner: StatedOwner | None, floor_s: int
) -> None:
    exact = replace(_OLD, state=state, owner=owner, modified_ms=_NOW_MS - floor_s * 1_000)
    younger = replace(exact, modified_ms=exact.modified_ms + 1)
    assert judge(exact, exact) is (LedgerVerdict.UNREFERENCED if owner else LedgerVerdict.OWNER_UNSTATED)
    assert judge(younger, younger) is LedgerVerdict.YOUNG


def test_a_ledger_of_the_future_is_young() -> None:
    """The time of the newest known change is behind ZooKeeper's clock."""
    future = replace(_OLD, modified_ms=_NOW_MS + 60_000)
    judgement = judge_two_scans(future, future, now_ms=_NOW_MS, floors=AgeFloors())
    assert judgement.verdict is LedgerVerdict.YOUNG
    assert judgement.reason.startswith("it changed 0 s ago")


def test_one_floor_may_replace_all() -> None:
    floors = AgeFloors.for_all_states(7_200)
    open_ledger = replace(_OLD, state=BookKeeperLedgerState.OPEN, modified_ms=_NOW_MS - 7_200_000)
    assert judge(open_ledger, open_ledger, floors) is LedgerVerdict.UNREFERENCED


@pytest.mark.parametrize(
    ("component", "lookup", "is_confirmed"),
    [
        (PulsarComponent.MANAGED_LEDGER, OwnerLookup.NOT_LISTING, True),
        (PulsarComponent.SCHEMA, OwnerLookup.ABSENT, True),
        (PulsarComponent.COMPACTED_LEDGER, OwnerLookup.ABSENT, False),
        (PulsarComponent.DELAYED_INDEX_BUCKET, OwnerLookup.ABSENT, True),
        (PulsarComponent.DELAYED_INDEX_BUCKET, OwnerLookup.NOT_LISTING, False),
        (PulsarComponent.MANAGED_LEDGER, OwnerLookup.GIVEN_UP, False),
    ],
)
def test_what_a_broker_may_know_alone_is_not_confirmed(
    component: PulsarComponent, lookup: OwnerLookup, is_confirmed: bool
) -> None:
    assert judge_owner_lookup(StatedOwner(component, "any"), lookup).is_confirmed is is_confirmed


@pytest.mark.parametrize("state", BookKeeperLedgerState)
def test_a_broker_confirms_only_a_closed_compacted_ledger(state: BookKeeperLedgerState) -> None:
    judgement = judge_owner_lookup(_COMPACTED, OwnerLookup.NOT_LISTING, BrokerLookup.NOT_LISTING, state=state)
    assert judgement.is_confirmed is (state is BookKeeperLedgerState.CLOSED)
