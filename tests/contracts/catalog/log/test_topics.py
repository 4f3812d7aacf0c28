"""Topics."""

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, UnknownObject
from logstore.ports.catalog import Topic, TopicState
from logstore.positions import TopicId
from tests.contracts.catalog.steps import NAME, new_topic, race
from tests.contracts.catalog.worlds import SqlWorld, World


def test_create_topic_new_name_is_found_by_name_and_id(world: World) -> None:
    """What was created is what is read."""
    topic = new_topic(world, retention_s=60, retention_bytes=0)
    assert topic.name == NAME
    assert topic.state is TopicState.ACTIVE
    assert topic.policy == RetentionPolicy(retention_s=60, retention_bytes=0)
    assert world.catalog.topics.get(NAME) == topic
    assert world.catalog.topics.by_id(topic.topic_id) == topic
    assert world.catalog.ledgers.listed(topic.topic_id) == []
    assert world.catalog.ledgers.last(topic.topic_id) is None


def test_create_topic_name_taken_is_refused(world: World) -> None:
    """One name, one topic."""
    first = new_topic(world)
    with pytest.raises(AlreadyExists, match="topic"):
        new_topic(world)
    assert world.catalog.topics.all() == [first]


@pytest.mark.postgres
def test_create_topic_thirty_two_at_once_exactly_one_wins(world: World) -> None:
    """The name's key decides, not the look before the insert."""
    answers = race(lambda _: new_topic(world))
    winners = [answer for answer in answers if isinstance(answer, Topic)]
    assert len(winners) == 1
    assert {type(answer) for answer in answers} == {Topic, AlreadyExists}
    assert world.catalog.topics.all() == winners


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
    assert [topic.name for topic in world.catalog.topics.all()] == sorted(names)


def test_get_topic_unknown_name_or_id_is_refused(world: World) -> None:
    """An unknown topic is an error and not an empty one; names are case-sensitive."""
    topic = new_topic(world)
    with pytest.raises(UnknownObject, match="existing topic"):
        world.catalog.topics.get(NAME.upper())
    with pytest.raises(UnknownObject, match="existing topic"):
        world.catalog.topics.by_id(TopicId(topic.topic_id + 1))


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
    page = world.catalog.topics.active
    assert page(after=TopicId(0), limit=2) == topics[:2]
    world.set_state(topics[0].topic_id, TopicState.DELETING)
    late = new_topic(world, f"{NAME}-0")
    assert page(after=topics[1].topic_id, limit=2) == [topics[2], late]
    assert page(after=late.topic_id, limit=2) == []
    assert page(after=TopicId(0), limit=1) == topics[1:2]
