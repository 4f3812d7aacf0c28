"""Schemas: what was set comes back, once for each content in a row."""

import hashlib
from collections.abc import Iterator

import pytest

from logstore.errors import CorruptData, InvalidInput, MissingData, UnknownObject
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import MAX_SCHEMA_BYTES
from logstore.ports.catalog.log import TopicState
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.component_world import World


@pytest.fixture
def world() -> Iterator[World]:
    """An empty topic."""
    with World() as found:
        yield found


def test_schema_set_counts_from_zero_and_reads_back(world: World) -> None:
    """Each version is a ledger of its own; the newest is read unless another is asked for."""
    registry = world.registry()
    made = [registry.set(world.topic, content) for content in (b"a", b"b", b"a")]
    assert [one.version for one in made] == [0, 1, 2]
    assert len({one.ledger_id for one in made}) == 3
    assert (made[1].digest, made[1].size_bytes) == (hashlib.sha256(b"b").hexdigest(), 1)
    assert world.registry().read(world.topic) == (made[2], b"a")
    assert world.registry().read(world.topic, 1) == (made[1], b"b")
    assert registry.all(world.topic.topic_id) == made


def test_schema_set_again_writes_nothing(world: World) -> None:
    """The newest version with this content is returned as it is."""
    registry = world.registry()
    made = registry.set(world.topic, b"a")
    calls = len(world.objects.calls)
    assert registry.set(world.topic, b"a") == made
    assert len(world.objects.calls) == calls
    assert len(world.catalog.ledger_rows) == 1


def test_schema_set_by_two_at_once_is_one_version(world: World) -> None:
    """The one that comes second retires its newborn (apache/pulsar#350)."""
    other = world.registry()
    first = []
    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: first.append(other.set(world.topic, b"a"))
        )
    )
    made = world.registry().set(world.topic, b"a")
    assert first == [made]
    assert len(world.listed(Component.SCHEMA_STORAGE)) == 1
    assert len(world.catalog.pending_deletion) == 1
    assert world.catalog.pending_deletion != [made.ledger_id]


def test_schema_newborn_taken_away_is_written_again(world: World) -> None:
    """A creator that slept through a trim makes another ledger, and leaves nothing behind."""

    def sleep() -> None:
        world.catalog.advance(seconds=601)
        world.catalog.replace_ledger_by_intents(next(iter(world.catalog.ledger_rows)), "")

    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=sleep))
    made = world.registry().set(world.topic, b"a")
    assert made.version == 0
    assert world.registry().read(world.topic) == (made, b"a")
    assert len(world.catalog.pending_deletion) == 1


@pytest.mark.parametrize("size", [0, MAX_SCHEMA_BYTES + 1])
def test_schema_of_a_size_that_is_refused_changes_nothing(world: World, size: int) -> None:
    """Bad input is refused before anything is written."""
    with pytest.raises(InvalidInput, match="schema: expected 1 to"):
        world.registry().set(world.topic, b"x" * size)
    assert (world.catalog.ledger_rows, world.objects.keys) == ({}, [])


def test_schema_of_the_largest_size_is_taken(world: World) -> None:
    """The limit is inclusive."""
    content = bytes(range(256)) * (MAX_SCHEMA_BYTES // 256)
    world.registry().set(world.topic, content)
    assert world.registry().read(world.topic)[1] == content


def test_schema_that_is_not_there_is_told_apart_from_one_that_is_lost(world: World) -> None:
    """Unknown version; listed without an object; another content than was set."""
    registry = world.registry()
    with pytest.raises(UnknownObject, match="a topic that has a schema"):
        registry.read(world.topic)
    made = registry.set(world.topic, b"a")
    with pytest.raises(UnknownObject, match="up to 0"):
        registry.read(world.topic, 1)
    key = segment_key(made.ledger_id, 0)
    held = world.objects._held.pop(key)
    with pytest.raises(MissingData, match=f"schema ledger {made.ledger_id}"):
        registry.read(world.topic)
    other = registry.set(world.topic, b"b")
    world.objects._held[key] = held
    world.objects._held[segment_key(other.ledger_id, 0)] = held
    with pytest.raises(CorruptData, match="digest"):
        registry.read(world.topic)


def test_schema_of_a_topic_that_is_being_deleted_is_refused(world: World) -> None:
    """A newborn that is overtaken by the deletion of its topic has an intent."""
    deleting = lambda: world.catalog.set_state(world.topic.topic_id, TopicState.DELETING)  # noqa: E731
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=deleting))
    with pytest.raises(Exception, match="expected state ACTIVE, found DELETING"):
        world.registry().set(world.topic, b"a")
    assert world.catalog.ledger_rows == {}
    assert len(world.catalog.pending_deletion) == 1
