"""Deletions that were under way when the catalog was lost and rebuilt: their payloads speak of another epoch."""

import pytest
from temporalio.client import WorkflowFailureError

from logstore.deletion.intents import DeletionState
from logstore.log.ledger_object_keys import SHARDS
from logstore.positions import LedgerId
from logstore.records.services.upload_adoption import UploadAdopter
from tests.workflows.deletion.test_batch_control import gate_at, paused
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually, failure_type_and_message
from workflows.deletion.job_definitions import DeletionPolicy

_REBUILT = (
    "UPDATE catalog SET epoch = epoch + 1",
    "UPDATE record_log SET state = 'ADOPTING', flushed_us = 1",
    "UPDATE pending_deletion SET claim_workflow = NULL, claim_run = NULL, claim_until_us = NULL",
    "DELETE FROM run",  # no record holds it
)


def _rebuild(house: WorkflowHarness) -> None:
    """As if the database had been lost, loaded from the record log and adopted, all while workflows wait."""
    for statement in _REBUILT:
        house.world.sql(statement)
    world = house.world
    adopter = UploadAdopter(
        adoption=world.catalog.adoption,
        objects=world.objects,
        buckets=lambda _: world.tiered,
        application="sexton",
        threads=2,
    )
    for shard in range(SHARDS):
        adopter.compare_and_stage_shard(shard)
    epoch = world.catalog.ledgers.catalog_epoch()
    assert adopter.settle_and_finish(rows_epoch=epoch - 1, flush=lambda: None).missing_data == 0


async def _swept(house: WorkflowHarness, ledgers: list[LedgerId], left: int) -> None:
    """What waits is nobody's, under a new workflow id, and the next sweep ends it."""
    waiting = [one for one in house.world.catalog.deletions.list_intents(None, limit=10) if not one.outcome]
    assert {(one.state, one.batch_id, one.openings) for one in waiting} == {(DeletionState.PENDING, "", 1)}
    assert len(waiting) == left
    swept = await (await house.sweep()).result()
    assert (sum(swept.outcomes.values()), swept.deleted) == (left, left)
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_batch_that_is_open_while_the_catalog_is_rebuilt_ends_as_stale(house: WorkflowHarness) -> None:
    """A chunk that was in hand may end its ledger, which nothing names; the rest is left to the next sweep."""
    ledgers = house.world.fill(4)
    house.policy = DeletionPolicy(chunk=1, parallelism=1)
    gate = gate_at(house, ledgers[1])
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        _rebuild(house)
        gate.open()
        certificate = await handle.result()
        assert certificate.outcomes.get("STALE_CATALOG", 0) >= 2
        assert [len(house.world.left_of(one)) for one in ledgers[2:]] == [3, 3]
        await _swept(house, ledgers, 3)


async def test_batch_that_is_paused_while_the_catalog_is_rebuilt_fails_and_is_swept(house: WorkflowHarness) -> None:
    """Nobody holds it back any more, for the row that said so is lost."""
    async with paused(house, 4, while_at=1) as (handle, ledgers):
        _rebuild(house)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert failure_type_and_message(caught.value)[0] == "UnknownObject"
        assert [len(house.world.left_of(one)) for one in ledgers[2:]] == [3, 3]
        await _swept(house, ledgers, 2)
