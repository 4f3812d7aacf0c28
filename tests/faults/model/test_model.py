"""The state machine, run; and run on a build that lacks a guard, which it must find."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, Verbosity

from logstore.deletion.intents import CopyVerdict, StoredCopy, find_refusal
from logstore.deletion.retention import LedgerFacts, RetentionPolicy, select_detachable_prefix
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.ports.object_storage import CopyRemovalResult
from tests.fakes.catalog import FakeCatalog
from tests.fakes.catalog.ledgers import FakeLedgers
from tests.faults.model.state_machine import StorageChange, StoreStateMachine
from tests.state_machines import SLOW_STEP_SETTINGS, run_state_machine

_PARTS = 4  # so that each stays short
_LONG = 16
_EXAMPLES = 30  # programs of each part
_MOST = 100  # and where a guard is missing; a build without any one of those below is found by them


def _run(seed: int, *, examples: int, steps: int = 40, verbosity: Verbosity = Verbosity.normal) -> None:
    """Play so many programs; a failing one is shrunk and printed, unless it is expected and all is quiet."""
    quiet = verbosity is Verbosity.quiet
    run_state_machine(
        StoreStateMachine,
        seed,
        examples=examples,
        steps=steps,
        phases=[Phase.generate] if quiet else [Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        verbosity=verbosity,
        **SLOW_STEP_SETTINGS,
    )


@pytest.mark.timeout(600)  # a failure is shrunk for five minutes at the most, and then told
@pytest.mark.parametrize("part", [0, 1, pytest.param(2, marks=pytest.mark.all_faults), 3])
def test_any_order_of_events_keeps_every_promise(part: int) -> None:
    """Whatever programs, operators, time, storage and death do in between, promises 1, 2, 3 and 8 hold."""
    _run(part, examples=_EXAMPLES)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(_LONG))
def test_any_order_of_events_keeps_every_promise_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    _run(random.SystemRandom().getrandbits(64), examples=200, steps=60 + part * 5)


def _play(*steps: Callable[[StoreStateMachine], None]) -> None:
    """One program, judged after each of its steps and at its end."""
    model = StoreStateMachine()
    try:
        for step in steps:
            step(model)
            model.check_invariants()
    finally:
        model.teardown()


def _begin(model: StoreStateMachine) -> None:
    model.begin(first=RetentionPolicy(), second=RetentionPolicy(), ledgers=0)


def _append(program: str, *, rolls: bool = False) -> Callable[[StoreStateMachine], None]:
    return lambda model: model.append(topic="orders", program=program, count=1, rolls=rolls)


def _oversleep(model: StoreStateMachine) -> None:
    model.oversleep(topic="orders", program="a")


_OVERSLEPT = (_begin, _append("a"), _append("b", rolls=True), _oversleep)
"""`a` believes in a ledger that `b` has closed, and sleeps in its upload until that is deleted."""


def test_program_that_oversleeps_the_deletion_of_its_ledger_leaves_nothing_behind() -> None:
    """Its registration is too late to be tried; the machine found it with the number of a segment that was deleted."""
    _play(*_OVERSLEPT)


def test_program_that_oversleeps_before_a_listing_is_empty_once_leaves_nothing_behind() -> None:
    """What landed late has no `meta.json` beside it that would contradict such a listing; found by the machine."""

    def lists_nothing(model: StoreStateMachine) -> None:
        model.disturb(trouble=StorageChange.EMPTY, which=0, times=1)

    _play(*_OVERSLEPT, lists_nothing)


def test_program_that_oversleeps_and_says_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on a build that gives up without a word."""
    monkeypatch.setattr(FakeLedgers, "record_abandoned_upload", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="ledger 0 is forgotten"):
        _play(*_OVERSLEPT)


def _without_still_in_use(patch: pytest.MonkeyPatch) -> None:
    """Phase two acts on its intent, whatever the list says now."""
    patch.setattr(
        "activities.deletion.phase_two_steps.find_refusal", lambda one: find_refusal(replace(one, referenced=False))
    )


def _without_meta_last(patch: pytest.MonkeyPatch) -> None:
    """`meta.json` goes first."""

    def remove(
        self: PrimaryCopyStorage, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> dict[int, CopyRemovalResult]:
        keys = [key for copy in copies.values() for key in (*copy.meta_keys, *copy.data_keys)]
        failed = self._objects.delete(keys).failed
        on_progress(len(keys) - len(failed))
        error = next(iter(failed.values()), None)
        return dict.fromkeys(copies, CopyRemovalResult(error=error))

    patch.setattr(PrimaryCopyStorage, "remove_copies", remove)


def _without_reopening(patch: pytest.MonkeyPatch) -> None:
    """Nobody hears of a creator or a writer that comes too late."""
    patch.setattr(FakeCatalog, "reopen_intents", lambda *_, **__: None)


def _without_hand_over(patch: pytest.MonkeyPatch) -> None:
    """What failed in a chunk is left to whoever comes by."""
    patch.setattr("activities.deletion.ledger_deletion.hand_over_rows", lambda *_: None)


def _without_a_second_read(patch: pytest.MonkeyPatch) -> None:
    """An empty listing is taken for absence."""
    patch.setattr(PrimaryCopyStorage, "_require_absent", lambda _self, _intent: StoredCopy(verdict=CopyVerdict.ABSENT))
    patch.setattr("logstore.deletion.services.primary_copies.find_absence_doubts", lambda _objects, _intents: {})


def _without_claims(patch: pytest.MonkeyPatch) -> None:
    """A row may be taken whoever is at work on it."""
    patch.setattr("tests.fakes.catalog.deletions.require_unclaimed", lambda *_args, **_options: None)


def _without_cursors(patch: pytest.MonkeyPatch) -> None:
    """Retention forgets who has not read."""

    def forgetful(*ledgers: object, mark_delete_by_subscription: object, **rest: object) -> object:
        return partial(select_detachable_prefix, *ledgers, mark_delete_by_subscription={}, **rest)()  # type: ignore[arg-type]

    patch.setattr("tests.fakes.catalog.phase_one.select_detachable_prefix", forgetful)


def _without_prefix(patch: pytest.MonkeyPatch) -> None:
    """Retention passes over a ledger that must stay, and takes what lies behind it (apache/pulsar#20898)."""

    def scattered(ledgers: Iterable[LedgerFacts], **rest: Any) -> Iterator[LedgerFacts]:
        return (one for ledger in ledgers for one in select_detachable_prefix([ledger], **rest))

    patch.setattr("tests.fakes.catalog.phase_one.select_detachable_prefix", scattered)


def _without_waiting_for_uploads(patch: pytest.MonkeyPatch) -> None:
    """What an uploader that is still at it has not sent yet is taken for absent."""
    patch.setattr(TieredCopyStorage, "_require_upload_ended", lambda _self, _intent: None)


@pytest.mark.timeout(600)  # once the seed below no longer finds it soon, all of them are played
@pytest.mark.parametrize(
    ("without", "first"),
    [
        (_without_still_in_use, 0),
        (_without_meta_last, 2),
        (_without_reopening, 0),
        (_without_hand_over, 0),
        (_without_a_second_read, 0),
        (_without_claims, 3),
        (_without_cursors, 0),
        (_without_prefix, 2),
        (_without_waiting_for_uploads, 1),
    ],
)
def test_machine_finds_a_guard_that_is_missing(
    without: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that cannot fail proves nothing: the programs of the parts find each of these.

    `first` is the part that found it soonest when last measured.
    """
    without(monkeypatch)
    with pytest.raises(AssertionError):
        _run_until_one_fails(first)


def _run_until_one_fails(first: int) -> None:
    for part in sorted(range(_PARTS), key=lambda part: part != first):
        _run(part, examples=_MOST, verbosity=Verbosity.quiet)
