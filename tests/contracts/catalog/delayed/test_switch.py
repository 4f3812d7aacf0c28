"""Lists of buckets: changed by compare-and-set, and what is in none of them has an intent."""

from collections.abc import Callable

import pytest

from logstore.delayed.index_buckets import IndexBucketList
from logstore.errors import InvalidInput
from logstore.ports.catalog.delayed import IndexBucketSwitch
from logstore.ports.catalog.log import TopicState
from logstore.positions import EARLIEST, TopicId
from tests.contracts.catalog.delayed.steps import (
    born,
    bucket,
    delay,
    merge,
    newborn,
    seal,
    seal_of,
    sealed,
    snapshots,
)
from tests.contracts.catalog.steps import at, filled, new_topic, race
from tests.contracts.catalog.world import CAUSE, claim
from tests.contracts.catalog.worlds import SqlWorld, World

pytestmark = pytest.mark.postgres


def _topic(world: World) -> TopicId:
    topic_id = new_topic(world).topic_id
    filled(world, topic_id, 2)
    return topic_id


def test_topic_without_buckets_has_an_empty_list(world: World) -> None:
    """So has a topic that nobody knows."""
    topic_id = _topic(world)
    assert (
        world.catalog.delayed.get_bucket_list(topic_id)
        == world.catalog.delayed.get_bucket_list(TopicId(99))
        == IndexBucketList()
    )


def test_sealed_bucket_is_listed_and_its_ledger_closed(world: World) -> None:
    """And sealed again it still is: the answer to a switch may be lost."""
    topic_id = _topic(world)
    made = bucket(newborn(world, topic_id), at(0, 0), at(0, 9))
    switch = seal_of(topic_id, made, expected=0)
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(
        version=1, sealed_to=at(0, 9), buckets=(made,)
    )
    assert (snapshots(world, topic_id), world.intents()) == ([made.bucket_id], [])
    (only,) = world.catalog.ledgers.list_segments(made.bucket_id)
    assert (only.size_bytes, only.sha256, only.delayed) == (50, "ab", 0)


def test_merge_replaces_its_sources_and_retires_them(world: World) -> None:
    """In one transaction, with a reason in the audit log; repeated, it changes nothing."""
    topic_id = _topic(world)
    first, second, third = sealed(world, topic_id, 3)
    switch = merge(world.catalog.delayed.get_bucket_list(topic_id), (first, second), newborn(world, topic_id), topic_id)
    assert world.catalog.delayed.switch_buckets(switch)
    found = world.catalog.delayed.get_bucket_list(topic_id)
    merged = switch.added[0].bucket
    assert found == IndexBucketList(version=4, sealed_to=third.last, buckets=(merged, third))
    assert snapshots(world, topic_id) == [third.bucket_id, merged.bucket_id]
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id) == found
    assert world.intents() == [first.bucket_id, second.bucket_id]
    assert [one.reason for one in world.audited("retire")] == ["merged", "merged"]


def test_of_two_that_start_from_one_version_the_first_wins(world: World) -> None:
    """The other one's snapshot is retired in the transaction that refuses it."""
    topic_id = _topic(world)
    winner, loser = (bucket(newborn(world, topic_id), at(0, 0), at(0, end)) for end in (5, 9))
    switches = [seal_of(topic_id, one, expected=0) for one in (winner, loser)]
    assert [world.catalog.delayed.switch_buckets(one) for one in switches] == [True, False]
    assert [one.bucket_id for one in world.catalog.delayed.get_bucket_list(topic_id).buckets] == [winner.bucket_id]
    assert world.intents() == [loser.bucket_id]
    assert not world.catalog.delayed.switch_buckets(switches[1])
    assert world.intents() == [loser.bucket_id]


def test_unknown_source_is_refused_and_what_was_written_for_it_retired(world: World) -> None:
    """Whatever the version says."""
    topic_id = _topic(world)
    first, second = sealed(world, topic_id, 2)
    stray = newborn(world, topic_id)
    switch = merge(
        world.catalog.delayed.get_bucket_list(topic_id), (first, bucket(stray, at(0, 1), at(0, 1))), stray, topic_id
    )
    assert not world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id).buckets == (first, second)
    assert world.intents() == [stray]


def test_seal_without_messages_moves_the_end_alone(world: World) -> None:
    """What was looked through is not looked through again."""
    topic_id = _topic(world)
    switch = IndexBucketSwitch(topic_id=topic_id, expected=0, sealed_to=at(1, 9))
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(version=1, sealed_to=at(1, 9))


def test_drop_retires_a_bucket_and_leaves_the_end(world: World) -> None:
    """A second time it has nothing to do, and is done."""
    topic_id = _topic(world)
    first, second = sealed(world, topic_id, 2)
    drop = IndexBucketSwitch(topic_id=topic_id, expected=2, removed=(first.bucket_id,), reason="all of it came due")
    assert world.catalog.delayed.switch_buckets(drop)
    assert world.catalog.delayed.switch_buckets(drop)
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(
        version=3, sealed_to=second.last, buckets=(second,)
    )
    assert (snapshots(world, topic_id), world.intents()) == ([second.bucket_id], [first.bucket_id])


def test_build_replaces_all_buckets_by_several(world: World) -> None:
    """However many there were, and wherever they ended."""
    topic_id = _topic(world)
    before = sealed(world, topic_id, 2)
    made = [bucket(newborn(world, topic_id), at(one, 0), at(one, 9)) for one in (0, 1)]
    gone = tuple(one.bucket_id for one in before)
    switch = IndexBucketSwitch(
        topic_id=topic_id, expected=2, removed=gone, added=born(*made), sealed_to=at(1, 9), reason="b"
    )
    assert world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(
        version=3, sealed_to=at(1, 9), buckets=tuple(made)
    )
    assert snapshots(world, topic_id) == [one.bucket_id for one in made]


@pytest.mark.parametrize(
    ("first", "last", "sealed_to", "field"),
    [
        ((0, 4), (0, 9), (0, 9), "bucket"),  # entry 4 is another's
        ((0, 9), (0, 6), (0, 9), "bucket"),
        ((0, 5), (0, 9), (0, 8), "sealed_to"),
    ],
)
def test_buckets_that_overlap_are_refused(
    world: World, first: tuple[int, int], last: tuple[int, int], sealed_to: tuple[int, int], field: str
) -> None:
    """Before anything changes: a message would be in two of them, or looked for again."""
    topic_id = _topic(world)
    stands = seal(world, topic_id, at(0, 0), at(0, 4))
    made = bucket(newborn(world, topic_id), at(*first), at(*last))
    switch = IndexBucketSwitch(topic_id=topic_id, expected=1, added=born(made), sealed_to=at(*sealed_to))
    with pytest.raises(InvalidInput, match=field):
        world.catalog.delayed.switch_buckets(switch)
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(
        version=1, sealed_to=at(0, 4), buckets=(stands,)
    )
    assert world.intents() == []


def test_abandoned_newborn_joins_no_list(world: World) -> None:
    """A trim took it for dead; what its writer has stored since is looked at again."""
    topic_id = new_topic(world).topic_id
    filled(world, topic_id, 1)
    late, other = newborn(world, topic_id), newborn(world, topic_id)
    world.age(late, seconds=1_000)
    world.phase_one(topic_id)
    assert world.intents() == [late]
    both = born(bucket(late, at(0, 0), at(0, 4)), bucket(other, at(0, 5), at(0, 9)))
    assert not world.catalog.delayed.switch_buckets(
        IndexBucketSwitch(topic_id=topic_id, expected=0, added=both, sealed_to=at(0, 9))
    )
    assert (world.catalog.delayed.get_bucket_list(topic_id), world.intents()) == (IndexBucketList(), [late, other])


def test_cleared_list_is_empty_and_work_in_flight_retires_what_it_wrote(world: World) -> None:
    """The log is then looked through from its beginning, and what lies there is counted again."""
    topic_id = new_topic(world).topic_id
    ledger_id = filled(world, topic_id, 1)[0]
    end = delay(world, topic_id, ledger_id, 4)
    sealed(world, topic_id, 2)
    found = world.catalog.delayed.get_bucket_list(topic_id)
    flight = merge(found, (found.buckets[0], found.buckets[1]), newborn(world, topic_id), topic_id)
    assert world.catalog.delayed.retire_all_buckets(topic_id, reason="asked") == 2
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList(version=3, sealed_to=EARLIEST)
    assert not world.catalog.delayed.switch_buckets(flight)
    assert snapshots(world, topic_id) == []
    assert world.intents() == sorted([*flight.removed, flight.added[0].bucket.bucket_id])
    assert world.catalog.delayed.count_unsealed_entries(topic_id).entries == 4
    assert world.catalog.delayed.retire_all_buckets(topic_id, reason="asked") == 0
    late = IndexBucketSwitch(topic_id=topic_id, expected=3, sealed_to=end)
    assert not world.catalog.delayed.switch_buckets(late), (
        "an empty list is cleared as well: what began before has failed"
    )


def test_deleted_topic_takes_its_buckets_with_it(world: World) -> None:
    """A seal in flight finds its newborn retired, before the topic is gone and after it."""
    topic_id = _topic(world)
    first = sealed(world, topic_id, 1)[0]
    during, after = (bucket(newborn(world, topic_id), at(0, 1), at(0, 9)) for _ in range(2))
    world.set_state(topic_id, TopicState.DELETING)
    late = [seal_of(topic_id, one, expected=1) for one in (during, after)]
    assert not world.catalog.delayed.switch_buckets(late[0])
    assert world.intents() == [during.bucket_id]
    assert not world.catalog.delayed.claim_bucket_list(topic_id, claim())
    world.catalog.phase_one.detach_whole_topic(topic_id, batch_id="b", claim=claim(), cause=CAUSE)
    assert world.intents()[-3:] == sorted([first.bucket_id, during.bucket_id, after.bucket_id])
    assert world.catalog.delayed.get_bucket_list(topic_id) == IndexBucketList()
    assert not world.catalog.delayed.switch_buckets(late[1])
    assert world.catalog.phase_one.remove_topic(topic_id, CAUSE)
    assert not world.catalog.delayed.switch_buckets(late[1])
    assert not world.catalog.delayed.claim_bucket_list(topic_id, claim())
    assert world.left_of(topic_id) == {}


def test_of_a_crowd_that_starts_from_one_version_one_wins(world: World) -> None:
    """And every other one's snapshot has its intent."""
    topic_id = _topic(world)
    made = [bucket(newborn(world, topic_id), at(0, 0), at(0, 9)) for _ in range(8)]
    switches = [seal_of(topic_id, one, expected=0) for one in made]
    results = race(lambda number: world.catalog.delayed.switch_buckets(switches[number]), 8)
    assert sorted(map(bool, results)) == [False] * 7 + [True]
    (winner,) = world.catalog.delayed.get_bucket_list(topic_id).buckets
    assert winner == made[results.index(True)]
    assert world.intents() == sorted(one.bucket_id for one in made if one != winner)


def test_seal_merge_and_clear_at_once_leave_list_and_ledgers_alike(world: World) -> None:
    """Whichever comes first: the buckets are the listed ledgers, and all else has an intent."""
    topic_id = _topic(world)
    pair = tuple(sealed(world, topic_id, 2))
    found = world.catalog.delayed.get_bucket_list(topic_id)
    merging = merge(found, (pair[0], pair[1]), newborn(world, topic_id), topic_id)
    made = bucket(newborn(world, topic_id), at(0, 2), at(0, 9))
    sealing = seal_of(topic_id, made, expected=2)
    calls: list[Callable[[], object]] = [
        lambda: world.catalog.delayed.switch_buckets(merging),
        lambda: world.catalog.delayed.switch_buckets(sealing),
        lambda: world.catalog.delayed.retire_all_buckets(topic_id, reason="asked"),
    ]
    results = race(lambda number: calls[number](), 3)
    assert not [one for one in results if isinstance(one, Exception)]
    standing = [one.bucket_id for one in world.catalog.delayed.get_bucket_list(topic_id).buckets]
    assert snapshots(world, topic_id) == sorted(standing) == []
    every = {one.bucket_id for one in (*pair, made, merging.added[0].bucket)}
    assert set(world.intents()) == every
    assert len(world.intents()) == len(every)


def test_switch_that_dies_at_any_statement_leaves_all_as_it_was(sql_world: SqlWorld) -> None:
    """Then it is done again, whole."""
    topic_id = _topic(sql_world)
    pair = sealed(sql_world, topic_id, 2)
    before = sql_world.catalog.delayed.get_bucket_list(topic_id)
    switch = merge(before, (pair[0], pair[1]), newborn(sql_world, topic_id), topic_id)
    for _ in sql_world.deaths_in(lambda: sql_world.catalog.delayed.switch_buckets(switch)):
        assert sql_world.catalog.delayed.get_bucket_list(topic_id) == before
        assert (snapshots(sql_world, topic_id), sql_world.intents()) == ([one.bucket_id for one in pair], [])
    assert [one.bucket_id for one in sql_world.catalog.delayed.get_bucket_list(topic_id).buckets] == snapshots(
        sql_world, topic_id
    )
