"""A segment's digest stands in its row, whoever registers it."""

from dataclasses import replace

from logstore.log.ledgers import Component
from logstore.positions import LedgerId
from tests.contracts.catalog.log.component_steps import CURSOR, change_of, cursor_newborn, snapshot
from tests.contracts.catalog.steps import filled, new_topic, segment
from tests.contracts.catalog.world import World

_DIGEST = "ab" * 32


def digests(world: World, ledger_id: LedgerId) -> list[str | None]:
    """Of the ledger's segments, ascending."""
    return [one.sha256 for one in world.catalog.ledgers.list_segments(ledger_id)]


def test_digest_of_a_segment_comes_back_and_one_that_is_not_known_is_none(world: World) -> None:
    """Segments from before digests are told apart."""
    topic = new_topic(world).topic_id
    (ledger,) = filled(world, topic, 1)
    world.catalog.commits.commit_writes([replace(segment(topic, ledger, 7), sha256=_DIGEST)])
    assert digests(world, ledger) == [None, _DIGEST]


def test_digest_of_a_component_ledger_comes_back(world: World) -> None:
    """Cursor and schema ledgers are compared as ledgers of messages are."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 1)
    world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    cursor = snapshot(cursor_newborn(world, topic.topic_id), (0, 5))
    change = change_of(world, topic.topic_id)
    assert world.catalog.cursors.publish_snapshot(change, cursor, size_bytes=50, sha256=_DIGEST)
    keys, component = {"schema": topic.name}, Component.SCHEMA_STORAGE
    schema = world.catalog.components.create_component_ledger(
        topic.topic_id, component, keys, application="sexton"
    ).ledger_id
    publish = world.catalog.schemas.publish_schema_version
    assert publish(topic.topic_id, schema, digest="d", content_bytes=1, size_bytes=50, sha256=_DIGEST[::-1])
    assert digests(world, cursor.ledger_id) == [_DIGEST]
    assert digests(world, schema) == [_DIGEST[::-1]]
