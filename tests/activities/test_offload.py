"""Offload and phase two of tiered copies, one activity at a time."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.deletion.phase_two_steps import intent_key
from activities.offload import (
    DetachPrimariesInput,
    DetachPrimariesResult,
    LedgersToOffloadInput,
    PublishCopyInput,
    UploadCopyInput,
)
from logstore.deletion.intents import IntentKey, Outcome
from logstore.errors import InvalidInput, UnknownObject, UploadUnproven
from logstore.offload.tiered_copy import data_key, index_key
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.offload import OffloadStartOutcome
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from tests.activities.activity_world import (
    BATCH_ID,
    BATCH_WORKFLOW_ID,
    World,
    make_chunk_input,
    make_delete_intent_input,
    run,
    run_owner_routed_activity,
)
from tests.fakes.object_store import Fault, FaultKind, StoreOperation

METADATA = {"bucket": "cold"}
CAUSE = AuditCause(actor="tests", reason="a test", workflow_id="delete-topic/1")
CLAIM = Claim(workflow_id="delete-ledgers/all", run_id="1", ttl_s=60)


def upload(world: World, ledger: LedgerId) -> str:
    """One attempt that succeeds; its uuid."""
    run_owner_routed_activity = run(
        world.offload.upload_and_prove_copy, UploadCopyInput(ledger_id=ledger, timeout_s=60)
    )
    assert run_owner_routed_activity.answer is OffloadStartOutcome.BEGUN
    return run_owner_routed_activity.uuid


def publish(world: World, ledger: LedgerId, uuid: str) -> OffloadStartOutcome:
    return run(world.offload.publish_copy, PublishCopyInput(ledger_id=ledger, uuid=uuid))


def removal_input(world: World, **more: Any) -> DetachPrimariesInput:
    fixed: dict[str, Any] = {
        "batch_id": BATCH_ID,
        "batch_workflow_id": BATCH_WORKFLOW_ID,
        "actor": "tests",
        "reason": "a test",
    }
    return DetachPrimariesInput(topic_id=world.topic.topic_id, **(fixed | more))


def remove_page(world: World, **more: Any) -> DetachPrimariesResult:
    return run(world.offload.prove_and_detach_primaries, removal_input(world, **more))


def remove_primaries(world: World) -> int:
    return remove_page(world).intents


def offloaded(world: World, count: int) -> dict[LedgerId, str]:
    """Ledgers with both copies, and the uuid of the tiered one."""
    made = {ledger: upload(world, ledger) for ledger in world.create_readable_ledgers(count)}
    for ledger, uuid in made.items():
        assert publish(world, ledger, uuid) is OffloadStartOutcome.ALREADY
    return made


def damage_of(world: World, ledger: LedgerId, uuid: str, kind: str) -> None:
    """Let the tiered bucket lose something, or hold something else."""
    data, index = data_key(uuid, ledger), index_key(uuid, ledger)
    stored = {key: world.tiered.get(key) for key in (data, index)}
    body, metadata = stored[data].body, stored[data].metadata  # type: ignore[union-attr]
    match kind:
        case "index lost":
            world.tiered.delete([index])
        case "data lost":
            world.tiered.delete([data])
        case "cut":
            world.tiered.delete([data])
            world.tiered.put_if_absent(data, body[:-1], metadata=metadata)
        case "somebody else's":
            world.tiered.delete([data])
            world.tiered.put_if_absent(data, body, metadata={**metadata, "ledger-id": "99"})
        case "index of another":
            text = stored[index].body.replace(uuid.encode(), b"another")  # type: ignore[union-attr]
            world.tiered.delete([index])
            world.tiered.put_if_absent(index, text, metadata=metadata)
        case "silent":
            fault = Fault(
                operation=StoreOperation.HEAD, kind=FaultKind.BEFORE, matches=lambda key: key == data, times=100
            )
            world.tiered.plan(fault)
        case "no place":
            world.sql("UPDATE ledger_copy SET context = '{}' WHERE ledger_id = :l AND kind LIKE 'OFF%'", l=ledger)


def open_upload(world: World) -> IntentKey:
    """The intent of an attempt that was replaced and may still be sending."""
    (ledger,) = world.create_readable_ledgers(1)
    world.catalog.offloads.begin_offload(ledger, uuid="u-1", driver_metadata=METADATA, timeout_s=2_700)
    world.catalog.offloads.begin_offload(ledger, uuid="u-2", driver_metadata=METADATA, timeout_s=2_700)
    assert world.detach().intents == 1
    return intent_key(world.catalog.deletions.list_intents(None, limit=1)[0])


def test_upload_twice_leaves_one_live_copy_and_one_intent(world: World) -> None:
    """Two attempts never touch the same object; the one that is replaced loses cleanly (temporalio/sdk-python#1048)."""
    (ledger,) = world.create_readable_ledgers(1)
    world.catalog.cursors.create_subscription(world.topic.topic_id, "slow", latest=False)
    first, second = upload(world, ledger), upload(world, ledger)
    assert publish(world, ledger, first) is OffloadStartOutcome.BEGUN
    assert publish(world, ledger, second) is OffloadStartOutcome.ALREADY
    assert publish(world, ledger, second) is OffloadStartOutcome.ALREADY
    (intent,) = world.catalog.deletions.list_intents(None, limit=10)
    assert intent.context == {"driver": "aws-s3", "bucket": "cold", "uuid": first}
    world.detach()
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert {key.partition("-ledger-")[0] for key in world.tiered.keys} == {second}


def test_upload_named_with_another_topic_is_refused_and_leaves_nothing(world: World) -> None:
    """The id and the name beside it mean two ledgers."""
    (ledger,) = world.create_readable_ledgers(1)
    other = TopicName.parse("persistent://public/default/other").encoded
    with pytest.raises(InvalidInput, match=f"topic: expected the topic of ledger {ledger}, .*found '{other}'"):
        run(world.offload.upload_and_prove_copy, UploadCopyInput(ledger_id=ledger, timeout_s=60, topic=other))
    assert world.sql("SELECT count(*) FROM ledger_copy WHERE kind = 'OFFLOADED_LEDGER'") == [(0,)]
    run(world.offload.upload_and_prove_copy, UploadCopyInput(ledger_id=ledger, timeout_s=60, topic=world.topic.name))


def test_upload_that_storage_does_not_prove_raises(world: World) -> None:
    """The class is what Temporal is told; a new attempt may succeed (apache/pulsar#22839)."""
    (ledger,) = world.create_readable_ledgers(1)
    world.tiered.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST))
    with pytest.raises(UploadUnproven):
        run(world.offload.upload_and_prove_copy, UploadCopyInput(ledger_id=ledger, timeout_s=60))


def test_both_copies_of_a_ledger_are_deleted_alone(world: World) -> None:
    """Two rows; a failure of the one does not hold the other (PIP-186)."""
    (ledger,) = world.create_readable_ledgers(1)
    world.acknowledge(ledger)
    assert publish(world, ledger, upload(world, ledger)) is OffloadStartOutcome.ALREADY
    assert world.detach().intents == 2
    world.tiered.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED))
    result = run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    assert (world.left_of(ledger), len(world.tiered.keys)) == ([], 2)
    (key,) = result.alone
    name = f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"
    assert (
        run_owner_routed_activity(
            world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=name
        ).outcome
        is Outcome.DELETED
    )
    assert world.tiered.keys == []


def test_removed_primary_is_deleted_and_its_ledger_stays(world: World) -> None:
    """Phase two finds that no list names this copy any more, though one names its ledger."""
    ledgers = world.create_readable_ledgers(2)
    publish(world, ledgers[0], upload(world, ledgers[0]))
    assert [remove_primaries(world), remove_primaries(world)] == [1, 1]  # the same batch
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert (world.left_of(ledgers[0]), len(world.left_of(ledgers[1])), len(world.tiered.keys)) == ([], 3, 2)
    listed = [one.ledger_id for one in world.catalog.ledgers.list_ledgers(world.topic.topic_id)]
    assert listed[:2] == ledgers


def test_removal_repeated_after_its_topic_has_gone_is_answered_by_its_batch(world: World) -> None:
    """The first answer was lost: its intents are filed, and phase two must hear of them."""
    offloaded(world, 1)
    first = remove_page(world)
    phase_one, topic = world.catalog.phase_one, world.topic
    phase_one.begin_topic_deletion(topic.topic_id, topic.name, CAUSE)
    phase_one.detach_whole_topic(topic.topic_id, batch_id="all", claim=CLAIM, cause=CAUSE)
    assert phase_one.remove_topic(topic.topic_id, CAUSE)
    assert (remove_page(world).intents, first.intents) == (1, 1)
    with pytest.raises(UnknownObject):
        remove_page(world, batch_id="another")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("index lost", "MissingData: "),
        ("data lost", "MissingData: "),
        ("cut", "CorruptData: "),
        ("somebody else's", "CorruptData: "),
        ("index of another", "CorruptData: "),
        ("silent", "StoreUnavailable: "),
        ("no place", "CorruptData: "),
    ],
)
def test_remove_keeps_a_primary_whose_tiered_copy_storage_does_not_show(world: World, damage: str, told: str) -> None:
    """Published in March, lost since: the last copy stays, and keeps no other from going (apache/pulsar#22839)."""
    uuids = offloaded(world, 3)
    bad = list(uuids)[1]
    damage_of(world, bad, uuids[bad], damage)
    result = remove_page(world)
    assert (result.ledgers, result.intents, result.unproved, result.next_after) == (2, 2, 1, None)
    assert list(result.doubts) == [bad]
    assert result.doubts[bad].startswith(told)
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert [len(world.left_of(ledger)) for ledger in uuids] == [0, 3, 0]


def test_remove_goes_page_by_page_and_a_repeated_page_skips_nothing(world: World) -> None:
    """A call that was reported as failed has taken its page: the next one looks again from where that began."""
    uuids = offloaded(world, 5)
    ledgers = list(uuids)
    damage_of(world, ledgers[0], uuids[ledgers[0]], "data lost")
    first = remove_page(world, limit=2)
    assert (first.ledgers, first.unproved, first.next_after) == (1, 1, ledgers[1])
    again = remove_page(world, limit=2)
    assert (again.ledgers, again.unproved, again.next_after) == (1, 0, -1)
    second = remove_page(world, batch_id="b-2", limit=2, after=again.next_after)
    assert (second.ledgers, second.unproved, second.next_after) == (1, 1, ledgers[2])
    third = remove_page(world, batch_id="b-3", limit=2, after=second.next_after)
    assert (third.ledgers, third.next_after) == (2, ledgers[4])
    last = remove_page(world, batch_id="b-4", limit=2, after=third.next_after)
    assert (last.ledgers, last.intents, last.next_after) == (0, 0, None)


def test_candidates_are_paged_and_checked(world: World) -> None:
    """Reads only."""
    ledgers = world.create_readable_ledgers(3)
    page = LedgersToOffloadInput(topic_id=world.topic.topic_id, after=-1, limit=2)
    assert run(world.offload.list_ledgers_to_offload, page).ledger_ids == ledgers[:2]
    rest = LedgersToOffloadInput(
        topic_id=world.topic.topic_id, after=ledgers[1], limit=2, ledger_ids=[*map(int, ledgers)], check=True
    )
    assert run(world.offload.list_ledgers_to_offload, rest).ledger_ids == ledgers[2:]


def test_delete_under_an_open_upload_is_tried_again_no_sooner_than_its_end(world: World) -> None:
    """The wait is the upload's, not the interval of retries, and the row is held for as long."""
    key = open_upload(world)
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).alone == [key]
    name = f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"
    with pytest.raises(ApplicationError) as raised:
        run_owner_routed_activity(world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=name)
    assert raised.value.type == "UploadOpen"
    assert raised.value.next_retry_delay is not None
    assert timedelta(seconds=2_700) < raised.value.next_retry_delay <= timedelta(seconds=2_821)
    (row,) = world.sql("SELECT claim_until_us, last_error, attempts FROM pending_deletion")
    assert row.claim_until_us - world.catalog.offloads.now_us() > 2_700_000_000
    assert row.last_error.startswith("UploadOpen: ")
    assert world.detach(batch_id="batch-2").intents == 0  # held: no trim takes it up before its time
