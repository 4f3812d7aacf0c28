"""What there is to do about delayed messages: counted as they are registered, and asked of all topics at once."""

import pytest

from logstore.catalog.delayed import delayed_index
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.ports.catalog.delayed import IndexBucketSwitch, UnsealedEntryCounts
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.delayed.steps import delay, seal, sealed
from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.steps import acknowledge, append, at, filled, new_topic, race, roll
from tests.contracts.catalog.world import claim
from tests.contracts.catalog.worlds import World

pytestmark = pytest.mark.postgres

_LAZY = SealAndMergeLimits(messages=1_000, ledgers=1_000, idle_s=3_600, buckets=20)


def _topic(world: World, name: str = "persistent://a/b/topic") -> tuple[TopicId, LedgerId]:
    topic_id = new_topic(world, name).topic_id
    return topic_id, roll(world, topic_id)


def _due(world: World, limits: SealAndMergeLimits = _LAZY, *, after: int = 0, limit: int = 100) -> list[TopicId]:
    return world.catalog.delayed.list_topics_with_work(limits, after=TopicId(after), limit=limit)


def _moved(world: World, topic_id: TopicId, end: Position) -> None:
    """Let the log be looked through up to there, with nothing found."""
    expected = world.catalog.delayed.get_bucket_list(topic_id).version
    assert world.catalog.delayed.switch_buckets(IndexBucketSwitch(topic_id=topic_id, expected=expected, sealed_to=end))


def test_delayed_entries_are_counted_until_they_are_sealed(world: World) -> None:
    """A segment says how many it has; a seal takes those away that it looked through."""
    topic_id, first = _topic(world)
    assert world.catalog.delayed.count_unsealed_entries(topic_id) == UnsealedEntryCounts(
        entries=0, ledgers=0, changed_us=None
    )
    append(world, topic_id, first)
    middle = delay(world, topic_id, first, 4)
    found = world.catalog.delayed.count_unsealed_entries(topic_id)
    assert (found.entries, found.ledgers) == (4, 1)
    assert found.changed_us is not None
    assert abs(found.changed_us // 1000 - world.catalog.delayed.now_ms()) < 60_000
    delay(world, topic_id, roll(world, topic_id), 3)
    assert [one.delayed for one in world.catalog.ledgers.list_segments(first)] == [0, 4]
    assert world.catalog.delayed.count_unsealed_entries(topic_id).entries == 7
    _moved(world, topic_id, middle)
    found = world.catalog.delayed.count_unsealed_entries(topic_id)
    assert (found.entries, found.ledgers) == (3, 1)


def test_refused_registration_counts_nothing(world: World) -> None:
    """Nor does one without delayed entries make a row."""
    topic_id, first = _topic(world)
    append(world, topic_id, first)
    assert "delayed_index" not in world.left_of(topic_id)
    roll(world, topic_id)
    with pytest.raises(AssertionError):
        delay(world, topic_id, first, 4)  # its ledger is closed
    assert world.catalog.delayed.count_unsealed_entries(topic_id).entries == 0


def test_seal_is_due_by_messages_ledgers_or_time(world: SqlWorld) -> None:
    """Whichever comes first, and never without a delayed message."""
    topic_id, first = _topic(world)
    append(world, topic_id, first)
    eager = SealAndMergeLimits(messages=1, ledgers=1, idle_s=1, buckets=1)
    assert _due(world, eager) == []
    delay(world, topic_id, first, 3)
    assert _due(world) == []
    assert _due(world, SealAndMergeLimits(messages=4)) == []
    assert _due(world, SealAndMergeLimits(messages=3)) == [topic_id]
    assert _due(world, SealAndMergeLimits(ledgers=2)) == []
    append(world, topic_id, roll(world, topic_id))
    assert _due(world, SealAndMergeLimits(ledgers=2)) == [topic_id]
    world.delay_earlier(topic_id, seconds=3_500)
    assert _due(world) == []
    world.delay_earlier(topic_id, seconds=200)
    assert _due(world) == [topic_id]
    _moved(world, topic_id, at(first, 99))
    assert _due(world, eager) == []


def test_trimmed_messages_are_not_waited_for(world: World) -> None:
    """A topic whose unsealed messages have all left with their ledgers has nothing to seal."""
    topic_id, first = _topic(world)
    delay(world, topic_id, first, 4)
    second = roll(world, topic_id)
    delay(world, topic_id, second, 3)
    roll(world, topic_id)
    world.detach(topic_id, [first])
    assert [_due(world, SealAndMergeLimits(messages=limit)) for limit in (3, 4)] == [[topic_id], []]
    world.detach(topic_id, [second])
    assert _due(world, SealAndMergeLimits(messages=1, ledgers=1, idle_s=1)) == []
    assert world.catalog.delayed.count_unsealed_entries(topic_id).entries == 0


def test_merge_is_due_beyond_the_limit(world: World) -> None:
    """Any positive limit."""
    topic_id, first = _topic(world)
    append(world, topic_id, first)
    sealed(world, topic_id, 3)
    assert [_due(world, SealAndMergeLimits(buckets=limit)) for limit in (1, 2, 3)] == [[topic_id], [topic_id], []]


def test_bucket_is_passed_a_minute_after_its_latest_time(world: World) -> None:
    """Not sooner: another process' clock may be behind."""
    topic_id, first = _topic(world)
    append(world, topic_id, first)
    now_ms = world.catalog.delayed.now_ms()
    gone = seal(world, topic_id, at(first, 0), at(first, 1), last_ms=now_ms - 60_000)
    seal(world, topic_id, at(first, 2), at(first, 3), last_ms=now_ms - 30_000)
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == [gone.bucket_id]
    assert _due(world) == [topic_id]


def test_bucket_is_passed_behind_every_mark_delete_position(world: World) -> None:
    """Where there is a subscription, and the slowest one is beyond its last entry."""
    topic_id, first = _topic(world)
    append(world, topic_id, first)
    append(world, topic_id, roll(world, topic_id))
    left, right = sealed(world, topic_id, 2)
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == []
    for name in ("fast", "slow"):
        world.catalog.cursors.create_subscription(topic_id, name, latest=False)
    acknowledge(world, topic_id, "fast", up_to=(first, 9))
    assert (world.catalog.delayed.list_droppable_buckets(topic_id), _due(world)) == ([], [])
    acknowledge(world, topic_id, "slow", up_to=(left.last.ledger_id, left.last.entry_id))
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == [left.bucket_id]
    acknowledge(world, topic_id, "slow", up_to=(first, 9))
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == [left.bucket_id, right.bucket_id]
    assert _due(world) == [topic_id]


def test_bucket_is_passed_when_its_ledgers_were_trimmed(world: World) -> None:
    """All of them: as long as one stands, some message may."""
    topic_id = new_topic(world).topic_id
    first, second, third, _ = filled(world, topic_id, 4)
    both = seal(world, topic_id, at(first, 3), at(second, 9))
    seal(world, topic_id, at(third, 0), at(third, 9))
    world.detach(topic_id, [first])
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == []
    world.detach(topic_id, [second])
    assert world.catalog.delayed.list_droppable_buckets(topic_id) == [both.bucket_id]
    assert _due(world) == [topic_id]


def test_due_topics_are_paged_and_leave_out_those_that_are_worked_on(world: World) -> None:
    """And those that are being deleted."""
    limits, topics = SealAndMergeLimits(messages=1), []
    for number in range(5):
        topic_id, ledger_id = _topic(world, f"persistent://a/b/{number}")
        delay(world, topic_id, ledger_id, 1)
        topics.append(topic_id)
    assert world.catalog.delayed.claim_bucket_list(topics[1], claim("w"))
    assert world.catalog.delayed.claim_bucket_list(topics[2], claim("gone", ttl_s=-1))
    world.set_state(topics[3], TopicState.DELETING)
    assert _due(world, limits) == [topics[0], topics[2], topics[4]]
    assert _due(world, limits, limit=2) == [topics[0], topics[2]]
    assert _due(world, limits, after=topics[2]) == [topics[4]]


def test_claim_is_one_workflows_until_it_ends_or_lets_go(world: World) -> None:
    """Renewed by the same one; only its holder can let it go."""
    topic_id, _ = _topic(world)
    index = world.catalog.delayed
    assert [index.claim_bucket_list(topic_id, claim(one)) for one in ("a", "b", "a")] == [True, False, True]
    index.release_claim(topic_id, "b")
    assert not index.claim_bucket_list(topic_id, claim("b"))
    index.release_claim(topic_id, "a")
    assert index.claim_bucket_list(topic_id, claim("b", ttl_s=-1))
    assert index.claim_bucket_list(topic_id, claim("c"))
    assert not index.claim_bucket_list(TopicId(99), claim("c"))
    index.release_claim(TopicId(99), "c")


def test_renewing_holds_all_that_a_workflow_has_claimed(world: World) -> None:
    """What has lapsed and is nobody else's, too; what another workflow has by now, or was let go, stays as it is."""
    index = world.catalog.delayed
    held, lapsed, taken, free = (new_topic(world, f"persistent://a/b/{number}").topic_id for number in range(4))
    assert all(index.claim_bucket_list(one, claim("a")) for one in (held, free))
    assert all(index.claim_bucket_list(one, claim("a", ttl_s=-1)) for one in (lapsed, taken))
    assert index.claim_bucket_list(taken, claim("b", ttl_s=-1))
    index.release_claim(free, "a")
    assert index.renew_claims(claim("a")) == 2
    assert [index.find_claim_holder(one) for one in (held, lapsed, taken, free)] == ["a", "a", None, None]
    assert index.renew_claims(claim("nobody")) == 0


def test_claims_are_renewed_page_by_page(sql_world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is passed over where one page ends and the next begins."""
    monkeypatch.setattr(delayed_index, "_CLAIMS_PER_PAGE", 2)
    index = sql_world.catalog.delayed
    topics = [new_topic(sql_world, f"persistent://a/b/{number}").topic_id for number in range(5)]
    assert all(index.claim_bucket_list(one, claim("a", ttl_s=-1)) for one in topics)
    assert index.renew_claims(claim("a")) == 5
    assert {index.find_claim_holder(one) for one in topics} == {"a"}


def test_holder_is_the_workflow_whose_claim_is_alive(world: World) -> None:
    """Of a topic without a list, or one that was let go, nobody is."""
    topic_id, _ = _topic(world)
    index = world.catalog.delayed
    assert index.find_claim_holder(topic_id) is None
    assert index.claim_bucket_list(topic_id, claim("a"))
    assert (index.find_claim_holder(topic_id), index.find_claim_holder(TopicId(99))) == ("a", None)
    index.release_claim(topic_id, "a")
    assert index.find_claim_holder(topic_id) is None
    assert index.claim_bucket_list(topic_id, claim("b", ttl_s=-1))
    assert index.find_claim_holder(topic_id) is None


def test_counts_are_the_sums_over_all_topics(world: World) -> None:
    """Of buckets, of messages in them, and of what lies behind the last one."""
    index = world.catalog.delayed
    before = index.count_delayed_messages()
    one, ledger_id = _topic(world)
    end = delay(world, one, ledger_id, 7)
    seal(world, one, at(ledger_id, 0), end, messages=5)
    delay(world, one, ledger_id, 3)
    other, another = _topic(world, "persistent://a/b/other")
    delay(world, other, another, 2)
    after = index.count_delayed_messages()
    found = (after.buckets - before.buckets, after.messages - before.messages, after.unsealed - before.unsealed)
    assert found == (1, 5, 5)


def test_of_a_crowd_that_claims_one_wins(world: World) -> None:
    """The row is made by the first of them."""
    topic_id, _ = _topic(world)
    results = race(lambda number: world.catalog.delayed.claim_bucket_list(topic_id, claim(f"w{number}")), 8)
    assert sorted(map(bool, results)) == [False] * 7 + [True]


def test_appends_and_seals_at_once_lose_no_count(world: World) -> None:
    """What a seal cannot see yet waits for it, and counts itself."""
    topic_id, ledger_id = _topic(world)
    end = delay(world, topic_id, ledger_id, 1)

    def work(number: int) -> None:
        if number % 4:
            _retried(world, topic_id, ledger_id)
            return
        found = world.catalog.delayed.get_bucket_list(topic_id)
        world.catalog.delayed.switch_buckets(
            IndexBucketSwitch(topic_id=topic_id, expected=found.version, sealed_to=end)
        )

    results = race(work, 12)
    assert not [one for one in results if isinstance(one, Exception)]
    assert world.catalog.delayed.count_unsealed_entries(topic_id).entries == 9
    assert _due(world, SealAndMergeLimits(messages=9)) == [topic_id], "the row's own count is the same"
    assert _due(world, SealAndMergeLimits(messages=10)) == []


def _retried(world: World, topic_id: TopicId, ledger_id: LedgerId) -> None:
    while True:
        try:
            delay(world, topic_id, ledger_id, 1)
        except AssertionError:
            continue  # another segment took the number
        return
