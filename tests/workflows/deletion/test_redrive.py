"""Dead letters tried again, from the client's call to the end of their batch."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from logstore import failpoints
from logstore.deletion.intents import DeletionState
from logstore.errors import PreconditionFailed
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from tests.workflows.workflow_harness import WorkflowHarness
from workers.client import Sexton
from workers.settings import Settings


def sexton(house: WorkflowHarness, home: Path) -> Sexton:
    """The client of a program over the house's catalog and queue."""
    url = house.world.catalog.database.engine.url.render_as_string(hide_password=False)
    made = Sexton(house.client, Settings(home=home, database_url=url, task_queue=house.queue))
    made._is_verified = True  # the house has no S3, and its namespace serves many catalogs
    return made


async def dead_letters(house: WorkflowHarness, count: int) -> list[LedgerId]:
    """Ledgers that somebody squats in, refused, each with a failed workflow of its own."""
    ledgers = house.world.fill(count)
    for ledger in ledgers:
        house.world.objects.put_if_absent(f"{ledger_prefix(ledger)}theirs.txt", b"theirs", metadata={})
    await (await house.delete(ledgers)).result()
    for ledger in ledgers:
        with pytest.raises(WorkflowFailureError):
            await house.alone(house.world.key(ledger)).result()
    return ledgers


def mend(house: WorkflowHarness, *ledgers: LedgerId) -> None:
    """Take away what was in the way."""
    house.world.objects.delete([f"{ledger_prefix(ledger)}theirs.txt" for ledger in ledgers])


async def test_redrive_after_storage_was_mended_deletes_and_leaves_no_dead_letter(
    house: WorkflowHarness, tmp_path: Path
) -> None:
    """An exhausted intent can be driven again and then goes (PIP-186, back-off)."""
    async with house.worker():
        ledgers = await dead_letters(house, 3)
        mend(house, *ledgers)
        found = await sexton(house, tmp_path).redrive_dead_letters(None, "mended", "tests")
        assert found.handle
        certificate = await found.handle.result()
    assert (found.started, certificate.outcomes) == (3, {"DELETED": 3})
    assert house.world.catalog.deletions.count_undeleted_copies().dead_lettered == 0
    assert not any(house.world.left_of(one) for one in ledgers)
    assert house.world.sql("SELECT actor, reason FROM audit WHERE act = 'redrive'") == [("tests", "mended")]


@pytest.mark.external_service
async def test_redrive_of_what_is_not_mended_fails_alone_once_more(house: WorkflowHarness, tmp_path: Path) -> None:
    """The id of a failed `delete-ledger` is free again: the dead letter is seen as failed, and listed."""
    async with house.worker():
        (ledger,) = await dead_letters(house, 1)
        (row,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
        before = await house.alone(house.world.key(ledger)).describe()
        found = await sexton(house, tmp_path).redrive_dead_letters([row.row_id])
        assert found.handle
        assert (await found.handle.result()).outcomes == {"METADATA_MISMATCH": 1}
        with pytest.raises(WorkflowFailureError):
            await house.alone(house.world.key(ledger)).result()
        after = await house.alone(house.world.key(ledger)).describe()
    assert after.run_id != before.run_id
    assert after.status is WorkflowExecutionStatus.FAILED
    assert after.search_attributes["SextonTopic"] == [house.world.topic.name]


async def test_redrive_refused_starts_nothing(house: WorkflowHarness, tmp_path: Path) -> None:
    """All or nothing, before anything changes."""
    async with house.worker():
        (ledger,) = await dead_letters(house, 1)
        mend(house, ledger)
        (row,) = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
        ids = [row.row_id, 999, *await _gone(house)]
        with pytest.raises(PreconditionFailed, match="DELETED, 999 unknown"):
            await sexton(house, tmp_path).redrive_dead_letters(ids)
    assert house.world.catalog.deletions.count_undeleted_copies().dead_lettered == 1


async def _gone(house: WorkflowHarness) -> list[int]:
    """A row that is deleted."""
    ledgers = house.world.fill(1)
    await (await house.delete(ledgers)).result()
    return [one.row_id for one in house.world.catalog.deletions.list_intents(DeletionState.DELETED, limit=9)]


async def test_redrive_of_none_starts_nothing(house: WorkflowHarness, tmp_path: Path) -> None:
    """No dead letters, no batch."""
    found = await sexton(house, tmp_path).redrive_dead_letters(None)
    assert (found.started, found.handle) == (0, None)


async def test_redrive_whose_client_dies_before_the_start_is_finished_by_a_sweep(
    house: WorkflowHarness, tmp_path: Path
) -> None:
    """Between the transaction and the start the rows are nobody's, and then the sweep's (promise 8)."""
    async with house.worker():
        ledgers = await dead_letters(house, 2)
        mend(house, *ledgers)
        failpoints.arm("catalog.redrive.after", "crash")
        with pytest.raises(failpoints.SimulatedCrash):
            await sexton(house, tmp_path).redrive_dead_letters(None)
        failpoints.disarm_all_and_take_hits()
        assert house.world.catalog.deletions.count_undeleted_copies().estimated_inflight == 2
        house.world.sql("UPDATE run SET claim_until_us = 1 WHERE finished_us IS NULL")
        assert (await (await house.sweep()).result()).outcomes == {"DELETED": 2}
    assert not any(house.world.left_of(one) for one in ledgers)
