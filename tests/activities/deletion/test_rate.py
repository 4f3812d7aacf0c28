"""How fast a chunk deletes: never faster than told, in small parts, and alive while it waits."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from activities import heartbeats
from activities.deletion import ledger_deletion
from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.inputs_and_results import ChunkResult
from logstore.deletion.intents import CopyVerdict, StoredCopy
from logstore.errors import ClaimHeld
from tests.activities.activity_world import World, make_chunk_input, run_owner_routed_activity
from tests.fakes.object_store import Fault, FaultKind, StoreOperation


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 100.0
    naps: list[float] = field(default_factory=list)
    on_nap: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        """What time it is."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.naps.append(seconds)
        self.now += seconds
        self.on_nap()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every chunk."""
    made = Clock()
    monkeypatch.setattr(ledger_deletion, "DeletionPace", partial(DeletionPace, clock=made, sleep=made.sleep))
    return made


def delete(world: World, objects_per_s: float, *, first: int = 0) -> ChunkResult:
    """The rows from `first` on, at a rate."""
    request = make_chunk_input()
    return run_owner_routed_activity(
        world.deletion.delete_chunk,
        replace(request, objects_per_s=objects_per_s, chunk=replace(request.chunk, first=first)),
    )


@pytest.mark.parametrize("rate", [0.25, 1.0, 7.0, 100.0])
def test_chunk_is_never_faster_than_its_rate(world: World, clock: Clock, rate: float) -> None:
    """At any moment no more was asked of storage than the rate allows, but for one part of a second's objects."""
    world.fill(2, segments=4, acknowledged=False)
    world.detach()
    began, asked = clock.now, 0
    result = delete(world, rate)
    while True:
        asked = sum(operation is StoreOperation.DELETE for operation, _ in world.objects.calls)
        assert clock.now - began >= asked / rate - 1e-6
        if not result.next_row:
            break
        result = delete(world, rate, first=result.next_row)
    assert asked == 10
    assert clock.now - began <= asked / rate + 1
    assert world.outcomes() == {"DELETED": 2}
    assert world.catalog.deletions.tally_batch("batch-1").objects == 10


def test_chunk_naps_no_longer_than_a_second_and_beats(world: World, clock: Clock) -> None:
    """At a fortieth of an object a second it waits forty seconds for each, and hears of a cancellation meanwhile."""
    world.fill(1, segments=1, acknowledged=False)
    world.detach()
    delete(world, 1 / 40)
    assert sum(clock.naps) == pytest.approx(80)
    assert max(clock.naps) <= 1


def test_chunk_deletes_data_first_and_meta_last_at_any_rate(world: World, clock: Clock) -> None:
    """Cut into single keys, what is left still says whose it is."""
    world.fill(2, segments=3, acknowledged=False)
    world.detach()
    first = delete(world, 1)
    deleted = [key for operation, key in world.objects.calls if operation is StoreOperation.DELETE]
    assert [key.endswith(".meta.json") for key in deleted] == ([False] * 3 + [True]) * 2
    assert (first.outcomes, first.objects) == ({"DELETED": 2}, 8)


def test_chunk_key_refused_in_one_part_keeps_the_meta(world: World, clock: Clock) -> None:
    """A row that failed in an early part is left out of the later ones: its statement outlives its data (#14693)."""
    good, bad = world.fill(2, segments=3, acknowledged=False)
    world.detach()
    first = f"{bad:016x}/00000000.parquet"
    refused = Fault(
        operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key.endswith(first)
    )
    world.objects.plan(refused)
    result = delete(world, 1)
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    assert not world.left_of(good)
    assert any(name.endswith(".meta.json") for name in world.left_of(bad))
    assert len(world.left_of(bad)) == 4, "nothing more is asked for a row that failed"


def test_chunk_whose_store_goes_away_between_parts_keeps_what_ended(world: World, clock: Clock) -> None:
    """Rows that were whole before are DELETED, those that were not are handed over (apache/pulsar#982)."""
    whole, half, unseen = world.fill(3, segments=2, acknowledged=False)
    world.detach()
    gone = f"{half:016x}/00000001.parquet"
    down = Fault(
        operation=StoreOperation.DELETE, kind=FaultKind.BEFORE, times=9, matches=lambda key: key.endswith(gone)
    )
    world.objects.plan(down)
    assert delete(world, 1).outcomes == {"DELETED": 1, "RETRYING": 2}
    assert [len(world.left_of(one)) for one in (whole, half, unseen)] == [0, 2, 3]


def test_chunk_at_a_low_rate_leaves_rows_for_another_call(world: World, clock: Clock) -> None:
    """Half a minute's worth at once, so that a pause and another rate take effect; every row is met once."""
    ledgers = world.fill(4, segments=9, acknowledged=False)
    world.detach()
    rows = [one.row_id for one in world.intents()]
    first = delete(world, 0.7)
    assert (first.outcomes, first.next_row) == ({"DELETED": 2}, rows[2])
    assert [bool(world.left_of(one)) for one in ledgers] == [False, False, True, True]
    rest = delete(world, 0.7, first=first.next_row)
    assert (rest.outcomes, rest.next_row) == ({"DELETED": 2}, 0)


def test_chunk_slice_holds_one_ledger_however_large(world: World, clock: Clock) -> None:
    """At one object a second a ledger of fifty is begun, and ends."""
    world.fill(2, segments=49, acknowledged=False)
    world.detach()
    result = delete(world, 1)
    assert (result.outcomes, result.objects, result.next_row > 0) == ({"DELETED": 1}, 50, True)


def test_chunk_that_lost_its_claim_while_it_waited_stops(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits holds the claim as who works does: taken over, it asks nothing more of storage."""
    world.fill(1, segments=9, acknowledged=False)
    world.detach()
    for name in ("_BEAT_INTERVAL_S", "_RENEWAL_INTERVAL_S", "_QUIET_S"):
        monkeypatch.setattr(heartbeats, name, 0.0, raising=False)
    taken = "UPDATE run SET claim_workflow = 'other', claim_until_us = 9000000000000000"

    def take_over() -> None:
        world.sql(taken)

    clock.on_nap = take_over
    real = heartbeats.ClaimRenewingHeartbeats.count_deleted

    def renewing(self: heartbeats.ClaimRenewingHeartbeats, objects: int) -> None:
        self._renew_or_keep_error()
        real(self, objects)

    monkeypatch.setattr(heartbeats.ClaimRenewingHeartbeats, "count_deleted", renewing)
    with pytest.raises(ClaimHeld):
        delete(world, 0.2)
    assert sum(operation is StoreOperation.DELETE for operation, _ in world.objects.calls) == 1


def test_parts_without_a_rate_are_one() -> None:
    """Unlimited, small ledgers share pages as ever."""
    copies = {row: StoredCopy(verdict=CopyVerdict.OWN, data_keys=("a",) * 5, meta_keys=("m",)) for row in range(3)}
    assert list(DeletionPace().split_copies(copies)) == [copies]
    assert [len(part) for part in DeletionPace(12).split_copies(copies)] == [2, 1]
    sizes = [
        sum(len(one.data_keys) + len(one.meta_keys) for one in part.values())
        for part in DeletionPace(4).split_copies(copies)
    ]
    assert sizes == [4, 2, 4, 2, 4, 2]
