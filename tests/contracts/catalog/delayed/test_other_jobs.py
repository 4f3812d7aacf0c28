"""What other jobs do with the ledgers of buckets: trims and offloads are of messages, and leave them to the index."""

import pytest

from logstore.delayed.index_buckets import IndexBucket
from logstore.errors import UnknownObject, Unsupported
from logstore.positions import TopicId
from tests.contracts.catalog.delayed.steps import seal, snapshots
from tests.contracts.catalog.offload.test_offloads import begin, offloaded, proved, removable, remove
from tests.contracts.catalog.steps import at, filled, new_topic
from tests.contracts.catalog.worlds import World


def _sealed(world: World) -> tuple[TopicId, IndexBucket]:
    """A topic of three ledgers, and a bucket of the first one."""
    topic_id = new_topic(world).topic_id
    first, *_ = filled(world, topic_id, 3)
    return topic_id, seal(world, topic_id, at(first, 0), at(first, 9))


def test_offload_of_a_bucket_is_refused_and_changes_nothing(world: World) -> None:
    """A tiered copy holds messages; the index is small, and is read at once."""
    topic_id, made = _sealed(world)
    before = world.rows()
    with pytest.raises(Unsupported, match=f"ledger {made.bucket_id}: expected a ledger of messages, found one of DEL"):
        begin(world, made.bucket_id)
    assert world.rows() == before
    assert (snapshots(world, topic_id), world.intents()) == ([made.bucket_id], [])


def test_primary_copies_that_an_offload_replaces_are_none_of_a_bucket(world: World) -> None:
    """Whether all ledgers are asked for, or the bucket's by its id."""
    topic = new_topic(world)
    first, *_ = filled(world, topic.topic_id, 3)
    made = seal(world, topic.topic_id, at(first, 0), at(first, 9))
    offloaded(world, first)
    assert [one.statement.ledger_id for one in removable(world, topic)] == [first]
    assert proved(world, topic).keys() == {first}
    assert remove(world, topic, made.bucket_id, batch_id="named").intents == 0
    assert remove(world, topic).intents == 1
    assert world.intents() == [first]
    assert snapshots(world, topic.topic_id) == [made.bucket_id]


@pytest.mark.parametrize("force", [False, True])
def test_trim_that_is_given_a_bucket_takes_none(world: World, force: bool) -> None:
    """Not by force either: a bucket goes by a change of the topic's list alone."""
    topic_id, made = _sealed(world)
    with pytest.raises(UnknownObject, match=str(made.bucket_id)):
        world.phase_one(topic_id, [made.bucket_id], force=force)
    assert (snapshots(world, topic_id), world.intents()) == ([made.bucket_id], [])


def test_trim_of_all_messages_leaves_the_bucket_to_the_next_seal(world: World) -> None:
    """Which finds that nothing of it is left in the log."""
    topic_id, made = _sealed(world)
    world.phase_one(topic_id)
    assert made.bucket_id not in world.intents()
    world.detach(topic_id, [made.first.ledger_id])
    assert made.first.ledger_id in world.intents()
    assert snapshots(world, topic_id) == [made.bucket_id]
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == [made.bucket_id]
