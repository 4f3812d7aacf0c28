"""Steps of a topic's deletion, and what is left of it."""

from logstore.log.ledgers import Component, CopyState
from logstore.ports.catalog.deletion import AuditCause, DetachedBatch
from logstore.ports.catalog.log import RegisterSegmentResult, Topic
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.delayed.steps import delay, seal
from tests.contracts.catalog.log.component_steps import CURSOR, publish
from tests.contracts.catalog.steps import (
    acknowledge,
    at,
    filled,
    newborn,
    segment,
)
from tests.contracts.catalog.worlds import CAUSE, MemoryWorld, World, claim

OTHER = "persistent://a/b/other"


def begin(world: World, topic: Topic, cause: AuditCause = CAUSE) -> int:
    """Set the topic DELETING."""
    return world.catalog.phase_one.begin_topic_deletion(topic.topic_id, topic.name, cause)


def detach_all(world: World, topic: Topic, batch_id: str = "all", *, ttl_s: float = 60) -> DetachedBatch:
    """Phase one for all of it."""
    return world.catalog.phase_one.detach_whole_topic(
        topic.topic_id, batch_id=batch_id, claim=claim(ttl_s=ttl_s), cause=CAUSE
    )


def remove(world: World, topic: Topic) -> bool:
    """The last step."""
    return world.catalog.phase_one.remove_topic(topic.topic_id, CAUSE)


def delete(world: World, topic: Topic) -> None:
    """All steps in the catalog, phase two left out."""
    begin(world, topic)
    detach_all(world, topic, f"all-{topic.topic_id}")
    assert remove(world, topic)


def schema_ledger(world: World, topic: Topic) -> LedgerId:
    """A listed ledger of a schema version."""
    keys = {"schema": topic.name}
    made = world.catalog.components.create_component_ledger(
        topic.topic_id, Component.SCHEMA_STORAGE, keys, application="sexton"
    )
    assert world.catalog.schemas.publish_schema_version(
        topic.topic_id, made.ledger_id, digest="d", content_bytes=1, size_bytes=1
    )
    return made.ledger_id


def rich(world: World, topic: Topic) -> dict[tuple[LedgerId, str], str]:
    """A topic with everything that can hang on one; its copies, each with its component."""
    ledgers = filled(world, topic.topic_id, 3)
    world.add_copy(ledgers[0], CopyState.LIVE, uuid=f"u-{ledgers[0]}")
    world.add_copy(ledgers[1], CopyState.WRITING, uuid=f"u-{ledgers[1]}")
    world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    acknowledge(world, topic.topic_id, CURSOR, (ledgers[1], 3))
    writes = [segment(topic.topic_id, ledgers[2], 1, producers=[("p", 0, 9)])]
    assert isinstance(world.catalog.commits.commit_writes(writes)[0], RegisterSegmentResult)
    cursor = publish(world, topic.topic_id, (ledgers[1], 3)).ledger_id
    schema = schema_ledger(world, topic)
    components = {cursor: "MANAGED_CURSOR", schema: "SCHEMA_STORAGE"}
    if not isinstance(world, MemoryWorld):  # which has no lists of buckets
        delay(world, topic.topic_id, ledgers[2], 3)
        components[seal(world, topic.topic_id, at(ledgers[0], 0), at(ledgers[0], 9)).bucket_id] = "DELAYED_INDEX"
    born = newborn(world, topic.topic_id)
    primary = {(one, "LEDGER"): "MANAGED_LEDGER" for one in (*ledgers, born)}
    offloaded = {(one, "OFFLOADED_LEDGER"): "MANAGED_LEDGER" for one in ledgers[:2]}
    return primary | offloaded | {(one, "LEDGER"): component for one, component in components.items()}


def left_of(world: World, topic_id: TopicId) -> dict[str, int]:
    """Rows that name the topic, by table; intents, runs and the audit log may."""
    return world.left_of(topic_id)


def intents(world: World) -> dict[tuple[LedgerId, str], str]:
    """Every intent with its component."""
    found = world.catalog.deletions.list_intents(None, limit=1000)
    return {(one.ledger_id, one.copy.value): one.component for one in found}
