"""Flushes: what is in the outbox comes into a manifest once, wherever the flusher dies, and whoever else publishes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import (
    CatalogAdopting,
    CatalogMismatch,
    CatalogOutdated,
    CorruptData,
    PreconditionFailed,
    StoreUnavailable,
    UploadUnproven,
)
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.ports.catalog.records import RecordLogState
from logstore.positions import LedgerId
from logstore.records.manifest import BLOCK_PREFIX, ID_HEADROOM, MANIFEST_PREFIX, IdCeilings
from logstore.records.record_kinds import RecordKind
from logstore.records.services.flusher import CHANGES_PER_PAGE, Flusher, raise_low_ceilings
from logstore.records.services.manifest_publication import publish_manifest, read_settled_head
from logstore.records.services.record_log import RecordLog
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.records.mirror import Mirror
from tests.logstore.records.world import AGE_S, RecordsWorld

_EFFECTS = ("records.put_block", "records.begin", "records.put_manifest", "records.settle")


def test_a_flush_writes_what_changed_and_empties_the_outbox(world: RecordsWorld) -> None:
    """And the next one, with nothing to write, writes nothing."""
    first, second = world.create(), world.create()
    done = world.flush()
    assert (done.manifest, done.left) == (1, 0)
    assert done.records == sum(one.records for one in read_settled_head(world.catalog.records, world.log).blocks) > 0
    assert world.returning() == {first, second}
    keys = world.objects.keys
    again = world.flush()
    assert (again.manifest, again.blocks, again.flushes) == (1, 0, 0)
    assert world.objects.keys == keys


def test_an_empty_catalog_has_a_manifest_at_once(world: RecordsWorld) -> None:
    """Without one, a catalog that is lost could not be told from one that never was."""
    world.sql("DELETE FROM record_outbox")
    assert world.flush().manifest == 1
    manifest = world.log.read_newest_manifest()
    assert manifest is not None
    assert (manifest.blocks, manifest.catalog_id) == ((), world.catalog.identities.catalog_id())


def test_versions_are_the_number_of_their_manifest(world: RecordsWorld) -> None:
    """So two transactions that changed parts of a record at once cannot be flushed in the wrong order."""
    ledger_id = world.create()
    world.flush()
    world.touch(ledger_id)
    world.flush()
    (row,) = world.winners().to_pylist()
    assert (row["id"], row["version"], row["generation"]) == (ledger_id, 2, 1)


def test_a_late_outbox_row_of_a_lower_number_wins_all_the_same(world: RecordsWorld) -> None:
    """On PostgreSQL a transaction may take its number first and commit last: what it did counts."""
    ledger_id = world.create()
    world.flush()
    world.touch(ledger_id)
    world.sql("UPDATE record_outbox SET version = 0")
    world.flush()
    (row,) = world.winners().to_pylist()
    assert row["generation"] == 1


@pytest.mark.parametrize("point", [f"{name}.{when}" for name in _EFFECTS for when in ("before", "after")])
def test_a_flusher_may_die_between_any_two_effects(world: RecordsWorld, point: str) -> None:
    """The next one finishes: nothing is missing, and nothing is written over and over."""
    world.create()
    world.flush()
    kept = world.create()
    buried = world.create()
    world.end(buried, durable=True)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    world.flush()
    state = world.catalog.records.read_state()
    assert (state.outbox_changes, state.pending_stamps) == (0, frozenset())
    assert kept in world.returning()
    assert buried not in world.returning()
    assert world.on_disk([buried])[buried][-1] is True
    assert world.flush().blocks == 0


def test_a_manifest_whose_put_lands_late_is_known_by_its_stamp(world: RecordsWorld) -> None:
    """Others have begun since; the one that lands is one of several that are pending."""
    world.create()
    late: list[tuple[str, bytes]] = []
    put = world.objects.put_if_absent

    def lose(key: str, body: bytes, **facts: Any) -> None:
        if key.startswith(MANIFEST_PREFIX) and not late:
            late.append((key, body))
            raise StoreUnavailable("no answer")
        put(key, body, **facts)

    world.objects.put_if_absent = lose  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        world.flush()
    world.create()
    arm("records.put_manifest.before", "crash")
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    put(*late[0], metadata={})
    assert len(world.catalog.records.read_state().pending_stamps) == 2
    assert world.flush().manifest == 2
    assert world.returning() == world.standing()
    assert world.catalog.records.read_state().pending_stamps == frozenset()


@pytest.mark.parametrize("lost", [MANIFEST_PREFIX, BLOCK_PREFIX], ids=["manifest", "block"])
def test_flush_whose_upload_was_answered_and_not_stored_is_repeated(world: RecordsWorld, lost: str) -> None:
    """The outbox keeps its rows until a HEAD shows the manifest and its blocks (apache/pulsar#22839)."""
    world.create()
    upload_lost = Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST, matches=lambda key: key.startswith(lost))
    world.objects.plan(upload_lost)
    with pytest.raises(UploadUnproven, match="not there"):
        world.flush()
    assert world.catalog.records.read_state().outbox_changes > 0
    assert world.flush().manifest == 1
    assert world.returning() == world.standing()
    assert world.catalog.records.read_state().outbox_changes == 0


def test_of_two_flushers_at_once_both_come_to_an_end(world: RecordsWorld) -> None:
    """The one that comes second reads the catalog again: its blocks would show an older moment."""
    first = world.create()
    world.flush()
    world.touch(first)

    def overtake() -> None:
        world.end(first, durable=True)
        world.flush()

    slow = Fault(
        operation=StoreOperation.PUT, kind=FaultKind.CALL, action=overtake, matches=lambda key: MANIFEST_PREFIX in key
    )
    world.objects.plan(slow)
    done = world.flush()
    assert done.manifest == 2
    assert world.returning() == set()
    assert world.catalog.records.read_state().outbox_changes == 0


def test_a_manifest_that_another_process_settles_meanwhile_is_no_foreign_one(world: RecordsWorld) -> None:
    """Its stamp was committed after the state was read: the state is read again."""
    world.create()
    world.flush()

    def overtake() -> None:
        world.create()
        world.flush()

    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=overtake))
    found = read_settled_head(world.catalog.records, RecordLog(world.objects))
    assert (found.number, found.state.manifest) == (2, 2)


def test_a_catalog_that_does_not_know_the_newest_manifest_is_refused(world: RecordsWorld) -> None:
    """A database restored from a backup would write over what came since."""
    world.create()
    world.flush()
    rows = {name: getattr(world.sql("SELECT * FROM record_log")[0], name) for name in ("manifest", "stamp")}
    world.create()
    world.flush()
    world.sql("UPDATE record_log SET manifest = :manifest, stamp = :stamp", **rows)
    keys = world.objects.keys
    with pytest.raises(CatalogOutdated, match="000000000002"):
        world.flush()
    assert world.objects.keys == keys


def test_a_bucket_that_lost_its_manifests_or_is_anothers_is_refused(world: RecordsWorld) -> None:
    """The catalog knows that there was one, and of which catalog it is."""
    world.create()
    world.flush()
    manifest = world.log.read_newest_manifest()
    assert manifest
    world.objects.delete([manifest.key])
    with pytest.raises(CatalogMismatch, match="expected manifest 1 or a newer one, found none"):
        world.flush()
    world.log.put_manifest(replace(manifest, catalog_id="another"))
    with pytest.raises(CatalogMismatch, match="found catalog another"):
        world.flush()


@pytest.mark.parametrize("skew_s", [-300, 300])
def test_clocks_that_moved_by_five_minutes_change_no_order(world: RecordsWorld, skew_s: int) -> None:
    """Versions are ordered by their manifests: what came last counts, and what was deleted durably stays deleted.

    Source: Jepsen's analysis of Aerospike 3.99.0.3, where skew and pauses over 27 s lose updates.
    """
    changed, buried = world.create(), world.create()
    world.offset_us = skew_s * 1_000_000
    world.touch(changed)
    world.flush()
    world.offset_us = -skew_s * 1_000_000
    world.touch(changed)
    world.end(buried, durable=True)
    world.flush()
    assert {row["id"]: row["generation"] for row in world.winners().to_pylist() if not row["tombstone"]} == {changed: 2}
    assert world.returning() == world.standing() == {changed}
    world.offset_us = skew_s * 1_000_000
    world.defragment()
    world.raid()
    assert world.returning() == {changed}
    assert world.buried() == {buried}, "it is not older than the eligible age by any of these clocks"


@pytest.mark.parametrize("skew_s", [-700, 700])
def test_a_writer_whose_clock_is_off_is_refused_before_it_publishes(world: RecordsWorld, skew_s: int) -> None:
    """Both times are named; once the clocks agree, the flush goes through."""
    world.create()
    world.offset_us = skew_s * 1_000_000
    with pytest.raises(PreconditionFailed, match="clock: expected the catalog's and the store's within 600 s"):
        world.flush()
    assert world.log.read_newest_manifest() is None
    world.offset_us //= 2
    assert world.flush().manifest == 1


def test_ceilings_are_raised_in_the_manifest_first(world: RecordsWorld) -> None:
    """A flusher that dies between leaves a catalog that gives out fewer ids than it might, never more."""
    world.create()
    world.flush()
    world.start_ids_at(LedgerId(ID_HEADROOM - 10))
    arm("records.settle.before", "crash")
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    manifest = world.log.read_newest_manifest()
    assert manifest
    assert manifest.ceilings.ledger == 2 * ID_HEADROOM - 10
    assert world.catalog.records.read_state().ceilings.ledger < 2 * ID_HEADROOM - 10
    world.flush()
    assert world.catalog.records.read_state().ceilings.ledger == 2 * ID_HEADROOM - 10


def test_next_ids_of_a_manifest_are_those_of_the_moment_that_it_shows(world: RecordsWorld) -> None:
    """Ids that are given out behind that moment are not in the blocks: pages and defragmentations do not raise it."""
    first = world.create()
    world.flush()
    world.touch(first)
    world.flush()
    younger = [world.create() for _ in range(6)]
    world.page = 4
    _die_between_pages(world)
    world.defragment()
    manifests = [
        manifest for number in world.log.list_manifest_numbers() if (manifest := world.log.read_manifest(number))
    ]
    assert len(manifests) > 3
    assert {manifest.next_ids and manifest.next_ids.ledger for manifest in manifests} == {first + 1}
    world.flush()
    newest = world.log.read_newest_manifest()
    assert newest
    assert newest.next_ids
    assert newest.next_ids.ledger == max(younger) + 1


def test_ceilings_stay_while_half_of_the_ids_is_left() -> None:
    """Else each flush would write a manifest for them."""
    at = IdCeilings(ledger=ID_HEADROOM, topic=ID_HEADROOM, transaction=ID_HEADROOM)
    assert raise_low_ceilings(at, IdCeilings(ledger=ID_HEADROOM // 2, topic=0, transaction=1)) == at
    found = raise_low_ceilings(at, IdCeilings(ledger=ID_HEADROOM // 2 + 1, topic=0, transaction=5 * ID_HEADROOM))
    assert found == IdCeilings(
        ledger=ID_HEADROOM // 2 + 1 + ID_HEADROOM, topic=ID_HEADROOM, transaction=6 * ID_HEADROOM
    )


def test_cursors_wait_for_their_interval_or_for_a_request(world: RecordsWorld) -> None:
    """They change with every acknowledgement; with nothing else to write, no manifest is put for them."""
    world.create()
    world.flush()
    world.catalog.cursors.create_subscription(world.topic_id, "mine", latest=False)
    world.flush()
    world.sql("UPDATE cursor SET seeks = 1")
    hurried = world.flusher.flush()
    assert (hurried.manifest, hurried.flushes, hurried.left) == (2, 0, 1)
    world.sql("UPDATE record_outbox SET at_us = :us", us=world.objects.now_us - 61_000_000)
    assert world.flusher.flush().records == 1
    assert world.winners(RecordKind.CURSOR).num_rows == 1


def test_progress_tells_versions_written(world: RecordsWorld) -> None:
    """For the heartbeat of whoever runs it."""
    told: list[int] = []
    world.create()
    done = Flusher(world.catalog.records, world.log, clock_bound_s=60).flush(progress=told.append)
    assert told == sorted(told)
    assert told[-1] == done.records


def test_flush_reads_the_state_of_the_catalog_before_and_after(
    world: RecordsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone durable delete waits for it; a third look is needed only where the clocks seem to differ."""
    world.create()
    records, read = world.catalog.records, 0
    state = records.read_state

    def counted() -> RecordLogState:
        nonlocal read
        read += 1
        return state()

    monkeypatch.setattr(records, "read_state", counted)
    Flusher(records, RecordLog(world.objects), clock_bound_s=600).flush()
    assert read == 2


def test_many_changes_are_flushed_page_by_page(world: RecordsWorld) -> None:
    """A manifest for each page; a rebuild between two finds what the flush before had left, and nothing else."""
    kept, gone = world.create(), world.create()
    world.flush()
    world.page = 4
    world.end(gone, durable=True)
    more = [world.create() for _ in range(6)]
    seen: list[set[int]] = []
    deletes: list[frozenset[int]] = []

    def look() -> None:
        seen.append(world.returning())
        deletes.append(world.catalog.records.find_unflushed_ledgers([gone]))

    looks = Fault(
        operation=StoreOperation.PUT,
        kind=FaultKind.CALL,
        action=look,
        matches=lambda key: MANIFEST_PREFIX in key,
        times=50,
    )
    world.objects.plan(looks)
    told: list[int] = []
    changes = world.catalog.records.read_state().outbox_changes
    done = world.flusher.flush(cursors=True, progress=told.append)
    assert len(seen) == done.manifest - 1 == changes // 4 >= 3
    assert seen == [{kept, gone}] * len(seen)
    assert deletes == [{gone}] * len(seen), "its objects stay until a manifest that shows a moment names its tombstone"
    assert told == sorted(told)
    assert (told[-1], done.flushes, done.left) == (done.records, 1, 0)
    assert world.returning() == world.standing() == {kept, *more}
    assert [_shows(world, number) for number in range(1, done.manifest + 1)] == [1] * (done.manifest - 1) + [
        done.manifest
    ]
    assert (world.catalog.records.read_state().staged_blocks, world.catalog.records.find_unflushed_ledgers([gone])) == (
        (),
        frozenset(),
    )
    assert world.flush().blocks == 0


def _shows(world: RecordsWorld, number: int) -> int:
    manifest = world.log.read_manifest(number)
    assert manifest is not None
    return manifest.moment_number


def _die_between_pages(world: RecordsWorld, nth: int = 2) -> None:
    """A flush that dies once it has staged some pages."""
    arm("records.begin.before", "crash", nth=nth)
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    assert world.catalog.records.read_state().staged_blocks


@pytest.mark.parametrize("point", [f"{name}.{when}" for name in _EFFECTS for when in ("before", "after")])
@pytest.mark.parametrize("nth", [2, 4])
def test_a_flush_may_die_in_any_page(world: RecordsWorld, point: str, nth: int) -> None:
    """The next one goes on behind the pages that are staged, and does the one in hand again."""
    changed, buried = world.create(), world.create()
    world.flush()
    world.page = 3
    world.end(buried, durable=True)
    others = {world.create() for _ in range(4)}
    arm(point, "crash", nth=nth)
    with pytest.raises(SimulatedCrash):
        world.flush()
    disarm_all_and_take_hits()
    world.touch(changed)
    world.flush()
    state = world.catalog.records.read_state()
    assert (state.outbox_changes, state.pending_stamps, state.staged_blocks) == (0, frozenset(), ())
    assert world.returning() == world.standing() == {changed, *others}
    assert world.on_disk([buried])[buried][-1] is True
    assert {row["id"]: row["generation"] for row in world.winners().to_pylist()}[changed] == 1
    world.defragment()
    assert world.returning() == {changed, *others}


def test_pages_end_though_more_comes_than_they_take(world: RecordsWorld) -> None:
    """The last one takes whatever is left."""
    world.page = 2
    for _ in range(4):
        world.create()
    pages = world.catalog.records.read_state().outbox_changes // 2

    def append() -> None:
        world.create()

    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.CALL,
            action=append,
            matches=lambda key: MANIFEST_PREFIX in key,
            times=100,
        )
    )
    done = world.flush()
    assert done.manifest == pages
    assert done.left > 0, "what came while the last manifest was put"


def test_what_is_staged_outlives_sweeps_however_old_it_is(world: RecordsWorld) -> None:
    """A flush that died may be taken up days later; manifests of others in between make its blocks no older."""
    ledgers = {world.create() for _ in range(3)}
    world.page = 2
    _die_between_pages(world)
    staged = {one.key for one in world.catalog.records.read_state().staged_blocks}
    world.advance(seconds=3 * AGE_S)
    found = read_settled_head(world.catalog.records, world.log)
    assert publish_manifest(
        world.catalog.records,
        world.log,
        found,
        blocks=found.blocks,
        ceilings=found.state.ceilings,
        flushed_us=0,
        next_ids=None,
    )
    world.sweep()
    assert staged <= set(world.objects.keys)
    world.flush()
    assert world.returning() == ledgers
    assert staged & {one.key for one in read_settled_head(world.catalog.records, world.log).blocks} == staged


def test_cursors_go_with_the_end_of_a_flush_of_pages(world: RecordsWorld) -> None:
    """An intent, or a commit, that is in a page may rest on a cursor that is not due."""
    world.create()
    world.flush()
    world.catalog.cursors.create_subscription(world.topic_id, "mine", latest=False)
    world.page = 2
    for _ in range(3):
        world.create()
    assert world.flusher.flush().left == 0
    assert world.winners(RecordKind.CURSOR).num_rows == 1


def test_rewrite_drops_what_is_staged(world: RecordsWorld) -> None:
    """It may be of records that ended since, and is older than what the rewrite holds."""
    gone = world.create()
    kept = world.create()
    world.page = 2
    _die_between_pages(world)
    world.end(gone, durable=False)
    world.page = CHANGES_PER_PAGE
    world.flusher.rewrite_all_records()
    assert world.catalog.records.read_state().staged_blocks == ()
    assert world.returning() == {kept}


def test_replica_and_raid_take_a_page_for_the_moment_that_it_shows(world: RecordsWorld, tmp_path: Path) -> None:
    """Versions of a page have its number, and come with a later manifest: one that had it would pass them over."""
    mirror = Mirror(world, tmp_path)
    try:
        first = world.create()
        world.flush()
        mirror.step()
        world.page = 2
        later = [world.create() for _ in range(3)]
        _die_between_pages(world)
        assert mirror.step().steps == 0
        assert [one.manifest for one in world.log.list_lowest_acknowledgements()] == [1]
        assert world.log.pin_newest_complete_manifest("raid", 1, "raid").number == 1  # type: ignore[union-attr]
        world.flush()
        mirror.step()
        assert mirror.ledgers == {first, *later}
    finally:
        mirror.close()


def _damaged(world: RecordsWorld) -> None:
    """A record log whose newest manifest cannot be read, and a block of which is gone."""
    newest = world.log.read_newest_manifest()
    assert newest is not None
    world.objects.delete([newest.key, newest.blocks[0].key])
    world.objects.put_if_absent(newest.key, newest.to_json()[:50], metadata={})


def test_damaged_log_is_written_anew_from_the_catalog(world: RecordsWorld) -> None:
    """With its tombstones; nothing of what it held before is needed."""
    kept, buried, plain = world.create(), world.create(), world.create()
    world.flush()
    world.end(buried, durable=True)
    world.end(plain, durable=False)
    world.flush()
    before = world.winners().num_rows
    _damaged(world)
    with pytest.raises(CorruptData, match="expected a manifest"):
        world.flush()
    done = world.flusher.rewrite_all_records()
    assert (done.manifest, done.left, done.tombstones, before) == (3, 0, 1, 3)
    assert world.returning() == world.standing() == {kept}
    assert world.on_disk([buried, plain]) == {buried: [True], plain: []}
    world.end(kept, durable=True)
    assert world.flush().manifest == 4
    assert world.returning() == set()
    world.clear(kept, buried)
    world.defragment()
    world.advance(seconds=2 * AGE_S)
    assert world.raid().removed == 2


def test_emptied_bucket_is_written_anew(world: RecordsWorld) -> None:
    """The number of a manifest is never used again."""
    kept = world.create()
    world.flush()
    world.objects.delete(world.objects.keys)
    with pytest.raises(CatalogMismatch, match="write all of it anew: sexton records rewrite"):
        world.flush()
    assert world.flusher.rewrite_all_records().manifest == 2
    assert world.returning() == {kept}


def test_rewrite_that_a_flush_overtakes_begins_anew(world: RecordsWorld) -> None:
    """That flush takes the changes which the rewrite has just recorded."""
    kept = world.create()
    world.flush()
    records = world.catalog.records
    record_all, overtaken = records.requeue_all_records, 0

    def recorded_and_flushed() -> None:
        nonlocal overtaken
        record_all()
        if not overtaken:
            overtaken = world.flush().manifest

    records.requeue_all_records = recorded_and_flushed  # type: ignore[method-assign]
    assert (world.flusher.rewrite_all_records().manifest, overtaken) == (3, 2)
    newest = world.log.read_newest_manifest()
    assert newest is not None
    assert {one.kind for one in newest.blocks} > {RecordKind.LEDGER, RecordKind.SEGMENT}
    assert world.returning() == {kept}


@pytest.mark.parametrize("is_damaged", [True, False])
def test_rewrite_of_a_catalog_that_is_not_complete_is_refused(world: RecordsWorld, *, is_damaged: bool) -> None:
    """It lacks what the log names and adoption has not taken in yet: a log of its rows alone would lose that."""
    world.create()
    world.flush()
    if is_damaged:
        _damaged(world)
    world.sql("UPDATE record_log SET state = 'ADOPTING'")
    stored = set(world.objects.keys)
    with pytest.raises(CatalogAdopting, match="expected a catalog that is complete"):
        world.flusher.rewrite_all_records()
    state = world.catalog.records.read_state()
    assert (set(world.objects.keys), state.outbox_changes, state.pending_stamps) == (stored, 0, frozenset())


@pytest.mark.parametrize("point", [f"{name}.{when}" for name in _EFFECTS for when in ("before", "after")])
def test_rewrite_may_die_between_any_two_effects(world: RecordsWorld, point: str) -> None:
    """The next one comes to the same."""
    kept, buried = world.create(), world.create()
    world.flush()
    world.end(buried, durable=True)
    world.flush()
    _damaged(world)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        world.flusher.rewrite_all_records()
    disarm_all_and_take_hits()
    world.flusher.rewrite_all_records()
    assert world.returning() == {kept}
    assert world.on_disk([buried]) == {buried: [True]}
    assert world.catalog.records.read_state().outbox_changes == 0


def test_rewrite_of_a_log_that_is_newer_than_the_catalog_is_refused(world: RecordsWorld) -> None:
    """A database that was restored would else put its old state in the place of what the log knows."""
    world.create()
    world.flush()
    world.create()
    world.flush()
    world.sql("UPDATE record_log SET manifest = 1, stamp = 'old', pending = '{}'")
    with pytest.raises(CatalogOutdated):
        world.flusher.rewrite_all_records()
