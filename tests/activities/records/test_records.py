"""The activities of the record log: flush, defragment, raid and ship, over a catalog in SQLite."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from activities.deletion.claims_and_causes import CLAIM_S
from activities.records.record_upkeep import (
    FlushInput,
    FlushRecordsActivities,
    RaidInput,
    RecordPassInput,
    ReplicateRecordsActivities,
)
from logstore.errors import CatalogOutdated
from logstore.ports.catalog.deletion import Claim
from logstore.records.job_results import FlushedRecords, ShippedBlocks
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replicas import ReplicaShipments
from tests.activities.activity_world import World, make_activity_environment, run
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

_FLUSH = FlushInput()


def _bury(world: World, ledger_id: int) -> None:
    """What a durable delete leaves of a ledger, as old as can be."""
    row = "'ledger', :id, 1, 1, 'MANAGED_LEDGER', 2, 1, 1"
    world.sql(
        f"INSERT INTO tombstone (kind, id, topic_id, list_id, component, generation, epoch, at_us) VALUES ({row})",
        id=ledger_id,
    )


def test_flush_writes_what_has_changed_once(world: World) -> None:
    """The second one finds nothing, and tells the same manifest."""
    world.fill(2)
    first = run(world.activities.flushing.flush_record_log, _FLUSH)
    assert (first.manifest, first.flushes, first.left, first.held) == (1, 1, 0, False)
    assert first.records > 4
    assert first.blocks == first.named > 1
    again = run(world.activities.flushing.flush_record_log, _FLUSH)
    assert again == FlushedRecords(manifest=1, named=first.named)


def test_flush_that_watches_goes_on_until_its_time_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes meanwhile is flushed by it; all of it is told together."""
    world.fill(1)
    flushing = FlushRecordsActivities(records=world.catalog.records, flusher=world.log.records.flusher, interval_s=0.05)
    looks = []

    def rest(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            world.fill(1)
        if len(looks) == 3:
            env.worker_shutdown()

    monkeypatch.setattr("activities.records.record_upkeep.activity.wait_for_worker_shutdown_sync", rest)
    env = make_activity_environment("flush-records")
    done = env.run(flushing.flush_record_log, FlushInput(watch_s=3_600.0))
    assert (done.flushes, done.manifest) == (2, 2)
    waiting = [kind for (kind,) in world.sql("SELECT DISTINCT kind FROM record_outbox")]
    assert (waiting, done.left > 0) == (["cursor"], True), "a cursor that has just moved may move again"
    assert looks == [0.05] * 3, "a worker that ends does not wait for the rest of the hour"


def test_flush_that_watches_raises_ceilings_though_nothing_has_changed(world: World) -> None:
    """Where no id is left nothing can change, and nobody else would ever raise them."""
    world.fill(1)
    run(world.activities.flushing.flush_record_log, _FLUSH)
    world.sql("UPDATE record_log SET ledger_ceiling = (SELECT next_ledger_id FROM catalog)")
    state = world.catalog.records.read_state()
    assert (state.outbox_changes, state.ceilings.ledger) == (0, state.next_ids.ledger)
    run(world.activities.flushing.flush_record_log, FlushInput(watch_s=0.001))
    assert world.catalog.records.read_state().ceilings.ledger > state.next_ids.ledger


def test_flush_leaves_the_record_log_to_a_job_that_works_on_it(world: World) -> None:
    """It says so; what the other one flushes is none of its business. A claim that was let go is free at once."""
    world.fill(1)
    world.catalog.records.claim_record_log(Claim(workflow_id="other", run_id="r", ttl_s=CLAIM_S))
    held = run(world.activities.flushing.flush_record_log, _FLUSH, workflow_id="flush-records")
    assert (held.held, held.flushes, held.left > 0) == (True, 0, True)
    world.catalog.records.release_record_log("other")
    assert run(world.activities.flushing.flush_record_log, _FLUSH, workflow_id="flush-records").flushes == 1
    assert world.catalog.records.claim_record_log(Claim(workflow_id="other", run_id="r", ttl_s=CLAIM_S))


def test_flush_that_fails_lets_the_record_log_go(world: World) -> None:
    """The next one need not wait for the claim to lapse."""
    world.fill(1)
    run(world.activities.flushing.flush_record_log, _FLUSH)
    world.sql("UPDATE record_log SET stamp = 'older', pending = '{}'")
    world.fill(1)
    with pytest.raises(CatalogOutdated):
        run(world.activities.flushing.flush_record_log, _FLUSH, workflow_id="flush-records")
    assert world.catalog.records.claim_record_log(Claim(workflow_id="other", run_id="r", ttl_s=CLAIM_S))


def test_flush_of_now_takes_cursors_that_are_not_due(world: World) -> None:
    """A flush that watches leaves them for a minute; a person who asks waits for nothing."""
    world.fill(1)
    run(world.activities.flushing.flush_record_log, _FLUSH)
    world.acknowledge(world.fill(1)[-1], "another")
    assert run(world.activities.flushing.flush_record_log, _FLUSH).left == 0


def test_tombstone_is_raided_once_nothing_of_its_ledger_is_on_disk(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Kept while a block holds an older version; totals are logged after each raid and each defragmentation."""
    caplog.set_level(logging.INFO, logger="activities.records")
    (ledger_id,) = world.fill(1)
    run(world.activities.flushing.flush_record_log, _FLUSH)
    world.sql("DELETE FROM segment WHERE ledger_id = :id", id=ledger_id)
    world.sql("DELETE FROM ledger_copy WHERE ledger_id = :id", id=ledger_id)
    world.sql("DELETE FROM ledger WHERE ledger_id = :id", id=ledger_id)
    world.objects.delete([key for key in world.objects.keys if f"{ledger_id:016x}" in key])
    _bury(world, ledger_id)
    run(world.activities.flushing.flush_record_log, _FLUSH)
    kept = run(world.activities.raiding.mark_and_remove_tombstones, RaidInput(run_id="raid-1"))
    assert (kept.candidates, kept.kept, kept.removed) == (1, 1, 0)
    done = run(world.activities.defragmentation.defragment_and_remove_old_objects, RecordPassInput())
    assert done.rewritten > done.written > 0
    assert done.dropped >= 1
    young = run(
        world.activities.raiding.mark_and_remove_tombstones,
        RaidInput(run_id="raid-2", eligible_age_s=10.0**9 * 3),
    )
    assert (young.candidates, young.removed) == (0, 0)
    removed = run(world.activities.raiding.mark_and_remove_tombstones, RaidInput(run_id="raid-3"))
    assert (removed.candidates, removed.kept, removed.removed, removed.blocks > 0) == (1, 0, 1, True)
    assert world.catalog.tombstones.count_tombstones().by_kind == {}
    told = [one.getMessage() for one in caplog.records]
    assert any(one.startswith("raid raid-3: 1 tombstones were old enough, 1 removed, 0 kept; ") for one in told)
    assert any(one.startswith("record log defragmented: ") and "versions dropped" in one for one in told)


def _replicas(world: World, **stores: FakeObjectStore) -> ReplicateRecordsActivities:
    service = ReplicaShipments(
        world.record_objects, stores, store_now_us=lambda: world.record_objects.now_us, eligible_age_s=60
    )
    return ReplicateRecordsActivities(service)


def test_a_replica_that_fails_keeps_no_other_from_its_blocks(world: World) -> None:
    """Its error is told, and the others are brought up to date."""
    world.fill(1)
    flushed = run(world.activities.flushing.flush_record_log, _FLUSH)
    away, here = FakeObjectStore(), FakeObjectStore()
    away.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=1_000))
    lost, sent = run(_replicas(world, away=away, here=here).ship_to_all_replicas, RecordPassInput())
    assert (lost.replica, lost.manifest, lost.error.startswith("StoreUnavailable: ")) == ("away", 0, True)
    assert sent == ShippedBlocks(
        replica="here",
        manifest=1,
        blocks=flushed.blocks,
        bytes=flushed.bytes,
        records=flushed.records,
        tombstones=0,
    )
    assert RecordLog(here).read_newest_manifest() == RecordLog(world.record_objects).read_newest_manifest()


def test_without_replicas_nothing_is_shipped(world: World) -> None:
    """As the settings have it by default."""
    assert run(world.activities.replication.ship_to_all_replicas, RecordPassInput()) == []


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 3)])
def test_flushes_add_up(before: int, after: int) -> None:
    """Counts are summed; the manifest, what is left and the blocks are those of the end."""
    one = FlushedRecords(manifest=1, flushes=1, records=5, blocks=2, bytes=9, left=4, named=before)
    two = replace(one, manifest=2, left=0, held=True, named=after)
    expected: dict[str, Any] = {"flushes": 2, "records": 10, "blocks": 4, "bytes": 18, "named": 3}
    assert one.plus(two) == FlushedRecords(manifest=2, left=0, held=True, **expected)
