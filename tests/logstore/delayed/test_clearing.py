"""A list of buckets is cleared while a seal or a merge is at work: afterwards index and storage are both empty."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.catalog import Catalog
from logstore.delayed.index_buckets import IndexBucketList
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import EARLIEST
from tests.activities.activity_world import make_chunk_input, run_owner_routed_activity
from tests.contracts.catalog.world import CAUSE, claim
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import Stored, stored
from tests.logstore.delayed.test_sealer import EFFECTS

_SWEEP = "delete-ledgers/sweep"


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Stored]:
    """With two buckets, and messages behind them."""
    found = stored(tmp_path)
    found.sealed([1, 9, 5], [4, 8])
    found.append(2, 7, 3)
    yield found
    disarm_all_and_take_hits()
    found.world.opened.close()


def _seal(topic: Stored) -> None:
    topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)


def _merge(topic: Stored) -> None:
    first, second = (one.bucket_id for one in topic.buckets)
    topic.merger.merge_pair(topic.topic_id, (first, second))


def _clear(topic: Stored) -> None:
    topic.index.retire_all_buckets(topic.topic_id, reason="asked")


def _snapshots_left(topic: Stored) -> list[str]:
    """Objects that are of no data ledger, once a sweep has taken up what was retired and what nobody attached."""
    world = topic.world
    impatient = Catalog(world.catalog.database, registration_timeout_s=0)
    impatient.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim(_SWEEP), limit=100)
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input(batch_id="sweep"), workflow_id=_SWEEP)
    data = [ledger_prefix(one.ledger_id) for one in world.catalog.ledgers.list_ledgers(topic.topic_id)]
    return [key for key in world.objects.keys if not key.startswith(tuple(data))]


@pytest.mark.parametrize("work", [_seal, _merge])
@pytest.mark.parametrize("put", [0, 1])
def test_clear_while_a_snapshot_is_written_leaves_nothing(
    topic: Stored, work: Callable[[Stored], None], put: int
) -> None:
    """At its statement and at its segment: what is written then is retired by the switch that fails (case 69)."""
    topic.world.objects.plan(
        *(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: None) for _ in range(put)),
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: _clear(topic)),
    )
    work(topic)
    assert topic.index.get_bucket_list(topic.topic_id) == IndexBucketList(version=3, sealed_to=EARLIEST)
    assert _snapshots_left(topic) == []
    assert topic.index.count_unsealed_entries(topic.topic_id).entries == 8


@pytest.mark.parametrize("work", [_seal, _merge])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_clear_after_a_death_at_an_effect_leaves_nothing(
    topic: Stored, work: Callable[[Stored], None], effect: str, moment: str
) -> None:
    """What its writer left is a newborn, which a sweep takes for abandoned."""
    arm(f"{effect}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        work(topic)
    disarm_all_and_take_hits()
    _clear(topic)
    assert topic.buckets == ()
    assert _snapshots_left(topic) == []
    _seal(topic)
    assert len(topic.held()) == 8, "the log holds them all"


@pytest.mark.parametrize("work", [_seal, _merge])
@pytest.mark.parametrize("removed", [False, True])
def test_topic_deleted_while_a_snapshot_is_written_leaves_nothing(
    topic: Stored, work: Callable[[Stored], None], removed: bool
) -> None:
    """Phase two has found nothing of the newborn; what its writer puts later is looked for again."""
    world = topic.world

    def delete() -> None:
        phase_one, batch = world.catalog.phase_one, "all"
        phase_one.begin_topic_deletion(topic.topic_id, world.topic.name, CAUSE)
        phase_one.detach_whole_topic(
            topic.topic_id, batch_id=batch, claim=claim(f"delete-ledgers/{batch}"), cause=CAUSE
        )
        run_owner_routed_activity(
            world.deletion.delete_chunk, make_chunk_input(batch_id=batch), workflow_id=f"delete-ledgers/{batch}"
        )
        assert not removed or phase_one.remove_topic(topic.topic_id, CAUSE)

    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=delete))
    work(topic)
    assert topic.index.get_bucket_list(topic.topic_id) == IndexBucketList()
    assert world.objects.keys
    assert _snapshots_left(topic) == []
