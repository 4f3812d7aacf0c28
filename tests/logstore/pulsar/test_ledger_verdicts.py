"""Only a ledger about which everything is known is an orphan."""

from dataclasses import replace
from typing import Any

import pytest

from logstore.errors import InvalidInput
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import (
    AgeFloors,
    LedgerVerdict,
    OwnerLookup,
    ScannedLedger,
    is_confirmed_without_broker,
    judge_unreferenced_ledger,
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


def judge(
    first: ScannedLedger | None = _OLD,
    second: ScannedLedger | None = _OLD,
    lookup: OwnerLookup = OwnerLookup.ABSENT,
    floors: AgeFloors | None = None,
) -> LedgerVerdict:
    return judge_unreferenced_ledger(first, second, lookup, now_ms=_NOW_MS, floors=floors or AgeFloors()).verdict


@pytest.mark.parametrize("lookup", [OwnerLookup.ABSENT, OwnerLookup.NOT_LISTING])
def test_an_old_unchanged_ledger_whose_owner_does_not_list_it_is_an_orphan(lookup: OwnerLookup) -> None:
    judgement = judge_unreferenced_ledger(_OLD, _OLD, lookup, now_ms=_NOW_MS, floors=AgeFloors())
    assert judgement.verdict is LedgerVerdict.ORPHAN
    assert "owner" in judgement.reason


@pytest.mark.parametrize("lookup", [OwnerLookup.LISTING, OwnerLookup.UNREADABLE])
def test_an_owner_that_lists_it_or_cannot_be_read_keeps_it(lookup: OwnerLookup) -> None:
    assert judge(lookup=lookup) is LedgerVerdict.DOUBTFUL


@pytest.mark.parametrize("change", [{"version": 4}, {"czxid": 901}])
def test_a_ledger_that_changed_between_the_scans_is_kept(change: dict[str, Any]) -> None:
    assert judge(second=replace(_OLD, **change)) is LedgerVerdict.CHANGED


def test_a_ledger_that_one_scan_did_not_show_is_kept() -> None:
    assert judge(first=None) is LedgerVerdict.CHANGED
    assert judge(second=None) is LedgerVerdict.CHANGED


def test_a_ledger_under_replication_is_kept() -> None:
    locked = replace(_OLD, replication_lock=True)
    assert judge(second=locked) is LedgerVerdict.REPLICATED


def test_a_ledger_without_a_known_owner_is_kept() -> None:
    anonymous = replace(_OLD, owner=None)
    assert judge(anonymous, anonymous) is LedgerVerdict.UNATTRIBUTED


@pytest.mark.parametrize(
    ("state", "owner", "floor_s"),
    [
        (BookKeeperLedgerState.CLOSED, _OLD.owner, 3_600),
        (BookKeeperLedgerState.CLOSED, _COMPACTED, 7_200),
        (BookKeeperLedgerState.OPEN, _OLD.owner, 86_400),
        (BookKeeperLedgerState.IN_RECOVERY, _OLD.owner, 86_400),
        (BookKeeperLedgerState.OPEN, _COMPACTED, 86_400),
    ],
)
def test_each_state_and_component_has_a_floor_of_age(
    state: BookKeeperLedgerState, owner: StatedOwner, floor_s: int
) -> None:
    exact = replace(_OLD, state=state, owner=owner, modified_ms=_NOW_MS - floor_s * 1_000)
    younger = replace(exact, modified_ms=exact.modified_ms + 1)
    assert judge(exact, exact) is LedgerVerdict.ORPHAN
    assert judge(younger, younger) is LedgerVerdict.YOUNG


def test_one_floor_may_replace_all() -> None:
    floors = AgeFloors.for_all_states(7_200, unsafe=True)
    open_ledger = replace(_OLD, state=BookKeeperLedgerState.OPEN, modified_ms=_NOW_MS - 7_200_000)
    assert judge(open_ledger, open_ledger, floors=floors) is LedgerVerdict.ORPHAN


def test_a_low_floor_needs_a_word() -> None:
    with pytest.raises(InvalidInput, match="older_than"):
        AgeFloors.for_all_states(86_399, unsafe=False)
    assert AgeFloors.for_all_states(0, unsafe=True).open_s == 0
    assert AgeFloors.for_all_states(86_400, unsafe=False).compacted_s == 86_400


@pytest.mark.parametrize(
    ("component", "lookup", "confirmed"),
    [
        (PulsarComponent.MANAGED_LEDGER, OwnerLookup.NOT_LISTING, True),
        (PulsarComponent.SCHEMA, OwnerLookup.ABSENT, True),
        (PulsarComponent.COMPACTED_LEDGER, OwnerLookup.ABSENT, False),
        (PulsarComponent.DELAYED_INDEX_BUCKET, OwnerLookup.ABSENT, True),
        (PulsarComponent.DELAYED_INDEX_BUCKET, OwnerLookup.NOT_LISTING, False),
    ],
)
def test_what_a_broker_may_know_alone_is_not_confirmed(
    component: PulsarComponent, lookup: OwnerLookup, confirmed: bool
) -> None:
    assert is_confirmed_without_broker(StatedOwner(component, "any"), lookup) is confirmed
