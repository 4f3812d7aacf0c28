"""Raids: which tombstones go, which stay and why, and what a raid is interrupted by."""

import logging
from collections.abc import Collection
from dataclasses import replace

import pytest

from logstore.catalog.records.tombstone_rows import Tombstones
from logstore.errors import CatalogAdopting, CatalogMismatch, CorruptData, PreconditionFailed, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key, shard_prefix
from logstore.ports.catalog.records import TombstonedRecordId
from logstore.positions import LedgerId
from logstore.records.job_results import ReplicaAwaitedByRaid
from logstore.records.manifest import BLOCK_PREFIX, Block
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import publish_manifest, read_settled_head
from logstore.records.services.record_log import PIN_PREFIX, REPLICA_PREFIX, RecordLog
from logstore.records.services.tombstone_raids import raid_marks_name
from logstore.stop_checks import use_stop_check
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER
from tests.logstore.log.world import once
from tests.logstore.records.versions import table, version
from tests.logstore.records.world import AGE_S, HOUR, RecordsWorld


def _buried(world: RecordsWorld, count: int = 1, *, flushed_before: bool = False) -> list[LedgerId]:
    """Ledgers that were deleted durably and whose objects are gone, with tombstones in a block, long ago."""
    ids = [world.create() for _ in range(count)]
    if flushed_before:
        world.flush()
    world.end(*ids, durable=True)
    world.flush()
    world.clear(*ids)
    world.advance(seconds=AGE_S + HOUR)
    return ids


def _older(world: RecordsWorld, ledger_id: int) -> Block:
    """A block with a version of the ledger from before, which no manifest names."""
    (block,) = world.log.put_blocks(RecordKind.LEDGER, table(RecordKind.LEDGER, [version(ledger_id, 0)]))
    return block


def _name(world: RecordsWorld, *blocks: Block) -> None:
    """Publish them beside the others."""
    found = read_settled_head(world.catalog.records, RecordLog(world.objects))
    assert found.manifest
    manifest = found.manifest
    parts = (world.catalog.records, world.log, found)
    assert publish_manifest(
        *parts, blocks=(*manifest.blocks, *blocks), ceilings=manifest.ceilings, flushed_us=0, next_ids=None
    )


def test_a_tombstone_that_covers_nothing_goes(world: RecordsWorld) -> None:
    """One that covers an older version stays, until a defragmentation has taken that off the disk."""
    bare = _buried(world, 2)
    covering = _buried(world, 3, flushed_before=True)
    done = world.raid()
    assert (done.candidates, done.kept, done.removed) == (5, 3, 2)
    assert world.buried() == set(covering)
    world.defragment()
    assert world.raid().removed == 3
    assert world.buried() == set()
    world.defragment()
    assert world.returning() == set()
    assert not any(world.on_disk([*bare, *covering]).values())


def test_a_young_tombstone_stays(world: RecordsWorld) -> None:
    """By the catalog's clock, as it is when the raid begins."""
    _buried(world)
    world.offset_us = -2 * 3_600_000_000
    assert world.raid().candidates == 0
    world.offset_us = 0
    assert world.raid().removed == 1


def test_a_tombstone_waits_for_every_replica_that_is_not_stale(
    world: RecordsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has not applied it would keep what it covers (scylladb#3560, #8970). Result and log name it."""
    ids = _buried(world)
    world.acknowledge("mirror", 0)
    assert world.raid().kept == 1
    world.acknowledge("mirror", 1)
    world.acknowledge("second", 0)
    caplog.set_level(logging.INFO, logger="logstore.records")
    held = world.raid()
    assert (held.kept, held.held_by) == (1, [ReplicaAwaitedByRaid(replica="second", manifest=0, tombstones=1)])
    assert [one.getMessage() for one in caplog.records] == [
        "raid: 1 tombstones stay, because replica second has applied manifest 0 of 1"
    ]
    assert world.buried() == set(ids)
    world.advance(seconds=AGE_S / 2)
    world.acknowledge("mirror", 1)
    world.advance(seconds=AGE_S / 2 + 1)
    done = world.raid()
    assert (done.removed, done.held_by) == (1, []), "the second one was silent for too long, and the first one has it"


def test_replica_that_lacks_no_removable_tombstone_holds_nothing_up(world: RecordsWorld) -> None:
    """A tombstone that covers an older version stays for that."""
    _buried(world, flushed_before=True)
    world.acknowledge("mirror", 0)
    done = world.raid()
    assert (done.kept, done.held_by) == (1, [])


@pytest.mark.parametrize("hidden", [REPLICA_PREFIX, f"{REPLICA_PREFIX}mirror/"])
def test_tombstone_waits_for_a_replica_that_no_listing_shows(world: RecordsWorld, hidden: str) -> None:
    """Its name is registered. It is not revoked on the word of such listings either."""
    ids = _buried(world)
    world.acknowledge("mirror", 0)
    world.objects.unlisted = {hidden: 1_000}
    assert world.raid().kept == 1
    assert world.buried() == set(ids)
    world.objects.unlisted = {}
    assert [one.is_revoked for one in world.log.list_lowest_acknowledgements()] == [False]
    world.acknowledge("mirror", 1)
    assert world.raid().removed == 1


def test_rebuild_whose_pin_no_listing_shows_ends_a_raid(world: RecordsWorld) -> None:
    """Its name is registered."""
    ids = _buried(world)
    world.log.pin_manifest("c-1-x", 1, world.objects.now_us + 1, "rebuild")
    world.objects.unlisted = {f"{PIN_PREFIX}rebuild/": 1_000}
    with pytest.raises(PreconditionFailed, match="found workflow rebuild-catalog/c-1-x that reads manifest 1"):
        world.raid()
    assert world.buried() == set(ids)


def test_a_tombstone_that_is_in_no_block_yet_stays(world: RecordsWorld) -> None:
    """A cold start now would know nothing of it."""
    ids = [world.create(), world.create()]
    world.flush()
    world.end(*ids, durable=True)
    world.clear(*ids)
    world.advance(seconds=2 * AGE_S)
    assert world.raid().candidates == 0
    bare = world.create()
    world.end(bare, durable=True)
    world.clear(bare)
    world.advance(seconds=2 * AGE_S)
    world.sql("DELETE FROM record_outbox")
    assert world.raid().kept == 3, "nor does one go whose change was lost on the way"
    assert world.buried() == {*ids, bare}


def test_a_tombstone_that_changes_while_the_raid_scans_stays(world: RecordsWorld) -> None:
    """Its new version is not in a block."""
    (ledger_id,) = _buried(world)

    def bury_again() -> None:
        world.sql("UPDATE tombstone SET generation = generation + 1")

    world.objects.plan(_at_first_block(world, bury_again))
    assert world.raid().kept == 1
    assert world.buried() == {ledger_id}


def _at_first_block(world: RecordsWorld, act: object) -> Fault:
    assert callable(act)
    return Fault(
        operation=StoreOperation.GET, kind=FaultKind.CALL, action=once(act), matches=lambda key: BLOCK_PREFIX in key
    )


def test_an_older_version_in_a_later_manifest_keeps_a_tombstone(world: RecordsWorld) -> None:
    """The raid scans what came since it has begun, until there is nothing new."""
    (ledger_id,) = _buried(world)
    world.objects.plan(_at_first_block(world, lambda: _name(world, _older(world, ledger_id))))
    assert world.raid().kept == 1
    assert world.buried() == {ledger_id}
    assert world.returning() == set()


def test_an_older_version_that_comes_after_the_look_in_storage_keeps_a_tombstone(world: RecordsWorld) -> None:
    """Looked at once more just before anything is removed."""
    (ledger_id,) = _buried(world)

    def name() -> None:
        _name(world, _older(world, ledger_id))

    world.primary.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=name))
    assert world.raid().kept == 1


@pytest.mark.parametrize("count", [1, 300])
def test_a_tombstone_stays_while_storage_holds_an_object(world: RecordsWorld, count: int) -> None:
    """A cold start would take such a ledger for one that it knows nothing of; one by one, or by whole shards."""
    ids = [world.create(), *(LedgerId(256 * at + 5) for at in range(4, count + 3))]
    world.end(ids[0], durable=True)
    world.sql(
        "INSERT INTO tombstone (kind, id, generation, epoch, at_us) "
        "SELECT 'ledger', value, 1, 1, :us FROM json_each(:ids)",
        us=world.objects.now_us,
        ids=str(ids[1:]),
    )
    world.flush()
    world.advance(seconds=AGE_S + HOUR)
    left = ids[-1]
    world.clear(ids[0])
    world.primary.put_if_absent(segment_key(left, 0), b"x", metadata={})
    assert world.raid().removed == count - 1
    assert world.buried() == {left}
    world.clear(left)
    assert world.raid().removed == 1


def _remember_deletion(world: RecordsWorld, ledger_id: LedgerId, *, last_segment: int) -> None:
    """A finished deletion of the ledger, as long as it is kept."""
    world.sql(
        "INSERT INTO pending_deletion (batch_id, ledger_id, copy, generation, application, component, topic_id, topic, "
        "keys, context, segments, last_segment, ledger_created_us, size_bytes, epoch, state, outcome, attempts, "
        "objects_deleted, bytes_deleted, created_us, keys_left_attempts, openings, durable, actor, reason) VALUES "
        "('b', :id, 'LEDGER', 1, :application, :component, :topic_id, :topic, '{}', '{}', :segments, :last, 1, 1, 1, "
        "'DELETED', 'DELETED', 1, 1, 1, 1, 0, 0, 1, '', '')",
        id=ledger_id,
        application=OWNER.application,
        component=OWNER.component.value,
        topic_id=OWNER.topic_id,
        topic=OWNER.topic,
        segments=last_segment + 1,
        last=last_segment,
    )
    world.flush()


@pytest.mark.parametrize("count", [1, 12])
def test_tombstone_stays_although_a_listing_hides_the_object(world: RecordsWorld, count: int) -> None:
    """A second one shows it; one by one, or by whole shards."""
    ids = _buried_of_a_shard(world, count)
    left = ids[-1]
    world.primary.put_if_absent(segment_key(left, 7), b"x", metadata={})
    world.primary.unlisted = {ledger_prefix(left): 1}
    assert world.raid().removed == count - 1
    assert world.buried() == {left}


def _buried_of_a_shard(world: RecordsWorld, count: int) -> list[LedgerId]:
    ids = [LedgerId(SHARDS * at + 5) for at in range(4, count + 4)]
    world.sql(
        "INSERT INTO tombstone (kind, id, generation, epoch, at_us) "
        "SELECT 'ledger', value, 1, 1, :us FROM json_each(:ids)",
        us=world.objects.now_us,
        ids=str(ids),
    )
    world.flush()
    world.advance(seconds=AGE_S + HOUR)
    return ids


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("left", ["statement", "first segment", "last segment", "first segment, nothing remembered"])
def test_tombstone_stays_while_an_object_that_no_listing_shows_can_be_read(
    world: RecordsWorld, count: int, left: str
) -> None:
    """By the names that the finished deletion remembers; else by that of the first segment."""
    ids = _buried_of_a_shard(world, count)
    ledger_id = ids[0]
    if "nothing" not in left:
        _remember_deletion(world, ledger_id, last_segment=4)
    keys = {"statement": meta_key(ledger_id, OWNER), "last segment": segment_key(ledger_id, 4)}
    key = keys.get(left, segment_key(ledger_id, 0))
    world.primary.put_if_absent(key, b"x", metadata={})
    world.primary.unlisted = {ledger_prefix(ledger_id): 1_000}
    assert world.raid().removed == count - 1
    assert world.buried() == {ledger_id}
    world.primary.delete([key])
    assert world.raid("second").removed == 1


def test_tombstone_stays_where_what_its_deletion_remembers_is_damaged(world: RecordsWorld) -> None:
    """Its objects cannot be asked for by name."""
    damaged, _ = _buried_of_a_shard(world, 2)
    _remember_deletion(world, damaged, last_segment=4)
    world.sql("UPDATE pending_deletion SET last_segment = 1 << 60")
    world.flush()
    assert world.raid().removed == 1
    assert world.buried() == {damaged}


def test_raid_that_gets_no_answer_about_a_name_removes_nothing(world: RecordsWorld) -> None:
    """It is tried again as a whole."""
    ids = _buried_of_a_shard(world, 12)
    world.primary.plan(Fault(operation=StoreOperation.GET_RANGE, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        world.raid()
    assert world.buried() == set(ids)


def test_bucket_that_is_not_the_catalogs_any_more_behind_the_look_in_storage_proves_nothing(
    world: RecordsWorld,
) -> None:
    """The marker is asked for again behind all other requests."""
    ids = _buried_of_a_shard(world, 12)

    def swap() -> None:
        world.primary.refusal = CatalogMismatch("primary", expected="ours", found="none", advice="look")

    world.primary.plan(Fault(operation=StoreOperation.GET_RANGE, kind=FaultKind.CALL, action=swap))
    with pytest.raises(CatalogMismatch):
        world.raid()
    assert world.buried() == set(ids)


def test_absence_of_many_ledgers_is_proved_by_two_listings_of_a_shard_and_one_request_for_a_name(
    world: RecordsWorld,
) -> None:
    """No listing of its own for each."""
    ids = _buried_of_a_shard(world, 12)
    asked = len(world.primary.calls)
    assert world.raid().removed == 12
    calls = world.primary.calls[asked:]
    assert calls[:2] == [(StoreOperation.LIST, shard_prefix(5))] * 2
    assert sorted(calls[2:]) == [(StoreOperation.GET_RANGE, segment_key(one, 0)) for one in ids]


def test_a_tombstone_stays_while_a_deletion_is_unfinished(world: RecordsWorld) -> None:
    """A dead letter is unfinished too."""
    (ledger_id,) = _buried(world)
    world.sql(
        "INSERT INTO pending_deletion (batch_id, ledger_id, copy, generation, application, component, topic_id, topic, "
        "keys, context, segments, last_segment, ledger_created_us, size_bytes, epoch, state, attempts, "
        "objects_deleted, bytes_deleted, created_us, keys_left_attempts, openings, durable, actor, reason) VALUES "
        "('b', :id, 'LEDGER', 1, 'sexton', 'MANAGED_LEDGER', 1, 't', '{}', '{}', 1, 0, 1, 1, 1, 'DEAD_LETTERED', 0, "
        "0, 0, 1, 0, 0, 1, '', '')",
        id=ledger_id,
    )
    world.flush()
    assert world.raid().candidates == 0
    world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    world.flush()
    assert world.raid().removed == 1


def test_a_rebuild_at_work_ends_a_raid(world: RecordsWorld) -> None:
    """It may have read the tombstone's manifest, or an older one (scylla-manager#4258)."""
    _buried(world)
    world.log.pin_manifest("c-1-x", 1, world.objects.now_us + 1, "rebuild")
    with pytest.raises(PreconditionFailed, match="c-1-x"):
        world.raid()
    world.log.unpin("c-1-x")

    def begin() -> None:
        world.log.pin_manifest("c-1-y", 1, world.objects.now_us + 1, "rebuild")

    world.objects.plan(_at_first_block(world, begin))
    with pytest.raises(PreconditionFailed, match="c-1-y"):
        world.raid()
    assert len(world.buried()) == 1
    assert [one.purpose for one in world.log.list_pins()] == ["rebuild"], "the raid's own pin is gone"


def test_an_unreadable_block_ends_a_raid(world: RecordsWorld) -> None:
    """What it holds is not known."""
    _buried(world)
    block = next(
        one for one in read_settled_head(world.catalog.records, world.log).blocks if one.kind is RecordKind.LEDGER
    )
    held = world.objects._held[block.key]
    world.objects._held[block.key] = replace(held, body=held.body[:-3])
    with pytest.raises(CorruptData, match=block.key):
        world.raid()
    assert len(world.buried()) == 1


def test_a_bucket_that_is_not_the_catalogs_proves_nothing(world: RecordsWorld) -> None:
    """Its listings show that nothing is there, of any ledger."""
    _buried(world)
    world.primary.refusal = CatalogMismatch("primary", expected="ours", found="none", advice="look")
    with pytest.raises(CatalogMismatch):
        world.raid()
    world.primary.refusal = None
    world.primary.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        world.raid()
    assert len(world.buried()) == 1


def test_a_catalog_that_adopts_is_not_raided(world: RecordsWorld) -> None:
    """Objects of its ledgers are still being looked for."""
    _buried(world)
    world.sql("UPDATE record_log SET state = 'ADOPTING'")
    with pytest.raises(CatalogAdopting):
        world.raid()


@pytest.mark.parametrize(
    "point",
    [
        f"records.{name}.{when}"
        for name in ("pin", "raid_mark", "raid_keep", "raid_remove")
        for when in ("before", "after")
    ],
)
def test_a_raid_may_die_between_any_two_effects(world: RecordsWorld, point: str) -> None:
    """The next one replaces its marks and its pin, and does the rest."""
    _buried(world)
    covering = _buried(world, flushed_before=True)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        world.raid("one")
    disarm_all_and_take_hits()
    assert set(covering) <= world.buried()
    world.raid("two")
    assert world.buried() == set(covering)
    assert world.catalog.tombstones.count_tombstones().candidates == 0


def test_reads_are_paced_and_blocks_without_candidates_are_not_read(world: RecordsWorld) -> None:
    """One pause for each block that is read, a rest behind each write; nothing is read where nothing may go."""
    for _ in range(3):
        world.create()
        world.flush()
    assert world.raid().blocks == 0
    _buried(world)
    assert world.raid().blocks == 1
    assert world.slept.count(0.001) == 1
    rests = [one for one in world.slept if one != 0.001]
    assert len(rests) == 4, "of both raids' marks, which end with an empty page, and of the removal"
    assert all(one > 0 for one in rests)


def test_flush_and_defragmentation_at_every_step_of_a_raid_bring_nothing_back(world: RecordsWorld) -> None:
    """Between any two requests another ledger is deleted durably, flushed, and the log defragmented."""
    buried = _buried(world, 2) + _buried(world, 2, flushed_before=True)
    inside, more = [False], list[LedgerId]()

    def step() -> None:
        if inside[0] or len(more) >= 12:
            return
        inside[0] = True
        one = world.create()
        world.flush()
        world.end(one, durable=True)
        more.append(one)
        world.flush() if len(more) % 2 else world.defragment()
        inside[0] = False

    with use_stop_check(step):
        done = world.raid()
    assert len(more) == 12
    assert done.removed >= 2
    world.flush()
    assert world.returning() == set()
    world.defragment()
    assert world.returning() == set()
    assert set(more) <= world.buried()
    assert not world.buried() & set(buried[:2])


def test_attempt_that_was_thought_dead_removes_nothing_that_the_next_one_has_marked(world: RecordsWorld) -> None:
    """It wakes up behind the marks of the next attempt, which has not scanned anything yet."""
    one = world.create()
    world.flush()
    world.end(one, durable=True)
    world.flush()
    world.clear(one)
    world.advance(seconds=AGE_S + 60)
    tombstones = world.catalog.tombstones
    unmark = type(tombstones).unmark_raid_candidates

    def paused(port: Tombstones, run_id: str, record_ids: Collection[TombstonedRecordId]) -> None:
        unmark(port, run_id, record_ids)
        before_us = world.catalog.records.read_state().now_us
        tombstones.mark_raid_candidates(raid_marks_name("raid", 2), before_us=before_us, after=None, limit=10)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(tombstones), "unmark_raid_candidates", paused)
        assert world.raid("raid").removed == 0
    assert world.buried() == {one}
    assert world.raider.raid_tombstones("raid", attempt=2).kept == 1
