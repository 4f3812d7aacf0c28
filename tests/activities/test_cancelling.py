"""A cancelled activity ends at its next unit of work, wherever it is, and beats until then."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from temporalio.exceptions import CancelledError
from temporalio.testing import ActivityEnvironment

from activities import heartbeats
from activities.deletion.trim_by_retention import CountBatchInput
from activities.heartbeats import ClaimRenewingHeartbeats, define_activity, send_heartbeats
from activities.offload import UploadCopyInput
from logstore.deletion.intents import DeletionState
from logstore.deletion.services import primary_copies
from logstore.log.ledger_object_keys import ledger_prefix, owner_digest_from_key
from logstore.offload.services import tiered_copy_upload
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.stop_checks import raise_if_stopped
from tests.activities.activity_world import World, make_activity_environment, make_chunk_input, run
from tests.activities.deletion.test_delete_chunk import delete
from tests.activities.deletion.test_trimming import BATCH, filled, request, trimming
from tests.activities.test_offload import offloaded, removal_input, remove_primaries
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.eventually import assert_eventually


@dataclass
class Calls:
    """Cancels at the first call, and counts."""

    env: ActivityEnvironment
    made: int = 0

    def __call__(self, *_: object) -> None:
        """Be an action of a fault, or stand for a method."""
        self.made += 1
        if self.made == 1:
            self.env.cancel()


def cancelling(operation: StoreOperation, calls: Calls) -> Fault:
    """Every such call is counted, and the first one is met by a cancellation."""
    return Fault(operation=operation, kind=FaultKind.CALL, times=1_000, action=calls)


def test_chunk_cancelled_examines_no_further_ledger_and_deletes_nothing(world: World) -> None:
    """The rows stay as they were, for the next attempt."""
    ledgers = world.fill(3)
    world.detach()
    calls = Calls(env := make_activity_environment())
    world.objects.plan(cancelling(StoreOperation.LIST, calls))
    with pytest.raises(CancelledError):
        env.run(world.deletion.delete_chunk, make_chunk_input())
    assert calls.made == 1
    assert [len(world.left_of(one)) for one in ledgers] == [3] * 3
    assert {one.state for one in world.intents()} == {DeletionState.PENDING}


def test_chunk_cancelled_in_its_drain_deletes_no_further_page(world: World) -> None:
    """Though all of the chunk goes in one call of the store; the next attempt counts what is gone as deleted."""
    ledgers = world.fill(3)
    world.detach()
    calls = Calls(env := make_activity_environment())
    world.objects.plan(cancelling(StoreOperation.DELETE, calls))
    with pytest.raises(CancelledError):
        env.run(world.deletion.delete_chunk, make_chunk_input())
    assert calls.made == 1
    assert sum(len(world.left_of(one)) for one in ledgers) == 8
    assert {one.state for one in world.intents()} == {DeletionState.PENDING}
    assert delete(world).outcomes == {"DELETED": 3}


def test_chunk_cancelled_asks_for_no_further_segment_that_a_listing_hides(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a ledger may have a million, asked for in threads of their own; here one, so that calls can be counted."""
    monkeypatch.setattr(primary_copies, "_PARALLEL_HEADS", 1)
    (ledger,) = world.fill(1, segments=600, acknowledged=False)
    world.detach([ledger])
    prefix = ledger_prefix(ledger)
    world.objects.blind(lambda key: key.startswith(prefix) and key.endswith(".parquet"))
    calls = Calls(env := make_activity_environment())
    world.objects.plan(cancelling(StoreOperation.HEAD, calls))
    with pytest.raises(CancelledError):
        env.run(world.deletion.delete_chunk, make_chunk_input())
    assert calls.made == 1
    assert len(world.left_of(ledger)) == 601


def test_chunk_cancelled_asks_no_further_segment_whose_it_is(world: World) -> None:
    """Where meta.json is gone each segment is asked, one after the other; a ledger may have thousands."""
    (ledger,) = world.fill(1, segments=20, acknowledged=False)
    world.detach([ledger])
    (meta,) = [
        key for key in world.objects.keys if owner_digest_from_key(key) and key.startswith(ledger_prefix(ledger))
    ]
    world.objects.delete([meta])
    calls = Calls(env := make_activity_environment())
    world.objects.plan(cancelling(StoreOperation.HEAD, calls))
    with pytest.raises(CancelledError):
        env.run(world.deletion.delete_chunk, make_chunk_input())
    assert calls.made == 1
    assert len(world.left_of(ledger)) == 20
    assert delete(world).outcomes == {"DELETED": 1}


@pytest.mark.parametrize("operation", [StoreOperation.GET, StoreOperation.HEAD])
def test_upload_cancelled_reads_no_further_and_gives_up(
    world: World, operation: StoreOperation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads the primary copy, and while it proves the tiered one; what it may have sent is an intent."""
    (ledger,) = world.create_readable_ledgers(1)
    monkeypatch.setattr(tiered_copy_upload, "_READ_BACK_PART_BYTES", 64)  # bytes: the object is read in many parts
    calls = Calls(env := make_activity_environment())
    (world.objects if operation is StoreOperation.GET else world.tiered).plan(cancelling(operation, calls))
    with pytest.raises(CancelledError):
        env.run(world.offload.upload_and_prove_copy, UploadCopyInput(ledger_id=ledger, timeout_s=60))
    assert calls.made == 1
    assert len([name for read, name in world.tiered.calls if read is StoreOperation.GET_RANGE]) <= 1
    assert not [key for key in world.tiered.keys if key.endswith("-index")]
    assert [one.ledger_id for one in world.sql("SELECT ledger_id FROM pending_deletion")] == [ledger]


def test_page_of_primaries_cancelled_asks_for_no_further_copy_and_removes_none(world: World) -> None:
    """The whole page stays."""
    ledgers = offloaded(world, 3)
    calls = Calls(env := make_activity_environment())
    world.tiered.plan(cancelling(StoreOperation.HEAD, calls))
    with pytest.raises(CancelledError):
        env.run(world.offload.prove_and_detach_primaries, removal_input(world))
    assert calls.made == 1
    assert remove_primaries(world) == len(ledgers)


def test_page_of_trims_cancelled_prepares_no_further_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is detached then."""
    filled(world, 3)
    activities, idle = trimming(world)
    calls = Calls(env := make_activity_environment())
    monkeypatch.setattr(idle, "roll_and_advance_cursors", calls)
    with pytest.raises(CancelledError):
        env.run(activities.trim_page, request(1, 3))
    assert calls.made == 1
    assert not world.sql("SELECT * FROM pending_deletion")


def test_page_of_trims_cancelled_detaches_no_further_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the batch stays there, and the next attempt adds the rest."""
    filled(world, 3)
    activities, _ = trimming(world)
    env = make_activity_environment()
    real = world.catalog.phase_one.detach_by_retention_into_batch

    def detach_into(*args: object, **more: object) -> DetachedBatch:
        env.cancel()
        return real(*args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(world.catalog.phase_one, "detach_by_retention_into_batch", detach_into)
        with pytest.raises(CancelledError):
            env.run(activities.trim_page, request(1, 3))
    assert len(world.sql("SELECT * FROM pending_deletion")) == 1
    run(activities.trim_page, request(1, 3))
    assert run(activities.count_batch, CountBatchInput(batch_id=BATCH)).intents == 3


@pytest.mark.parametrize(
    "unit", [ClaimRenewingHeartbeats.count_examined, lambda heartbeats: heartbeats.count_deleted(1)]
)
def test_pulse_raises_a_cancellation_at_its_next_unit_and_beats_until_then(
    unit: Callable[[ClaimRenewingHeartbeats], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that takes long is not begun by another worker meanwhile."""
    monkeypatch.setattr(heartbeats, "_BEAT_INTERVAL_S", 0.005)
    env, beats = make_activity_environment(), list[object]()
    env.on_heartbeat = lambda *details: beats.append(details)

    @define_activity(name="test.work")
    def work() -> None:
        with ClaimRenewingHeartbeats(lambda: None) as heartbeats:
            env.cancel()
            seen = len(beats)
            assert_eventually(lambda: len(beats) > seen + 2)
            with pytest.raises(CancelledError):
                unit(heartbeats)

    env.run(work)


def test_beating_beats_on_after_a_cancellation_and_lets_its_unit_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that commits is told of, and does not happen twice."""
    monkeypatch.setattr(heartbeats, "_BEAT_INTERVAL_S", 0.005)
    env, beats = make_activity_environment(), list[object]()
    env.on_heartbeat = lambda *details: beats.append(details)

    @define_activity(name="test.work")
    @send_heartbeats()
    def work() -> str:
        env.cancel()
        seen = len(beats)
        assert_eventually(lambda: len(beats) > seen + 2)
        return "done"

    assert env.run(work) == "done"
    assert not any(one.name == "beating" for one in threading.enumerate())


def test_activity_cancelled_before_it_begins_does_nothing(world: World) -> None:
    """As where a worker ends while it waits for a thread."""
    world.fill(1)
    env = make_activity_environment()
    env.cancel()
    with pytest.raises(CancelledError):
        env.run(world.deletion.detach, world.make_detach_input())
    assert not world.sql("SELECT * FROM pending_deletion")


def test_between_units_goes_on_where_nobody_can_end_the_work() -> None:
    """Commands, readers and writers."""
    raise_if_stopped()
