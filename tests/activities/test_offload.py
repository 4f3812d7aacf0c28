"""Offload and phase two of tiered copies, one activity at a time."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities.deletion import IntentKey
from activities.deletion.answers import key_of
from activities.offload import CandidatesInput, PublishInput, RemovePrimariesInput, UploadInput
from logstore.deletion import Outcome
from logstore.errors import UploadUnproven
from logstore.ports.catalog import OffloadAnswer
from logstore.positions import LedgerId
from tests.activities.world import BATCH, BATCH_WORKFLOW, World, chunk_input, one_input, run
from tests.fakes.objects import Fault, FaultKind, Operation

PLACE = {"bucket": "cold"}


def upload(world: World, ledger: LedgerId) -> str:
    """One attempt that succeeds; its uuid."""
    done = run(world.offload.upload, UploadInput(ledger_id=ledger, timeout_s=60))
    assert done.answer is OffloadAnswer.BEGUN
    return done.uuid


def publish(world: World, ledger: LedgerId, uuid: str) -> OffloadAnswer:
    return run(world.offload.publish, PublishInput(ledger_id=ledger, uuid=uuid))


def remove_primaries(world: World) -> int:
    request = RemovePrimariesInput(
        topic_id=world.topic.topic_id, batch_id=BATCH, batch_workflow_id=BATCH_WORKFLOW, actor="tests", reason="a test"
    )
    return run(world.offload.remove_primaries, request).intents


def open_upload(world: World) -> IntentKey:
    """The intent of an attempt that was replaced and may still be sending."""
    (ledger,) = world.fill_readable(1)
    world.catalog.offloads.begin(ledger, uuid="u-1", place=PLACE, timeout_s=2_700)
    world.catalog.offloads.begin(ledger, uuid="u-2", place=PLACE, timeout_s=2_700)
    assert world.detach().intents == 1
    return key_of(world.catalog.deletions.list(None, limit=1)[0])


def test_upload_twice_leaves_one_live_copy_and_one_intent(world: World) -> None:
    """Two attempts never touch the same object; the one that is replaced loses cleanly (temporalio/sdk-python#1048)."""
    (ledger,) = world.fill_readable(1)
    world.catalog.cursors.subscribe(world.topic.topic_id, "slow", latest=False)
    first, second = upload(world, ledger), upload(world, ledger)
    assert publish(world, ledger, first) is OffloadAnswer.BEGUN
    assert publish(world, ledger, second) is OffloadAnswer.ALREADY
    assert publish(world, ledger, second) is OffloadAnswer.ALREADY
    (intent,) = world.catalog.deletions.list(None, limit=10)
    assert intent.context == {"driver": "aws-s3", "bucket": "cold", "uuid": first}
    world.detach()
    assert run(world.deletion.delete_chunk, chunk_input()).outcomes == {"DELETED": 1}
    assert {key.partition("-ledger-")[0] for key in world.tiered.keys} == {second}


def test_upload_that_storage_does_not_prove_raises(world: World) -> None:
    """The class is what Temporal is told; a new attempt may succeed (apache/pulsar#22839)."""
    (ledger,) = world.fill_readable(1)
    world.tiered.plan(Fault(operation=Operation.PUT, kind=FaultKind.LOST))
    with pytest.raises(UploadUnproven):
        run(world.offload.upload, UploadInput(ledger_id=ledger, timeout_s=60))


def test_both_copies_of_a_ledger_are_deleted_alone(world: World) -> None:
    """Two rows; a failure of the one does not hold the other (PIP-186)."""
    (ledger,) = world.fill_readable(1)
    world.acknowledge(ledger)
    assert publish(world, ledger, upload(world, ledger)) is OffloadAnswer.ALREADY
    assert world.detach().intents == 2
    world.tiered.plan(Fault(operation=Operation.DELETE, kind=FaultKind.KEY_ERROR))
    result = run(world.deletion.delete_chunk, chunk_input())
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    assert (world.left_of(ledger), len(world.tiered.keys)) == ([], 2)
    (key,) = result.alone
    name = f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"
    assert run(world.deletion.delete_one, one_input(key), workflow_id=name).outcome is Outcome.DELETED
    assert world.tiered.keys == []


def test_removed_primary_is_deleted_and_its_ledger_stays(world: World) -> None:
    """Phase two finds that no list names this copy any more, though one names its ledger."""
    ledgers = world.fill_readable(2)
    publish(world, ledgers[0], upload(world, ledgers[0]))
    assert [remove_primaries(world), remove_primaries(world)] == [1, 1]  # the same batch
    assert run(world.deletion.delete_chunk, chunk_input()).outcomes == {"DELETED": 1}
    assert (world.left_of(ledgers[0]), len(world.left_of(ledgers[1])), len(world.tiered.keys)) == ([], 3, 2)
    listed = [one.ledger_id for one in world.catalog.ledgers.listed(world.topic.topic_id)]
    assert listed[:2] == ledgers


def test_candidates_are_paged_and_checked(world: World) -> None:
    """Reads only."""
    ledgers = world.fill_readable(3)
    page = CandidatesInput(topic_id=world.topic.topic_id, after=-1, limit=2)
    assert run(world.offload.candidates, page).ledger_ids == ledgers[:2]
    rest = CandidatesInput(
        topic_id=world.topic.topic_id, after=ledgers[1], limit=2, ledger_ids=[*map(int, ledgers)], check=True
    )
    assert run(world.offload.candidates, rest).ledger_ids == ledgers[2:]


def test_delete_under_an_open_upload_is_tried_again_no_sooner_than_its_end(world: World) -> None:
    """The wait is the upload's, not the interval of retries, and the row is held for as long."""
    key = open_upload(world)
    assert run(world.deletion.delete_chunk, chunk_input()).alone == [key]
    name = f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"
    with pytest.raises(ApplicationError) as raised:
        run(world.deletion.delete_one, one_input(key), workflow_id=name)
    assert raised.value.type == "UploadOpen"
    assert raised.value.next_retry_delay is not None
    assert timedelta(seconds=2_700) < raised.value.next_retry_delay <= timedelta(seconds=2_761)
    (row,) = world.sql("SELECT claim_until_us, last_error, attempts FROM pending_deletion")
    assert row.claim_until_us - world.catalog.offloads.now_us() > 2_700_000_000
    assert row.last_error.startswith("UploadOpen: ")
    assert world.detach(batch_id="batch-2").intents == 0  # held: no trim takes it up before its time
