"""Defragmentation and sweeps in the bucket: less is stored, and a cold start finds the same."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from logstore.errors import CatalogAdopting, CorruptData, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.records.job_results import DefragmentedBlocks
from logstore.records.manifest import BLOCK_PREFIX, MANIFEST_PREFIX
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import read_settled_head
from logstore.records.services.record_log import PIN_PREFIX
from logstore.stop_checks import use_stop_check
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.records.world import AGE_S, HOUR, RecordsWorld

_EFFECTS = ("records.put_block", "records.begin", "records.put_manifest", "records.settle")


def _scattered(world: RecordsWorld) -> tuple[int, int, int]:
    """A ledger that stands, one with a tombstone and one that is gone, with versions in several blocks."""
    kept, buried, gone = (world.create() for _ in range(3))
    world.flush()
    for one in (kept, buried, gone):
        world.touch(one)
    world.flush()
    world.end(buried, durable=True)
    world.end(gone, durable=False)
    world.flush()
    return kept, buried, gone


def test_small_blocks_are_joined_and_what_is_superseded_goes(world: RecordsWorld) -> None:
    """What a cold start finds is what it found, less the records that are gone."""
    kept, buried, gone = _scattered(world)
    assert world.returning() == {kept, gone}
    done = world.defragment()
    assert world.returning() == {kept}
    assert world.on_disk([kept, buried, gone]) == {kept: [False], buried: [True], gone: []}
    kinds = [one.kind for one in read_settled_head(world.catalog.records, world.log).blocks]
    assert len(kinds) == len(set(kinds))
    assert done.rewritten > done.written > 0
    assert done.dropped > 0
    assert world.defragment() == DefragmentedBlocks(manifest=done.manifest)


def test_the_newest_version_of_a_gone_record_stays_while_an_older_one_does(
    world: RecordsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the state before would come back, such as a transaction that was open."""
    monkeypatch.setattr("logstore.records.newest_versions.SMALL_BLOCK_BYTES", 0)
    gone, *others = (world.create() for _ in range(5))
    world.flush()
    world.touch(gone)
    for one in others[:2]:
        world.touch(one)
    world.flush()
    for one in others[:2]:
        world.touch(one)
    world.flush()
    world.end(gone, durable=False)
    world.defragment()
    found = world.on_disk([gone])[gone]
    assert found in ([False, False], []), "both versions, or none"
    (row,) = [row for row in world.winners().to_pylist() if row["id"] == gone] or [{"version": 2}]
    assert row["version"] == 2


@pytest.mark.parametrize("point", [f"{name}.{when}" for name in _EFFECTS for when in ("before", "after")])
def test_a_defragmentation_may_die_between_any_two_effects(world: RecordsWorld, point: str) -> None:
    """The next one does the rest."""
    kept, buried, gone = _scattered(world)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        world.defragment()
    disarm_all_and_take_hits()
    assert world.returning() - {gone} == {kept}
    world.defragment()
    assert world.on_disk([kept, buried, gone]) == {kept: [False], buried: [True], gone: []}
    assert world.catalog.records.read_state().pending_stamps == frozenset()


def _beside(world: RecordsWorld, act: Callable[[], object]) -> None:
    """A defragmentation beside which the act happens before its manifest is put."""
    matches = lambda key: key.startswith(MANIFEST_PREFIX)  # noqa: E731
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: _none(act()), matches=matches)
    )
    world.defragment()


def _none(_: object) -> None:
    return None


def test_a_flush_beside_a_defragmentation_loses_nothing(world: RecordsWorld) -> None:
    """What it added is named by the manifest of both."""
    kept, buried, _ = _scattered(world)
    late: list[int] = []

    def flush() -> None:
        late.append(world.create())
        world.touch(kept)  # type: ignore[arg-type]
        world.flush()

    _beside(world, flush)
    assert world.returning() == {kept, *late}
    (row,) = [row for row in world.winners().to_pylist() if row["id"] == kept]
    assert row["generation"] == 2
    assert world.on_disk([buried])[buried] == [True]


def test_of_two_defragmentations_at_once_one_counts(world: RecordsWorld) -> None:
    """The other one finds that its blocks are named no longer, and leaves it at that."""
    kept, buried, gone = _scattered(world)
    _beside(world, world.defragment)
    assert world.returning() == {kept}
    assert world.on_disk([kept, buried, gone]) == {kept: [False], buried: [True], gone: []}


def test_a_flush_at_every_step_of_a_defragmentation_loses_nothing(world: RecordsWorld) -> None:
    """Interleaved between any two requests, flush after flush."""
    kept, _, _ = _scattered(world)
    inside, made = [False], [kept]

    def step() -> None:
        if not inside[0] and len(made) < 20:
            inside[0] = True
            made.append(world.create())
            world.flush()
            inside[0] = False

    with use_stop_check(step):
        world.defragment()
    assert len(made) == 20
    assert world.returning() == set(made)


def test_a_block_that_cannot_be_read_ends_it_before_anything_changes(world: RecordsWorld) -> None:
    """It is named; what it held is not known, so nothing of its kind is dropped."""
    _scattered(world)
    block = next(
        one for one in read_settled_head(world.catalog.records, world.log).blocks if one.kind is RecordKind.TOPIC
    )
    body = world.objects._held.pop(block.key)
    world.objects.put_if_absent(block.key, body.body[:-2], metadata={})
    number = read_settled_head(world.catalog.records, world.log).number
    with pytest.raises(CorruptData, match=block.key):
        world.defragment()
    assert read_settled_head(world.catalog.records, world.log).number == number


def test_a_catalog_that_adopts_is_not_defragmented(world: RecordsWorld) -> None:
    """Rows that are not loaded yet would count as gone."""
    _scattered(world)
    world.sql("UPDATE record_log SET state = 'ADOPTING'")
    with pytest.raises(CatalogAdopting):
        world.defragment()


def _manifests(world: RecordsWorld) -> list[str]:
    return [key for key in world.objects.keys if key.startswith(MANIFEST_PREFIX)]


def _blocks(world: RecordsWorld) -> set[str]:
    return {key for key in world.objects.keys if key.startswith(BLOCK_PREFIX)}


@pytest.fixture
def ten_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a hundred manifests do."""
    monkeypatch.setattr("logstore.records.services.bucket_upkeep.MIN_KEPT_MANIFESTS", 10)


def _many(world: RecordsWorld, count: int) -> None:
    for _ in range(count):
        world.create()
        world.flush()


@pytest.mark.usefixtures("ten_stay")
def test_old_manifests_go_but_the_newest_hundred_and_pinned_ones(world: RecordsWorld) -> None:
    """And nothing that one of those names; here ten stay."""
    _many(world, 12)
    world.log.pin_manifest("rebuild", 7, 10**17, "rebuild")
    world.defragment()
    _many(world, 11)
    world.advance(seconds=AGE_S + HOUR)
    _many(world, 1)
    count = len(_manifests(world))
    swept = world.sweep()
    assert swept.manifests == count - 11
    left = [world.log.read_manifest(number) for number in world.log.list_manifest_numbers()]
    named = {block.key for one in left if one for block in one.blocks}
    assert _manifests(world)[0] == f"{MANIFEST_PREFIX}000000000007.json"
    assert named == _blocks(world)
    assert swept.blocks > 10
    assert world.returning() == world.standing()
    world.log.unpin("rebuild")
    assert world.sweep().manifests == 1


@pytest.mark.usefixtures("ten_stay")
@pytest.mark.parametrize(
    "hidden", [PIN_PREFIX, f"{MANIFEST_PREFIX}000000000001", f"{MANIFEST_PREFIX}00000000000", MANIFEST_PREFIX]
)
def test_sweep_keeps_what_a_rebuild_reads_though_no_listing_shows_it(world: RecordsWorld, hidden: str) -> None:
    """The pin is registered, and its manifest is read by its number. A log without any manifest is not swept."""
    _many(world, 12)
    world.log.pin_manifest("rebuild", 1, 10**17, "rebuild")
    pinned = world.log.read_manifest(1)
    world.defragment()
    _many(world, 11)
    world.advance(seconds=AGE_S + HOUR)
    _many(world, 1)
    newest = world.log.read_newest_manifest()
    world.objects.unlisted = {hidden: 1_000}
    with pytest.raises(StoreUnavailable, match="found none by LIST") if hidden == MANIFEST_PREFIX else nullcontext():
        world.sweep()
    world.objects.unlisted = {}
    world.sweep()
    assert pinned
    assert newest
    assert {manifest.key for manifest in (pinned, newest)} <= set(world.objects.keys)
    assert {block.key for manifest in (pinned, newest) for block in manifest.blocks} <= set(world.objects.keys)


@pytest.mark.usefixtures("ten_stay")
def test_young_manifests_and_blocks_stay(world: RecordsWorld) -> None:
    """A writer may be about to name a block, and a reader may hold a manifest."""
    _many(world, 12)
    world.defragment()
    world.advance(seconds=HOUR - 2)
    _many(world, 1)
    before = world.objects.keys
    assert world.sweep().manifests == 0
    world.advance(seconds=AGE_S - HOUR)
    _many(world, 10)
    assert world.sweep().blocks == 0
    assert set(before) & _blocks(world) == {key for key in before if key.startswith(BLOCK_PREFIX)}


def test_blocks_that_a_dead_writer_left_are_swept_when_they_are_old(world: RecordsWorld) -> None:
    """By the clock of the store, measured from the newest manifest: a writer that is paused has lost its number."""
    world.create()
    arm("records.begin.before", "crash")
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    left = _blocks(world)
    world.advance(seconds=3 * AGE_S)
    world.offset_us = -300_000_000
    assert world.sweep().blocks == 0, "there is no manifest yet: the writer may go on"
    world.flush()
    assert world.sweep().blocks == len(left) > 0
    assert world.returning() == world.standing()


@pytest.mark.usefixtures("ten_stay")
@pytest.mark.parametrize("point", ["records.sweep_manifests.after", "records.sweep_blocks.before"])
def test_a_sweep_that_dies_is_finished_by_the_next_one(world: RecordsWorld, point: str) -> None:
    """What removed manifests alone named is old, and nobody names it."""
    _many(world, 12)
    world.defragment()
    world.advance(seconds=AGE_S + HOUR)
    _many(world, 11)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        world.sweep()
    disarm_all_and_take_hits()
    assert world.sweep().blocks > 0
    left = [world.log.read_manifest(number) for number in world.log.list_manifest_numbers()]
    assert {block.key for one in left if one for block in one.blocks} == _blocks(world)


def test_a_defragmentation_that_slept_for_a_day_names_none_of_its_blocks(world: RecordsWorld) -> None:
    """A sweep may have taken them: it begins anew."""
    kept, _, _ = _scattered(world)

    def oversleep() -> None:
        world.advance(seconds=AGE_S + HOUR)
        world.create()
        world.flush()
        world.sweep()

    _beside(world, oversleep)
    assert kept in world.returning()
    world.defragment()
    assert world.returning() == world.standing()
