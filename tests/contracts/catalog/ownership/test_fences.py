"""Fences: a counter per bundle that whoever acquires it raises, and writes that only its last lease may do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from logstore.deletion.intents import Outcome
from logstore.errors import InvalidInput, NotOwner
from logstore.log.ledgers import CopyKind
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog.deletion import IntentResult, IntentRowRange
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation
from tests.all_topics import list_all_topics
from tests.contracts.catalog.steps import CROWD, filled, new_topic, race
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

_ALL: Final = IntentRowRange(first=0, last=2**62, rows=0)
ONE: Final = BundleId(7)
_OTHER: Final = BundleId(8)
_ALONE: Final = "alone"

Write = Callable[[World, Lease | None], object]


def batch(world: World) -> None:
    """Two rows of batch `b`, held by `w`, the second handed to `alone`; their topic has a ledger to detach still."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, ledgers[:2], batch_id="b")
    handed = {_rows(world)[1]: _ALONE}
    world.catalog.deletions.move_to_own_workflows(handed, batch_id="b", error_by_row={}, ttl_s=60)


def _rows(world: World) -> list[int]:
    return [one.row_id for one in world.catalog.deletions.list_intents_in_range("b", _ALL)]


def detach(world: World, lease: Lease | None) -> object:
    (topic,) = list_all_topics(world.catalog.topics)
    return world.phase_one(topic.topic_id, batch_id="next", lease=lease)


def operate(world: World, lease: Lease | None) -> object:
    (topic,) = list_all_topics(world.catalog.topics)
    behind = LedgerId(world.catalog.deletions.list_intents_in_range("b", _ALL)[-1].ledger_id + 1)
    operation = CompoundOperation(ledger_id=behind, remove=frozenset({CopyKind.LEDGER}))
    phase_one = world.catalog.phase_one.with_lease(lease)
    return phase_one.apply_compound_operation(
        topic.topic_id, operation, batch_id="operated", claim=claim(), cause=CAUSE
    )


def finish(world: World, lease: Lease | None) -> object:
    ended = [IntentResult(row_id=row, outcome=Outcome.DELETED) for row in _rows(world)]
    return world.catalog.deletions.with_lease(lease).record_outcomes(ended, holder="b")


def hand_over(world: World, lease: Lease | None) -> object:
    moved = dict.fromkeys(_rows(world), "own")
    return world.catalog.deletions.with_lease(lease).move_to_own_workflows(
        moved, batch_id="b", error_by_row={}, ttl_s=60
    )


def renew(world: World, lease: Lease | None) -> object:
    world.catalog.deletions.with_lease(lease).renew_batch_claim("b", claim("w", ttl_s=900))
    return "renewed"


def take(world: World, lease: Lease | None) -> object:
    _, row = world.catalog.deletions.list_intents_in_range("b", _ALL)
    return world.catalog.deletions.with_lease(lease).claim_intent(
        row.ledger_id, row.copy, row.generation, claim(_ALONE), epoch=1
    )


def hold(world: World, lease: Lease | None) -> object:
    return world.catalog.deletions.with_lease(lease).record_attempt_and_extend_claim(
        _rows(world)[1], claim(_ALONE), error="late", keys_left=3
    )


def close(world: World, lease: Lease | None) -> object:
    return world.catalog.deletions.with_lease(lease).close_batch("b", CAUSE)


def pause(world: World, lease: Lease | None) -> object:
    world.catalog.deletions.with_lease(lease).pause_batch("b")
    return "paused"


WRITES: Final = pytest.mark.parametrize("write", [detach, operate, finish, hand_over, renew, take, hold, close, pause])


def test_raise_counts_each_bundle_for_itself(world: World) -> None:
    """From 1, by one, whoever raises it; all that were ever acquired are listed ascending with the last worker."""
    fences = world.catalog.fences
    assert fences.list_newest_leases() == []
    given = [fences.raise_fences([bundle], worker)[0] for bundle, worker in ((_OTHER, "a"), (ONE, "a"), (ONE, "b"))]
    assert given == [
        Lease(bundle=_OTHER, fence=1, worker_id="a"),
        Lease(bundle=ONE, fence=1, worker_id="a"),
        Lease(bundle=ONE, fence=2, worker_id="b"),
    ]
    assert fences.list_newest_leases() == [given[2], given[0]]
    assert isinstance(world, SqlWorld)
    (newest_us,), (oldest_us,) = world.sql("SELECT raised_us FROM bundle_fence ORDER BY bundle")
    assert newest_us >= oldest_us > 0


@pytest.mark.postgres
def test_raise_of_many_is_one_transaction_and_answers_ascending(world: World) -> None:
    """An owner that begins takes hundreds; a bundle named twice is raised once, and a wrong one stops all."""
    fences = world.catalog.fences
    assert fences.raise_fences([], "a") == []
    fences.raise_fences([ONE], "a")
    everything = [BundleId(bundle) for bundle in reversed(range(fences.count_bundles()))]
    given = fences.raise_fences([*everything, ONE], "b")
    assert [lease.bundle for lease in given] == sorted(everything)
    assert {lease.bundle: lease.fence for lease in given} == dict.fromkeys(everything, 1) | {ONE: 2}
    with pytest.raises(InvalidInput, match="bundle"):
        fences.raise_fences([ONE, BundleId(fences.count_bundles())], "c")
    assert {one.worker_id for one in fences.list_newest_leases()} == {"b"}


def test_raise_by_the_same_worker_fences_what_it_had(world: World) -> None:
    """Two processes with one worker id, or one whose answer was lost: the last raise counts."""
    fences = world.catalog.fences
    first, second = fences.raise_fences([ONE], "a")[0], fences.raise_fences([ONE], "a")[0]
    fences.require_newest_lease(second)
    with pytest.raises(NotOwner):
        fences.require_newest_lease(first)


def test_raise_of_what_is_no_bundle_is_refused(world: World) -> None:
    """0 to N - 1, and a worker with a name; bad input changes nothing."""
    fences = world.catalog.fences
    assert fences.count_bundles() == 64
    for bundle in (-1, 64):
        with pytest.raises(InvalidInput, match=f"bundle: expected 0 to 63, found {bundle}"):
            fences.raise_fences([BundleId(bundle)], "a")[0]
    with pytest.raises(InvalidInput, match="worker_id"):
        fences.raise_fences([ONE], "")[0]
    assert fences.list_newest_leases() == []
    for bundle in (0, 63):
        assert fences.raise_fences([BundleId(bundle)], "a")[0].fence == 1


@pytest.mark.postgres
def test_raise_thirty_two_at_once_gives_each_a_number_of_its_own(world: World) -> None:
    """From the first row on: no number twice, none left out, and only the last lease holds."""
    fences = world.catalog.fences
    leases = race(lambda number: fences.raise_fences([ONE], f"worker-{number}")[0])
    given = {one.fence: one for one in leases if isinstance(one, Lease)}
    assert sorted(given) == list(range(1, CROWD + 1)), leases
    assert fences.list_newest_leases() == [given[CROWD]]
    fences.require_newest_lease(given.pop(CROWD))
    for lease in given.values():
        with pytest.raises(NotOwner):
            fences.require_newest_lease(lease)


@pytest.mark.postgres
def test_verify_overtaken_lease_names_bundle_and_both_workers(world: World) -> None:
    """An operator reads who has it now."""
    lease = world.catalog.fences.raise_fences([ONE], "a")[0]
    world.catalog.fences.raise_fences([ONE], "b")[0]
    told = "bundle 7: expected fence 1 of worker a, found fence 2 of worker b; look the owner up again"
    with pytest.raises(NotOwner, match=f"^{told}$") as refused:
        world.catalog.fences.require_newest_lease(lease)
    assert refused.value.bundle == ONE


def test_verify_compares_for_equality(world: World) -> None:
    """A number ahead is no better than one behind: the catalog may have been put back from a backup."""
    fences = world.catalog.fences
    fences.raise_fences([ONE], "a")[0]
    lease = fences.raise_fences([ONE], "a")[0]
    fences.require_newest_lease(lease)
    strangers = [
        replace(lease, fence=1),
        replace(lease, fence=3),
        replace(lease, worker_id="b"),
        replace(lease, bundle=_OTHER),
    ]
    for stranger in strangers:
        with pytest.raises(NotOwner):
            fences.require_newest_lease(stranger)


def test_verify_bundle_that_nobody_acquired_is_refused(world: World) -> None:
    """As in a catalog that was made anew."""
    with pytest.raises(NotOwner, match="found that no worker ever acquired it"):
        world.catalog.fences.require_newest_lease(Lease(bundle=ONE, fence=1, worker_id="a"))


@WRITES
def test_write_under_the_last_lease_does_what_it_does_without(write: Write, world: World) -> None:
    """Fences of other bundles do not matter, however often they are raised."""
    batch(world)
    world.catalog.fences.raise_fences([ONE], "a")[0]
    lease = world.catalog.fences.raise_fences([ONE], "b")[0]
    world.catalog.fences.raise_fences([_OTHER], "c")[0]
    before = world.everything()
    write(world, lease)
    assert world.everything() != before


@WRITES
def test_write_under_an_overtaken_lease_is_refused_and_changes_nothing(write: Write, world: World) -> None:
    """Of the workers that ever owned a bundle only the present owner's writes are accepted (promise 7)."""
    batch(world)
    old = world.catalog.fences.raise_fences([ONE], "a")[0]
    new = world.catalog.fences.raise_fences([ONE], "b")[0]
    never = Lease(bundle=_OTHER, fence=1, worker_id="a")
    before = world.everything()
    for lease in (old, never, replace(new, worker_id="a"), replace(new, fence=3)):
        with pytest.raises(NotOwner):
            write(world, lease)
        assert world.everything() == before
    write(world, new)
    with pytest.raises(NotOwner):
        write(world, old)


def test_detach_repeated_under_an_overtaken_lease_is_refused_and_under_the_new_one_answered(world: World) -> None:
    """Whoever lost the bundle is not told that it may go on; its successor finds what it did."""
    batch(world)
    old = world.catalog.fences.raise_fences([ONE], "a")[0]
    done = detach(world, old)
    new = world.catalog.fences.raise_fences([ONE], "b")[0]
    before = world.everything()
    with pytest.raises(NotOwner):
        detach(world, old)
    assert detach(world, new) == done
    assert world.everything() == before
