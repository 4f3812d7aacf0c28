"""The sentence: one for each place where a ledger can stand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from logstore.deletion.intents import CopyVerdict, DeletionState, Outcome
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.ports.catalog.inspection import (
    InspectedCopy,
    InspectedIntent,
    InspectedLedger,
    LedgerHistory,
    LedgerReference,
    LedgerReferenceKind,
)
from logstore.positions import LedgerId
from tests.logstore.builders import intent
from workers.cli.ledger_explanation import CorruptSegment, ExaminedCopy, describe_ledger_in_one_sentence

_US = 1_795_000_000_000_000
_ON = "2026-11-18T11:06:40Z"


def _live(state: LedgerState = LedgerState.CLOSED, *, listed: bool = True) -> InspectedLedger:
    return InspectedLedger(
        state=state, listed=listed, entries=1, size_bytes=1, generation=0, created_us=0, closed_us=None
    )


def _filed(
    state: DeletionState = DeletionState.DELETED,
    *,
    outcome: Outcome | None = Outcome.DELETED,
    stalled: bool = False,
    **changes: Any,
) -> InspectedIntent:
    return InspectedIntent(
        intent=intent(state=state, outcome=outcome, **changes),
        stalled=stalled,
        objects_deleted=0,
        bytes_deleted=0,
        created_us=_US,
        finished_us=None if state is DeletionState.PENDING else _US,
    )


def _history(
    live: InspectedLedger | None = None,
    references: Sequence[LedgerReference] = (),
    intents: Sequence[InspectedIntent] = (),
) -> LedgerHistory:
    return LedgerHistory(
        ledger_id=LedgerId(7), live=live, references=references, copies=(), intents=intents, decisions=()
    )


def _seen(finding: CopyVerdict | None, state: str = "LIVE", copy: CopyKind = CopyKind.LEDGER) -> ExaminedCopy:
    return ExaminedCopy(
        copy=InspectedCopy(state=state, intent=intent(copy=copy)), finding=finding, objects=2, detail="why"
    )


def _listed(*, last: bool = False) -> LedgerReference:
    return LedgerReference(kind=LedgerReferenceKind.LIST, facts={"last": last})


def _needed(*names: str) -> list[LedgerReference]:
    return [LedgerReference(kind=LedgerReferenceKind.CURSOR, facts={"subscription": name}) for name in names]


@pytest.mark.parametrize(
    ("live", "references", "said"),
    [
        (_live(LedgerState.CREATING, listed=False), [], "newborn and in no list yet; if its creator died, a sweep"),
        (_live(listed=False), [], "in no list, although its row exists: nothing reads it"),
        (_live(LedgerState.OPEN), _needed("a"), "listed and open: it takes entries"),
        (_live(), _needed("billing"), "listed and needed by subscription billing"),
        (_live(), _needed(*"abcde"), "listed and needed by subscriptions a, b, c and 2 more"),
        (_live(), [_listed(last=True)], "listed and the last of its list, which always stays"),
        (_live(), [_listed()], "listed and needed by no subscription: retention lets it go"),
        (
            _live(),
            [_listed(), LedgerReference(kind=LedgerReferenceKind.CURSOR_SNAPSHOT, facts={"subscription": "billing"})],
            "listed: it holds the state of subscription billing",
        ),
        (
            _live(),
            [_listed(last=True), LedgerReference(kind=LedgerReferenceKind.SCHEMA, facts={"version": 3})],
            "listed: it holds version 3 of its topic's schema",
        ),
        (
            _live(),
            [_listed(last=True), LedgerReference(kind=LedgerReferenceKind.TXN_SNAPSHOT, facts={"read_to": "7:9"})],
            "listed: it holds its topic's transactions up to 7:9",
        ),
        (
            _live(),
            [
                _listed(),
                LedgerReference(
                    kind=LedgerReferenceKind.DELAYED_INDEX, facts={"from": "3:0", "to": "7:9", "messages": 4}
                ),
            ],
            "listed: it holds the delayed messages of the entries 3:0 to 7:9",
        ),
        (
            _live(),
            [*_needed("a"), LedgerReference(kind=LedgerReferenceKind.OFFLOAD, facts={"uuid": "u"})],
            "listed; its tiered copy is being written",
        ),
    ],
)
def test_verdict_of_a_ledger_that_was_not_detached_names_what_holds_it(
    live: InspectedLedger, references: list[LedgerReference], said: str
) -> None:
    """The reason to keep comes first, whatever else names it."""
    assert describe_ledger_in_one_sentence(_history(live, references), [_seen(CopyVerdict.OWN)]).startswith(said)


def test_verdict_of_a_listed_ledger_that_storage_lacks_is_that() -> None:
    """Data loss, somebody else's objects, a copy that is left: each is told apart; silence is no finding."""
    history = _history(_live(), _needed("a"))
    assert describe_ledger_in_one_sentence(history, [_seen(CopyVerdict.ABSENT)]).endswith(
        "and no other copy: this is data loss"
    )
    tiered = _seen(CopyVerdict.OWN, copy=CopyKind.OFFLOADED_LEDGER)
    assert describe_ledger_in_one_sentence(history, [_seen(CopyVerdict.ABSENT), tiered]).endswith(
        "and it is read from its other copy"
    )
    short = replace(_seen(CopyVerdict.OWN), segments=3, absent=2)
    assert (
        "lacks 2 of 3 segments of its LEDGER copy, and no other copy: this is data loss"
        in describe_ledger_in_one_sentence(history, [short])
    )
    assert describe_ledger_in_one_sentence(history, [short, tiered]).endswith("and it is read from its other copy")
    assert "somebody else's: why" in describe_ledger_in_one_sentence(history, [_seen(CopyVerdict.FOREIGN)])
    assert describe_ledger_in_one_sentence(history, [_seen(None)]) == "listed and needed by subscription a"
    assert (
        describe_ledger_in_one_sentence(history, [_seen(CopyVerdict.ABSENT, state="WRITING")])
        == "listed and needed by subscription a"
    )


def _corrupt(component: Component = Component.MANAGED_LEDGER) -> ExaminedCopy:
    seen = _seen(CopyVerdict.OWN)
    known = replace(seen.copy, intent=intent(component=component.value))
    damage = (CorruptSegment(1, 10, 19, "why"), CorruptSegment(3, 30, 39, "why"))
    return replace(seen, copy=known, segments=5, compared=4, corrupt=damage)


def test_verdict_of_a_listed_ledger_with_corrupt_segments_says_what_to_do() -> None:
    """Which entries, whether another copy has them, and the command for those that are lost."""
    history = _history(_live(), _needed("a"))
    said = describe_ledger_in_one_sentence(history, [_corrupt()])
    assert said.startswith(
        "listed, but 2 of 4 segments of its LEDGER copy that were compared are corrupt (entries 10 to 19, 30 to 39), "
        "and no other copy: this is data loss; put the named objects back from a backup"
    )
    topic = "persistent://tenant/namespace/orders"
    advice = f"`sexton ledger delete {topic} 7 --force --reason TEXT` moves subscriptions over it"
    assert said.endswith(f"or give the whole ledger up: {advice}")
    is_open = describe_ledger_in_one_sentence(_history(_live(LedgerState.OPEN)), [_corrupt()])
    assert is_open.endswith(f"up: `sexton topic roll {topic}` closes it, then {advice}"), "an open one is refused"
    tiered = _seen(CopyVerdict.OWN, copy=CopyKind.OFFLOADED_LEDGER)
    assert "and it is read from its other copy; put the named objects" in describe_ledger_in_one_sentence(
        history, [_corrupt(), tiered]
    )
    assert "--force" not in describe_ledger_in_one_sentence(history, [_corrupt(), tiered])


@pytest.mark.parametrize(
    ("component", "command"),
    [
        (Component.DELAYED_INDEX, "sexton delayed build persistent://tenant/namespace/orders"),
        (Component.TXN_SNAPSHOT, "sexton txn snapshot persistent://tenant/namespace/orders"),
        (Component.SCHEMA_STORAGE, "sexton topic schema set persistent://tenant/namespace/orders --file FILE"),
        (Component.MANAGED_CURSOR, "sexton topic seek persistent://tenant/namespace/orders SUB --to POSITION"),
    ],
)
def test_verdict_of_a_corrupt_ledger_of_a_component_names_what_replaces_it(component: Component, command: str) -> None:
    """`ledger delete` takes ledgers of messages alone."""
    assert describe_ledger_in_one_sentence(_history(_live()), [_corrupt(component)]).endswith(
        f"`{command}` replaces it"
    )


def test_verdict_of_a_listed_ledger_whose_primary_copy_goes_says_both() -> None:
    """An offloaded ledger stays listed; what is left of its primary copy is told beside it."""
    letter = _filed(DeletionState.DEAD_LETTERED, outcome=Outcome.DEAD_LETTERED, generation=2, row_id=12)
    said = describe_ledger_in_one_sentence(_history(_live(), _needed("a"), [letter, _filed()]), [])
    assert said == (
        "listed and needed by subscription a; its LEDGER copy of generation 2: "
        "dead letter: DEAD_LETTERED; `sexton deletion redrive 12` tries again"
    )


@pytest.mark.parametrize(
    ("filed", "said"),
    [
        (_filed(), f"deleted on {_ON}, confirmed by storage"),
        (_filed(outcome=Outcome.ALREADY_GONE), f"gone: on {_ON} storage held nothing of it any more"),
        (
            _filed(DeletionState.DEAD_LETTERED, outcome=Outcome.INVALID, last_error="missing uuid", row_id=12),
            "dead letter: INVALID: missing uuid; `sexton deletion redrive 12` tries again",
        ),
        (
            _filed(DeletionState.PENDING, outcome=None, stalled=True, last_error="slow"),
            f"detached on {_ON}, and no workflow is at work on it: slow; the next sweep takes it up",
        ),
        (
            _filed(DeletionState.PENDING, outcome=None, handed_to="delete-ledger/7", attempts=3, last_error="slow"),
            f"detached on {_ON}; delete-ledger/7 is at work on it, 3 attempts so far: slow",
        ),
        (_filed(DeletionState.PENDING, outcome=None), f"detached on {_ON}; batch b is to delete it"),
    ],
)
def test_verdict_of_a_detached_ledger_tells_what_became_of_it(filed: InspectedIntent, said: str) -> None:
    """Deleted, waiting for whom, or left to a person, with the command to use."""
    assert describe_ledger_in_one_sentence(_history(intents=[filed]), []) == said


def test_verdict_of_several_copies_is_that_of_the_worst() -> None:
    """A dead letter needs a person; a copy that is on its way does not hide it."""
    letter = _filed(DeletionState.DEAD_LETTERED, outcome=Outcome.DEAD_LETTERED, row_id=3)
    going = _filed(DeletionState.PENDING, outcome=None)
    said = describe_ledger_in_one_sentence(_history(intents=[going, letter, _filed()]), [])
    assert said.startswith("dead letter: DEAD_LETTERED")
    assert said.endswith("; and 1 more of its copies")


def test_verdict_of_a_deleted_ledger_that_storage_holds_again_does_not_call_it_confirmed() -> None:
    """What storage shows now outweighs what it once confirmed."""
    said = describe_ledger_in_one_sentence(_history(intents=[_filed()]), [_seen(CopyVerdict.OWN, state="DELETED")])
    assert said == f"deleted on {_ON}, and yet storage holds 2 objects of its LEDGER copy now"


def test_verdict_of_a_ledger_without_any_trace_is_honest() -> None:
    """An id that was given out and is in no table was used, and nobody wrote down what for."""
    assert describe_ledger_in_one_sentence(_history(), []) == "given out once, and nothing is known of it any more"
