"""Schema versions: counted from 0, one ledger each, the same content once in a row."""

from itertools import pairwise

import pytest

from logstore.errors import PreconditionFailed
from logstore.log.ledgers import Component, LedgerState
from logstore.ports.catalog.log import SchemaVersion, Topic, TopicState
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import filled, new_topic, race
from tests.contracts.catalog.worlds import SqlWorld, World


def _newborn(world: World, topic: Topic) -> LedgerId:
    keys = {"schema": topic.name}
    made = world.catalog.components.create_component_ledger(
        topic.topic_id, Component.SCHEMA_STORAGE, keys, application="sexton"
    )
    return made.ledger_id


def _publish(world: World, topic: Topic, ledger_id: LedgerId, digest: str) -> SchemaVersion | None:
    return world.catalog.schemas.publish_schema_version(
        topic.topic_id, ledger_id, digest=digest, content_bytes=7, size_bytes=900
    )


def _set(world: World, topic: Topic, digest: str) -> SchemaVersion:
    made = _publish(world, topic, _newborn(world, topic), digest)
    assert made
    return made


def test_schema_versions_count_from_zero_and_list_their_ledgers(world: World) -> None:
    """Each has a ledger that is listed, closed and the schema's own."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    assert world.catalog.schemas.newest_schema_version(topic.topic_id) is None
    made = [_set(world, topic, digest) for digest in ("a", "b")]
    _set(world, other, "z")
    assert [one.version for one in made] == [0, 1]
    assert world.catalog.schemas.list_schema_versions(topic.topic_id) == made
    assert world.catalog.schemas.newest_schema_version(topic.topic_id) == made[-1]
    found = world.catalog.components.list_ledgers(topic.topic_id)
    assert [one.ledger_id for one in found] == [one.ledger_id for one in made]
    assert {(one.component, one.state, one.size_bytes, one.last_segment) for one in found} == {
        (Component.SCHEMA_STORAGE, LedgerState.CLOSED, 900, 0)
    }
    assert {one.keys["schema"] for one in found} == {topic.name}
    assert made[0].size_bytes == 7


@pytest.mark.postgres
def test_ledgers_of_all_components_are_the_same_in_pages(world: World) -> None:
    """The data ledgers first, each list in its order, none twice; or those of one component."""
    topic = new_topic(world)
    data = filled(world, topic.topic_id, 5)
    schemas = [_set(world, topic, digest).ledger_id for digest in ("a", "b")]
    pages = world.catalog.components.iterate_ledger_pages

    def ids(**named: Component) -> list[LedgerId]:
        return [ledger.ledger_id for page in pages(topic.topic_id, **named) for ledger in page]

    assert (
        ids() == [*data, *schemas] == [one.ledger_id for one in world.catalog.components.list_ledgers(topic.topic_id)]
    )
    assert ids(component=Component.MANAGED_LEDGER) == data
    assert ids(component=Component.SCHEMA_STORAGE) == schemas
    assert ids(component=Component.DELAYED_INDEX) == []


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pages_of_any_size_hold_every_ledger_once(
    sql_world: SqlWorld, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last page is full; copies and keys are those of the ledger."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 5)
    _set(sql_world, topic, "a")
    whole = sql_world.catalog.components.list_ledgers(topic.topic_id)
    monkeypatch.setattr("logstore.catalog.log.component_ledgers._LEDGERS_PER_PAGE", size)
    assert sql_world.catalog.components.list_ledgers(topic.topic_id) == whole
    assert max(len(page) for page in sql_world.catalog.components.iterate_ledger_pages(topic.topic_id)) == size


def test_schema_of_the_newest_content_is_returned_and_its_newborn_filed(world: World) -> None:
    """Two who set the same at once get one version; the second newborn is not forgotten (apache/pulsar#350)."""
    topic = new_topic(world)
    made = _set(world, topic, "a")
    loser = _newborn(world, topic)
    assert _publish(world, topic, loser, "a") == made
    assert world.intents() == [loser]
    assert world.catalog.schemas.list_schema_versions(topic.topic_id) == [made]


def test_schema_that_comes_back_is_a_version_of_its_own(world: World) -> None:
    """What was set last is the newest, also when an older version had the same content."""
    topic = new_topic(world)
    assert [_set(world, topic, digest).version for digest in ("a", "b", "a")] == [0, 1, 2]
    assert world.intents() == []


def test_schema_published_twice_counts_once(world: World) -> None:
    """Repeated after an unknown outcome, also when a newer version came in between."""
    topic = new_topic(world)
    ledger_id = _newborn(world, topic)
    made = _publish(world, topic, ledger_id, "a")
    assert _publish(world, topic, ledger_id, "a") == made
    _set(world, topic, "b")
    assert _publish(world, topic, ledger_id, "a") == made
    assert [one.digest for one in world.catalog.schemas.list_schema_versions(topic.topic_id)] == ["a", "b"]
    assert world.intents() == []


def test_schema_of_a_topic_that_is_being_deleted_is_refused_and_filed(world: World) -> None:
    """Nothing joins a topic that is going, and its newborn goes with it."""
    topic = new_topic(world)
    ledger_id = _newborn(world, topic)
    world.set_state(topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
        _publish(world, topic, ledger_id, "a")
    assert world.intents() == [ledger_id]
    assert world.catalog.schemas.list_schema_versions(topic.topic_id) == []
    with pytest.raises(PreconditionFailed, match="ACTIVE, found DELETING"):
        _newborn(world, topic)


def test_schema_newborn_taken_for_abandoned_is_told_so(world: World) -> None:
    """Its creator writes another one."""
    topic = new_topic(world)
    late = _newborn(world, topic)
    world.age(late, seconds=601)
    world.phase_one(topic.topic_id)
    assert _publish(world, topic, late, "a") is None
    assert world.catalog.schemas.list_schema_versions(topic.topic_id) == []


@pytest.mark.postgres
def test_schema_sixteen_at_once_have_no_gap_and_no_twin(world: World) -> None:
    """Versions are numbered under the lock of their list."""
    topic = new_topic(world)
    answers = race(lambda number: _set(world, topic, f"{number % 4}"), 16)
    versions = world.catalog.schemas.list_schema_versions(topic.topic_id)
    assert [one.version for one in versions] == list(range(len(versions)))
    assert all(one.digest != after.digest for one, after in pairwise(versions))
    assert {answer.ledger_id for answer in answers if isinstance(answer, SchemaVersion)} == {
        one.ledger_id for one in versions
    }
    assert len(versions) + len(world.intents()) == 16
