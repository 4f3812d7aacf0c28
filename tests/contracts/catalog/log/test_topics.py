"""Topics."""

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, UnknownObject
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import TopicId
from tests.all_topics import list_all_topics
from tests.contracts.catalog.steps import NAME, acknowledge, filled, new_topic, race
from tests.contracts.catalog.worlds import SqlWorld, World


def test_create_topic_new_name_is_found_by_name_and_id(world: World) -> None:
    """What was created is what is read."""
    topic = new_topic(world, retention_s=60, retention_bytes=0)
    assert topic.name == NAME
    assert topic.state is TopicState.ACTIVE
    assert topic.policy == RetentionPolicy(retention_s=60, retention_bytes=0)
    assert world.catalog.topics.get_topic(NAME) == topic
    assert world.catalog.topics.get_topic_by_id(topic.topic_id) == topic
    assert world.catalog.ledgers.list_ledgers(topic.topic_id) == []
    assert world.catalog.ledgers.last_ledger(topic.topic_id) is None


def test_create_topic_name_taken_is_refused(world: World) -> None:
    """One name, one topic."""
    first = new_topic(world)
    with pytest.raises(AlreadyExists, match="topic"):
        new_topic(world)
    assert list_all_topics(world.catalog.topics) == [first]


@pytest.mark.postgres
def test_create_topic_thirty_two_at_once_exactly_one_wins(world: World) -> None:
    """The name's key decides, not the look before the insert."""
    answers = race(lambda _: new_topic(world))
    winners = [answer for answer in answers if isinstance(answer, Topic)]
    assert len(winners) == 1
    assert {type(answer) for answer in answers} == {Topic, AlreadyExists}
    assert list_all_topics(world.catalog.topics) == winners


@pytest.mark.postgres
def test_create_topic_thirty_two_names_at_once_all_succeed(world: World) -> None:
    """Creators of different topics do not disturb each other, and no id is given twice."""
    answers = race(lambda number: new_topic(world, f"{NAME}-{number}"))
    assert len({answer.topic_id for answer in answers if isinstance(answer, Topic)}) == 32


def test_all_topics_are_ascending_by_name(world: World) -> None:
    """Byte order, whatever the database's collation."""
    names = [
        "persistent://a/b/Z",
        "persistent://a/b/_",
        "persistent://a/b/a",
        "persistent://a/b/a-1",
        "persistent://B/b/a",
    ]
    for name in names:
        new_topic(world, name)
    assert [topic.name for topic in list_all_topics(world.catalog.topics)] == sorted(names)


@pytest.mark.postgres
def test_pages_of_topics_hold_each_topic_once_by_bytes(world: World) -> None:
    """Prefix, state and the page's beginning are the database's to weigh, in the order of bytes, not of a locale."""
    names = [f"persistent://a/b/{part}" for part in ("Z", "_", "a", "a-1", "a%20b", "%C3%A9")]
    topics = {name: new_topic(world, name) for name in [*names, "persistent://B/b/a", "persistent://a/c/a"]}
    page, seen = world.catalog.topics.list_topic_summaries(limit=3), []
    assert page.more == len(topics) - 3
    while page.topics:
        seen += [one.topic for one in page.topics]
        page = world.catalog.topics.list_topic_summaries(limit=3, after=seen[-1].name)
    assert (seen, page.more) == ([topics[name] for name in sorted(topics)], 0)
    found = world.catalog.topics.list_topic_summaries(prefix="persistent://a/b/a", limit=9)
    assert [one.topic.name for one in found.topics] == [name for name in sorted(names) if name[17:].startswith("a")]
    world.set_state(topics[names[0]].topic_id, TopicState.DELETING)
    deleting = world.catalog.topics.list_topic_summaries(state=TopicState.DELETING, limit=9)
    assert [one.topic.name for one in deleting.topics] == [names[0]]
    assert world.catalog.topics.list_topic_summaries(state=TopicState.ACTIVE, prefix=names[0], limit=9).topics == []


@pytest.mark.postgres
def test_summary_of_a_topic_is_what_its_ledgers_and_cursors_come_to(world: World) -> None:
    """Totals, subscriptions and backlogs, one of them with holes; ledgers that are gone and other topics count not."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    ledgers = filled(world, topic.topic_id, 4)
    filled(world, other.topic_id, 2)
    for number, at in enumerate((0, 2, 3)):
        world.catalog.cursors.create_subscription(topic.topic_id, f"s{number}", latest=False)
        acknowledge(world, topic.topic_id, f"s{number}", (ledgers[at], 3), (ledgers[at], 5))
    world.catalog.cursors.create_subscription(topic.topic_id, "at the end", latest=True)
    world.catalog.cursors.create_subscription(other.topic_id, "s0", latest=False)
    known, told = world.catalog.topics.summarize_topic(topic), world.catalog.topics.list_topic_summaries(limit=9).topics
    assert [one.topic.name for one in told] == [other.name, topic.name]
    assert told[1] == known
    assert known.totals == world.catalog.ledgers.get_topic_totals(topic.topic_id)
    cursors = world.catalog.cursors.list_cursors(topic.topic_id)
    behind = world.catalog.ledgers.count_backlogs(topic.topic_id, [one.state for one in cursors])
    assert [(one.name, one.mark_delete, one.created_us, one.backlog) for one in known.subscriptions] == [
        (one.name, one.state.mark_delete, one.created_us, left) for one, left in zip(cursors, behind, strict=True)
    ]
    assert sorted(behind) == [0, 38, 38, 38]
    bare = world.catalog.topics.summarize_topic(new_topic(world, "persistent://a/b/z"))
    assert (bare.totals.ledgers, bare.totals.last, list(bare.subscriptions)) == (0, None, [])


def test_get_topic_unknown_name_or_id_is_refused(world: World) -> None:
    """An unknown topic is an error and not an empty one; names are case-sensitive."""
    topic = new_topic(world)
    with pytest.raises(UnknownObject, match="existing topic"):
        world.catalog.topics.get_topic(NAME.upper())
    with pytest.raises(UnknownObject, match="existing topic"):
        world.catalog.topics.get_topic_by_id(TopicId(topic.topic_id + 1))


@pytest.mark.postgres
def test_create_topic_name_created_again_has_another_id(sql_world: SqlWorld) -> None:
    """Markers, intents and workflow ids carry the id, so it is never given again."""
    first = new_topic(sql_world)
    sql_world.sql("DELETE FROM ledger_list")
    sql_world.sql("DELETE FROM topic")
    assert new_topic(sql_world).topic_id > first.topic_id


@pytest.mark.postgres
def test_active_topics_come_in_pages_by_id(world: World) -> None:
    """A topic that is there all the time is in one page once, whatever is created or deleted meanwhile."""
    topics = [new_topic(world, f"{NAME}-{number}") for number in (3, 1, 2)]
    page = world.catalog.topics.list_active_topics
    assert page(after=TopicId(0), limit=2) == topics[:2]
    world.set_state(topics[0].topic_id, TopicState.DELETING)
    late = new_topic(world, f"{NAME}-0")
    assert page(after=topics[1].topic_id, limit=2) == [topics[2], late]
    assert page(after=late.topic_id, limit=2) == []
    assert page(after=TopicId(0), limit=1) == topics[1:2]
