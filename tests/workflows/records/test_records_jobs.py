"""Jobs on the record log: flushed once or for ever, one of each at a time, and what guards refuse."""

from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowHandle

from activities.records.record_upkeep import FlushInput
from logstore.ports.catalog.deletion import Claim
from logstore.records.job_results import FlushedRecords, ReplicaAwaitedByRaid
from logstore.records.services.record_log import RecordLog
from tests.fakes.object_store import StoreOperation
from tests.workflows.records.verbs import (
    defragment,
    flush_for_ever,
    flush_now,
    gate_at,
    older_than_its_record_log,
    raid,
    replicate,
    sweep,
)
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually, query_current_details
from workflows.records.flush_records import FlushRecords
from workflows.records.job_definitions import (
    DEFRAGMENT_RECORDS,
    FLUSH_RECORDS,
    RAID_TOMBSTONES,
    DefragmentRecordsResult,
    FlushRecordsResult,
    RaidTombstonesResult,
)


async def _looked(handle: WorkflowHandle[Any, Any], looks: int) -> FlushRecordsResult:
    """Its progress once it has looked so often."""
    found: list[FlushRecordsResult] = []

    async def done() -> bool:
        found.append(await handle.query(FlushRecords.progress))
        return found[-1].looks >= looks

    await assert_eventually(done)
    return found[-1]


async def test_flush_of_now_ends_with_what_it_wrote(house: WorkflowHarness) -> None:
    """Its details tell records, blocks and the manifest."""
    house.world.fill(2)
    async with house.worker():
        handle = await flush_now(house)
        result = await handle.result()
        told = await query_current_details(handle)
    assert (result.done.manifest, result.done.flushes, result.looks, result.refused) == (1, 1, 1, None)
    assert f"{result.done.records:,} records in {result.done.blocks:,} blocks" in told
    assert "the newest is **1**" in told


async def test_flush_that_is_joined_flushes_once_more(house: WorkflowHarness) -> None:
    """What changed after it had read the catalog is in the next manifest, and not only there one day."""
    house.world.fill(1)
    gate = gate_at(house, StoreOperation.PUT)
    async with house.worker():
        handle = await flush_now(house)
        await assert_eventually(gate.reached.is_set)
        house.world.fill(1)
        joined = await flush_now(house)
        gate.open()
        result = await joined.result()
    assert joined.id == handle.id
    assert (result.done.flushes, result.done.left) == (2, 0)
    assert house.world.catalog.records.read_state().outbox_changes == 0


async def test_flush_for_ever_flushes_each_time_that_it_is_woken(house: WorkflowHarness) -> None:
    """And goes on where another worker takes it up."""
    house.world.fill(1)
    async with house.worker():
        handle = await flush_for_ever(house)
        await _looked(handle, 1)
    house.world.fill(1)
    await handle.signal(FlushRecords.wake)
    async with house.worker():
        found = await _looked(handle, 2)
    assert (found.done.flushes, found.done.manifest) == (2, 2)
    await handle.terminate()


async def test_flush_waits_while_another_job_is_at_work_on_the_record_log(house: WorkflowHarness) -> None:
    """As long as a claim outlives the job that had it, and some seconds more."""
    house.world.fill(1)
    records = house.world.catalog.records
    records.claim_record_log(Claim(workflow_id="other", run_id="r", ttl_s=10**6))
    async with house.worker():
        handle = await flush_now(house)
        await assert_eventually(lambda: len(house.attempts("records.flush")) >= 3)
        records.release_record_log("other")
        assert (await handle.result()).done.flushes == 1
        records.claim_record_log(Claim(workflow_id="other", run_id="r", ttl_s=10**6))
        house.world.fill(1)
        result = await (await flush_now(house)).result()
    assert (result.done.held, result.done.flushes) == (True, 0)
    assert "another job" not in (result.refused.message if result.refused else "")


@pytest.mark.parametrize("start", [flush_now, flush_for_ever, defragment, raid])
async def test_catalog_that_is_older_than_its_record_log_is_refused_as_a_result(
    house: WorkflowHarness, start: Any
) -> None:
    """Nothing fails in the Web UI, and the details say why."""
    house.world.fill(1)
    async with house.worker():
        await (await flush_now(house)).result()
        older_than_its_record_log(house)
        house.world.fill(1)
        handle = await start(house)
        result = await handle.result()
        told = await query_current_details(handle)
    assert result.refused.type == "CatalogOutdated"
    assert told.startswith("**Refused**")


async def test_sweep_starts_the_flush_that_goes_on_for_ever_unless_it_runs(house: WorkflowHarness) -> None:
    """Whatever had ended it."""
    house.world.fill(1)
    async with house.worker():
        assert (await (await sweep(house)).result()).started == [FLUSH_RECORDS.id()]
        handle = house.client.get_workflow_handle(FLUSH_RECORDS.id())
        await _looked(handle, 1)
        assert (await (await sweep(house)).result()).started == []
        await handle.terminate()
        assert (await (await sweep(house)).result()).started == [FLUSH_RECORDS.id()]
        await house.client.get_workflow_handle(FLUSH_RECORDS.id()).terminate()


@pytest.mark.parametrize(("start", "at_work"), [(raid, RAID_TOMBSTONES.id()), (defragment, DEFRAGMENT_RECORDS.id())])
async def test_run_of_a_schedule_leaves_the_work_to_the_one_that_is_at_it(
    house: WorkflowHarness, start: Any, at_work: str
) -> None:
    """Of each job one run is at work; alone, the run of a schedule tells what its child came to."""
    house.world.fill(1)
    async with house.worker():
        await (await flush_now(house)).result()
        house.world.fill(1)
        await (await flush_now(house)).result()
        gate = gate_at(house, StoreOperation.GET if start is defragment else StoreOperation.PUT)
        mine = await start(house)
        await assert_eventually(gate.reached.is_set)
        scheduled = await (await start(house, scheduled=True)).result()
        gate.open()
        done = await mine.result()
        alone = await (await start(house, scheduled=True)).result()
    assert mine.id == at_work
    assert (scheduled.joined, done.joined, alone.joined) == (True, False, False)
    if isinstance(done, DefragmentRecordsResult):
        assert done.done.manifest > 0
    else:
        assert isinstance(done, RaidTombstonesResult)
        assert done.run_id != alone.run_id


async def test_many_blocks_are_joined_before_their_schedule_is_due(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each manifest names all of them."""
    named = iter((10, 1_009, 1_010, 1_011))

    @activity.defn(name="records.flush")
    def flush(request: FlushInput) -> FlushedRecords:
        del request
        return FlushedRecords(manifest=1, named=next(named))

    async with house.worker(replacements=[flush]):
        handle = await flush_for_ever(house)
        await _looked(handle, 1)
        await handle.signal(FlushRecords.wake)
        await _looked(handle, 2)
        assert house.attempts("records.defragment") == []
        await handle.signal(FlushRecords.wake)
        await assert_eventually(lambda: len(house.attempts("records.defragment")) == 1)
        await handle.signal(FlushRecords.wake)
        await _looked(handle, 4)
        await handle.terminate()
    assert len(house.attempts("records.defragment")) == 1


async def test_raid_that_a_replica_holds_up_names_it_in_result_and_details(house: WorkflowHarness) -> None:
    """The log alone did, which the person who started the raid does not read."""
    row = "'ledger', 5, 1, 1, 'MANAGED_LEDGER', 2, 1, 1"
    house.world.sql(
        f"INSERT INTO tombstone (kind, id, topic_id, list_id, component, generation, epoch, at_us) VALUES ({row})"
    )
    now_us = house.world.record_objects.now_us
    RecordLog(house.world.record_objects).acknowledge_manifest("mirror", 0, 1, now_us)
    async with house.worker():
        await (await flush_now(house)).result()
        handle = await raid(house, eligible_age_s=0.0)
        result = await handle.result()
        told = await query_current_details(handle)
    assert result.done.held_by == [ReplicaAwaitedByRaid(replica="mirror", manifest=0, tombstones=1)]
    assert "replica **mirror** lacks 1 of them: it has applied manifest 0" in told


async def test_replicas_are_told_in_the_details(house: WorkflowHarness) -> None:
    """Without one, the setting is named."""
    async with house.worker():
        handle = await replicate(house)
        assert (await handle.result()).shipped == []
        assert "replica_buckets" in await query_current_details(handle)
